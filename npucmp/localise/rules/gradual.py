"""Errors that no operator makes much larger, and that reach 64 √u all the same: slow is not harmless.

64 √u is 1.6 % in float32, and more than 1 in bfloat16, where nothing is told by size alone.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules.growth import GROWTH

HOPELESS = 64.0  # in √u: chosen: 1.6 % in float32, not measured


def is_step(case: RuleContext) -> bool:
    """Whether an error that is explained grew from a smaller one, and that one was none of the hopeless. More growth is
    no step of many but cancellation or flipped masks."""
    return 0 < case.before <= _hopeless(case) and case.error <= GROWTH * case.before


def _hopeless(case: RuleContext) -> float:
    return HOPELESS * math.sqrt(max(case.round_off, case.finding.working))


RULE = ErrorRule(
    "accusation",
    "gradual",
    f"errors grew step by step to more than {HOPELESS:g} √u, which is no rounding any more",
    applies=lambda case: case.grown and is_step(case) and case.error > _hopeless(case),
)
