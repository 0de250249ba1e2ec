"""What an operator of the walk finds when it is its turn: what was written before, with which error, by whom."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Mapping, Optional, Sequence

from npucmp.localise.case import Case, error_of, error_size
from npucmp.localise.nodes import OperatorFindings, containers, is_folded, is_meaningless, is_parameter
from npucmp.localise.producers import TINY, Source, Trail
from npucmp.localise.rules import Rulebook
from npucmp.localise.rules.background import QUANTILE
from npucmp.model import DIFFERS, Finding, Verdict

MEANINGLESS = 0.25  # an error as large is that of a sum that cancels, and stands for no other tensor
Read = tuple[Finding, Optional[float]]


class Past:
    """The tensors seen so far, which of them descend from a root, and how large errors are that descend from none."""

    def __init__(self, rules: Rulebook, by_round_off: bool, scopes: Mapping[str, str]) -> None:
        self.trail = Trail()
        self.any_tainted = False
        self.flipped = 0.0  # largest share of a choice that fell otherwise, as near ties do
        self.last_agreeing: Optional[Finding] = None
        self.inside: dict[str, str] = {}  # container → the first operator in it that has the error
        self.behind: dict[int, Optional[float]] = {}  # output without partner → error of what it is made of
        self._rules = rules
        self._by_round_off = by_round_off
        self._scopes = scopes
        self._errors: list[float] = []  # of what descends from no root, sorted
        self._latest: dict[tuple[int, ...], float] = {}  # shape → error of the latest output

    def is_half_known(self, node: OperatorFindings) -> bool:
        """Whether an error is about already that may have come in by what was not recorded."""
        return self.any_tainted and not node.reads_recorded

    def input_error(self, node: OperatorFindings) -> Optional[float]:
        """Largest error among all that the operator reads; None when what was compared agrees, and there is more."""
        read = self.read(node)
        if not self.is_known(node, read) and not any(map(self._is_reached, node.inputs)):
            return None
        errors = [error for _, error in read] + [self._error(finding) for finding in node.context]
        return max((error for error in errors if error is not None), default=0.0)

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

    def read(self, node: OperatorFindings) -> "list[Read]":
        """What the operator reads, with its error if that is known; memory that nobody wrote left out."""
        found = []
        for finding in node.inputs:
            source = self.trail.source(finding)
            if source is not None and source.meaningless:
                continue
            error = self._stand_in(finding) if self.overwritten(node, finding) else self._error(finding)
            if error is None and source:
                error = self.behind.get(id(source.finding), self._error(source.finding))
            found.append((finding, error))
        return found

    def _is_reached(self, finding: Finding) -> bool:
        """Whether an error is known to come in here."""
        source = self.trail.source(finding)
        return differs(finding) or (finding.error is None and source is not None and source.tainted)

    def _is_unseen(self, node: OperatorFindings, finding: Finding) -> bool:
        """Whether one of the runs did not record what its operators read, this input among it."""
        operators = node.pair.target_op, node.pair.golden_op
        unseen = any(operator is not None and not operator.reads_recorded for operator in operators)
        return unseen and not is_parameter(finding.pair)

    def _stand_in(self, finding: Finding) -> float:
        """For an operand that was overwritten before it was recorded: the error of the latest output of its shape."""
        shape = finding.pair.golden.shape if finding.pair.golden else ()
        return max(self._latest.get(shape, self.background(finding)), Case(finding).round_off)

    def _error(self, finding: Finding) -> Optional[float]:
        error = error_of(finding)
        if self._by_round_off or error is None:
            return error
        return error if differs(finding) else 0.0

    def seen(self, finding: Finding) -> Finding:
        """What an operator reads, as it was written if it was only compared there."""
        source = self.trail.source(finding) if finding.error is None else None
        return source.finding if source else finding

    def overwritten(self, node: OperatorFindings, finding: Finding) -> bool:
        return self._rules.holds("overwritten", Case(finding, node))

    def background(self, finding: Finding) -> float:
        """What stands for an error that is not known: a quantile of those seen so far; for a single number, which may
        be what is left of a sum that cancels, the largest."""
        if not self._errors or not self._rules.holds("background", Case(finding)):
            return 0.0
        few = finding.pair.golden is not None and math.prod(finding.pair.golden.shape) < TINY
        if few:
            return self._errors[-1]
        count = bisect_left(self._errors, MEANINGLESS)
        return self._errors[int(QUANTILE * (count - 1))] if count else 0.0

    def remember(self, node: OperatorFindings) -> None:
        for finding in node.inputs:
            self.trail.read(Source(finding, node.tainted and differs(finding)), only_new=True)
        for finding in node.outputs:
            if finding.pair.golden is not None and error_of(finding) is not None:
                self._latest[finding.pair.golden.shape] = error_size(finding)
            tainted = node.tainted and (differs(finding) or finding.error is None)
            hidden = id(finding) in self.behind
            self.trail.wrote(node.pair, Source(finding, tainted, is_meaningless(finding.pair)), hidden)
        if node.tainted:
            self.any_tainted = True
            for container in containers(node.operator, self._scopes):
                self.inside.setdefault(container, node.operator.name)
        else:
            for finding in [*node.inputs, *node.outputs]:
                error = error_of(finding) if finding.error is not None else finding.measurement.bound
                if error is not None and math.isfinite(error):
                    insort(self._errors, error)
            agreeing = (one for one in (*node.outputs, *node.inputs[::-1]) if _agrees(one))
            self.last_agreeing = next(agreeing, self.last_agreeing)


def differs(finding: Finding) -> bool:
    """Whether the two sides are not the same, as its verdict says."""
    return finding.verdict in DIFFERS


def _agrees(finding: Finding) -> bool:
    """Whether a comparison found nothing, be it of statistics that prove nothing."""
    return finding.verdict is Verdict.MATCH or (
        finding.verdict is Verdict.UNKNOWN and finding.measurement.bound is not None
    )
