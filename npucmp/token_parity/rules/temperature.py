"""The sides have distributions of another temperature: the difference is a function of the log-probability.

If both sides record their most likely tokens, the ratio of the differences between tokens of a position is exact.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.systematic_fit import SystematicFit, systematic_fit
from npucmp.token_parity.token_pair import TokenPair, first_place
from npucmp.token_parity.top_log_probs import TopRelation, top_relation

EXPLAINED = 0.3  # R² of a difference beyond noise: evidence, other weights have less than 0.1
EXPLAINED_IN_NOISE = 0.05  # R² of a difference within noise: evidence, clean pairs have less than 0.03
LEAST_BEYOND = 0.02  # share of tokens beyond noise: chosen
SIGNIFICANT = 20.0  # F statistic of two coefficients: chosen, chance alone has 2e-9
LEAST_SLOPE = 0.005  # d by the log-probability: chosen, a temperature of 0.99 has 0.005 to 0.01
WITHIN = 0.8  # median margin of the rest: definition, as of a clean pair
EXACT_ERRORS = 6.0  # standard errors of the slope between tokens of a position: chosen
EXACT_SLOPE = 0.005  # slope: chosen, a temperature of 0.995
EXACT_REST = 0.1  # standard deviation of a logit that the slope may leave: chosen, above it the logits differ otherwise


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token beyond noise, else at the unsure token with the largest margin."""
    exact = top_relation(pair)
    fit = systematic_fit(pair)
    words = None
    if exact is not None and is_exact(exact):
        words = f"between tokens of a position the rollout has {exact.slope:.4f} times the differences of the trainer"
        words += f": temperature {1 / exact.slope:.3f}" if exact.slope > 0 else ""
    elif is_systematic(pair) and fit is not None:
        words = f"a quadratic in the log-probability explains {100 * fit.r2:.0f} % of the variance of d"
    if words is None:
        return None
    place = first_place(pair.far)
    if place is None:
        row, at = np.unravel_index(int(np.argmax(np.where(pair.counted, pair.margin, -1))), pair.margin.shape)
        place = int(row), int(at)
    rest = () if fit is None else (f"the rest is {fit.rest:.2f} times the noise in the median",)
    return finding_at(pair, TokenClass.TEMPERATURE, place, words, *rest)


def is_systematic(pair: TokenPair) -> bool:
    """Return whether the difference is a function of the log-probability, by the most likely tokens if recorded."""
    exact = top_relation(pair)
    if exact is not None:
        return is_exact(exact)
    fit = systematic_fit(pair)
    return fit is not None and ((_is_large(fit) and _is_beyond_noise(pair)) or _is_within_noise(fit))


def is_exact(exact: TopRelation) -> bool:
    """Return whether the most likely tokens have another temperature."""
    apart = abs(exact.slope - 1)
    return apart > max(EXACT_SLOPE, EXACT_ERRORS * exact.error) and exact.rest < EXACT_REST


def _is_large(fit: SystematicFit) -> bool:
    return fit.r2 > EXPLAINED


def _is_beyond_noise(pair: TokenPair) -> bool:
    return pair.share_far >= LEAST_BEYOND


def _is_within_noise(fit: SystematicFit) -> bool:
    found = fit.weighted > EXPLAINED_IN_NOISE and fit.ratio > SIGNIFICANT
    return found and abs(fit.slope) > LEAST_SLOPE and fit.rest < WITHIN
