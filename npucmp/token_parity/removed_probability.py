"""The probability of the tokens that the rollout cannot sample.

Over tokens sampled from a distribution P, the mean of Q/P is the probability that Q gives to the tokens of P: 1 for all
weights and temperatures, less if P is cut to a nucleus. With d = log P - log Q, the mean of 1 - exp(-d) is the
probability that is cut off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npucmp.token_parity.token_pair import TokenPair

CLAMP = 10.0  # d: literature, estimates of KL in trainers (k3) clamp alike


class RemovedProbability(NamedTuple):
    """The mean over tokens and its distance from 0 in standard errors; 0 for fewer than two tokens."""

    mean: float
    significance: float


def removed_probability(pair: TokenPair) -> RemovedProbability:
    """Return the estimate of a pair; its tokens are finite."""
    d = pair.difference[pair.counted]
    if len(d) < 2:
        return RemovedProbability(0.0, 0.0)
    cut = -np.expm1(-np.clip(d, -CLAMP, CLAMP))
    error = float(cut.std()) / np.sqrt(len(cut))
    mean = float(cut.mean())
    return RemovedProbability(mean, mean / error if error > 0 else 0.0)
