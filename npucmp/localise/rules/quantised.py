"""Behind whole numbers that represent quantised floats, errors are half a step of 8 bits.

Half a step is 2^-8 of the largest value; for dequantised tensors the limit is 8 half steps, if the largest value of the
golden is at most 4 times its rms, and more in proportion if it is larger: the largest value sets the step of all.

Whole numbers of at most 32 bits that differ from the floats of the other run by more than 1 may count steps of a size
that no dump records: their verdict is `dtype`, which is not an agreement. If no scale above 0 and no offset relate the
two sides, they are `diverged`: the correlation is below 0.3 and more remains than rounding leaves, or most elements are
equal and the scale is 1. From the first quantised tensor on, the round-off of the run is at least 2^-8.
"""

from __future__ import annotations

from npucmp.judge.precision import STEP_BITS
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.rule_context import QUANTISED, ErrorRule, RuleContext
from npucmp.localise.rules.round_off import UNRELATED_ERROR

# times the rms: chosen: the largest of a thousand values with a normal distribution is 3 to 4 times as large, not
# measured
USUAL_PEAK = 4.0


def _bound(case: RuleContext) -> float:
    scale = case.scale if case.moments is not None else None  # without values, a limit depends on the precision alone
    peak = scale.largest / scale.rms if scale is not None and scale.rms else 0.0
    return min(UNRELATED_ERROR, FACTOR * 2.0**-STEP_BITS * max(1.0, peak / USUAL_PEAK))


RULE = ErrorRule(
    "limit",
    QUANTISED,
    f"one run is quantised to {STEP_BITS} bits: limit {FACTOR:g} · 2^-{STEP_BITS}",
    applies=lambda case: case.precision.quantised,
    bound=_bound,
)
