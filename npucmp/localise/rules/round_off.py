"""Rounding in the working precision: 8 unit round-offs of the coarsest type that the values went through.

Evidence: in clean pairs of the corpus (open seeds) that are silent, the median error of an output is 2.2 round-offs and
nine of ten stay below 6.7; what is above 8 is explained by its inputs. Under bfloat16 autocast, tensors that are
float32 on paper carry bfloat16's error.
"""

from __future__ import annotations

from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import Rule

RULE = Rule(
    "limit",
    "round_off",
    "nine of ten outputs of clean runs are within 6.7 unit round-offs of the coarsest float type up to there",
    applies=lambda case: case.precision.round_off > 0,
    bound=lambda case: FACTOR * case.precision.round_off,
)
