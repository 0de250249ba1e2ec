"""One factor scales all parameters of a step: an update without weight decay, a checkpoint that was scaled.

Each parameter may be within its limit, or within the error that its update explains. Noise of gradients does not scale
parameters, so factors of one sign in all parameters are evidence together; the first parameter in order is reported.
Evidence: localise/parameter_drift.py, which counts the factors in standard deviations.

Nine of ten parameters must have a factor of the same sign, and all factors together must be 8 standard deviations of
noise away from zero. Only parameters of one type on both sides count, because a coarser type loses a small update.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import FACTOR_DEVIATIONS, ErrorRule, RuleContext, deviations_of
from npucmp.model import Finding, Verdict


def _accuses(case: RuleContext) -> bool:
    """Whether a parameter has the factor; an input that is not known to be a parameter must exceed its noise by
    itself."""
    own = deviations_of(case.finding) * math.copysign(1.0, case.factor)
    return (
        case.node is None
        and case.no_producer
        and case.factor != 0.0
        and own > (0.0 if case.is_parameter else FACTOR_DEVIATIONS)
    )


def _evaluate(case: RuleContext) -> Finding:
    words = f"all parameters are scaled by about 1 {'+' if case.factor > 0 else '-'} {abs(case.factor):.1e}"
    return case.finding._replace(verdict=Verdict.DIVERGED, because=words)


RULE = ErrorRule(
    "accusation",
    "common_factor",
    "one factor scales all parameters of a step, which noise of their gradients cannot do",
    applies=_accuses,
    judged=_evaluate,
)
