"""Inputs that differ although everything dumped upstream agrees (GAP), and what may have written them.

An input without a dumped producer differs if its error exceeds 8 times the 90 % quantile of the errors so far, or 8
times the largest of the last 8 operators, so that an uncaptured function in a bfloat16 run is no GAP. Numbers and
vectors that remain of cancelling sums count in neither figure, except single numbers; nor do tensors computed from
them. If outputs were not recorded, an input is also judged as the output of up to three operators just before it, or of
the operator that a graph names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Optional

from npucmp.flow.contents import content_of, is_few
from npucmp.flow.operators import OperatorFindings
from npucmp.localise.conditioning import scale_of
from npucmp.localise.evidence import interval_reasons
from npucmp.localise.explanations import accuse, excuse, explanation_of_case
from npucmp.localise.intervals import WORDS, Interval, edge_interval, is_cancellation_residue, unknown_producer
from npucmp.localise.root_cause import OwnError
from npucmp.localise.rule_context import RuleContext, differs, error_size
from npucmp.localise.seen_errors import agrees, has_recent, is_alike, last_agreeing
from npucmp.localise.sources import (
    Writer,
    claim,
    latest_of_size,
    overwriting_operator,
    reordered_operator,
    replace_source,
    source_of,
    target_source_of,
    uncompared_writer,
    unmeasured_writer,
    unpaired_before,
    unpaired_writer,
    unpaired_writers,
    unrecorded_writers,
)
from npucmp.localise.sweep import Sweep, TensorSource
from npucmp.localise.thresholds import disregard, mark_in_place
from npucmp.model import Cause, Evidence, Finding, Pair, Verdict
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_output, is_parameter


def find_gap(sweep: Sweep, node: OperatorFindings) -> tuple[Optional[OwnError], bool]:
    """Return (the input that differs although everything upstream agrees, whether an error is inherited)."""
    gap: Optional[OwnError] = None
    inherits = False
    unwritten = []  # inputs that no recorded operator wrote
    for finding in node.inputs:
        source = source_of(sweep, finding)
        if source is None and not is_parameter(finding.pair):
            unwritten.append(finding)
        if source is not None and source.tainted:
            inherits |= source.finding.error is not None or finding.verdict is not Verdict.MATCH
        if differs(finding):
            edge = edge_interval(sweep, node, finding, source)
            found = _beyond_edge(sweep, node, finding, edge)
            gap = gap or found
            inherits |= edge.source == "behind a root" and source is None
            inherits |= found is None and _is_same_rounding(sweep, finding)
        elif source is None:
            gap = gap or accuse(sweep, _from_nowhere(sweep, finding)) or _unlawful(sweep, finding)
        elif not source.tainted:
            before = error_size(source.finding)
            gap = gap or accuse(sweep, RuleContext(finding, None, before, inherited=before), only="single_element")
    for finding in unwritten:
        claim(sweep, finding)
    return gap, inherits


def _beyond_edge(sweep: Sweep, node: OperatorFindings, finding: Finding, edge: Interval) -> Optional[OwnError]:
    """An input whose error exceeds the interval of its edge; None if the error is explained, which is recorded."""
    if edge.source == "uninitialised" or (edge.source == "overwritten" and node.writes_to(finding)):
        sweep.revised[finding.row] = disregard(finding)
    elif edge.source == "overwritten":
        found = mark_in_place(finding) if finding.metric == "checksum" else finding
        sweep.revised[finding.row] = found
    if edge.source in ("uninitialised", "overwritten", "behind a root"):
        return None
    if edge.source == "unknown producer":
        return _beyond_seen(sweep, finding)
    if _is_same_rounding(sweep, finding):
        return None
    if edge.source == "written":
        by = explanation_of_case(
            sweep, RuleContext(finding, None, edge.high, changed_choice_share=sweep.changed_choice_share)
        )
    else:
        case = RuleContext(finding, None, inherited=edge.high, untied=sweep.updates.untied(finding))
        by = explanation_of_case(sweep, case)
        if broken_tie := accuse(sweep, case, only="untied"):
            return broken_tie
    excuse(sweep, finding, by)
    return None if by else OwnError(finding, finding.rule)


def _is_same_rounding(sweep: Sweep, finding: Finding) -> bool:
    """Whether a parameter is rounded like one that was reported before: both are the same difference."""
    return sweep.is_told and finding.row in sweep.rounded[0]


def _beyond_seen(sweep: Sweep, finding: Finding) -> Optional[OwnError]:
    """The same for an input that no recorded operator wrote, compared with the errors seen before it."""
    case = _from_nowhere(sweep, finding)
    by = explanation_of_case(sweep, case)
    if by is None:
        known = [
            *_as_output(sweep, finding, unrecorded_writers(sweep, finding)),
            *_gradients_of(sweep, finding),
            *_unpaired_writers(sweep, case),
        ]
        explained = [(one, limit) for one in known if (limit := explanation_of_case(sweep, one))]
        case, by = next(iter(explained), (case, None))
    if by is None:
        found: Optional[OwnError] = OwnError(finding, finding.rule)
    else:
        found = accuse(sweep, case) or _unlawful(sweep, finding)
    if by and (is_few(finding) or (case.node is not None and is_cancellation_residue(sweep, case.node))):
        sweep.residues.add(finding.row)  # possibly the rest of a sum that cancels
    excuse(sweep, finding, None if found else by)
    return found


def _from_nowhere(sweep: Sweep, finding: Finding) -> RuleContext:
    """A tensor that no dumped operator wrote, to be judged by the errors seen before it. If an earlier tensor has
    as many elements, as terms of a sum have, its rows are the same, not rows that another choice took."""
    tainted = sweep.any_tainted
    return RuleContext(
        finding,
        None,
        0.0 if tainted else unknown_producer(sweep, finding).high,
        inherited=sweep.updates.bound(finding),
        factor=sweep.updates.factor,
        untied=sweep.updates.untied(finding),
        downcast_share=sweep.downcast_share,
        no_producer=not tainted,
        changed_choice_share=0.0 if has_recent(sweep, finding) else sweep.changed_choice_share,
    )


def _unlawful(sweep: Sweep, finding: Finding) -> Optional[OwnError]:
    """An input that breaks a law of the operator just before it, of which only the inputs were recorded."""
    writers = [] if sweep.any_tainted else unrecorded_writers(sweep, finding)
    cases = _as_output(sweep, finding, writers)  # of which only the inputs were recorded
    return next(filter(None, (accuse(sweep, case, only="law") for case in cases)), None)


def _as_output(sweep: Sweep, finding: Finding, writers: Iterable[tuple[OperatorFindings, float]]) -> list[RuleContext]:
    """An input as the output of operators, each with the error that it read."""
    share = sweep.changed_choice_share
    return [RuleContext(finding, node, error, changed_choice_share=share) for node, error in writers]


def _gradients_of(sweep: Sweep, finding: Finding) -> list[RuleContext]:
    """A gradient that an optimizer reads as the output of the backward operators of its parameter."""
    nodes = [] if sweep.any_tainted else sweep.parameters.backward_operators(finding)
    errors = (max((error_size(one) for one in node.inputs), default=0.0) for node in nodes)
    return _as_output(sweep, finding, zip(nodes, errors))


def _unpaired_writers(sweep: Sweep, case: RuleContext) -> list[RuleContext]:
    """An input in a later step as the output of an operator that exists in one run: the parameters of this
    operator, which earlier updates changed, were not compared."""
    last = last_agreeing(sweep) if case.no_producer else None
    start = last.pair.order if last else -1
    found = unpaired_writers(sweep.unpaired, case.finding, start, False) if case.no_producer else []
    read = any(op_type_of(one.operator).parameters for one in found)
    return [replace(case, input_error=max(case.input_error, sweep.updates.unproven))] if read else []


def input_of_module(sweep: Sweep, node: OperatorFindings, gap: Finding) -> Optional[tuple[OperatorFindings, Finding]]:
    """The module around an operator, and its input that differs and that no recorded operator wrote, from which
    code that was not dumped may have made the gap; of several tensors that of the outermost module."""
    if is_parameter(gap.pair) or source_of(sweep, gap) is not None:
        return None
    from npucmp.localise.modules import figures_of, inputs_of_module

    known, found = {figures_of(gap)}, None
    for module in sweep.modules.around(node):
        for finding in inputs_of_module(module):
            if differs(finding) and figures_of(finding) not in known and source_of(sweep, finding) is None:
                found = found if found is not None and found[0] is module else (module, finding)
            known.add(figures_of(finding))
    return found


def gap_cause(sweep: Sweep, node: OperatorFindings, finding: Finding, row: int = -1) -> tuple[Cause, list[Evidence]]:
    """The cause and evidence of a gap; the other consumers of its tensor are no further gaps. UNKNOWN if its
    producer's output is known and was not compared, because it may have differed there. `row`: the first row behind
    the place where it was read, if that is not its own."""
    row = finding.row if row < 0 else row
    cause, reasons = _cause_of(sweep, node, finding, row)
    replace_source(sweep, TensorSource(finding, tainted=True), content_of(finding), row)
    return cause, reasons


def _cause_of(sweep: Sweep, node: OperatorFindings, finding: Finding, row: int) -> tuple[Cause, list[Evidence]]:
    from npucmp.localise import gap_evidence  # only a gap needs it

    source = _origin(sweep, finding)
    last = source or last_agreeing(sweep)
    start = last.pair.order if last else -1
    writer = _writer(sweep, finding)
    if writer is not None and writer.is_dumped:
        return Cause.UNKNOWN, gap_evidence.unwritten_reasons(finding, writer)
    if source is None and gap_evidence.is_argument(finding):
        return Cause.BORN, gap_evidence.gap_reasons(finding, gap_evidence.Around())
    fed = is_parameter(finding.pair)
    left_out = [] if fed else _between(sweep.left_out.values(), start, node.pair.order)
    alone = [] if fed else unpaired_writers(sweep.unpaired, finding, start, source is not None)
    if source is None and not fed and not alone:
        alone = unpaired_before(sweep.unpaired, finding.pair)
    unlike = _between(sweep.other_nodes, start, node.pair.order) if node.is_gradient else []
    displaced = None if source_of(sweep, finding) else overwriting_operator(sweep, finding)
    overtaken = reordered_operator(sweep, finding)
    tainted = sweep.any_tainted
    nearest = last  # the backward pass reads no buffers: what it reads follows from a gradient before it
    if source is None and not node.is_gradient:
        nearest = latest_of_size(sweep, finding, row)
    instead = None if finding.measurement.moments else _other_tensor(sweep, finding)
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
        *_module_without(sweep, node, finding),
    )
    reasons = gap_evidence.gap_reasons(finding, around)
    if fed and (made := unpaired_writer(sweep.unpaired, finding)):
        reasons.append(gap_evidence.made_reason(finding, made))
    if fed and (update := sweep.updates.one_sided(finding)):
        reasons.append(gap_evidence.update_reason(update))
    if finding.row in sweep.rounded[0]:
        sweep.is_told = True
        reasons += sweep.rounded[1]
    if source is None and not fed:
        seen = unknown_producer(sweep, finding)
        reasons += interval_reasons(WORDS[seen.source], seen.high)
    return Cause.GAP, reasons


def _between(pairs: Iterable[Pair], start: int, end: int) -> list[Pair]:
    """The operators between two places in the graph, the latest first."""
    return [pair for pair in reversed([*pairs]) if start < pair.order < end]


def _module_without(sweep: Sweep, node: OperatorFindings, finding: Finding) -> tuple[str, bool]:
    """The innermost recorded module around an operator that does not read a tensor, and False; if all of them read
    it, the outermost and True; "" without a module."""
    from npucmp.localise.modules import inputs_of_module

    found = "", False
    for module in sweep.modules.around(node):
        if inputs_of_module(module):
            found = module.operator.name, sweep.modules.reads(module, finding)
            if not found[1]:
                return found
    return found


def _origin(sweep: Sweep, finding: Finding) -> Optional[Finding]:
    """The tensor of equal content that either run wrote or read before, if it agrees; then the other run changed
    the tensor after that."""
    found = source_of(sweep, finding), target_source_of(sweep, finding)
    return next((one.finding for one in found if one and not one.tainted and agrees(one.finding)), None)


def _other_tensor(sweep: Sweep, finding: Finding) -> Optional[tuple[Finding, Finding]]:
    """The two outputs of which an input has the figures, in the target and in the golden; both agree."""
    found = target_source_of(sweep, finding), source_of(sweep, finding)
    wrote = [one.finding for one in found if one and not one.tainted and agrees(one.finding)]
    outputs = [one for one in wrote if is_output(one.pair) and scale_of(one).elements > 1]
    return (outputs[0], outputs[1]) if len(outputs) == 2 and outputs[0].row != outputs[1].row else None


def _writer(sweep: Sweep, gap: Finding) -> Optional[Writer]:
    """The output that an input comes from, if it is known and was not compared."""
    source = source_of(sweep, gap)
    if source is not None:
        unseen = source.finding.error is None and is_output(source.finding.pair)
        unseen = unseen and not is_alike(source.finding)  # then the target read a tensor that it did not write
        return unmeasured_writer(source.finding) if unseen else None
    source_line = next((t.source for t in (gap.pair.target, gap.pair.golden) if t and t.source), "")
    return uncompared_writer(sweep, gap) or (Writer(source_line) if source_line else None)
