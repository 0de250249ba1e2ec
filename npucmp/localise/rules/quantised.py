"""Behind whole numbers that represent quantised floats, errors are half a step of 8 bits.

Half a step is 2^-8 of the largest value; for dequantised tensors the limit is 8 half steps.
"""

from __future__ import annotations

from npucmp.judge.precision import STEP_BITS
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.rule_context import ErrorRule

RULE = ErrorRule(
    "limit",
    "quantised",
    f"one run is quantised: its values are multiples of a step of {STEP_BITS} bits",
    applies=lambda case: case.precision.quantised,
    bound=lambda case: FACTOR * 2.0**-STEP_BITS,
)
