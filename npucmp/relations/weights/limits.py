"""The difference of single elements that the types of two parameters allow. One element beyond it is a finding.

float32, float64          2e-7 of the value: a copy, or one rounding to float32
bfloat16, float16         2^-8, 2^-11 of the value: one rounding to the type; float16 also half its smallest number
float8 times a scale      2^-4 of the value (1.05 times: the scale is rounded too), and 2^-10 of a step
int8 times a scale        half a step, and what the rounding of the scale makes of 127 steps
an update of low rank     the rounding of the sum of its terms
"""

from __future__ import annotations

from typing import NamedTuple

from npucmp.model.dtypes import lookup
from npucmp.relations.weights.part import Part

SINGLE = 2e-7  # of the value: chosen: a copy, or one rounding to float32 on each side (2^-24) and that of a product
TINY_HALF = 2.0**-25  # value: definition: half of the smallest number of float16
TINY = {"float16": TINY_HALF}
HALF_STEP = 0.51  # of a step of int8: definition: half, and the rounding of the quotient
LARGEST_CODE = 127.0  # code: definition: of int8
EIGHT_BITS = 1.05  # times the round-off: chosen: the scale is rounded to its own type before codes are rounded
STEP_OF_FLOAT8 = 2.0**-10  # of a step: definition: half of the smallest number of float8_e4m3fn


class WeightLimit(NamedTuple):
    """|target - golden| ≤ rtol·|golden| + atol + steps·step, where step is the scale of the codes."""

    rtol: float
    atol: float = 0.0
    steps: float = 0.0

    @property
    def is_quantised(self) -> bool:
        return self.steps > 0.0


def limit_of(a: Part, b: Part) -> WeightLimit:
    """Return the limit of two parts by their stored types; exact for whole numbers without a scale."""
    types = [part.dtype for part in (a, b)]
    codes = [part for part in (a, b) if part.scale_dtype]
    plain = [one for one in types if not (codes and one.startswith("float8"))]
    rtol = max((_relative(one) for one in plain), default=0.0)
    atol = max((TINY.get(one, 0.0) for one in types), default=0.0)
    if not codes:
        return WeightLimit(rtol, atol)
    if len(codes) == 2:
        return WeightLimit(max(rtol, SINGLE), atol)  # both have codes: their products are equal
    code = codes[0]
    if code.dtype == "int8":
        row = lookup(code.scale_dtype)
        rounding = row.round_off if row is not None else 0.0
        return WeightLimit(rtol if rtol > SINGLE else 0.0, atol, HALF_STEP + LARGEST_CODE * rounding)
    return WeightLimit(EIGHT_BITS * _relative(code.dtype), atol, STEP_OF_FLOAT8)


def _relative(dtype: str) -> float:
    """Return one rounding to a type, in shares of the value; 0 for types without rounding."""
    row = lookup(dtype)
    return max(SINGLE, row.round_off) if row is not None and row.kind == "f" else 0.0
