"""The part of the difference that is a function of the log-probability: temperature, not noise.

Noise of logits is as often positive as negative at every probability. Another temperature moves the likely tokens up
and the unlikely down: a quadratic in the mean log-probability of both sides, fitted to unsure tokens. Every token is
weighted by its noise, and differences are clipped, so that a few outliers make no fit.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.noise import BEYOND
from npucmp.token_parity.token_pair import TokenPair

UNSURE = -0.05  # log-probability of a token that takes part: chosen, others have no difference to fit
LEAST_TOKENS = 40  # tokens: chosen, of a fit with three coefficients
CLIPPED = 8.0  # times the median |d|: chosen, so that outliers make no fit
TAIL = 0.05  # share of tokens at each end of the fitted part: chosen
ONE_SIDE = 0.1  # share of the larger side that the smaller has, if the part crosses 0: chosen


class SystematicFit(NamedTuple):
    """A fit of d by the mean log-probability.

    r2        share of the variance of d that it explains, every token alike
    weighted  the same, every token in units of its noise
    ratio     F statistic of two coefficients, of `weighted`
    slope     change of d by the log-probability, of a straight line
    rest      median margin of what it leaves
    spread    standard deviation of the fitted part
    crosses   the fitted part is negative for some log-probabilities and positive for others
    far_left  share of the tokens beyond noise that stay beyond it; 0 without any
    """

    r2: float
    weighted: float
    ratio: float
    slope: float
    rest: float
    spread: float
    crosses: bool
    far_left: float


def systematic_fit(pair: TokenPair, tokens: Bools) -> Optional[SystematicFit]:
    """Return the fit of some tokens; None for fewer than 40 unsure ones, or if all log-probabilities are equal."""
    used = tokens & (pair.lower < UNSURE)
    count = int(used.sum())
    if count < LEAST_TOKENS:
        return None
    whole = pair.difference[used]
    bound = CLIPPED * float(np.median(np.abs(whole)))
    d = np.clip(whole, -bound, bound)
    mean = (pair.target[used] + pair.golden[used]) / 2
    spread = float(mean.std())
    if spread == 0 or not np.isfinite(bound) or float(d.std()) == 0:
        return None
    x = (mean - mean.mean()) / spread
    basis = np.stack([np.ones(count), x, x * x], axis=1)
    noise = pair.noise[used]
    r2, _ = _explained(basis, d, np.ones(count))
    weighted, fitted = _explained(basis, d, noise)
    rest = d - fitted
    ratio = weighted / max(1 - weighted, 1e-12) * (count - 3) / 2
    slope = float((x * d).mean()) / spread
    margins = np.abs(rest) / noise
    far = pair.far[used]
    stays = np.abs(whole - fitted) > BEYOND * noise
    far_left = float(stays[far].mean()) if far.any() else 0.0
    low, high = np.quantile(fitted, (TAIL, 1 - TAIL))
    crosses = bool(low < 0 < high and min(-low, high) > ONE_SIDE * max(-low, high))
    return SystematicFit(r2, weighted, ratio, slope, float(np.median(margins)), float(fitted.std()), crosses, far_left)


def _explained(basis: Floats, values: Floats, noise: Floats) -> tuple[float, Floats]:
    """Return the share of the variance that a fit explains, in units of the noise, and the fitted values."""
    weights, *_ = np.linalg.lstsq(basis / noise[:, None], values / noise, rcond=None)
    fitted: Floats = basis @ weights
    mean = float((values / noise**2).sum() / (1 / noise**2).sum())
    total = float(np.square((values - mean) / noise).sum())
    return 1 - float(np.square((values - fitted) / noise).sum()) / max(total, 1e-300), fitted
