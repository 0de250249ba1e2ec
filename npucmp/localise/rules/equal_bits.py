"""The operator read equal bits, and its outputs in 8 or 16 bits differ by more than roundings.

Such types are summed in float32, so two correct results differ by one rounding in a few elements. Three signs show a
fault: the size of the error, the share of elements that differ (accumulation in the type itself, a weak erf or exp),
and a common factor that rounding to the nearest does not have (truncation). Evidence: 9,786 outputs of 16 bits with
equal inputs in clean pairs of the corpus (open seeds), without modules: up to 0.5 u, 12 % of the elements, 0.05 u in
common.

Outputs in bfloat16, float16 or float8 are diverged if they are more than 1.5 u apart, differ in more than 40 % of the
elements, or have 0.25 u in common. For modules, for fewer than 64 elements and between two types only an error above 2
u counts.
"""

from __future__ import annotations

import math

from npucmp.judge.precision import BOTH_SIDES, SINGLE
from npucmp.localise.rule_context import FACTOR_DEVIATIONS, MIN_ELEMENTS, ErrorRule, RuleContext, mark_diverged
from npucmp.model import Finding, Verdict
from npucmp.model.dtypes import lookup

ROUND_OFFS = 1.5  # round-offs: evidence: 0.5 at most between right results from the same bits
CHANGED_SHARE = 0.4  # share of elements: evidence: at most 0.12 are rounded differently
BIAS = 0.25  # round-offs in common: evidence: 0.05 at most


def _accuses(case: RuleContext) -> bool:
    node, target, golden = case.node, case.pair.target, case.pair.golden
    if (
        case.input_error
        or node is None
        or not node.inputs
        or any(map(_may_differ, (*node.inputs, *node.extra_inputs)))
        or case.finding.error is None
        or case.finding.metric == "noise"
    ):
        return False
    if target is None or golden is None or (target.dtype != golden.dtype and not node.operator.inserted):
        return False  # an inserted operator only rounds once, from any wider type
    row = max((lookup(golden.dtype), lookup(target.dtype)), key=lambda one: one.round_off if one else 0.0)
    if row is None or row.round_off <= SINGLE:
        return False
    if target.relation is not None and target.relation.is_partial:  # each rank rounds its term
        return case.error > ROUND_OFFS * row.round_off * target.relation.rounding
    moments = case.moments
    if case.is_composed and case.changed_choice_share:
        return False
    if moments is None or case.is_composed or target.dtype != golden.dtype or moments.compared < MIN_ELEMENTS:
        return case.error > BOTH_SIDES * row.round_off
    return (
        case.error > ROUND_OFFS * row.round_off or case.share_changed > CHANGED_SHARE or _is_biased(case, row.round_off)
    )


def _may_differ(finding: Finding) -> bool:
    """Whether a tensor is known by statistics that are not equal: they prove no difference, nor equal bits."""
    x, y = finding.measurement.statistics
    return finding.error is None and repr(x) != repr(y)


def _is_biased(case: RuleContext, round_off: float) -> bool:
    assert case.moments is not None
    deviations = abs(case.gain) * math.sqrt(case.moments.compared)
    return abs(case.gain) > BIAS * round_off and deviations > FACTOR_DEVIATIONS * case.error and case.has_many


def _judged(case: RuleContext) -> Finding:
    """The finding with the sign that shows: the size of the error, else the share of elements, else what they share."""
    row = lookup(case.pair.golden.dtype) if case.pair.golden is not None else None
    round_off = row.round_off if row else 0.0
    if case.error > ROUND_OFFS * max(round_off, case.own_round_off) or case.moments is None:
        return mark_diverged(case.finding)
    because = (
        f"{case.share_changed:.3%} of the elements differ (rel_l2 {case.error:.2e}), more than one rounding of equal "
        "inputs explains"
    )
    if case.share_changed <= CHANGED_SHARE:
        because = f"rel_l2 {case.error:.2e}, {case.gain:+.1e} in common, which rounding to nearest does not have"
    return case.finding._replace(verdict=Verdict.DIVERGED, because=because)


RULE = ErrorRule(
    "accusation",
    "equal_bits",
    f"inputs match bit for bit, but 8- or 16-bit outputs differ by more than {ROUND_OFFS:g} roundings or in too many "
    "elements",
    applies=_accuses,
    judged=_judged,
)
