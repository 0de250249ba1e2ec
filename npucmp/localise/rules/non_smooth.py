"""A gradient of a choice: where the forward was near its kink, an error e flips a share e of the mask's elements.

A flipped element is wrong as a whole, so that rel_l2 is √e. Two elements may flip in any tensor, however small.
Evidence: 205 such gradients of silent clean pairs of the corpus, up to 2.6 √e.
"""

from __future__ import annotations

import math

from npucmp.localise.case import Case, Rule

FLIPS = 4.0  # times √e


def _one_flip(case: Case) -> float:
    """The error that two elements give which are there on one side only; small tensors cannot err by less."""
    moments = case.moments
    if moments is None or not moments.yy:
        return 0.0
    largest = max(abs(moments.golden.minimum), abs(moments.golden.maximum))
    return math.sqrt(2.0) * largest / math.sqrt(moments.yy)


RULE = Rule(
    "explanation",
    "non_smooth",
    f"an error e before a choice flips a share e of its elements, which rel_l2 sees as up to {FLIPS:g} √e",
    applies=lambda case: case.before > 0 and not case.is_choice and case.is_non_smooth,
    bound=lambda case: max(FLIPS * math.sqrt(case.before), _one_flip(case)),
)
