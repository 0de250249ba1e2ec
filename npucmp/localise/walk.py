"""Findings in graph order → which operator bears the error, which passes it on.

The question is asked operator by operator, in execution order: do its inputs agree? If not, does what was
dumped before explain that? Do its outputs differ by more than its inputs explain? docs/localisation.md tells the
rules with the evidence for each number.
"""

from __future__ import annotations

import math
from bisect import insort
from statistics import median
from typing import Iterable, Mapping, Optional, Sequence

from npucmp.judge.verdicts import FACTOR
from npucmp.localise import evidence
from npucmp.localise.explain import (
    GROWTH,
    by_arguments,
    common_factor,
    error_of,
    explained,
    flipped,
    from_equal_bits,
    scale_limit,
    scaled,
    size_of,
    torn,
    unlike_copy,
    wrong_parameter,
)
from npucmp.localise.nodes import IN_PLACE, Node, containers, is_meaningless, is_output, is_parameter, nodes_of
from npucmp.localise.producers import Source, Trail, fingerprint
from npucmp.measure import metrics
from npucmp.model import DIFFERS, Cause, Finding, Pair, Root, Verdict

OVERWRITTEN = {"batch_norm": ("input:1", "input:2"), "instance_norm": ("input:1", "input:2")}  # running statistics
HOPELESS = 64.0  # an error of 64 √u is no rounding any more, however slowly it grew: 1.6 % in float32
BACKGROUND = 0.95  # quantile of the errors seen so far that an input of unknown origin is held against


def find_roots(findings: Sequence[Finding], by_round_off: bool = True) -> tuple[list[Finding], list[Root]]:
    """(findings with `diverged` taken back where inputs explain the error, roots in graph order; ranks.py places them).

    by_round_off is False when the user's own rules decide; then nothing is taken back.
    """
    findings = [_disregard(finding) if is_meaningless(finding.pair) else finding for finding in findings]
    nodes = nodes_of(findings)
    alone = {f.pair.order: f.pair for f in findings if f.pair.target_op is None or f.pair.golden_op is None}
    scopes = {node.operator.name: node.operator.scope for node in nodes if node.operator.scope}
    search = _Search(by_round_off, alone, scopes, _parameter_error(nodes))
    for node in nodes:
        search.visit(node)
    search.finish()
    return [search.revised.get(id(finding), finding) for finding in findings], search.roots


def _parameter_error(nodes: Sequence[Node]) -> float:
    """Median error of the parameters: 0 at the start of two runs, the noise of the steps before in a later one."""
    errors = [size_of(finding) for node in nodes for finding in node.inputs if is_parameter(finding.pair)]
    return median(errors) if errors else 0.0


def _disregard(finding: Finding) -> Finding:
    """A difference in uninitialised memory or a workspace decides nothing."""
    if finding.verdict not in (Verdict.DIVERGED, Verdict.NONFINITE):
        return finding
    because = f"uninitialised memory or a workspace, whose content means nothing ({finding.because})"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None)


def _live(finding: Finding) -> Finding:
    """A checksum of a tensor that is overwritten meanwhile decides nothing; values that were kept are what they are."""
    if finding.metric != "checksum":
        return finding
    because = "the checksum of a tensor that its operator overwrites in place, taken at an unknown moment"
    return finding._replace(verdict=Verdict.UNKNOWN, because=because, error=None)


class _Search:
    """Walks the operators once, in order, remembering which tensors descend from a root."""

    def __init__(
        self, by_round_off: bool, alone: Mapping[int, Pair], scopes: Mapping[str, str], parameters: float
    ) -> None:
        self.by_round_off = by_round_off
        self.roots: list[Root] = []
        self.revised: dict[int, Finding] = {}
        self._trail = Trail()
        self._errors: list[float] = []
        self._latest: dict[tuple[int, ...], float] = {}  # shape → error of the latest output
        self._any_tainted = False
        self._steepest: Optional[tuple[float, Node, Finding]] = None
        self._hopeless: Optional[Finding] = None
        self._last_agreeing: Optional[Finding] = None
        self._parameters = parameters  # median error of the parameters
        self._alone = alone  # operators that one side has, by their place
        self._scopes = scopes
        self._inside: dict[str, str] = {}  # container → the first operator in it that has the error
        self._behind: dict[int, Optional[float]] = {}  # output without partner → error of what it is made of

    def visit(self, node: Node) -> None:
        """Decides one operator and what follows from it for the tensors it wrote."""
        gap, inherits = self._inputs(node)
        own = None if gap else self._own(node)
        diverged = [output for output in node.outputs if self._differs(output)]
        if gap:
            words = evidence.gap_words(gap, self._last_agreeing, self._writer(gap), self._between(node))
            self._add(node, Cause.GAP, gap, words)
            self._trail.read(Source(gap, tainted=True))  # its other readers are no further gaps
        elif own and self._culprit(node):
            self._add(node, Cause.PROPAGATED, own, evidence.contained_words(self._culprit(node)))
        elif own:
            self._add(node, self._cause(node, own), own, self._words(node, own))
        elif inherits and diverged:
            worst = max(diverged, key=size_of)
            self._add(node, Cause.PROPAGATED, worst, evidence.passed_words(self._input_error(node), worst))
        else:
            self._excuse([*diverged, *(finding for finding in node.inputs if self._overwritten(node, finding))])
            self._watch(node, diverged)
        hidden = [output for output in node.outputs if output.pair.is_inside and output.pair.golden is None]
        self._behind.update((id(output), self._input_error(node)) for output in hidden)
        node.tainted = bool(gap or own or (inherits and (diverged or any(o.error is None for o in node.outputs))))
        self._remember(node)

    def _writer(self, gap: Finding) -> str:
        """The output that an input comes from, where that was not dumped or could not be compared; "" elsewhere."""
        source = self._trail.source(gap)
        if source is None:
            return next((t.source for t in (gap.pair.target, gap.pair.golden) if t and t.source), "")
        pair = source.finding.pair
        return f"{pair.operator.name} {pair.slot}" if source.finding.error is None and is_output(pair) else ""

    def _between(self, node: Node) -> list[Pair]:
        """Operators of one side only, between the last operator that agrees and this one."""
        start = self._last_agreeing.pair.order if self._last_agreeing else -1
        return [self._alone[place] for place in range(start + 1, node.pair.order) if place in self._alone]

    def _watch(self, node: Node, excused: Sequence[Finding]) -> None:
        """Keeps the steepest of the growths that were excused, and the first error that is too large all the same."""
        known = self._input_error(node)
        for finding in excused if known else ():
            growth = size_of(finding) / (known or 1.0)
            if growth > GROWTH or not known or known > HOPELESS * math.sqrt(finding.limit / FACTOR):
                continue  # cancellation and flipped masks are no growth, nor is what descends from them
            if self._steepest is None or growth > self._steepest[0]:
                self._steepest = growth, node, finding
            if self._hopeless is None and size_of(finding) > HOPELESS * math.sqrt(finding.limit / FACTOR):
                self._hopeless = finding

    def finish(self) -> None:
        """Errors that grew step by step to something hopeless are not called agreement."""
        if self.roots or self._hopeless is None or self._steepest is None or not self.by_round_off:
            return
        growth, node, finding = self._steepest
        for kept in (finding, self._hopeless):
            self.revised.pop(id(kept), None)
        self._add(node, Cause.WORSENED, finding, evidence.gradual_words(finding, growth, self._hopeless))

    def _culprit(self, node: Node) -> str:
        """An operator inside this module that has the error already; "" if there is none."""
        operator = node.operator
        return self._inside.get(operator.name) or self._inside.get(f"{operator.phase} {operator.path}", "")

    def _inputs(self, node: Node) -> tuple[Optional[Finding], bool]:
        """(the input that differs although everything upstream agrees, whether an error is inherited)."""
        gap: Optional[Finding] = None
        inherits = False
        for finding in node.inputs:
            source = self._trail.source(finding)
            if source is not None and source.tainted:
                inherits |= source.finding.error is not None or finding.verdict is not Verdict.MATCH
            if source is None and not self._differs(finding) and self._is_wrong_parameter(finding):
                gap = gap or self._promote(finding, by_factor=False)
            if source is None and not self._differs(finding) and self._is_scaled_gap(finding):
                gap = gap or self._promote(finding, by_factor=True)
            if not self._differs(finding):
                continue
            if self._overwritten(node, finding):
                self.revised[id(finding)] = _live(finding)
                continue
            if source is not None and source.meaningless:
                self.revised[id(finding)] = _disregard(finding)
            elif self._is_gap(node, finding, source):
                gap = gap or finding
            elif source is None and self._any_tainted:
                inherits = True
            elif not (source and source.tainted):
                self._excuse([finding])
        return gap, inherits

    def _is_gap(self, node: Node, finding: Finding, source: Optional[Source]) -> bool:
        if source is not None:
            return not self._explained(finding, size_of(source.finding)) and not source.tainted
        if is_parameter(finding.pair):
            return True
        if self._any_tainted:
            return False
        before = self._background()
        flips = node.operator.phase == "backward" and before > 0 and flipped(finding, before)
        return not (flips or self._explained(finding, before)) or self._is_scaled_gap(finding)

    def _is_wrong_parameter(self, finding: Finding) -> bool:
        return self.by_round_off and is_parameter(finding.pair) and wrong_parameter(finding, self._parameters)

    def _is_scaled_gap(self, finding: Finding) -> bool:
        return self.by_round_off and not self._any_tainted and common_factor(finding, self._background())

    def _own(self, node: Node) -> Optional[Finding]:
        """The output whose error is more than what the inputs explain; the largest, if there are several."""
        known = self._input_error(node)
        diverged = [finding for finding in node.outputs if self._differs(finding)]
        unexplained = [finding for finding in diverged if not self._inherited(node, finding, known)]
        if unexplained:
            return max(unexplained, key=size_of)
        if not self.by_round_off or known is None:
            return None
        for test in (scaled, by_arguments, from_equal_bits, unlike_copy, torn):
            found = [finding for finding in node.outputs if test(node, finding, known)]
            if found:
                return self._promote(max(found, key=size_of), by_factor=test is scaled)
        return None

    def _inherited(self, node: Node, finding: Finding, known: Optional[float]) -> bool:
        """Whether an output's error is explained; behind a root, inputs below the limit count as at the limit."""
        if known is None:
            return self._explained(finding, self._background(), node)
        return self._explained(finding, max(known, finding.limit) if self._any_tainted else known, node)

    def _explained(self, finding: Finding, before: float, node: Optional[Node] = None) -> bool:
        """Where the user's own rules decide, inputs that agree by them explain nothing."""
        return explained(finding, before, node) if self.by_round_off or before > 0 else False

    def _promote(self, finding: Finding, by_factor: bool) -> Finding:
        """A finding that is diverged for another reason than the limit of rel_l2."""
        moments = finding.measurement.moments
        if by_factor and moments is not None:
            factor, limit = metrics.gain(moments), scale_limit(finding)
            because = f"scaled by 1 {'+' if factor > 0 else '-'} {abs(factor):.1e} as a whole, limit ±{limit:.1e}"
            found = finding._replace(verdict=Verdict.DIVERGED, because=because, metric="gain", limit=limit)
        else:
            because = f"rel_l2 {size_of(finding):.2e}, more than rounding gives here"
            found = finding._replace(verdict=Verdict.DIVERGED, because=because)
        self.revised[id(finding)] = found
        return found

    def _cause(self, node: Node, own: Finding) -> Cause:
        if not self._is_known(node, self._read(node)):
            return Cause.UNKNOWN
        if self._disagreeing(node):
            return Cause.WORSENED
        return Cause.UNKNOWN if self._is_half_known(node) else Cause.BORN

    def _is_half_known(self, node: Node) -> bool:
        """Whether an error is about already that may have come in by what was not recorded."""
        return self._any_tainted and not node.reads_recorded

    def _disagreeing(self, node: Node) -> list[Finding]:
        """What the operator reads that differs, after errors that are explained were taken back."""
        seen = [self._seen(finding) for finding in (*node.inputs, *node.context)]
        read = [self.revised.get(id(finding), finding) for finding in seen]
        return [finding for finding in read if self._differs(finding) and not self._overwritten(node, finding)]

    def _words(self, node: Node, own: Finding) -> evidence.Reasons:
        if not self._is_known(node, self._read(node)) or (not self._disagreeing(node) and self._is_half_known(node)):
            return evidence.unknown_words(own, [finding for finding, error in self._read(node) if error is None])
        read = [*node.inputs, *node.context]
        largest = max((self._size(finding) for finding in read if not self._overwritten(node, finding)), default=0.0)
        words = evidence.own_words(node.pair, own, largest, bool(node.inputs), not self._disagreeing(node))
        return words + evidence.follower_words(node.pair, self._alone.get(node.pair.order + 1))

    def _input_error(self, node: Node) -> Optional[float]:
        """Largest error among all that the operator reads; None when what was compared agrees, and there is more."""
        read = self._read(node)
        if not self._is_known(node, read) and not any(map(self._is_reached, node.inputs)):
            return None
        errors = [error for _, error in read] + [self._error(finding) for finding in node.context]
        return max((error for error in errors if error is not None), default=0.0)

    def _is_known(self, node: Node, read: "Sequence[tuple[Finding, Optional[float]]]") -> bool:
        """Whether all that the operator reads was compared, here or where it was written."""
        data = [error for finding, error in read if not is_parameter(finding.pair)]
        if not node.reads_recorded or (data and all(error is None for error in data)):
            return False
        return not any(
            error is None and (finding.verdict is not Verdict.MISSING or self._is_unseen(node, finding))
            for finding, error in read
        )

    def _read(self, node: Node) -> "list[tuple[Finding, Optional[float]]]":
        """What the operator reads, with its error if that is known; memory that nobody wrote left out."""
        found = []
        for finding in node.inputs:
            source = self._trail.source(finding)
            if source is not None and source.meaningless:
                continue
            error = self._stand_in(finding) if self._overwritten(node, finding) else self._error(finding)
            if error is None and source:
                error = self._behind.get(id(source.finding), self._error(source.finding))
            found.append((finding, error))
        return found

    def _is_reached(self, finding: Finding) -> bool:
        """Whether an error is known to come in here."""
        source = self._trail.source(finding)
        return self._differs(finding) or (finding.error is None and source is not None and source.tainted)

    def _is_unseen(self, node: Node, finding: Finding) -> bool:
        """Whether one of the runs did not record what its operators read, this input among it."""
        operators = node.pair.target_op, node.pair.golden_op
        unseen = any(operator is not None and not operator.reads_recorded for operator in operators)
        return unseen and not is_parameter(finding.pair)

    def _stand_in(self, finding: Finding) -> float:
        """For an operand that was overwritten before it was recorded: the error of the latest output of its shape."""
        shape = finding.pair.golden.shape if finding.pair.golden else ()
        return max(self._latest.get(shape, self._background()), finding.limit / FACTOR)

    def _error(self, finding: Finding) -> Optional[float]:
        error = error_of(finding)
        if self.by_round_off or error is None:
            return error
        return error if self._differs(finding) else 0.0

    def _size(self, finding: Finding) -> float:
        return size_of(self._seen(finding))

    def _seen(self, finding: Finding) -> Finding:
        """What an operator reads, as it was written if it was only compared there."""
        source = self._trail.source(finding) if finding.error is None else None
        return source.finding if source else finding

    def _differs(self, finding: Finding) -> bool:
        return finding.verdict in DIFFERS

    def _agrees(self, finding: Finding) -> bool:
        """Whether a comparison found nothing, be it of statistics that prove nothing."""
        return finding.verdict is Verdict.MATCH or (
            finding.verdict is Verdict.UNKNOWN and finding.measurement.bound is not None
        )

    def _overwritten(self, node: Node, finding: Finding) -> bool:
        """An in-place operator whose recorded input is its output says nothing about what it read.

        Checksums are taken of live tensors while the run goes on (msprobe 26.2): of what an operator overwrites,
        they differ between two identical runs.
        """
        op_type = node.operator.op_type
        if node.operator.phase == "backward":
            return False
        if finding.metric == "checksum":
            return finding.pair.slot in OVERWRITTEN.get(op_type, ("input:0",) if IN_PLACE.search(op_type) else ())
        if not IN_PLACE.search(op_type):
            return False
        mark = fingerprint(finding)
        return mark is not None and any(
            other is not None and mark.agrees(other) for other in map(fingerprint, node.outputs)
        )

    def _background(self) -> float:
        return self._errors[int(BACKGROUND * (len(self._errors) - 1))] if self._errors else 0.0

    def _excuse(self, findings: Iterable[Finding]) -> None:
        """Above the limit, but no more than the inputs explain and no descendant of a root: harmless."""
        for finding in findings:
            if self.by_round_off and finding.verdict is Verdict.DIVERGED and finding.metric == "rel_l2":
                because = f"{finding.because}; explained by the errors of its inputs"
                known = finding.measurement.moments is not None  # statistics bound an error from below only
                verdict = Verdict.MATCH if known else Verdict.UNKNOWN
                self.revised[id(finding)] = finding._replace(verdict=verdict, because=because)

    def _add(self, node: Node, cause: Cause, finding: Finding, words: evidence.Reasons) -> None:
        known = self._input_error(node)
        outputs = [e for e in map(error_of, node.outputs) if e is not None]
        self.roots.append(
            Root(
                place=0,
                pair=node.pair,
                cause=cause,
                slot=finding.pair.slot,
                metric=finding.metric or finding.verdict.value,
                value=_shown(finding),
                limit=finding.limit,
                input_error=known,
                output_error=max(outputs, default=None),
                evidence=words + (evidence.fused_words(node.pair) if cause is not Cause.PROPAGATED else ()),
            )
        )

    def _remember(self, node: Node) -> None:
        for finding in node.inputs:
            self._trail.read(Source(finding, node.tainted and self._differs(finding)), only_new=True)
        for finding in node.outputs:
            if finding.pair.golden is not None and error_of(finding) is not None:
                self._latest[finding.pair.golden.shape] = size_of(finding)
            tainted = node.tainted and (self._differs(finding) or finding.error is None)
            hidden = id(finding) in self._behind
            self._trail.wrote(node.pair, Source(finding, tainted, is_meaningless(finding.pair)), hidden)
        if node.tainted:
            self._any_tainted = True
            for container in containers(node.operator, self._scopes):
                self._inside.setdefault(container, node.operator.name)
        else:
            for finding in [*node.inputs, *node.outputs]:
                error = error_of(finding) if finding.error is not None else finding.measurement.bound
                if error is not None and math.isfinite(error):
                    insort(self._errors, error)
            agreeing = (one for one in (*node.outputs, *node.inputs[::-1]) if self._agrees(one))
            self._last_agreeing = next(agreeing, self._last_agreeing)


def _shown(finding: Finding) -> Optional[float]:
    """The figure of a row: what was measured, or a proven lower bound."""
    known = {metric.name: metric.function for metric in metrics.METRICS}
    if finding.metric in known and finding.measurement.moments is not None:
        value = known[finding.metric](finding.measurement.moments)
        return None if value is None else float(value)
    if finding.error is None or math.isnan(finding.error):
        return finding.measurement.bound
    return finding.error
