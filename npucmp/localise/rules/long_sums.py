"""Two orders of adding K terms in the type itself differ by about √K/16 times 8 round-offs.

Only float32 and wider types accumulate in themselves; sums of 16-bit floats accumulate in float32. Source: Higham,
Accuracy and Stability of Numerical Algorithms, §4.2 (random walk of rounding errors). Evidence: 9.2 round-offs in a
weight gradient of a clean run with another number of threads.
"""

from __future__ import annotations

import math

from npucmp.judge.precision import SINGLE
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import SUMMATION_MOST as MOST_TERMS
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model.dtypes import SHORT_SUM as SHORT


def _applies(case: RuleContext) -> bool:
    round_off = case.precision.round_off
    coarser = case.precision.reduced or case.precision.quantised
    return case.moments is not None and not coarser and 0 < round_off <= SINGLE


RULE = ErrorRule(
    "limit",
    "long_sums",
    f"float32 sums of K terms in another order differ by up to √K/{SHORT:g} times the limit of short sums",
    applies=_applies,
    bound=lambda case: FACTOR * case.precision.round_off * math.sqrt(min(case.terms_summed, MOST_TERMS)) / SHORT,
)
