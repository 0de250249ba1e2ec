"""One side records another number of the same log-probabilities: the mean of the request at every token, the sum up to
the token, the loss, the probability, or 0 as of temperature 0."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.noise import SMALLEST


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit of the side and the number that leave least."""
    if not evidence.far.any():
        return None
    pair = evidence.pair
    used = pair.counted.astype(float)
    found = []
    for side, recorded, single in (("rollout", pair.target, pair.golden), ("trainer", pair.golden, pair.target)):
        values = np.where(pair.counted, single, 0.0)
        noise = np.where(pair.counted, pair.noise, 0.0)
        for name, number, error in (
            ("the mean of its request", _mean(values, used), np.sqrt(_mean(noise**2, used))),
            ("the sum up to it", np.cumsum(values, axis=1), np.sqrt(np.cumsum(noise**2, axis=1))),
            ("the loss, which is the negative", -values, noise),
            ("the probability", np.exp(values), np.exp(values) * noise),
            ("0, as of temperature 0 or top-k 1", np.zeros_like(values), np.zeros_like(values)),
        ):
            left = ((recorded - number) / np.maximum(error, SMALLEST))[evidence.tokens]
            because = f"the {side} records for each token {name}, not its own log-probability"
            found.append(evidence.candidate(name, TokenClass.RECORD, left, (because,), proven=True))
    return (min(found, key=lambda fit: fit.remains or 0.0),)


def _mean(values: Floats, used: Floats) -> Floats:
    found: Floats = values.sum(axis=1, keepdims=True) / np.maximum(used.sum(axis=1, keepdims=True), 1) + 0 * values
    return found
