"""What an operator of the walk finds when it is its turn: what was written before, with which error, by whom."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from typing import Iterator, Mapping, Optional, Sequence

from npucmp.flow.contents import is_few
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import SINGLE
from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import Case, error_of, error_size
from npucmp.localise.condition import Scale, scale_of
from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.background import QUANTILE
from npucmp.localise.sources import Source, Sources
from npucmp.measure.recorded import has_equal_xor
from npucmp.model import DIFFERS, Finding, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import containers, is_folded, is_meaningless, is_output, is_parameter

SAVED = 2.0  # round-offs that what a forward saved is off by in float32, where outputs were seen up to 21; 1 in 16 bits
RECENT = 8  # operators, whose outputs code that was not dumped most likely reads
Read = tuple[Finding, Optional[float]]


class Past:
    """The tensors seen so far, which of them descend from a root, and how large errors are that descend from none.

    unproven: how large an error may be that came of the parameters and that statistics do not prove.
    """

    def __init__(
        self,
        rules: Rulebook,
        by_round_off: bool,
        scopes: Mapping[str, str],
        sources: Sources,
        unproven: float = 0.0,
    ) -> None:
        self.sources = sources
        self._passed: list[OperatorFindings] = []  # operators that were passed by, whose errors are not known here yet
        self.any_tainted = False
        self.flipped = 0.0  # largest share of a choice that fell otherwise, as near ties do
        self._last_agreeing: Optional[Finding] = None
        self.inside: dict[str, str] = {}  # container → the first operator in it that has the error
        self.behind: dict[int, Optional[float]] = {}  # output without partner → error of what it is made of
        self._rules = rules
        self._by_round_off = by_round_off
        self._unproven = unproven
        self._scopes = scopes
        self.left_over: set[int] = set()  # by id, findings of what is left of a sum that cancels
        self.left = 0.0  # largest error of those
        self._recent: deque[float] = deque(maxlen=RECENT)  # largest errors of the outputs of the latest of these
        self._sizes: deque[float] = deque(maxlen=RECENT)  # rms of the outputs of the latest operators
        self._gradients: deque[float] = deque(maxlen=RECENT)  # norms of those of the latest operators
        self._errors: list[float] = []  # of what else descends from no root, sorted
        self._latest: dict[tuple[int, ...], tuple[int, float]] = {}  # shape → row and error of the latest output

    @property
    def any_marked(self) -> bool:
        """Whether any tensor has a mark that an operator hands on: an error of a root, or that it means nothing."""
        return self.any_tainted or self.sources.any_meaningless

    def is_marked(self, finding: Finding) -> bool:
        """Whether an input comes from a tensor that has such a mark."""
        source = self.sources.of(finding)
        return source is not None and (source.tainted or source.meaningless)

    def is_half_known(self, node: OperatorFindings) -> bool:
        """Whether an error is about already that may have come in by what was not recorded."""
        return self.any_tainted and not node.reads_recorded

    def is_saved_known(self, node: OperatorFindings) -> bool:
        """Whether what a forward saved for its backward was compared, if it saves anything."""
        return not node.reads_saved or (bool(node.context) and not self.unread(node))

    def unread(self, node: OperatorFindings) -> list[Finding]:
        """What its forward read or wrote and could not be compared."""
        found = [one for one in node.context if self.seen(one).verdict is Verdict.UNREADABLE]
        return [one for one in found if not is_parameter(one.pair)]

    def input_error(self, node: OperatorFindings) -> Optional[float]:
        """Largest error among all that the operator reads; None when what was compared agrees, and there is more."""
        read = self.read(node)
        if not self.is_known(node, read) and not any(map(self._is_reached, node.inputs)):
            return None
        errors = [_share(node, finding, error) for finding, error in read]
        if not node.op.has("saves nothing"):
            errors += [_share(node, finding, self._error(finding)) for finding in node.context]
        return max((error for error in errors if error is not None), default=0.0)

    def reach(self, node: OperatorFindings, finding: Finding, saved: bool) -> float:
        """The error of what the operator reads, as far as it can reach what it writes; saved: it is no input."""
        if saved and node.op.has("saves nothing"):
            return 0.0
        return _share(node, finding, error_size(finding)) or 0.0

    def came_in(self, node: OperatorFindings, finding: Finding, known: Optional[float]) -> float:
        """The error that came in, for one output, with what stands for the part that nobody knows."""
        if known is None:
            statistics = finding.measurement.bound is not None
            usual = self.left if self.wanders(node) else self.background(finding)
            return max(usual, self._unproven if statistics else 0.0, self._unseen_drift(node))
        if self.is_saved_known(node) or not self._by_round_off:
            return known if node.is_gradient else max(known, self._unseen_drift(node))
        unit = Case(finding).round_off
        return max(known, self.background(finding), unit * (SAVED if unit <= SINGLE else 1.0))

    def _unseen_drift(self, node: OperatorFindings) -> float:
        """What the updates before may have made of parameters that were not recorded."""
        unseen = any(is_parameter(one.pair) and one.error is None for one in node.inputs)
        return self._unproven if unseen or (node.op.parameters and not node.reads_recorded) else 0.0

    def is_known(self, node: OperatorFindings, read: Sequence[Read]) -> bool:
        """Whether all that the operator reads was compared, here or where it was written. Weights that were folded
        have nothing to be compared with: what is wrong in them is this operator's."""
        read = [(finding, error) for finding, error in read if not is_folded(finding.pair)]
        data = [error for finding, error in read if not is_parameter(finding.pair)]
        if not node.reads_recorded or (data and all(error is None for error in data)):
            return False
        return not any(
            error is None and (finding.verdict is not Verdict.MISSING or self._is_unseen(node, finding))
            for finding, error in read
        )

    def read(self, node: OperatorFindings) -> list[Read]:
        """What the operator reads, with its error if that is known; memory that nobody wrote left out."""
        found = []
        for finding in node.inputs:
            source = self.sources.of(finding)
            if source is not None and source.meaningless:
                continue
            error = self._stand_in(node, finding) if self.overwritten(node, finding) else self._error(finding)
            if error is None and source:
                error = self.behind.get(source.finding.row, self._error(source.finding))
            found.append((finding, error))
        return found

    def _is_reached(self, finding: Finding) -> bool:
        """Whether an error is known to come in here."""
        source = self.sources.of(finding)
        return differs(finding) or (finding.error is None and source is not None and source.tainted)

    def _is_unseen(self, node: OperatorFindings, finding: Finding) -> bool:
        """Whether one of the runs did not record what its operators read, this input among it."""
        operators = node.pair.target_op, node.pair.golden_op
        unseen = any(operator is not None and not operator.reads_recorded for operator in operators)
        return unseen and not is_parameter(finding.pair)

    def _stand_in(self, node: OperatorFindings, finding: Finding) -> float:
        """For an operand that was overwritten before it was recorded: the error of the latest output of its shape; none
        for running statistics that a gradient does not depend on."""
        if node.is_gradient:
            return 0.0
        self._catch_up()
        shape = finding.pair.golden.shape if finding.pair.golden else ()
        error = self._latest[shape][1] if shape in self._latest else self.background(finding)
        return max(error, Case(finding).round_off)

    def _error(self, finding: Finding) -> Optional[float]:
        error = error_of(finding)
        if self._by_round_off or error is None:
            return error
        return error if differs(finding) else 0.0

    def seen(self, finding: Finding) -> Finding:
        """What an operator reads, as it was written if it was only compared there."""
        source = self.sources.of(finding) if finding.error is None else None
        return source.finding if source else finding

    def overwritten(self, node: OperatorFindings, finding: Finding) -> bool:
        """Whether a recorded input says nothing of what the operator read."""
        asked = node.op.has("in place", "averages")  # of no other, but for checksums
        if not asked and finding.metric != "checksum":
            return False
        nowhere = asked and self.sources.of(finding) is None
        return self._rules.holds("overwritten", Case(finding, node, nowhere=nowhere))

    def background(self, finding: Finding) -> float:
        """What stands for an error that is not known: a quantile of those seen so far; for a single number, which may
        be what is left of a sum that cancels, the largest."""
        self._catch_up()
        if not (self._errors or self.left) or not self._rules.holds("background", Case(finding)):
            return 0.0
        if is_few(finding):
            return max([*self._errors[-1:], self.left])
        usual = self._errors[int(QUANTILE * (len(self._errors) - 1))] if self._errors else 0.0
        return max(usual, *self._recent, self.below_rounding(finding))

    def below_rounding(self, finding: Finding) -> float:
        """The error that rounding of terms as large as what was just written makes of a gradient that is smaller than
        that rounding: of a bias that the network does not depend on, whose gradient is zero in exact arithmetic."""
        operator = finding.pair.operator
        if is_output(finding.pair) or not (is_gradient(operator) or op_type_of(operator).has("collective")):
            return 0.0
        self._catch_up()
        size, unit = scale_of(finding).rms, max(finding.working, finding.limit / FACTOR)
        rounding = unit * max(self._sizes, default=0.0)
        return rounding / size if 0.0 < size <= FACTOR * rounding else 0.0

    def origin(self, finding: Finding) -> Optional[Finding]:
        """The tensor of equal content that either run wrote or read before, if that agrees: what one run read from
        there, the other run changed on the way."""
        found = self.sources.of(finding), self.sources.of_target(finding)
        return next((one.finding for one in found if one and not one.tainted and _agrees(one.finding)), None)

    def may_cancel(self, finding: Finding) -> bool:
        """Whether an input of few elements may be left over from a sum whose terms cancel. A gradient that exceeds the
        latest gradients is no such sum: the backward pass begins with a number that only constants multiplied."""
        if not is_gradient(finding.pair.operator):
            return is_few(finding)
        self._catch_up()
        return is_few(finding) and scale_of(finding).largest < max(self._gradients, default=0.0)

    def wanders(self, node: OperatorFindings) -> bool:
        """Whether the largest error that an operator reads is that of what was left of a sum that cancels."""
        if not node.inputs:
            return bool(node.presumed) and all(one.row in self.left_over for one in node.presumed)
        worst = max(node.inputs, key=error_size, default=None)
        source = self.sources.of(worst) if worst is not None and error_size(worst) else None
        return source is not None and source.wanders

    def hands_on_nothing(self, node: OperatorFindings) -> bool:
        """Whether an operator copies memory that nobody wrote, or looks at it."""
        if not node.inputs or not node.op.has("copies", "hands on", "views"):
            return False
        return all(source is not None and source.meaningless for source in map(self.sources.of, node.inputs))

    def pass_on_nothing(self, node: OperatorFindings) -> None:
        """What it wrote is memory that nobody wrote, too."""
        for finding in node.outputs:
            self.sources.learn(Source(finding, tainted=False, meaningless=True))

    def pass_by(self, node: OperatorFindings) -> None:
        """Takes in an operator of which no tensor differs and that no error reaches."""
        self._passed.append(node)

    def _catch_up(self) -> None:
        """Takes in the errors of the operators that were passed by."""
        if not self._passed:
            return
        passed, self._passed = self._passed, []
        found = [error for node in passed for error in self._errors_of(node)]
        self._errors = sorted(self._errors + found)
        for node in passed:
            self._learn_shapes(node)
        for node in passed[-RECENT:]:
            self._learn_sizes(node)
        for node in [node for node in passed if node.is_gradient][-RECENT:]:
            self._gradients.append(_largest_norm(node))
        agreeing = (one for node in reversed(passed) for one in _latest_first(node) if _agrees(one))
        self._last_agreeing = next(agreeing, self._last_agreeing)

    @property
    def last_agreeing(self) -> Optional[Finding]:
        """The latest tensor that agrees, of operators that no error reaches."""
        self._catch_up()
        return self._last_agreeing

    def _errors_of(self, node: OperatorFindings, wanders: bool = False) -> Iterator[float]:
        """The errors of what an operator reads and writes, as far as they are known, without what is left of sums."""
        read = [] if wanders else [one for one in node.inputs if not self.overwritten(node, one)]
        for finding in (*read, *node.outputs):
            error = error_of(finding) if finding.error is not None else finding.measurement.bound
            if error is not None and math.isfinite(error) and finding.row not in self.left_over:
                yield error

    def _learn_shapes(self, node: OperatorFindings) -> None:
        for finding in node.outputs:
            if finding.pair.golden is not None and error_of(finding) is not None:
                row, _ = self._latest.get(finding.pair.golden.shape, (-1, 0.0))
                if row < finding.row:
                    self._latest[finding.pair.golden.shape] = finding.row, error_size(finding)

    def _learn_sizes(self, node: OperatorFindings) -> None:
        self._sizes.append(max((scale_of(one).rms for one in node.outputs), default=0.0))
        own = [error_size(one) for one in node.outputs if one.row not in self.left_over]
        self._recent.append(max(filter(math.isfinite, own), default=0.0))

    def remember(self, node: OperatorFindings) -> None:
        wanders = self.wanders(node)
        for finding in node.inputs:
            left = wanders or finding.row in self.left_over
            tainted = (node.tainted or node.inherits) and differs(finding)
            self.sources.learn(Source(finding, tainted, wanders=left and differs(finding)))
        for finding in node.outputs:
            tainted = node.tainted and (differs(finding) or finding.error is None)
            left = finding.row in self.left_over or (wanders and differs(finding))
            self.sources.learn(Source(finding, tainted, is_meaningless(finding.pair), left))
            if left and math.isfinite(error_size(finding)):
                self.left = max(self.left, error_size(finding))
                self.left_over.add(finding.row)
        self._learn_shapes(node)
        if node.tainted:
            self.any_tainted = True
            for container in containers(node.operator, self._scopes):
                self.inside.setdefault(container, node.operator.name)
            return
        self._catch_up()
        for error in self._errors_of(node, wanders):
            insort(self._errors, error)
        self._learn_sizes(node)
        if node.is_gradient:
            self._gradients.append(_largest_norm(node))
        self._last_agreeing = next(filter(_agrees, _latest_first(node)), self._last_agreeing)


def _latest_first(node: OperatorFindings) -> Iterator[Finding]:
    return iter((*node.outputs, *node.inputs[::-1]))


def _largest_norm(node: OperatorFindings) -> float:
    scales = map(scale_of, (*node.inputs, *node.outputs))
    return max((one.rms * math.sqrt(one.elements) for one in scales), default=0.0)


def _share(node: OperatorFindings, finding: Finding, error: Optional[float]) -> Optional[float]:
    """The error of what an operator reads, as far as it can reach what it writes: of a sum by the part that the operand
    is of it, and so the bias of a product, which reaches no gradient; nor does a gradient read what its forward wrote.
    """
    if error and node.op.has("sums") and node.op.has("saves nothing") and not node.is_gradient:
        return error * _part(node, finding)
    if not error or not node.op.has("contracts"):
        return error
    if node.is_gradient and finding.pair.slot.startswith("output"):
        return None
    if not is_parameter(finding.pair) or len(finding.pair.golden.shape if finding.pair.golden else ()) != 1:
        return error
    if node.is_gradient:
        return None
    return error * _part(node, finding)


def _part(node: OperatorFindings, finding: Finding) -> float:
    """How large an operand is beside the result, 1 at most, and of a sum over elements of one operand."""
    read, wrote = scale_of(finding), max(map(scale_of, node.outputs), default=Scale())
    return min(1.0, read.rms / wrote.rms) if wrote.rms and 0 < read.elements <= wrote.elements else 1.0


def differs(finding: Finding) -> bool:
    """Whether the two sides are not the same, as its verdict says."""
    return finding.verdict in DIFFERS


def _agrees(finding: Finding) -> bool:
    """Whether a comparison found nothing, be it of statistics or of an XOR that prove nothing."""
    if finding.verdict is not Verdict.UNKNOWN:
        return finding.verdict is Verdict.MATCH
    return is_alike(finding)


def is_alike(finding: Finding) -> bool:
    """Whether statistics or an XOR of a tensor were compared that prove no error."""
    return finding.error is None and (finding.measurement.bound is not None or has_equal_xor(finding.pair))
