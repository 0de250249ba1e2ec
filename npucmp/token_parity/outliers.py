"""How many tokens beyond noise are chance, and how large the median difference of a clean part is."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.noise import LEAST_UNSURE, UNSURE
from npucmp.token_parity.token_pair import TokenPair

FEW = 0.004  # share of tokens beyond noise that outliers of rounding make: evidence, clean pairs have less
DEVIATIONS = 3.0  # standard deviations of a number of outliers: chosen
WITHIN = 0.8  # median margin of unsure tokens: definition, normal noise of the floor has 0.67

Count = TypeVar("Count", float, Floats)


def most_outliers(tokens: Count) -> Count:
    """Return how many of a number of tokens are beyond noise by chance."""
    expected = FEW * tokens
    found: Count = expected + DEVIATIONS * expected**0.5
    return found


def is_few(pair: TokenPair) -> bool:
    """Return whether the tokens beyond noise are not significantly more than the share that outliers make: one may be
    among few."""
    return int(pair.far.sum()) <= max(1.0, most_outliers(float(pair.counted.sum())))


def median_margin_of(pair: TokenPair, tokens: Bools) -> float:
    """Return the median margin of the unsure tokens, of all if few are unsure; 0 without tokens."""
    unsure = tokens & (pair.lower < UNSURE)
    used = unsure if unsure.sum() > LEAST_UNSURE else tokens
    return float(np.median(pair.margin[used])) if used.any() else 0.0
