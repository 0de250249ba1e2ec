"""The whole tensor is off by one factor (a gain error), far beyond the error of rounding and the inputs.

Rounding errors cancel in Σxy/Σy², a wrong factor does not: this detects a 2 % fault under bfloat16. Evidence: in 99 %
of 8,550 tensors of silent clean pairs of the corpus the factor is below 2.1 times one round-off, or the factor of the
inputs.

An output of 16 elements or more is diverged if its factor exceeds 4 u, 4 times the factor of any input and twice e, and
makes up 90 % of its error. If the error beside the factor is less than the round-off of the working precision, u is
that error or the round-off of the output's type. If inputs were not recorded, the factor must exceed twice the errors
seen before, and no root may precede the operator.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import COMMON_SHARE, OUTLIER_FACTOR, ErrorRule, RuleContext
from npucmp.model import Finding, Verdict

# round-offs: evidence: 2.1 in 99 % of 8,550 tensors of clean pairs; also growth of such a factor
SCALE_ROUND_OFFS = 4.0


def limit(case: RuleContext) -> float:
    """The common factor that rounding alone may give. Roundings scatter: if the error beside the factor is below the
    round-off of the working precision, the operator rounded to the type of its output. Code that was not dumped may
    have rounded a number that it multiplies by."""
    if case.node is None:
        return SCALE_ROUND_OFFS * case.round_off
    scatter = math.sqrt(max(0.0, case.error**2 - case.gain**2))
    return SCALE_ROUND_OFFS * min(case.round_off, max(case.own_round_off, scatter))


def _accuses(case: RuleContext) -> bool:
    factor = abs(case.gain)
    if not case.is_measured or (case.node is None and not case.no_producer):
        return False
    if factor < COMMON_SHARE * case.error or not case.has_many:
        return False
    if case.cancels:
        return False
    return factor > max(limit(case), SCALE_ROUND_OFFS * case.input_gain, OUTLIER_FACTOR * case.input_error)


def _evaluate(case: RuleContext) -> Finding:
    words = f"whole tensor scaled by 1 {'+' if case.gain > 0 else '-'} {abs(case.gain):.1e}, limit ±{limit(case):.1e}"
    return case.finding._replace(verdict=Verdict.DIVERGED, because=words, metric="gain", limit=limit(case))


RULE = ErrorRule(
    "accusation",
    "scaled",
    "the whole tensor is too large or too small by one factor, by more than rounding and the inputs explain",
    applies=_accuses,
    judged=_evaluate,
)
