"""One side divides log-probabilities by the temperature in place of logits: its probabilities do not add up to 1.

With p the other side's probabilities, d is -log(sum of p^T) / T. The sum is bounded by the probability of the sampled
token, so likely tokens move by a certain amount at least.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import StepEvidence, outside_of
from npucmp.token_parity.candidates.temperature import MOST_TOKENS, sum_bounds

TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.25, 1.5, 2.0)  # temperatures: chosen, of sampling
LEAST_ALONE = 3  # tokens with probability 1 on one side: chosen
LEAST_LIKELY = 10  # tokens with p of 0.5 to 0.98: chosen, others prove nothing


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit for the side that divides, if all tokens move in one direction."""
    if not evidence.is_one_way:
        return None
    stride = -(-len(evidence.noise) // MOST_TOKENS)
    found = [
        (outside_of(_left(evidence, number, sign, stride)), number, sign) for sign in (1, -1) for number in TEMPERATURES
    ]
    remains, number, sign = min(found)
    refuted = list(evidence.refuted_by_parts)
    zeros = int(((evidence.target == 0) != (evidence.golden == 0)).sum())
    if zeros >= LEAST_ALONE:
        refuted.append(f"{zeros} tokens are exactly 0 on one side")
    count = int(evidence.likely.sum())
    lacks = "" if count >= LEAST_LIKELY else f"{count} tokens have p of 0.5 to 0.98, too few to prove it"
    side = "rollout" if sign > 0 else "trainer"
    because = (
        f"the {side}'s probabilities do not add up to 1: its log-probabilities may be divided by a temperature",
        f"a temperature of {number:g} leaves {remains:.2g} times the noise",
    )
    name = "log-probabilities divided by a temperature"
    left = _left(evidence, number, sign, 1)
    return (
        evidence.candidate(
            name, TokenClass.LOGITS, left, because, refuted=tuple(refuted), lacks=lacks, remains=remains
        ),
    )


def _left(evidence: StepEvidence, number: float, sign: int, stride: int) -> Floats:
    """Return what a temperature leaves of each token if one side divides by it, in units of the noise."""
    divided, normal = (side[::stride] for side in (evidence.target, evidence.golden)[::sign])
    low, high = sum_bounds(normal, number)
    d = divided - normal
    outside = np.maximum(np.maximum(-high / number - d, d + low / number), 0.0)
    return np.asarray(outside / evidence.noise[::stride])
