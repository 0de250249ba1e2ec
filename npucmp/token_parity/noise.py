"""The noise of a log-probability, and how far a difference is beyond it.

If every logit is off by eps, independently, log p of a token is off by about 1.4 · eps · (1 - p): its own logit by
(1 - p), the others by the root of the sum of their squared probabilities, which is at most (1 - p).

DEFAULT_FLOOR  two bfloat16 runs: a logit up to 16 is off by at most 2^-5 in each, 0.06 in both
"""

from __future__ import annotations

import numpy as np

from npucmp.model.token_batch import Floats

DEFAULT_FLOOR = 0.06  # error of a logit: definition, two bfloat16 runs, logits up to 16 off by 2^-5 each
SPREAD = 1.4  # ratio: definition, sqrt(2), the own logit and the others of a token
SMALLEST = 2e-3  # log-probability: definition, a probability rounded to bfloat16 is off by 2^-9
BEYOND = 3.0  # times the noise: definition, three standard deviations
GAUSSIAN_MEDIAN = 0.6745  # standard deviations: definition, median of |x| of a normal variable
UNSURE = -0.3  # log-probability: chosen, p below 0.74 has noise worth a median
LEAST_UNSURE = 20  # tokens of a median: chosen


def noise_of(log_probs: Floats, floor: float) -> Floats:
    """Return the noise of log-probabilities for logits that are off by `floor`; 0 and less is a probability of 1."""
    unlikely = -np.expm1(np.minimum(log_probs, 0.0))
    return SPREAD * floor * unlikely + SMALLEST


def margin_of(difference: Floats, log_probs: Floats, floor: float) -> Floats:
    """Return a difference in units of its noise; NaN stays NaN."""
    found: Floats = np.abs(difference) / noise_of(log_probs, floor)
    return found


def estimate_floor(difference: Floats, log_probs: Floats) -> float:
    """Return the noise of a logit that the median token of a pair shows; NaN for fewer than 20 unsure tokens."""
    unsure = log_probs < UNSURE
    if unsure.sum() < LEAST_UNSURE:
        return float("nan")
    unlikely = -np.expm1(log_probs[unsure])
    return float(np.median(np.abs(difference[unsure]) / (SPREAD * unlikely)) / GAUSSIAN_MEDIAN)
