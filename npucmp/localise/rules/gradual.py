"""Errors that no single operator enlarges much, but that reach 64 √u: slow growth is not harmless.

64 √u is 1.6 % in float32, and more than 1 in bfloat16, where size alone decides nothing.

The operator with the steepest growth is WORSENED.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules.growth import GROWTH

ERROR_LIMIT = 64.0  # in √u: chosen: 1.6 % in float32, not measured


def is_step(case: RuleContext) -> bool:
    """Whether an explained error grew from a smaller error that was itself below HOPELESS. More growth is not one of
    many steps but cancellation or flipped masks."""
    return 0 < case.input_error <= _exceeds_limit(case) and case.error <= GROWTH * case.input_error


def _exceeds_limit(case: RuleContext) -> float:
    return ERROR_LIMIT * math.sqrt(max(case.round_off, case.finding.working))


RULE = ErrorRule(
    "accusation",
    "gradual",
    f"no single operator enlarges the error much, but together they exceed {ERROR_LIMIT:g} √u (1.6 % in float32): the "
    "operator with the steepest growth is named",
    applies=lambda case: case.grew_stepwise and is_step(case) and case.error > _exceeds_limit(case),
)
