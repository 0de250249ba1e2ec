"""Below the smallest normal number of a type the spacing stays constant, so the relative round-off grows.

Evidence: float16 gradients lie below 6e-5; 2.8e-2 was seen in a clean float16 run, limit 3.9e-3.

The limit is multiplied by the smallest normal number over the root mean square of the golden, if that exceeds 1.
"""

from __future__ import annotations

import math

from npucmp.judge.precision import narrower_dtype
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model.dtypes import lookup


def _times(case: RuleContext) -> float:
    """The ratio of the type's relative spacing at these values to its unit round-off."""
    moments = case.moments
    if moments is None or not moments.compared:
        return 1.0
    row = lookup(narrower_dtype(case.pair))
    if row is None or not row.round_off:
        return 1.0
    if not moments.yy:  # all zero: the other side's values may have been too small for the type
        return math.inf if moments.max_abs <= row.tiny * row.round_off else 1.0
    rms = math.sqrt(moments.yy / moments.compared)
    return row.tiny / rms if rms else math.inf


RULE = ErrorRule(
    "limit",
    "subnormal",
    "values below the smallest normal number of their type are rounded to the spacing of its subnormal numbers",
    applies=lambda case: _times(case) > 1.0,
    bound=lambda case: FACTOR * case.precision.round_off * _times(case),
)
