"""Explain or accuse a tensor, by the errors of its inputs or by a rule, and revise its finding.

An error above the limit that the inputs explain and that descends from no root is no divergence: the tensor is a
`match`, and `because` gives the reason. A tensor that a rule accuses is `diverged`.
"""

from __future__ import annotations

from typing import Optional, Sequence

from npucmp.flow.contents import is_few, is_vector
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.tolerance import Limit
from npucmp.localise.evidence import WorstInput, argument_reasons, worst_of
from npucmp.localise.explained_rows import READ, WORDS, WRITTEN, with_reason
from npucmp.localise.intervals import (
    OperatorReads,
    behind_a_root,
    incoming_error,
    inputs_agree,
    is_cancellation_residue,
    is_overwritten,
    may_have_moved,
    producer_finding,
    share_of,
)
from npucmp.localise.recomputation import NAME as RECOMPUTED
from npucmp.localise.root_cause import OwnError, with_explanation
from npucmp.localise.rule_context import RuleContext, differs, error_size
from npucmp.localise.rules.accusations import is_step
from npucmp.localise.rules.explanations import share_of_rows
from npucmp.localise.seen_errors import is_alike
from npucmp.localise.sources import source_of
from npucmp.localise.sweep import Sweep
from npucmp.localise.thresholds import mark_in_place
from npucmp.model import Evidence, Finding, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.roles import containers, is_output, names_of

EXPLAINED = {  # the words for the explanation, by rule; for other rules the incoming errors explain it
    "constant_rows": "rounding in rows that are constant in its input",
    "cancellation": "the errors of the terms of its sum",
}


def explanation_of(sweep: Sweep, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> Optional[Limit]:
    """The explanation of an output's error; None if there is none. Behind a root, inputs below the limit count as
    at the limit."""
    key = finding.row, sweep.changed_choice_share
    if key not in sweep.explained:
        sweep.explained[key] = _of_output(sweep, node, finding, reads)
    return sweep.explained[key]


def _of_output(sweep: Sweep, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> Optional[Limit]:
    before = incoming_error(sweep, node, finding, reads).high
    changed = sweep.changed_choice_share
    # behind a root, inputs that may have an error do not agree
    agree = not (before and sweep.any_tainted) and inputs_agree(sweep, node, reads)
    if not before and agree:
        changed = 0.0  # what agrees explains nothing
    elif reads.error is not None:
        before = max(before, behind_a_root(sweep, finding))
    flipped = sweep.flipped and not sweep.flipped.isdisjoint(names_of(node.operator))
    case = RuleContext(
        finding,
        node,
        before,
        changed_choice_share=changed,
        inputs_agree=agree and not sweep.any_tainted,
        flipped_inside=bool(flipped),
    )
    by = explanation_of_case(sweep, case)
    return by or (explanation_inside(sweep, finding) if node.operator.path else None)


def explanation_inside(sweep: Sweep, finding: Finding) -> Optional[Limit]:
    """The explanation of the error of the same tensor for the operator inside this module that wrote it."""
    source = source_of(sweep, finding)
    if source is None or source.tainted or error_size(finding) != error_size(source.finding):
        return None
    seen = sweep.now(source.finding)
    return Limit(seen.explained_limit, seen.explained_by) if seen.explained_by else None


def explanation_of_case(sweep: Sweep, case: RuleContext) -> Optional[Limit]:
    """The explanation of a case. If the user's own rules decide, inputs that agree by them explain nothing; nor do
    they explain that each rank has its own part of a sum that agrees."""
    relation = case.pair.target.relation if case.pair.target is not None else None
    if relation is not None and relation.unreduced:
        return None
    return sweep.rules.explanation(case) if sweep.by_round_off or case.input_error > 0 else None


def excuse(sweep: Sweep, finding: Finding, by: Optional[Limit]) -> None:
    """Excuse an error above the limit that the inputs explain and that does not descend from a root."""
    if by is None:
        return
    if by.rule == "cancellation" and is_vector(finding):
        sweep.residues.add(finding.row)
    if by.rule == "choice":
        sweep.changed_choice_share = max(sweep.changed_choice_share, RuleContext(finding).share_changed)
    if sweep.by_round_off and finding.verdict is Verdict.SHAPE:
        sweep.changed_choice_share = max(sweep.changed_choice_share, share_of_rows(finding))
        because = f"{finding.because}; a choice upstream differs"
        sweep.revised[finding.row] = with_explanation(finding._replace(verdict=Verdict.UNKNOWN, because=because), by)
    elif sweep.by_round_off and finding.verdict is Verdict.DIVERGED and finding.metric == "rel_l2":
        words = EXPLAINED.get(by.rule, WORDS[WRITTEN if is_output(finding.pair) else READ])
        because = with_reason(finding.because, words)
        known = finding.measurement.moments is not None  # statistics give only a lower bound of an error
        verdict = Verdict.MATCH if known else Verdict.UNKNOWN
        sweep.revised[finding.row] = with_explanation(finding._replace(verdict=verdict, because=because), by)


def excuse_all(sweep: Sweep, node: OperatorFindings, diverged: Sequence[Finding], reads: OperatorReads) -> None:
    """Excuse outputs that differ by no more than the inputs explain, and inputs that the operator overwrote."""
    for output in diverged:
        by = explanation_of(sweep, node, output, reads)
        excuse(sweep, output, by)
        if by is not None and by.rule == "non_smooth":
            sweep.flipped.update(containers(node.operator, sweep.scopes))
            sweep.any_flipped = True
        if reads.error is None and is_few(output):  # possibly the rest of a sum that cancels
            sweep.residues.add(output.row)
    for finding in node.inputs:
        # an overwritten input holds the output
        if differs(finding) and is_overwritten(sweep, node, finding) and not node.writes_to(finding):
            by = explanation_of(sweep, node, finding, reads)
            excuse(sweep, finding, by)
            if by is None:
                sweep.revised[finding.row] = mark_in_place(finding)
    if not (sweep.any_flipped or is_cancellation_residue(sweep, node)):  # a flip is no slow growth
        _learn_growth(sweep, node, diverged, reads.error or 0.0)


# Inputs after explained errors were reverted


def _learn_growth(sweep: Sweep, node: OperatorFindings, excused: Sequence[Finding], read: float) -> None:
    """Add the growth of the outputs of an operator that were excused; `read` is the error that it read."""
    for finding in excused if read else ():
        case = RuleContext(finding, node, read, grew_stepwise=True)
        if not is_step(case):
            continue
        growth = error_size(finding) / case.input_error
        if sweep.steepest is None or growth > sweep.steepest[0]:
            sweep.steepest = growth, node, finding
        if sweep.hopeless is None and sweep.rules.holds("gradual", case):
            sweep.hopeless = finding


def reads_what_differs(sweep: Sweep, node: OperatorFindings) -> bool:
    """Whether a tensor that its forward read or wrote descends from a root and still differs, or whether the error
    of a tensor that the operator reads may descend from one, although statistics agree."""
    if not sweep.any_tainted:
        return False
    if any(differs(sweep.now(one)) for one in node.extra_inputs):
        return True
    return any(may_have_moved(sweep, finding) for finding in (*node.inputs, *node.extra_inputs))


def worst_input(sweep: Sweep, node: OperatorFindings) -> WorstInput:
    """The input with the largest difference, as far as it can reach the outputs."""
    read, own = (*node.inputs, *node.extra_inputs), len(node.inputs)
    apart = [
        (_reach(sweep, node, wrote, at >= own), wrote, at >= own)
        for at, wrote in enumerate([producer_finding(sweep, finding) for finding in read])
        if differs(now := sweep.now(wrote)) and not is_overwritten(sweep, node, now)
    ]
    kept = () if apart else (finding for finding in read if not is_overwritten(sweep, node, finding))
    return worst_of(apart, [producer_finding(sweep, finding) for finding in kept])


def _reach(sweep: Sweep, node: OperatorFindings, finding: Finding, saved: bool) -> float:
    """The error of an input as far as it can reach the outputs; `saved`: it is not an input of the operator
    itself."""
    if saved and node.op.has("saves nothing"):
        return 0.0
    error, share = error_size(finding), share_of(sweep, node, finding)
    return error * share if error and share else 0.0


def is_argued(sweep: Sweep, node: OperatorFindings) -> bool:
    """Whether an argument differs, and the inputs have statistics that agree: then the argument causes the
    difference that statistics prove of the output."""
    read = [producer_finding(sweep, one) for one in node.inputs]
    agree = all(is_alike(one) or one.verdict is Verdict.MATCH for one in read) and node.reads_recorded
    is_comparable = any(map(is_alike, (*read, *node.outputs))) or any(one.measurement.bound for one in node.outputs)
    return agree and is_comparable and not sweep.any_tainted and bool(argument_reasons(node.pair))


# Accusations


def accuse(sweep: Sweep, *cases: RuleContext, only: str = "") -> Optional[OwnError]:
    """The tensor with the words of an accusation, of several that with the largest error; None if no rule accuses
    one, or if the user's own rules decide. `only` names a single rule to try."""
    found = [sweep.rules.accusation(case, only) for case in cases] if sweep.by_round_off else []
    worst = max(filter(None, found), key=error_size, default=None)
    if worst is None:
        return None
    sweep.revised[worst.row] = worst
    return OwnError(worst, worst.rule)


def accuse_recomputed(sweep: Sweep, finding: Finding, reasons: Sequence[Evidence]) -> OwnError:
    """Mark an output that recomputation accuses as differing, even if its error is below the limit."""
    if not differs(finding):
        because = f"{finding.because}; {reasons[0].sentence()}".removeprefix("; ")
        finding = finding._replace(verdict=Verdict.DIVERGED, because=because, rule=RECOMPUTED)
        sweep.revised[finding.row] = finding
    return OwnError(finding, RECOMPUTED)


def own_error(sweep: Sweep, node: OperatorFindings, reads: OperatorReads) -> Optional[OwnError]:
    """The output whose error exceeds what the inputs explain, otherwise an output that is accused; the largest
    error of several."""
    unexplained = [one for one in node.outputs if differs(one) and not explanation_of(sweep, node, one, reads)]
    if unexplained:
        worst = max(unexplained, key=error_size)
        return OwnError(worst, worst.rule)
    is_bounded = not any(may_have_moved(sweep, finding) for finding in (*node.inputs, *node.extra_inputs))
    is_bounded = is_bounded and reads.error is not None
    cases = [
        RuleContext(
            one,
            node,
            incoming_error(sweep, node, one, reads).high,
            downcast_share=sweep.downcast_share,
            changed_choice_share=sweep.changed_choice_share,
            written_inside=_is_written_inside(sweep, node, one),
        )
        for one in node.outputs
        if (is_bounded or one.measurement.moments)  # the rules below are for values
        and one.rule != OTHER_NODE
        and not _is_rounding_alone(sweep, node, one, reads)
    ]
    if is_bounded:
        return accuse(sweep, *cases)
    if found := accuse(sweep, *cases, only="law"):  # it does not depend on the inputs of an operator
        return found
    # nor do single elements that are wrong, nor one factor that scales a tensor while no root exists upstream
    rules = ["single_element"] if sweep.any_tainted else ["single_element", "scaled"]
    accused = (accuse(sweep, case, only=name) for case in cases for name in rules)
    return next(filter(None, accused), None)


def _is_written_inside(sweep: Sweep, node: OperatorFindings, finding: Finding) -> bool:
    """Whether the output of a module is the tensor that an operator in it wrote, which was judged by what that operator
    read."""
    source = source_of(sweep, finding) if node.operator.path else None
    is_earlier = source is not None and not source.tainted and source.finding.row != finding.row
    return source is not None and is_earlier and error_size(finding) == error_size(source.finding)


def _is_rounding_alone(sweep: Sweep, node: OperatorFindings, finding: Finding, reads: OperatorReads) -> bool:
    """Whether some rows of an output hold only rounding, which accusations do not consider."""
    is_candidate = finding.measurement.settled is not None and differs(finding)
    by = explanation_of(sweep, node, finding, reads) if is_candidate else None
    return by is not None and by.rule == "constant_rows"
