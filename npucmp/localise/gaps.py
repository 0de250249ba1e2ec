"""Inputs that differ although everything dumped upstream agrees (GAP), and what may have written them.

An input without a dumped producer differs if its error exceeds 8 times the 90 % quantile of the errors so far, or 8
times the largest of the last 8 operators, so that an uncaptured function in a bfloat16 run is no GAP. Numbers and
vectors that remain of cancelling sums count in neither figure, except single numbers; nor do tensors computed from
them. If outputs were not recorded, an input is also judged as the output of up to three operators just before it, or of
the operator that a graph names.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, AbstractSet, Iterable, Mapping, Optional, Sequence

from npucmp.flow.contents import content_of, is_few
from npucmp.flow.operators import OperatorFindings
from npucmp.localise.conditioning import scale_of
from npucmp.localise.evidence import interval_reasons
from npucmp.localise.explanations import Explanations
from npucmp.localise.intervals import WORDS, Interval, Intervals, differs
from npucmp.localise.parameter_drift import Updates
from npucmp.localise.root_cause import OwnError
from npucmp.localise.rule_context import RuleContext, error_size
from npucmp.localise.seen_errors import SeenErrors, agrees, is_alike
from npucmp.localise.sources import (
    Sources,
    TensorSource,
    UncomparedOutputs,
    UnpairedOperators,
    UnrecordedOutputs,
    Writer,
)
from npucmp.localise.thresholds import disregard, mark_in_place
from npucmp.localise.updated_parameters import UpdatedParameters
from npucmp.model import Cause, Evidence, Finding, Verdict
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output, is_parameter

if TYPE_CHECKING:
    from npucmp.localise.modules import Modules


class Gaps:
    """The inputs of one step and rank, operator by operator.

    unrecorded  the operators of which only the inputs were recorded; unpaired: the operators of one run
    rounded     rows of parameters that one run rounded, and the evidence of that
    parameters  the operators that read each parameter which an optimizer updates
    """

    def __init__(
        self,
        explanations: Explanations,
        intervals: Intervals,
        sources: Sources,
        seen: SeenErrors,
        updates: Updates,
        uncompared: UncomparedOutputs,
        unpaired: UnpairedOperators,
        rounded: tuple[AbstractSet[int], Sequence[Evidence]],
        parameters: UpdatedParameters,
        nodes: Sequence[OperatorFindings],
        scopes: Mapping[str, str],
    ) -> None:
        self.unrecorded = UnrecordedOutputs()
        self._explanations, self._intervals = explanations, intervals
        self._sources, self._seen, self._updates = sources, seen, updates
        self._uncompared, self._unpaired = uncompared, unpaired
        self._rounded, self._rounding = rounded
        self._parameters, self._nodes, self._scopes = parameters, nodes, scopes
        self._is_told = False  # whether the first of these parameters was reported

    @cached_property
    def _modules(self) -> Modules:
        from npucmp.localise.modules import Modules

        return Modules(self._nodes, self._scopes)

    def find(self, node: OperatorFindings) -> tuple[Optional[OwnError], bool]:
        """Return (the input that differs although everything upstream agrees, whether an error is inherited)."""
        gap: Optional[OwnError] = None
        inherits = False
        unwritten = []  # inputs that no recorded operator wrote
        for finding in node.inputs:
            source = self._sources.of(finding)
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
                gap = gap or self._explanations.accuse(self._from_nowhere(finding)) or self._unlawful(finding)
            elif not source.tainted:
                before = error_size(source.finding)
                gap = gap or self._explanations.accuse(
                    RuleContext(finding, None, before, inherited=before), only="single_element"
                )
        for finding in unwritten:
            self.unrecorded.claim(finding)
        return gap, inherits

    def _beyond_edge(self, node: OperatorFindings, finding: Finding, edge: Interval) -> Optional[OwnError]:
        """An input whose error exceeds the interval of its edge; None if the error is explained, which is recorded."""
        if edge.source == "uninitialised" or (edge.source == "overwritten" and node.writes_to(finding)):
            self._explanations.revised[finding.row] = disregard(finding)
        elif edge.source == "overwritten":
            found = mark_in_place(finding) if finding.metric == "checksum" else finding
            self._explanations.revised[finding.row] = found
        if edge.source in ("uninitialised", "overwritten", "behind a root"):
            return None
        if edge.source == "unknown producer":
            return self._beyond_seen(finding)
        if self._is_same_rounding(finding):
            return None
        if edge.source == "written":
            by = self._explanations.of_case(
                RuleContext(finding, None, edge.high, changed_choice_share=self._seen.changed_choice_share)
            )
        else:
            case = RuleContext(finding, None, inherited=edge.high, untied=self._updates.untied(finding))
            by = self._explanations.of_case(case)
            if broken_tie := self._explanations.accuse(case, only="untied"):
                return broken_tie
        self._explanations.excuse(finding, by)
        return None if by else OwnError(finding, finding.rule)

    def _is_same_rounding(self, finding: Finding) -> bool:
        """Whether a parameter is rounded like one that was reported before: both are the same difference."""
        return self._is_told and finding.row in self._rounded

    def _beyond_seen(self, finding: Finding) -> Optional[OwnError]:
        """The same for an input that no recorded operator wrote, compared with the errors seen before it."""
        case = self._from_nowhere(finding)
        by = self._explanations.of_case(case)
        if by is None:
            known = [
                *self._as_output(finding, self.unrecorded.writers(finding)),
                *self._gradients_of(finding),
                *self._unpaired_writers(case),
            ]
            explained = [(one, limit) for one in known if (limit := self._explanations.of_case(one))]
            case, by = next(iter(explained), (case, None))
        if by is None:
            found: Optional[OwnError] = OwnError(finding, finding.rule)
        else:
            found = self._explanations.accuse(case) or self._unlawful(finding)
        if by and (is_few(finding) or (case.node is not None and self._intervals.is_cancellation_residue(case.node))):
            self._seen.mark_residue(finding)  # possibly the rest of a sum that cancels
        self._explanations.excuse(finding, None if found else by)
        return found

    def _from_nowhere(self, finding: Finding) -> RuleContext:
        """A tensor that no dumped operator wrote, to be judged by the errors seen before it. If an earlier tensor has
        as many elements, as terms of a sum have, its rows are the same, not rows that another choice took."""
        tainted = self._intervals.any_tainted
        return RuleContext(
            finding,
            None,
            0.0 if tainted else self._intervals.unknown_producer(finding).high,
            inherited=self._updates.bound(finding),
            factor=self._updates.factor,
            untied=self._updates.untied(finding),
            downcast_share=self._explanations.downcast_share,
            no_producer=not tainted,
            changed_choice_share=0.0 if self._seen.has_recent(finding) else self._seen.changed_choice_share,
        )

    def _unlawful(self, finding: Finding) -> Optional[OwnError]:
        """An input that breaks a law of the operator just before it, of which only the inputs were recorded."""
        writers = [] if self._intervals.any_tainted else self.unrecorded.writers(finding)
        cases = self._as_output(finding, writers)  # of which only the inputs were recorded
        return next(filter(None, (self._explanations.accuse(case, only="law") for case in cases)), None)

    def _as_output(self, finding: Finding, writers: Iterable[tuple[OperatorFindings, float]]) -> list[RuleContext]:
        """An input as the output of operators, each with the error that it read."""
        share = self._seen.changed_choice_share
        return [RuleContext(finding, node, error, changed_choice_share=share) for node, error in writers]

    def _gradients_of(self, finding: Finding) -> list[RuleContext]:
        """A gradient that an optimizer reads as the output of the backward operators of its parameter."""
        nodes = [] if self._intervals.any_tainted else self._parameters.backward_operators(finding)
        errors = (max((error_size(one) for one in node.inputs), default=0.0) for node in nodes)
        return self._as_output(finding, zip(nodes, errors))

    def _unpaired_writers(self, case: RuleContext) -> list[RuleContext]:
        """An input in a later step as the output of an operator that exists in one run: the parameters of this
        operator, which earlier updates changed, were not compared."""
        last = self._seen.last_agreeing
        found = self._unpaired.writers(case.finding, last.pair.order if last else -1, False) if case.no_producer else []
        read = any(op_type_of(one.operator).parameters for one in found)
        return [replace(case, input_error=max(case.input_error, self._intervals.unproven))] if read else []

    def input_of_module(self, node: OperatorFindings, gap: Finding) -> Optional[tuple[OperatorFindings, Finding]]:
        """The module around an operator, and its input that differs and that no recorded operator wrote, from which
        code that was not dumped may have made the gap; of several tensors that of the outermost module."""
        if is_parameter(gap.pair) or self._sources.of(gap) is not None:
            return None
        from npucmp.localise.modules import figures_of, inputs_of_module

        known, found = {figures_of(gap)}, None
        for module in self._modules.around(node):
            for finding in inputs_of_module(module):
                if differs(finding) and figures_of(finding) not in known and self._sources.of(finding) is None:
                    found = found if found is not None and found[0] is module else (module, finding)
                known.add(figures_of(finding))
        return found

    def cause(self, node: OperatorFindings, finding: Finding, row: int = -1) -> tuple[Cause, list[Evidence]]:
        """The cause and evidence of a gap; the other consumers of its tensor are no further gaps. UNKNOWN if its
        producer's output is known and was not compared, because it may have differed there. `row`: the first row behind
        the place where it was read, if that is not its own."""
        row = finding.row if row < 0 else row
        cause, reasons = self._cause_of(node, finding, row)
        self._sources.replace(TensorSource(finding, tainted=True), content_of(finding), row)
        return cause, reasons

    def _cause_of(self, node: OperatorFindings, finding: Finding, row: int) -> tuple[Cause, list[Evidence]]:
        from npucmp.localise import gap_evidence  # only a gap needs it

        source = self._origin(finding)
        last = source or self._seen.last_agreeing
        start = last.pair.order if last else -1
        writer = self._writer(finding)
        if writer is not None and writer.is_dumped:
            return Cause.UNKNOWN, gap_evidence.unwritten_reasons(finding, writer)
        if source is None and gap_evidence.is_argument(finding):
            return Cause.BORN, gap_evidence.gap_reasons(finding, gap_evidence.Around())
        fed = is_parameter(finding.pair)
        left_out = [] if fed else self._uncompared.excluded_operators(start, node.pair.order)
        alone = [] if fed else self._unpaired.writers(finding, start, source is not None)
        if source is None and not fed and not alone:
            alone = self._unpaired.preceding(finding.pair)
        unlike = self._uncompared.other_nodes(start, node.pair.order) if node.is_gradient else []
        displaced = None if self._sources.of(finding) else self._sources.overwriting_operator(finding)
        overtaken = self._sources.reordered_operator(finding)
        tainted = self._intervals.any_tainted
        nearest = last  # the backward pass reads no buffers: what it reads follows from a gradient before it
        if source is None and not node.is_gradient:
            nearest = self._sources.latest_of_size(finding, row, lambda one: agrees(self._explanations.latest(one)))
        instead = None if finding.measurement.moments else self._other_tensor(finding)
        around = gap_evidence.Around(
            last,
            tainted,
            writer,
            alone,
            left_out,
            displaced,
            overtaken,
            nearest,
            unlike,
            source is not None,
            instead,
            *self._module_without(node, finding),
        )
        reasons = gap_evidence.gap_reasons(finding, around)
        if fed and (made := self._unpaired.writer(finding)):
            reasons.append(gap_evidence.made_reason(finding, made))
        if fed and (update := self._updates.one_sided(finding)):
            reasons.append(gap_evidence.update_reason(update))
        if finding.row in self._rounded:
            self._is_told = True
            reasons += self._rounding
        if source is None and not fed:
            seen = self._intervals.unknown_producer(finding)
            reasons += interval_reasons(WORDS[seen.source], seen.high)
        return Cause.GAP, reasons

    def _module_without(self, node: OperatorFindings, finding: Finding) -> tuple[str, bool]:
        """The innermost recorded module around an operator that does not read a tensor, and False; if all of them read
        it, the outermost and True; "" without a module."""
        from npucmp.localise.modules import inputs_of_module

        found = "", False
        for module in self._modules.around(node):
            if inputs_of_module(module):
                found = module.operator.name, self._modules.reads(module, finding)
                if not found[1]:
                    return found
        return found

    def _origin(self, finding: Finding) -> Optional[Finding]:
        """The tensor of equal content that either run wrote or read before, if it agrees; then the other run changed
        the tensor after that."""
        found = self._sources.of(finding), self._sources.of_target(finding)
        return next((one.finding for one in found if one and not one.tainted and agrees(one.finding)), None)

    def _other_tensor(self, finding: Finding) -> Optional[tuple[Finding, Finding]]:
        """The two outputs of which an input has the figures, in the target and in the golden; both agree."""
        found = self._sources.of_target(finding), self._sources.of(finding)
        wrote = [one.finding for one in found if one and not one.tainted and agrees(one.finding)]
        outputs = [one for one in wrote if is_output(one.pair) and scale_of(one).elements > 1]
        return (outputs[0], outputs[1]) if len(outputs) == 2 and outputs[0].row != outputs[1].row else None

    def _writer(self, gap: Finding) -> Optional[Writer]:
        """The output that an input comes from, if it is known and was not compared."""
        source = self._sources.of(gap)
        if source is not None:
            unseen = source.finding.error is None and is_output(source.finding.pair)
            unseen = unseen and not is_alike(source.finding)  # then the target read a tensor that it did not write
            return self._uncompared.unmeasured_writer(source.finding) if unseen else None
        source_line = next((t.source for t in (gap.pair.target, gap.pair.golden) if t and t.source), "")
        return self._uncompared.writer(gap) or (Writer(source_line) if source_line else None)
