"""One side records the log-probability of the most likely token in place of the sampled one.

Where the sampled token is the most likely, the sides agree; it is so as often as the recorded probabilities say. A
sampled token that is another has at most the probability that the most likely one leaves.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.noise import BEYOND

CERTAINLY_FIRST = -0.6  # log-probability: definition, p of 0.55, the second is below 0.45
LEAST_OTHERS = 4.0  # tokens that are not the most likely, as expected: chosen, fewer prove nothing
NEAR_TIES = (3.0, 1.7)  # ratio of tokens that agree to those expected, in flat and other distributions: chosen
DEVIATIONS = 3.0  # standard deviations of their number: chosen


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit for the side that is higher, if the other never is."""
    if not evidence.is_one_way:
        return None
    sign, side = (1, "rollout") if evidence.rises >= evidence.falls else (-1, "trainer")
    higher, sampled = (evidence.target, evidence.golden)[::sign]
    agrees = np.abs(evidence.margin) <= BEYOND
    left = np.log(np.maximum(-np.expm1(np.minimum(higher, 0.0)), 1e-300))
    above = np.where(sign * evidence.margin < 0, np.inf, np.maximum(sampled - left, 0.0) / evidence.noise)
    unexplained = np.where(agrees, 0.0, np.minimum(above, np.abs(evidence.margin)))
    first, chance = higher > CERTAINLY_FIRST, np.exp(np.minimum(higher, 0.0))
    spread = chance * (1 - chance)
    expected, others = float((1 - chance[first]).sum()), int((~agrees[first]).sum())
    counted = f"{others} of {int(first.sum())} sampled tokens are not the most likely one where its p is above 0.55"
    refuted = []
    is_asked = expected >= LEAST_OTHERS
    if is_asked and (not others or abs(others - expected) > DEVIATIONS * float(np.sqrt(spread[first].sum()))):
        refuted.append(f"{counted}, {expected:.0f} would be")
    usual, equal = float(chance.sum()), int(agrees.sum())
    if not usual - DEVIATIONS * float(np.sqrt(spread.sum())) <= equal <= NEAR_TIES[is_asked] * usual + LEAST_OTHERS:
        refuted.append(f"{equal} sampled tokens are the most likely one, {usual:.0f} would be")
    is_proven = is_asked and others >= LEAST_OTHERS
    lacks = "" if is_proven else "too few tokens have a most likely one with p above 0.55"
    because = f"the {side} records the log-probability of the most likely token, not of the sampled one"
    name = "the log-probability of the most likely token"
    return (
        evidence.candidate(
            name, TokenClass.RECORD, unexplained, (because, counted), refuted=tuple(refuted), lacks=lacks,
            proven=is_proven,
        ),
    )  # fmt: skip
