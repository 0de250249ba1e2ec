"""One side divides log-probabilities by the temperature in place of logits: its probabilities do not add up to 1.

With p the other side's probabilities, d is -log(sum of p^T) / T. The sum is bounded by the probability of the sampled
token, so likely tokens move by a certain amount at least.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.token_parity.candidates.evidence import StepEvidence, outside_of
from npucmp.token_parity.candidates.temperature import LOG_VOCABULARY, MOST_TOKENS
from npucmp.token_parity.outliers import most_outliers

TEMPERATURES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.25, 1.5, 2.0)  # temperatures: chosen, of sampling
LEAST_ALONE = 3  # tokens with probability 1 on one side: chosen
LEAST_LIKELY = 10  # tokens with p of 0.5 to 0.98: chosen, others prove nothing


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit for the side that divides, if all tokens move in one direction."""
    if min(evidence.rises, evidence.falls) > most_outliers(float(len(evidence.margin))) or not evidence.far.any():
        return None
    stride = -(-len(evidence.noise) // MOST_TOKENS)
    noise = evidence.noise[::stride]
    found = []
    for sign, side in ((1, "rollout"), (-1, "trainer")):
        divided, normal = (one[::stride] for one in (evidence.target, evidence.golden)[::sign])
        own = np.minimum(normal, -1e-9)
        others = np.log(-np.expm1(own))
        for number in TEMPERATURES:
            alone = np.logaddexp(number * own, number * others)
            spread = np.logaddexp(number * own, number * others + (1 - number) * LOG_VOCABULARY)
            ends = np.sort([-alone / number, -spread / number], axis=0)
            d = divided - normal
            outside = np.maximum(np.maximum(ends[0] - d, d - ends[1]), 0.0)
            found.append((outside_of(outside / noise), number, side))
    remains, number, side = min(found)
    refuted = list(evidence.refuted_by_parts)
    zeros = int(((evidence.target == 0) != (evidence.golden == 0)).sum())
    if zeros >= LEAST_ALONE:
        refuted.append(f"{zeros} tokens are exactly 0 on one side")
    count = int(evidence.likely.sum())
    lacks = "" if count >= LEAST_LIKELY else f"{count} tokens have p of 0.5 to 0.98, too few to prove it"
    because = (
        f"the {side}'s probabilities do not add up to 1: its log-probabilities may be divided by a temperature",
        f"a temperature of {number:g} leaves {remains:.2g} times the noise",
    )
    name = "log-probabilities divided by a temperature"
    return (CandidateFit(name, TokenClass.LOGITS, remains, tuple(refuted), because, lacks),)
