"""The differences are noise: nearly no token is beyond it, the median token is well within it, and no part of the
difference is a function of the log-probability.

A few tokens far beyond noise make no class, and are not silent either: the step is undecided.
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.model.token_batch import Bools
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.noise import DEFAULT_FLOOR, LEAST_UNSURE, UNSURE, noise_of
from npucmp.token_parity.rules import other_context, sum_mean, temperature, top_p
from npucmp.token_parity.token_pair import TokenPair, first_place

FEW = 0.004  # share of tokens beyond noise that outliers of rounding make: evidence, clean pairs have less
DEVIATIONS = 3.0  # standard deviations of a number of outliers: chosen
WITHIN = 0.8  # median margin of unsure tokens: definition, normal noise of the floor has 0.67
FAR = 12.0  # margin of a token that is no outlier of rounding: chosen
CLEAR = 6.0  # margin of several such tokens: chosen
LEAST_CLEAR = 2  # tokens, if they are more than the share of outliers: chosen


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding "clean", or "undecided" for a few tokens that are far from noise or cannot be compared, and
    for numbers of requests that may be means."""
    found = _find(pair)
    is_clean = found is not None and found.token_class is TokenClass.CLEAN
    return (sum_mean.unsure_mean(pair) if is_clean else None) or found


def _find(pair: TokenPair) -> Optional[ParityFinding]:
    counted = pair.counted
    if not counted.any():
        if pair.sums is not None:
            return finding_at(
                pair, TokenClass.CLEAN, None, "the sums over responses agree; single tokens are not recorded"
            )
        return finding_at(pair, TokenClass.UNDECIDED, None, "no token counts on both sides")
    if not pair.far.any() and median_margin(pair) == 0:
        return finding_at(pair, TokenClass.CLEAN, None, "most log-probabilities are equal, the others within noise")
    if not is_few(pair) or median_margin(pair) >= WITHIN:
        return None
    if temperature.is_systematic(pair) or other_context.lone_request(pair) is not None:
        return None
    if top_p.may_be_cut(pair):
        because = "the rollout seems to lack probability (top-p), by too little for a class"
        return finding_at(pair, TokenClass.UNDECIDED, None, because)
    for limit, least in ((FAR, 1), (CLEAR, max(LEAST_CLEAR, FEW * int(counted.sum())))):
        outliers = _outliers(pair, limit)
        if outliers.sum() >= least:
            many = f"{int(outliers.sum())} of {int(counted.sum())} tokens"
            because = f"{many} are beyond {limit:g} times the noise: too few for a class"
            return finding_at(pair, TokenClass.UNDECIDED, first_place(outliers), because)
    return finding_at(pair, TokenClass.CLEAN, None, "the differences are within the noise of logits")


def _outliers(pair: TokenPair, limit: float) -> Bools:
    """Return the tokens beyond a multiple of the noise; a floor below the default does not make outliers of rounding
    errors."""
    return pair.counted & (np.abs(pair.difference) > limit * noise_of(pair.lower, max(pair.floor, DEFAULT_FLOOR)))


def is_few(pair: TokenPair) -> bool:
    """Return whether the tokens beyond noise are not significantly more than the share that outliers make."""
    expected = FEW * int(pair.counted.sum())
    return int(pair.far.sum()) <= expected + DEVIATIONS * math.sqrt(expected)


def median_margin(pair: TokenPair) -> float:
    """Return the median margin of the unsure tokens, of all if few are unsure; 0 without tokens."""
    unsure = pair.counted & (pair.lower < UNSURE)
    used = unsure if unsure.sum() > LEAST_UNSURE else pair.counted
    return float(np.median(pair.margin[used])) if used.any() else 0.0
