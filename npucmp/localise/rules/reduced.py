"""Matrix products of float32 whose units keep 11 bits: HF32 on Ascend, TF32 on GPUs.

They are recognised by what products add to the errors that they read (judge/products.py).
Source: CANN, "allow_hf32"; NVIDIA, TF32 (10-bit mantissa). Evidence: one product of numbers rounded to 11 bits is off
by 2e-4 to 4e-4.
"""

from __future__ import annotations

import math

from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import Rule

REDUCED = 2.0**-11  # round-off: literature: 11 significant bits of HF32 (CANN) and TF32 (NVIDIA)

RULE = Rule(
    "limit",
    "reduced",
    f"HF32 and TF32 units keep {-math.log2(REDUCED):g} bits of the float32 values that they multiply",
    applies=lambda case: case.precision.reduced,
    bound=lambda case: FACTOR * REDUCED,
)
