"""Rounding in the working precision: 8 unit round-offs of the coarsest type that the values went through.

Evidence: in clean pairs of the corpus (open seeds) that are silent, the median error of an output is 2.2 round-offs and
nine of ten stay below 6.7; what is above 8 is explained by its inputs. Under bfloat16 autocast, tensors that are
float32 on paper carry bfloat16's error. Types of 8 and 4 bits would have a limit at which unrelated tensors pass:
a tensor of which one half is zero is off by 0.71, a reordered one by 1.41, and rounding to float4 by 0.14.
"""

from __future__ import annotations

from npucmp.judge.tolerance import FACTOR
from npucmp.localise.rule_context import ErrorRule

# rel_l2: chosen: no rounding reaches it, nor one gradient with an error; a tensor of which one half is zero is off by
# 0.71
UNRELATED = 0.5

RULE = ErrorRule(
    "limit",
    "round_off",
    f"{FACTOR:g} unit round-offs of the coarsest float type up to there; nine of ten outputs of clean runs have 6.7",
    applies=lambda case: case.precision.round_off > 0,
    bound=lambda case: min(UNRELATED, FACTOR * case.precision.round_off),
)
