"""One side records log-probabilities behind its nucleus (top-p, top-k, min-p), the other those of the whole vocabulary.

The probability of a nucleus is below 1, so every kept token rises by one number, and a nucleus of one token has
log-probability exactly 0 where the other side has less. Noise never makes an exact 0 of a probability below 0.998.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass, percent
from npucmp.token_parity.candidates.evidence import StepEvidence, remains_of
from npucmp.token_parity.candidates.temperature import CERTAINLY_REMOVED, is_exact
from npucmp.token_parity.token_pair import TokenPair, first_place
from npucmp.token_parity.top_log_probs import TopRelation

ALONE = -1e-4  # log-probability in the trainer: definition, float32 rounds to 0 above -6e-8
ALONE_DEEP = -2e-3  # log-probability: definition, bfloat16 rounds a probability above 0.998 to 1
LEAST_ALONE = 3  # tokens alone in their nucleus, beyond any rounding: chosen
SHARE_ALONE = 0.004  # share of them: chosen
LEAST_REMOVED = 0.002  # probability that a side cannot sample: chosen
DEEP_KEPT = -0.22  # log-probability: definition, p of 0.8
DEEP_RISE = 2.3  # d: chosen, a nucleus that keeps a tenth and has one token with p of 0.8
DEEP_SHARE = 0.02  # share of such tokens: chosen
ALONE_REMOVED = 3.0  # standard errors of the removed probability beside tokens that are alone: chosen
PERHAPS_REMOVED = 3.5  # standard errors: chosen, chance alone has 2e-4
EXACT_ERRORS = 6.0  # standard errors of the mean offset of the most likely tokens: chosen
EXACT_RISE = 5e-4  # mean offset: chosen, a nucleus of 0.9995
EXACT_NOISE = 3.0  # times the floor: definition, a token beyond it is beyond noise
EXACT_REST = 0.1  # standard deviation of a logit: chosen, above it the logits differ otherwise


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit for the side that lacks probability."""
    if evidence.tops is not None:
        return _exact(evidence, evidence.tops)
    sign = 1 if evidence.removed(1)[1] >= evidence.removed(-1)[1] else -1
    side = "rollout" if sign > 0 else "trainer"
    mean, significance = evidence.removed(sign)
    counted = evidence.pair.counted  # a nucleus may leave whole requests alone
    margin = evidence.pair.difference[counted] / evidence.pair.noise[counted]
    remains: Optional[float] = remains_of(np.maximum(-sign * margin, 0.0))
    one, other = (evidence.pair.target[counted], evidence.pair.golden[counted])[::sign]
    alone = int(((one == 0) & (other < ALONE_DEEP)).sum())
    deep = int(((one > DEEP_KEPT) & (one - other > DEEP_RISE)).sum())
    is_alone = alone >= max(LEAST_ALONE, SHARE_ALONE * len(one)) and significance >= ALONE_REMOVED
    shows = is_alone or (mean >= LEAST_REMOVED and significance >= CERTAINLY_REMOVED)
    cut = f"the tokens that the {side} cannot sample have probability {mean:.2g}, {significance:.0f} standard errors"
    cut = cut if mean > 0 else "neither side lacks probability"
    refuted: tuple[str, ...] = () if shows or (mean > 0 and significance > PERHAPS_REMOVED) else (cut,)
    if deep >= max(LEAST_ALONE, DEEP_SHARE * len(one)):
        refuted += (
            f"{deep} tokens rise from p below {np.exp(DEEP_KEPT - DEEP_RISE):.2g} to above {np.exp(DEEP_KEPT):.2g}",
        )
    lacks = "" if shows else cut
    remains = remains if shows or refuted else None
    words = [f"tokens rise in the {side} and do not fall", cut]
    if is_alone:
        words.insert(0, f"{percent(alone / len(one))} of tokens are exactly 0 in the {side} and less in the other")
    because = (f"the {side} records log-probabilities behind top-p or top-k", *words)
    return (CandidateFit("top-p, top-k or min-p", TokenClass.TOP_P, remains, refuted, because, lacks, shows),)


def _exact(evidence: StepEvidence, exact: TopRelation) -> tuple[CandidateFit, ...]:
    rises = exact.offset > max(EXACT_RISE, EXACT_ERRORS * exact.offset_error)
    is_cut = exact.rest < max(EXACT_REST, EXACT_NOISE * evidence.pair.floor) and not is_exact(exact)
    because = f"the most likely tokens of a position rise by {exact.offset:.2g}, at equal differences between them"
    lost = f"{percent(exact.removed)} of positions of the rollout lack a likely token of the trainer"
    refuted = list(evidence.refuted_by_parts)
    if not rises or not is_cut:
        refuted.append(f"the most likely tokens of a position rise by {exact.offset:.2g}; {lost}")
    remains = exact.rest / evidence.pair.floor
    shows = rises and is_cut
    words = ("the rollout records log-probabilities behind top-p or top-k", because, lost)
    return (CandidateFit("top-p, top-k or min-p", TokenClass.TOP_P, remains, tuple(refuted), words, shows=shows),)


def first_of_nucleus(pair: TokenPair) -> Optional[tuple[int, int]]:
    """Return the first token that is alone in its nucleus, else beyond noise, else the first that rises."""
    alone = pair.counted & (pair.target == 0) & (pair.golden < ALONE)
    return first_place(alone) or first_place(pair.far) or first_place(pair.counted & (pair.difference > 0))


def may_be_cut(evidence: StepEvidence) -> bool:
    """Return whether the rollout seems to lack probability: too much for a silent step."""
    mean, significance = evidence.removed(1)
    return mean >= LEAST_REMOVED and significance >= PERHAPS_REMOVED
