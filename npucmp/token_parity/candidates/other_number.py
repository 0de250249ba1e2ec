"""One side records another number of the same log-probabilities: the mean of the request at every token, or the sum up
to the token."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.noise import SMALLEST


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fits of the side and the number that leave least."""
    if not evidence.far.any():
        return None
    pair = evidence.pair
    used = pair.counted.astype(float)
    found = []
    for name, numbers_of in (("the mean of its request", _mean), ("the sum up to it", _sum)):
        for side, recorded, single in (
            ("rollout", pair.target, pair.golden),
            ("trainer", pair.golden, pair.target),
        ):
            numbers = numbers_of(np.where(pair.counted, single, 0.0), used)
            noise = np.sqrt(numbers_of(np.where(pair.counted, np.square(pair.noise), 0.0), used))
            left = ((recorded - numbers) / np.maximum(noise, SMALLEST))[evidence.tokens]
            because = f"the {side} records for each token {name}, not its own log-probability"
            found.append(evidence.candidate(name, TokenClass.RECORD, left, (because,), proven=True))
    return (min(found, key=lambda fit: fit.remains or 0.0),)


def _mean(values: Floats, used: Floats) -> Floats:
    found: Floats = values.sum(axis=1, keepdims=True) / np.maximum(used.sum(axis=1, keepdims=True), 1) + 0 * values
    return found


def _sum(values: Floats, used: Floats) -> Floats:
    found: Floats = np.cumsum(values, axis=1)
    return found
