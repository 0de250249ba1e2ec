"""Search for root causes in graph-ordered Findings: which operator bears an error, and which operators propagate it.

Operators are evaluated in execution order. Do the inputs of an operator agree? If not, do upstream tensors explain the
difference? Do its outputs differ by more than its inputs explain? localise/rules/ decides what explains and what
accuses; this module has the search itself: order, producers, and descent from a root.

An input without a dumped producer differs if its error exceeds 8 times the 90 % quantile of the errors so far, or 8
times the largest of the last 8 operators, so that an uncaptured function in a bfloat16 run is no GAP. Numbers and
vectors that remain of cancelling sums count in neither figure, except single numbers; nor do tensors computed from
them. If outputs were not recorded, an input is also judged as the output of up to three operators just before it, or of
the operator that a graph names.

An operator is UNKNOWN if an input comes from an output that was not compared (localise/sources.py). A backward operator
is UNKNOWN if its forward was not recorded, cannot be read, or ran again on one side only with other values
(checkpointing); sums, views and copies save nothing and are exempt. A collective or a receive whose own inputs agree is
UNKNOWN if not all ranks of its group are compared: inputs of the other ranks may be wrong. Operators behind an UNKNOWN
operator are PROPAGATED. Weights that only the target's graph has, because a compiler folded others into them, are
exempt: the error is BORN "in this operator or in its folded weights".

Once an error descends from a root, inputs below their limit may have an error of the limit, so that operators behind a
normalisation are not BORN again. An error above the limit that the inputs explain and that descends from no root is no
divergence: the tensor is a `match`, and `because` gives the reason.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import count, takewhile
from typing import Mapping, Optional, Sequence

from npucmp.flow.contents import content_of, is_few, is_vector
from npucmp.flow.edges import Edges
from npucmp.flow.operators import OperatorFindings, nodes_of, numbered
from npucmp.judge.precision import round_off_of
from npucmp.judge.products import BEHIND
from npucmp.judge.tolerance import FACTOR, Limit
from npucmp.localise import evidence
from npucmp.localise.intervals import WORDS, Interval, Intervals, Reads, differs
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.recomputation import NAME as RECOMPUTED
from npucmp.localise.recomputation import Estimator, Recomputed, forward_of, recomputed
from npucmp.localise.root_cause import OwnError, explained, root_of
from npucmp.localise.rule_context import RuleContext, error_size
from npucmp.localise.rules import Rulebook, coarser, constant_rows, gradual, routed
from npucmp.localise.rules.growth import GROWTH
from npucmp.localise.rules.reduced import REDUCED
from npucmp.localise.seen_errors import SeenErrors, agrees, is_alike
from npucmp.localise.sources import Sources, TensorSource, Uncompared, Writer
from npucmp.localise.thresholds import disregard, overwritten
from npucmp.model import Cause, Evidence, Finding, Pair, Root, Verdict
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import containers, is_meaningless, is_output, is_parameter

EXPLAINED = {  # the words for the explanation, by rule; for other rules the incoming errors explain it
    constant_rows.NAME: "rounding in rows that are constant in its input",
    "cancellation": "the errors of the terms of its sum",
}
LAW = "law"  # the accusation that does not depend on the inputs of an operator
# accusations that do not rest on the size of an error
UNREFUTED = (LAW, "arguments", "coarser", "copy", "equal_bits", "given", "common_factor")


class RootSearch:
    """The search through one run, operator by operator, for callers that search several runs side by side.

    Visit each of `nodes` in order; then `finished` returns the findings, with `diverged` reverted where inputs explain
    the error, and the roots in that order; multi_rank.py gives them their priority. by_round_off is False if the user's
    own rules decide; then no finding is reverted. updates: the facts of the previous step about parameters. `revised`
    holds the reverted findings by row; rows are numbered from `first_row`. `carriers` maps the first operator that
    reads an error from another rank to the operator by which it arrived, if the outputs of that were not recorded; by
    order. `estimator` recomputes operators of both runs (recomputation.py); without it bounds alone decide.
    """

    def __init__(
        self,
        findings: Sequence[Finding],
        by_round_off: bool = True,
        rules: Optional[Rulebook] = None,
        updates: Optional[Updates] = None,
        left_out: Sequence[Pair] = (),
        first_row: int = 0,
        rank: Optional[int] = None,
        estimator: Optional[Estimator] = None,
    ) -> None:
        rules = rules or Rulebook()
        self.findings = [
            disregard(one) if differs(one) and rules.holds("meaningless", RuleContext(one)) else one
            for one in numbered(findings, first_row)
        ]
        self.nodes = nodes_of(self.findings)
        pairs = (one.pair for one in self.findings)
        alone = {pair.order: pair for pair in pairs if pair.target_op is None or pair.golden_op is None}
        scopes = {node.operator.name: node.operator.scope for node in self.nodes if node.operator.scope}
        uncompared = Uncompared(left_out)
        updates = updates or Updates()
        updates.hold(self.findings)
        sources = Sources(self.findings, Edges(self.findings, rank), first_row)
        self._search = _Search(
            rules, by_round_off, alone, scopes, sources, updates, coarser.habit(self.nodes), uncompared, estimator
        )
        if by_round_off and any(one.verdict is Verdict.DIVERGED and is_parameter(one.pair) for one in self.findings):
            from npucmp.localise.parameter_drift import rounded_parameters  # only needed if parameters differ

            self._search.rounded = rounded_parameters(self.findings)
        self.visit, self.revised, self.sources = self._search.visit, self._search.revised, sources
        self.carriers = self._search.carriers
        self.seen = self._search.seen

    def finished(self) -> tuple[list[Finding], list[Root]]:
        self._search.finish()
        return [self.revised.get(finding.row, finding) for finding in self.findings], self._search.roots


class _Search:
    """Visits the operators once, in order, and records which tensors descend from a root."""

    def __init__(
        self,
        rules: Rulebook,
        by_round_off: bool,
        alone: Mapping[int, Pair],
        scopes: Mapping[str, str],
        sources: Sources,
        updates: Updates,
        habit: float,
        uncompared: Uncompared,
        estimator: Optional[Estimator] = None,
    ) -> None:
        self._estimator = estimator if by_round_off else None
        self.rounded: tuple[frozenset[int], list[Evidence]] = frozenset(), []  # rows of parameters, and the evidence
        self._are_named = False  # whether the first of these parameters was reported
        self._guilty: set[str] = set()  # calls of operators that bear an error by recomputation
        self.rules = rules
        self.by_round_off = by_round_off
        self.roots: list[Root] = []
        self.revised: dict[int, Finding] = {}
        self._updates = updates
        self._habit = habit
        self._uncompared = uncompared
        self.seen = SeenErrors(sources.is_read)
        self.sources = sources
        self._intervals = Intervals(rules, by_round_off, sources, self.seen, updates)
        self._scopes = scopes
        self._inside: dict[str, str] = {}  # container → the first operator in it that has the error
        self._alone = alone  # operators that exist on one side, by their place
        self._unseen: dict[str, tuple[OperatorFindings, float]] = {}  # outputs not recorded, with the error read
        self._last_unseen: deque[str] = deque(maxlen=BEHIND)
        self._steepest: Optional[tuple[float, OperatorFindings, Finding]] = None
        self._hopeless: Optional[Finding] = None
        self.carriers: dict[int, int] = {}
        self._carrier: Optional[int] = None  # the order of a carrier whose output was not read yet
        self._explained: dict[tuple[int, float], Optional[Limit]] = {}  # for the operator that is visited

    def visit(self, node: OperatorFindings) -> None:
        """Judge one operator, and record the consequences for the tensors that it wrote."""
        if self._is_quiet(node) and not self._is_sampled(node):
            self.seen.pass_by(node, self._counted_inputs(node))
            self.sources.reach(node.outputs[-1])
            return
        self._explained.clear()
        if self._hands_on_nothing(node):
            self.revised.update((one.row, disregard(one)) for one in (*node.inputs, *node.outputs))
            for finding in node.outputs:
                self.sources.learn(TensorSource(finding, tainted=False, meaningless=True))
            return
        gap, inherits = self._edges(node)
        inherits |= node.carried or self._reads_what_differs(node) or self._intervals.is_half_known(node)
        reads = self._intervals.reads(node)
        own = None if gap else self._own(node, reads)
        diverged = [output for output in node.outputs if differs(output)]
        inherits |= bool(diverged and self._culprit(node))
        known = None if gap else self._recomputed(node, own, diverged, reads)
        guilty = self._found_guilty(node, own, known) if known and not self._culprit(node) else None
        innocent = known is not None and guilty is None and self._is_innocent(node, own, known, reads)
        if innocent:
            self.revised.pop(own.finding.row if own else -1, None)  # revert the words of an accusation
            own = None
            for output in diverged:
                self._explained[output.row, self.seen.flipped] = Limit(error_size(output), RECOMPUTED)
        if inherits and node.operator.path and not (gap or own or guilty):
            inherits = not diverged or any(self._written_inside(one) is None for one in diverged)
        if gap:
            self._add(node, *self._gap(node, gap), reads)
            # its other consumers are not further gaps
            self.sources.replace(TensorSource(gap.finding, tainted=True), content_of(gap.finding), gap.finding.row)
        elif guilty and self._follows(node):
            words = "the forward pass of this call produces the error"
            self._add(node, Cause.PROPAGATED, guilty[0], [evidence.reason("forward", words), *guilty[1]], reads)
        elif guilty:
            self._guilty.add(node.operator.call)
            self._add(node, Cause.BORN, *self._with_bounds(node, own, *guilty, reads), reads)
        elif own and self._culprit(node):
            reasons = [evidence.reason("container", "contains {name}, which has the error", name=self._culprit(node))]
            self._add(node, Cause.PROPAGATED, OwnError(own.finding, "container"), reasons, reads)
        elif own:
            cause, reasons = self._cause(node, reads), self._reasons(node, own.finding, reads)
            if known and not evidence.argument_reasons(node.pair):
                bound, (cause, found) = cause, known.cause(cause)
                reasons = [*found, *reasons]
                own = own if cause is bound else OwnError(own.finding, RECOMPUTED)
            self._add(node, cause, own, reasons, reads)
        elif inherits and diverged:
            worst = max(diverged, key=error_size)
            for output in diverged:
                self.revised[output.row] = explained(output, self._explanation(node, output, reads))
            by, reasons = self.revised[worst.row].explained_by, evidence.passed_reasons(worst, self._worst_read(node))
            reasons += known.cause(Cause.PROPAGATED)[1] if known else []
            self._add(node, Cause.PROPAGATED, OwnError(worst, by), reasons, reads)
        elif not (carried := self._carried(node)):
            self._excuse_all(node, diverged, reads)
        else:
            self.carriers[node.pair.order] = carried[1]
            self._add(node, Cause.PROPAGATED, carried[0], [evidence.tensor_reason(carried[0].finding)], reads)
        hidden = [output for output in node.outputs if output.pair.is_inside and output.pair.golden is None]
        self._intervals.behind.update((output.row, reads.error) for output in hidden)
        node.inherits = inherits
        unread = any(one.error is None for one in node.outputs) or (node.carried and not node.outputs)
        node.tainted = bool(gap or own or guilty or (inherits and (diverged or unread)))
        if node.carried and not node.outputs and not self._intervals.any_tainted:
            self._carrier = node.pair.order
        self._remember(node)
        if not node.outputs and node.inputs:
            self._last_unseen.append(node.operator.name)
            self._unseen[node.operator.name] = node, reads.error or 0.0

    def _recomputed(
        self, node: OperatorFindings, own: Optional[OwnError], diverged: Sequence[Finding], reads: Reads
    ) -> Optional[Recomputed]:
        """Recompute an operator in float64 if it is suspected or sampled, or if a rule other than growth explains an
        error above the limit."""
        if self._estimator is None or not any(one.measurement.moments for one in node.outputs):
            return None
        excused = any(self._is_excused(node, one, reads) for one in diverged)
        if own is not None or excused or self._estimator.is_sampled(node.pair.target_op):
            return recomputed(self._estimator, node)
        return None

    def _is_sampled(self, node: OperatorFindings) -> bool:
        if self._estimator is None or not any(one.measurement.moments for one in node.outputs):
            return False
        return self._estimator.is_sampled(node.pair.target_op)

    def _is_excused(self, node: OperatorFindings, finding: Finding, reads: Reads) -> bool:
        by = self._explanation(node, finding, reads)
        return by is not None and by.rule != "growth"

    def _found_guilty(
        self, node: OperatorFindings, own: Optional[OwnError], known: Recomputed
    ) -> Optional[tuple[OwnError, list[Evidence]]]:
        """The output that shows that an operator bears an error, with the evidence. If the forward of a call bears an
        error, its gradient counts only if it differs."""
        found = known.guilty(node.outputs, own is not None)
        if found is None or (self._follows(node) and not differs(found[0])):
            return None
        forward = None if not node.is_gradient or self._follows(node) else forward_of(self._estimator, node)
        if forward is not None:
            self._blame_forward(*forward)
        return self._accuse(found[0], found[1]), found[1]

    def _follows(self, node: OperatorFindings) -> bool:
        """Whether an operator is a gradient of a call whose forward bears an error by recomputation."""
        return node.is_gradient and node.operator.call in self._guilty

    def _accuse(self, finding: Finding, reasons: Sequence[Evidence]) -> OwnError:
        """Mark an output that recomputation accuses as differing, even if its error is below the limit."""
        if not differs(finding):
            because = f"{finding.because}; {reasons[0].sentence()}".removeprefix("; ")
            finding = finding._replace(verdict=Verdict.DIVERGED, because=because, rule=RECOMPUTED)
            self.revised[finding.row] = finding
        return OwnError(finding, RECOMPUTED)

    def _blame_forward(self, forward: OperatorFindings, finding: Finding, reasons: list[Evidence]) -> None:
        """Add a root for a forward whose error its gradient revealed. The forward was visited before with a small
        error."""
        self._guilty.add(forward.operator.call)
        if all(root.pair.order != forward.pair.order for root in self.roots):
            own = self._accuse(self.revised.get(finding.row, finding), reasons)
            reasons = [*reasons, evidence.tensor_reason(own.finding)]
            self._add(forward, Cause.BORN, own, reasons, self._intervals.reads(forward))

    def _with_bounds(
        self, node: OperatorFindings, own: Optional[OwnError], guilty: OwnError, reasons: list[Evidence], reads: Reads
    ) -> tuple[OwnError, list[Evidence]]:
        """The output and the evidence of a guilty operator, with the evidence from bounds; that comes first if the
        bounds also give BORN."""
        if own is None:
            return guilty, [*reasons, evidence.tensor_reason(guilty.finding)]
        known = self._reasons(node, own.finding, reads)
        if self._cause(node, reads) is Cause.BORN:
            return own, [*known, *reasons]
        return guilty, [*reasons, *known]

    def _is_innocent(self, node: OperatorFindings, own: Optional[OwnError], known: Recomputed, reads: Reads) -> bool:
        """Whether a suspected operator only propagates its inputs, all of which were compared; or whether it is a
        product that rounds its operands to 11 bits as all products do."""
        if own is None or own.rule in UNREFUTED or evidence.argument_reasons(node.pair):
            return False
        if known.is_setting and node.op.has("contracts"):
            return all(error_size(one) <= FACTOR * REDUCED for one in node.outputs)
        return reads.is_known and self._intervals.is_saved_known(node) and known.is_innocent(node.outputs)

    def _carried(self, node: OperatorFindings) -> Optional[tuple[OwnError, int]]:
        """An input that differs because of an error from another rank, which an operator without recorded outputs
        received, and the order of that operator; None for all but the first consumer."""
        apart = [one for one in node.inputs if differs(one)] if self._carrier is not None and not node.outputs else []
        if not apart or self._carrier is None:
            return None
        order, self._carrier = self._carrier, None
        return OwnError(max(apart, key=error_size), "collective"), order

    def _excuse_all(self, node: OperatorFindings, diverged: Sequence[Finding], reads: Reads) -> None:
        """Excuse outputs that differ by no more than the inputs explain, and inputs that the operator overwrote."""
        for output in diverged:
            self._excuse(output, self._explanation(node, output, reads))
            if reads.error is None and is_few(output):  # possibly the rest of a sum that cancels
                self.seen.leave(output)
        for finding in node.inputs:
            # an overwritten input holds the output
            if differs(finding) and self._intervals.is_overwritten(node, finding) and not node.writes_to(finding):
                told = self._explanation(node, finding, reads)
                self._excuse(finding, told)
                if told is None:
                    self.revised[finding.row] = overwritten(finding)
        self._watch(node, diverged, reads)

    def _counted_inputs(self, node: OperatorFindings) -> list[Finding]:
        """The inputs whose errors count among the errors seen."""
        return [one for one in node.inputs if not self._intervals.is_overwritten(node, one)]

    def _hands_on_nothing(self, node: OperatorFindings) -> bool:
        """Whether an operator only copies or views memory that no operator wrote."""
        if not node.inputs or not node.op.has("copies", "hands on", "views"):
            return False
        return all(source is not None and source.meaningless for source in map(self.sources.of, node.inputs))

    def _remember(self, node: OperatorFindings) -> None:
        """Record the facts of an operator that later operators need."""
        seen, wanders = self.seen, self._intervals.wanders(node)
        for finding in node.inputs:
            left = differs(finding) and (wanders or self._intervals.is_left_over(finding))
            tainted = (node.tainted or node.inherits) and differs(finding)
            self.sources.learn(TensorSource(finding, tainted, wanders=left))
            if left:
                seen.learn_left(finding)
        for finding in node.outputs:
            tainted = node.tainted and (differs(finding) or finding.error is None)
            left = finding.row in seen.left_over or (wanders and differs(finding))
            self.sources.learn(TensorSource(finding, tainted, is_meaningless(finding.pair), left))
            if left:
                seen.learn_left(finding)
        seen.learn_shapes(node)
        if node.tainted:
            self._intervals.any_tainted = True
            for container in containers(node.operator, self._scopes):
                self._inside.setdefault(container, node.operator.name)
        else:
            seen.learn(node, [] if wanders else self._counted_inputs(node))
        self._uncompared.remember(node)

    def _is_quiet(self, node: OperatorFindings) -> bool:
        """Whether an operator needs no decision, and later operators need only its errors: no tensor of it differs or
        can be accused, and no error reaches it."""
        if node.carried or node.unequal or self._unseen or not node.outputs:
            return False
        if self.seen.left_over and not node.inputs:
            return False
        if not (all(map(_is_still, node.outputs)) and all(map(_is_still, node.inputs))):
            return False
        if self._intervals.is_half_known(node) or self._reads_what_differs(node):
            return False
        if any(output.pair.golden is None and output.pair.is_inside for output in node.outputs):
            return False
        marks = self._intervals.any_tainted or self.sources.any_meaningless
        return not (marks and any(map(self.sources.is_marked, node.inputs)))

    def _gap(self, node: OperatorFindings, gap: OwnError) -> tuple[Cause, OwnError, list[Evidence]]:
        """The cause and evidence of an input that differs although all compared upstream tensors agree. UNKNOWN if its
        producer's output is known and was not compared, because it may have differed there."""
        finding, source = gap.finding, self._origin(gap.finding)
        last = source or self.seen.last_agreeing
        start = last.pair.order if last else -1
        writer = self._writer(finding)
        if writer is not None and writer.is_dumped:
            return Cause.UNKNOWN, gap, evidence.unwritten_reasons(finding, writer)
        left_out = [] if is_parameter(finding.pair) else self._uncompared.left_out(start, node.pair.order)
        alone = [] if is_parameter(finding.pair) else self._only_one_run(finding, start, source is not None)
        displaced = None if self.sources.of(finding) else self.sources.displaced(finding)
        overtaken = self.sources.overtaken(finding)
        tainted = self._intervals.any_tainted
        around = evidence.Around(last, tainted, writer, alone, left_out, displaced, overtaken)
        reasons = evidence.gap_reasons(finding, around)
        if finding.row in self.rounded[0]:
            self._are_named = True
            reasons += self.rounded[1]
        if source is None and not is_parameter(finding.pair):
            seen = self._intervals.unknown_producer(finding)
            reasons += evidence.interval_reasons(WORDS[seen.source], seen.high)
        return Cause.GAP, gap, reasons

    def _origin(self, finding: Finding) -> Optional[Finding]:
        """The tensor of equal content that either run wrote or read before, if it agrees; then the other run changed
        the tensor after that."""
        found = self.sources.of(finding), self.sources.of_target(finding)
        return next((one.finding for one in found if one and not one.tainted and agrees(one.finding)), None)

    def _only_one_run(self, read: Finding, start: int, is_origin: bool) -> list[Pair]:
        """The operators of one run that may have written an input: those behind `start`; if there are none, the latest
        before it, unless the input is known to come from `start`. If none of them writes such a tensor, return the
        operators around the latest that reads as many elements: an operator that overwrites a tensor in place need not
        be recorded."""
        end = read.pair.order
        between = [self._alone[place] for place in range(start + 1, end) if place in self._alone]
        writers = [one for one in between if _may_write(one, read)]
        if between or is_origin:
            return writers or between
        before = [place for place in self._alone if place < end]
        writers = [self._alone[place] for place in before if _may_write(self._alone[place], read)]
        if writers or not before:
            return writers[::-1]
        last = max((place for place in before if _may_read(self._alone[place], read)), default=-1)
        return [self._alone[place] for place in takewhile(self._alone.__contains__, count(last)) if place < end]

    def _writer(self, gap: Finding) -> Optional[Writer]:
        """The output that an input comes from, if it is known and was not compared."""
        source = self.sources.of(gap)
        if source is not None:
            unseen = source.finding.error is None and is_output(source.finding.pair)
            unseen = unseen and not is_alike(source.finding)  # then the target read a tensor that it did not write
            return self._uncompared.told(source.finding) if unseen else None
        told = next((t.source for t in (gap.pair.target, gap.pair.golden) if t and t.source), "")
        return self._uncompared.writer(gap) or (Writer(told) if told else None)

    def _watch(self, node: OperatorFindings, excused: Sequence[Finding], reads: Reads) -> None:
        """Record the steepest growth that was excused, and the first error that is too large in spite of it."""
        for finding in excused if reads.error and not self._intervals.wanders(node) else ():
            case = RuleContext(finding, node, reads.error or 0.0, grown=True)
            if not gradual.is_step(case):
                continue
            growth = error_size(finding) / case.before
            if self._steepest is None or growth > self._steepest[0]:
                self._steepest = growth, node, finding
            if self._hopeless is None and self.rules.holds("gradual", case):
                self._hopeless = finding

    def finish(self) -> None:
        """Report errors that grew step by step beyond the limit of rule `gradual`."""
        if self.roots or self._hopeless is None or self._steepest is None or not self.by_round_off:
            return
        growth, node, finding = self._steepest
        for kept in (finding, self._hopeless):
            self.revised.pop(kept.row, None)
        reasons = evidence.gradual_reasons(finding, growth, GROWTH, self._hopeless)
        self._add(node, Cause.WORSENED, OwnError(finding, "gradual"), reasons, self._intervals.reads(node))

    def _culprit(self, node: OperatorFindings) -> str:
        """The operator inside this module that has the error already; "" if there is none."""
        operator = node.operator
        if not self.rules.holds("container", RuleContext(node.outputs[0] if node.outputs else node.inputs[0], node)):
            return ""
        return self._inside.get(operator.name) or self._inside.get(f"{operator.phase} {operator.path}", "")

    def _reads_what_differs(self, node: OperatorFindings) -> bool:
        """Whether a tensor that its forward read or wrote still differs after explained errors were reverted."""
        read = (self.revised.get(finding.row, finding) for finding in node.context)
        return self._intervals.any_tainted and any(map(differs, read))

    def _edges(self, node: OperatorFindings) -> tuple[Optional[OwnError], bool]:
        """Return (the input that differs although everything upstream agrees, whether an error is inherited)."""
        gap: Optional[OwnError] = None
        inherits = False
        unwritten = []  # inputs that no recorded operator wrote
        for finding in node.inputs:
            source = self.sources.of(finding)
            if source is None and not is_parameter(finding.pair):
                unwritten.append(finding)
            if source is not None and source.tainted:
                inherits |= source.finding.error is not None or finding.verdict is not Verdict.MATCH
            if differs(finding):
                edge = self._intervals.edge(node, finding, source)
                found = self._beyond_edge(node, finding, edge)
                gap = gap or found
                inherits |= edge.source == "behind a root" and source is None
                inherits |= found is None and self._is_same_rounding(finding)
            elif source is None:
                gap = gap or self._accused(self._from_nowhere(finding)) or self._unlawful(finding)
            elif not source.tainted:
                before = error_size(source.finding)
                gap = gap or self._single(RuleContext(finding, None, before, inherited=before))
        for finding in unwritten:
            self._claim(finding)
        return gap, inherits

    def _beyond_edge(self, node: OperatorFindings, finding: Finding, edge: Interval) -> Optional[OwnError]:
        """An input whose error exceeds the interval of its edge; None if the error is explained, which is recorded."""
        if edge.source == "uninitialised" or (edge.source == "overwritten" and node.writes_to(finding)):
            self.revised[finding.row] = disregard(finding)
        elif edge.source == "overwritten":
            self.revised[finding.row] = overwritten(finding) if finding.metric == "checksum" else finding
        if edge.source in ("uninitialised", "overwritten", "behind a root"):
            return None
        if edge.source == "unknown producer":
            return self._beyond_seen(finding)
        if self._is_same_rounding(finding):
            return None
        if edge.source == "written":
            by = self._explains(RuleContext(finding, None, edge.high, flipped=self.seen.flipped))
        else:
            by = self._explains(RuleContext(finding, None, inherited=edge.high))
        self._excuse(finding, by)
        return None if by else OwnError(finding, finding.rule)

    def _is_same_rounding(self, finding: Finding) -> bool:
        """Whether a parameter is rounded like one that was reported before: both are the same difference."""
        return self._are_named and finding.row in self.rounded[0]

    def _beyond_seen(self, finding: Finding) -> Optional[OwnError]:
        """The same for an input that no recorded operator wrote, compared with the errors seen before it."""
        case = self._from_nowhere(finding)
        by = self._explains(case)
        if by is None:
            known = [*self._unseen_writers(finding), *self._written_by_one_run(case)]
            told = [(one, limit) for one in known if (limit := self._explains(one))]
            case, by = next(iter(told), (case, None))
        found = self._accused(case) or self._unlawful(finding) if by else OwnError(finding, finding.rule)
        left = is_few(finding) or (case.node is not None and self._intervals.wanders(case.node))
        if by and left:  # possibly the rest of a sum that cancels
            self.seen.leave(finding)
        self._excuse(finding, None if found else by)
        return found

    def _written_by_one_run(self, case: RuleContext) -> list[RuleContext]:
        """An input in a later step as the output of an operator that exists in one run: the parameters of this
        operator, which earlier updates changed, were not compared."""
        last = self.seen.last_agreeing
        writers = self._only_one_run(case.finding, last.pair.order if last else -1, False) if case.nowhere else []
        read = any(op_type_of(one.operator).parameters for one in writers)
        return [replace(case, before=max(case.before, self._intervals.unproven))] if read else []

    def _claim(self, finding: Finding) -> None:
        """Assume that the latest operator with unrecorded outputs wrote an input, so that it wrote no other. An
        operator that read an error does not write equal bits."""
        claimed = self._last_unseen[-1] if self._last_unseen else ""
        if claimed and round_off_of(finding.pair) and (error_size(finding) or not self._unseen[claimed][1]):
            self._last_unseen.pop()

    def _unlawful(self, finding: Finding) -> Optional[OwnError]:
        """An input that breaks a law of the operator just before it, of which only the inputs were recorded."""
        found = (self._accused(case, LAW) for case in self._unseen_writers(finding) if not self._intervals.any_tainted)
        return next(filter(None, found), None)

    def _unseen_writers(self, finding: Finding) -> list[RuleContext]:
        """An input as the output of operators of which only the inputs were recorded. A graph names the producer;
        otherwise these are the operators just before in the same pass, as for queries, keys and values. A dump without
        an order mixes both passes, and a backward operator reads the inputs of its forward, which would explain its own
        error."""
        sides = [one.source.rpartition(":")[0] for one in (finding.pair.target, finding.pair.golden) if one]
        named = [name for name in sides if name][:1]
        seen = [self._unseen[name] for name in named or self._last_unseen if name in self._unseen]
        backward = is_gradient(finding.pair.operator)
        seen = [(node, known) for node, known in seen if named or node.is_gradient == backward]
        return [RuleContext(finding, node, known, flipped=self.seen.flipped) for node, known in seen]

    def _from_nowhere(self, finding: Finding) -> RuleContext:
        """A tensor that no dumped operator wrote, to be judged by the errors seen before it. If an earlier tensor has
        as many elements, as terms of a sum have, its rows are the same, not rows that another choice took."""
        tainted = self._intervals.any_tainted
        flipped = 0.0 if self.seen.has_recent(finding) else self.seen.flipped
        before = 0.0 if tainted else self._intervals.unknown_producer(finding).high
        inherited = self._updates.bound(finding)
        return RuleContext(
            finding,
            None,
            before,
            inherited=inherited,
            factor=self._updates.factor,
            habit=self._habit,
            nowhere=not tainted,
            flipped=flipped,
        )

    def _accused(self, case: RuleContext, only: str = "") -> Optional[OwnError]:
        """The tensor with the words of an accusation; None if no rule accuses it, or if the user's own rules decide."""
        rule = self.rules.accusation(case, only) if self.by_round_off else None
        if rule is None:
            return None
        found = rule.judged(case)._replace(rule=rule.name)
        self.revised[case.finding.row] = found
        return OwnError(found, rule.name)

    def _single(self, case: RuleContext) -> Optional[OwnError]:
        """The tensor, if single elements of it are wrong; the inputs of the operator are not needed for this."""
        return self._accused(case, "single_element")

    def _stands_out(self, case: RuleContext) -> Optional[OwnError]:
        """The tensor, if single elements of it are wrong, or if one factor scales it and no root exists upstream."""
        return self._single(case) or (None if self._intervals.any_tainted else self._accused(case, "scaled"))

    def _own(self, node: OperatorFindings, reads: Reads) -> Optional[OwnError]:
        """The output whose error exceeds what the inputs explain, otherwise an output that is accused; the largest
        error of several."""
        unexplained = [one for one in node.outputs if differs(one) and not self._explanation(node, one, reads)]
        if unexplained:
            worst = max(unexplained, key=error_size)
            return OwnError(worst, worst.rule)
        if not self.by_round_off:
            return None
        cases = [
            RuleContext(
                one, node, self._intervals.came_in(node, one, reads).high, habit=self._habit, flipped=self.seen.flipped
            )
            for one in node.outputs
            if not self._is_rounding_alone(node, one, reads)
        ]
        if reads.error is None:  # a law and a single wrong element do not depend on the inputs
            accused = [case for case in cases if self.rules.accusation(case, LAW)]
            if not accused:
                return next(filter(None, map(self._stands_out, cases)), None)
            return self._accused(max(accused, key=lambda case: error_size(case.finding)), LAW)
        accused = [case for case in cases if self.rules.accusation(case)]
        return self._accused(max(accused, key=lambda case: error_size(case.finding))) if accused else None

    def _is_rounding_alone(self, node: OperatorFindings, finding: Finding, reads: Reads) -> bool:
        """Whether some rows of an output hold only rounding, which accusations do not consider."""
        if finding.measurement.settled is None or not differs(finding):
            return False
        by = self._explanation(node, finding, reads)
        return by is not None and by.rule == constant_rows.NAME

    def _explanation(self, node: OperatorFindings, finding: Finding, reads: Reads) -> Optional[Limit]:
        """The explanation of an output's error; None if there is none. Behind a root, inputs below the limit count as
        at the limit."""
        key = finding.row, self.seen.flipped
        if key not in self._explained:
            self._explained[key] = self._sought(node, finding, reads)
        return self._explained[key]

    def _sought(self, node: OperatorFindings, finding: Finding, reads: Reads) -> Optional[Limit]:
        before = self._intervals.came_in(node, finding, reads).high
        if reads.error is not None:
            before = max(before, self._intervals.behind_a_root(node, finding).high)
        by = self._explains(RuleContext(finding, node, before, flipped=self.seen.flipped))
        return by or (self._written_inside(finding) if node.operator.path else None)

    def _written_inside(self, finding: Finding) -> Optional[Limit]:
        """The explanation of the error of the same tensor for the operator inside this module that wrote it."""
        source = self.sources.of(finding)
        if source is None or source.tainted or error_size(finding) != error_size(source.finding):
            return None
        seen = self.revised.get(source.finding.row, source.finding)
        return Limit(seen.explained_limit, seen.explained_by) if seen.explained_by else None

    def _explains(self, case: RuleContext) -> Optional[Limit]:
        """The explanation of a case. If the user's own rules decide, inputs that agree by them explain nothing."""
        return self.rules.explanation(case) if self.by_round_off or case.before > 0 else None

    def _cause(self, node: OperatorFindings, reads: Reads) -> Cause:
        if self._is_argued(node):
            return Cause.BORN
        if not reads.is_known or not self._intervals.is_saved_known(node):
            return Cause.UNKNOWN
        if self._disagreeing(node):
            return Cause.WORSENED
        if node.unheard:
            return Cause.UNKNOWN
        return Cause.UNKNOWN if self._intervals.is_half_known(node) else Cause.BORN

    def _is_argued(self, node: OperatorFindings) -> bool:
        """Whether an argument differs, and the inputs have statistics that agree: then the argument causes the
        difference that statistics prove of the output."""
        read = [self._intervals.as_written(one) for one in node.inputs]
        agree = all(is_alike(one) or one.verdict is Verdict.MATCH for one in read) and node.reads_recorded
        told = any(map(is_alike, (*read, *node.outputs))) or any(one.measurement.bound for one in node.outputs)
        return agree and told and not self._intervals.any_tainted and bool(evidence.argument_reasons(node.pair))

    def _disagreeing(self, node: OperatorFindings) -> list[tuple[Finding, bool]]:
        """The inputs that still differ after explained errors were reverted, and whether each is not an input of the
        operator itself; as written by the producer if only that output was compared."""
        every = enumerate((*node.inputs, *node.context))
        read = [(self._intervals.as_written(one), at >= len(node.inputs)) for at, one in every]
        seen = [(self.revised.get(finding.row, finding), finding, saved) for finding, saved in read]
        apart = [(now, one, saved) for now, one, saved in seen if differs(now)]
        return [(one, saved) for now, one, saved in apart if not self._intervals.is_overwritten(node, now)]

    def _reasons(self, node: OperatorFindings, own: Finding, reads: Reads) -> list[Evidence]:
        worst = self._worst_read(node)
        if not worst.differs and node.unheard:
            return evidence.unheard_reasons(own, bool(node.inputs))
        if self._is_argued(node):
            alike = evidence.WorstInput(alike="by their statistics")
            return evidence.own_reasons(node.pair, own, alike, bool(node.inputs))
        if not reads.is_known or (not worst.differs and self._intervals.is_half_known(node)):
            open_reads = [read.finding for read in reads.inputs if not read.interval.is_known]
            return evidence.unknown_reasons(own, open_reads) + self._interval_reasons(node, own, reads)
        if not self._intervals.is_saved_known(node):
            left_out = self._uncompared.forward_of(node)
            reasons = evidence.unsaved_reasons(own, self._intervals.unread(node), left_out, node.recomputed)
            return reasons + self._interval_reasons(node, own, reads)
        reasons = evidence.own_reasons(node.pair, own, worst, bool(node.inputs) or node.arrived)
        reasons += evidence.folded_reasons(node.inputs)
        return reasons + evidence.follower_reasons(node.pair, self._alone.get(node.pair.order + 1))

    def _interval_reasons(self, node: OperatorFindings, own: Finding, reads: Reads) -> list[Evidence]:
        came = self._intervals.came_in(node, own, reads)
        return evidence.interval_reasons(WORDS.get(came.source, ""), came.high)

    def _worst_read(self, node: OperatorFindings) -> evidence.WorstInput:
        """The input with the largest difference, as far as it can reach the outputs."""
        apart = [(self._reach(node, one, saved), one, saved) for one, saved in self._disagreeing(node)]
        read = [one for one in (*node.inputs, *node.context) if not self._intervals.is_overwritten(node, one)]
        return evidence.worst_of(apart, [*map(self._intervals.as_written, read)])

    def _reach(self, node: OperatorFindings, finding: Finding, saved: bool) -> float:
        """The error of an input as far as it can reach the outputs; `saved`: it is not an input of the operator
        itself."""
        if saved and node.op.has("saves nothing"):
            return 0.0
        error, share = error_size(finding), self._intervals.share_of(node, finding)
        return error * share if error and share else 0.0

    def _excuse(self, finding: Finding, by: Optional[Limit]) -> None:
        """Excuse an error above the limit that the inputs explain and that does not descend from a root."""
        if by is None:
            return
        if by.rule == "cancellation" and is_vector(finding):
            self.seen.leave(finding)
        if by.rule == "choice":
            self.seen.flipped = max(self.seen.flipped, RuleContext(finding).share_changed)
        if self.by_round_off and finding.verdict is Verdict.SHAPE:
            self.seen.flipped = max(self.seen.flipped, routed.share_of_rows(finding))
            because = f"{finding.because}; a choice upstream differs"
            self.revised[finding.row] = explained(finding._replace(verdict=Verdict.UNKNOWN, because=because), by)
        elif self.by_round_off and finding.verdict is Verdict.DIVERGED and finding.metric == "rel_l2":
            reads = "the errors of its inputs" if is_output(finding.pair) else "upstream errors"
            because = f"{finding.because}; explained by {EXPLAINED.get(by.rule, reads)}"
            known = finding.measurement.moments is not None  # statistics give only a lower bound of an error
            verdict = Verdict.MATCH if known else Verdict.UNKNOWN
            self.revised[finding.row] = explained(finding._replace(verdict=verdict, because=because), by)

    def _add(self, node: OperatorFindings, cause: Cause, own: OwnError, reasons: list[Evidence], reads: Reads) -> None:
        self.roots.append(root_of(node, cause, own, reasons, reads.error))


def _is_still(finding: Finding) -> bool:
    """Whether the two sides hold the same bits, or statistics that prove no difference."""
    if finding.verdict is not Verdict.MATCH and finding.verdict is not Verdict.UNKNOWN:
        return False
    if finding.error is None:
        return True
    moments = finding.measurement.moments
    return finding.error == 0.0 and (moments is None or moments.equal == moments.elements)


def _may_read(alone: Pair, read: Finding) -> bool:
    """Whether an operator of one run reads as many elements as an operator behind it reads in that run."""
    tensor, operator = (read.pair.target, alone.target_op) if alone.target_op else (read.pair.golden, alone.golden_op)
    if tensor is None or operator is None:
        return False
    elements = math.prod(tensor.shape)
    return elements > 1 and elements in {math.prod(one.shape) for one in operator.tensors if not one.is_output}


def _may_write(alone: Pair, read: Finding) -> bool:
    """Whether an operator of one run writes as many elements as an operator behind it reads in that run."""
    tensor, operator = (read.pair.target, alone.target_op) if alone.target_op else (read.pair.golden, alone.golden_op)
    if tensor is None or operator is None:
        return False
    outputs = [math.prod(one.shape) for one in operator.tensors if one.is_output]
    return not outputs or math.prod(tensor.shape) in outputs
