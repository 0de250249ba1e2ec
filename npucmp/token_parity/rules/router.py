"""Scattered tokens are beyond noise while most are on the floor: experts were chosen differently.

Few tokens, or tokens just beyond noise, may be outliers of rounding: the step is then undecided.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass, percent
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.rules import temperature
from npucmp.token_parity.rules.clean import WITHIN, is_few, median_margin
from npucmp.token_parity.systematic_fit import systematic_fit
from npucmp.token_parity.token_pair import TokenPair, first_place

MOST = 0.35  # share of tokens beyond noise: chosen, more are not scattered
EXPLAINED = 0.5  # share of the tokens beyond noise that a function of the log-probability leaves there: chosen
LEAST_TOKENS = 5  # tokens beyond noise: chosen, fewer are undecided
LEAST_SHARE = 0.015  # share of tokens beyond noise: evidence, outliers of clean pairs near the noise have 0.005
BETWEEN = 1.5  # margin of a token between the floor and those beyond noise: chosen
CLEAR = 5.0  # median margin of the tokens beyond noise: chosen


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token beyond noise; undecided if the tokens are few or hardly beyond noise."""
    share = pair.share_far
    if median_margin(pair) >= WITHIN or is_few(pair) or share >= MOST or _is_explained(pair):
        return None
    far = int(pair.far.sum())
    margin = float(np.median((np.abs(pair.difference) / pair.noise)[pair.far]))
    place = first_place(pair.far)
    requests = int(pair.far.any(axis=1).sum())
    because = (
        f"{far} tokens ({percent(share)}) of {requests} requests are beyond noise, {margin:.1f} times in the median"
    )
    if far < LEAST_TOKENS or share < LEAST_SHARE or margin < CLEAR:
        return finding_at(pair, TokenClass.UNDECIDED, place, because, "too few, or too near the noise, for a class")
    between = pair.counted & ~pair.far & (pair.margin > BETWEEN)
    if between.sum() > far:  # one distribution with a long tail, not two
        return None
    rest = f"the others are on the floor: median {median_margin(pair):.2f} times the noise"
    return finding_at(pair, TokenClass.ROUTER, place, because, rest)


def _is_explained(pair: TokenPair) -> bool:
    """Return whether the tokens beyond noise are a function of the log-probability: of another temperature."""
    fit = systematic_fit(pair)
    return temperature.is_systematic(pair) and (
        fit is None or fit.r2 > temperature.EXPLAINED or fit.far_left < EXPLAINED
    )
