"""The rollout records log-probabilities behind its nucleus (top-p, top-k), the trainer those of the whole vocabulary.

The probability of a nucleus is below 1, so every kept token rises by one number, and a nucleus of one token has
log-probability exactly 0 where the trainer has less. Noise never makes an exact 0 of a probability below 0.998.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass, percent
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.noise import BEYOND
from npucmp.token_parity.removed_probability import removed_probability
from npucmp.token_parity.rules import temperature
from npucmp.token_parity.systematic_fit import systematic_fit
from npucmp.token_parity.token_pair import TokenPair, first_place
from npucmp.token_parity.top_log_probs import top_relation

ALONE = -1e-4  # log-probability in the trainer: definition, float32 rounds to 0 above -6e-8
ALONE_DEEP = -2e-3  # log-probability: definition, bfloat16 rounds a probability above 0.998 to 1
LEAST_ALONE = 0.03  # share of tokens alone in their nucleus: chosen
LEAST_DEEP = 0.004  # share of tokens alone beyond any rounding: chosen
LEAST_TOKENS = 3  # tokens alone in their nucleus: chosen
ONE_SIDED = 0.97  # share of tokens that do not fall by more than noise: chosen
RISE = 0.005  # median d of the other tokens: definition, a nucleus of 0.995
SIGNIFICANT = 3.0  # standard errors of the mean d of the other tokens: chosen
HIGHEST = 1.0  # d: definition, a nucleus of 0.37 raises a token by 1
CERTAIN = 6.0  # standard errors of the mean d, if no token is alone: chosen
ONE_DIRECTION = 0.25  # mean over standard deviation of d: definition, other weights have half the error of a logit
LEAST_REMOVED = 0.002  # probability that the rollout cannot sample: chosen
CERTAINLY_REMOVED = 5.0  # standard errors: chosen, chance alone has 3e-7
PERHAPS_REMOVED = 3.5  # standard errors: chosen, chance alone has 2e-4
LEAST_EXPLAINED = 0.05  # R² of a temperature: definition, as in temperature.py
UNSURE = -0.05  # log-probability: definition, as in systematic_fit.py
EXACT_ERRORS = 6.0  # standard errors of the mean offset of the most likely tokens: chosen
EXACT_RISE = 5e-4  # mean offset: chosen, a nucleus of 0.9995
EXACT_REMOVED = 0.02  # share of positions that lack a token: chosen
EXACT_REST = 0.1  # standard deviation of a logit: chosen, above it the logits differ otherwise


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token that is alone in its nucleus, else the first unsure token that rises."""
    counted, d = pair.counted, pair.difference
    alone = counted & (pair.target == 0) & (pair.golden < ALONE)
    rest = counted & (pair.target < 0) & (pair.lower < UNSURE)
    exact = top_relation(pair)
    if exact is not None:
        rises = exact.offset > max(EXACT_RISE, EXACT_ERRORS * exact.offset_error)
        is_cut = exact.removed > EXACT_REMOVED or exact.rest < EXACT_REST
        if not rises or not is_cut or temperature.is_exact(exact):
            return None
        place = first_place(alone) or first_place(pair.far) or first_place(rest & (d > 0))
        because = f"the most likely tokens of a position rise by {exact.offset:.2g}, at equal differences between them"
        lost = f"{percent(exact.removed)} of positions of the rollout lack a likely token of the trainer"
        return finding_at(pair, TokenClass.TOP_P, place, because, lost)
    total = int(counted.sum())
    if not rest.any() or not total:
        return None
    falls = float((d[counted] < -BEYOND * pair.noise[counted]).mean())
    if falls > 1 - ONE_SIDED or d[counted].max() >= HIGHEST:
        return None
    other = d[rest]
    median, mean = float(np.median(other)), float(other.mean())
    significant = mean / max(float(other.std()) / np.sqrt(len(other)), 1e-300)
    is_deep = (alone & (pair.golden < ALONE_DEEP)).sum() >= max(LEAST_TOKENS, LEAST_DEEP * total)
    is_often = alone.sum() >= max(LEAST_TOKENS, LEAST_ALONE * total)
    others = f"the others rise by {median:.2g} in the median, and {percent(1 - falls)} of all do not fall"
    if (is_often and median > RISE) or (is_deep and significant > SIGNIFICANT):
        because = (
            f"{percent(float(alone.sum()) / total)} of tokens are exactly 0 in the rollout and less in the trainer"
        )
        return finding_at(pair, TokenClass.TOP_P, first_place(alone), because, others)
    is_one_direction = median > RISE and significant > CERTAIN and mean > ONE_DIRECTION * float(other.std())
    if (is_one_direction or _is_cut(pair)) and not _is_temperature(pair):
        because = f"nearly all tokens rise in the rollout: the mean d is {mean:.2g}, {significant:.0f} standard errors"
        place = first_place(pair.far) or first_place(rest & (d > 0))
        cut = f"the tokens that the rollout cannot sample have probability {removed_probability(pair).mean:.2g}"
        return finding_at(pair, TokenClass.TOP_P, place, because, cut)
    return None


def _is_cut(pair: TokenPair) -> bool:
    """Return whether the rollout lacks probability by more than chance."""
    removed = removed_probability(pair)
    return removed.mean >= LEAST_REMOVED and removed.significance >= CERTAINLY_REMOVED


def _is_temperature(pair: TokenPair) -> bool:
    """Return whether tokens rise at some log-probabilities and fall at others, as another temperature makes them."""
    fit = systematic_fit(pair)
    return fit is not None and fit.r2 >= LEAST_EXPLAINED and fit.crosses


def may_be_cut(pair: TokenPair) -> bool:
    """Return whether the rollout seems to lack probability: too much for a silent step."""
    removed = removed_probability(pair)
    return removed.mean >= LEAST_REMOVED and removed.significance >= PERHAPS_REMOVED
