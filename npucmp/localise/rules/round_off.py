"""Rounding in the working precision: 8 unit round-offs of the coarsest type that the values went through.

Evidence: 4,000 clean pairs of the corpus and the real dumps of docs/localisation.md; errors of operators whose inputs
agree are 0.1 to 5 round-offs, those of a network's last layers up to 8.
"""

from __future__ import annotations

from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import Rule

RULE = Rule(
    "limit",
    "round_off",
    "clean runs differ by 0.1 to 8 unit round-offs of the coarsest float type up to there",
    applies=lambda case: case.precision.round_off > 0,
    bound=lambda case: FACTOR * case.precision.round_off,
)
