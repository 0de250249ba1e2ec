"""One side records log-probabilities behind its nucleus (top-p, top-k, min-p), the other those of the whole vocabulary.

A position keeps the probability K = exp(-d): each kept token rises by one number, and none falls. Two laws prove it:
    top-p    the share is in K, and K without one kept token is below it: share <= K < share + p, p of any kept token
    top-k    for every K, the mean of 1/p' over sampled tokens is the number of kept ones
Tokens that only rise may be of min-p, or of another record.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass, percent
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import LEAST_TOKENS, StepEvidence, outside_of, remains_of
from npucmp.token_parity.candidates.temperature import CERTAINLY_REMOVED, MOST_TOKENS
from npucmp.token_parity.noise import BEYOND, noise_of
from npucmp.token_parity.token_pair import TokenPair, first_place

NAME = "top-p, top-k or min-p"
ALONE = -1e-4  # log-probability in the trainer: definition, float32 rounds to 0 above -6e-8
LEAST_REMOVED = 0.002  # probability that a side cannot sample: chosen
PERHAPS_REMOVED = 3.5  # standard errors: chosen, chance alone has 2e-4
SHARES = np.concatenate([np.geomspace(0.05, 0.6, 20), np.linspace(0.605, 0.995, 79)])  # top-p: work, half a per cent
TIGHT = 10  # tokens whose bounds are nearer than the noise: chosen, others have any share
ALIKE = 0.5  # median rise of these by the mean: chosen, a bias moves few of them by much
OFTEN = 0.1  # share of positions whose most likely tokens rise beyond noise: chosen
NO_CHANCE = 20.0  # minus the logarithm of the chance that tokens are within the bounds: chosen, 2e-9
MOST_KEPT = 64  # tokens of top-k: chosen, the mean of 1/p' has too large an error above
PARTS = 3  # parts of the tokens, by K: chosen
ERRORS = 3.0  # standard errors of the mean of 1/p': definition
NEAR_WHOLE = 0.3  # standard error of that mean: chosen, below half the distance of whole numbers


class Law(NamedTuple):
    """The rest that a law of a nucleus leaves. The law `fits` if chance does not bring so many tokens within it, and is
    `proven` if no other cause says the same. `words` is a sentence on it."""

    remains: float
    fits: bool
    proven: bool
    words: str


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit for the side that lacks probability."""
    if not (evidence.target.any() and evidence.golden.any()):  # a side of zeros has no distribution
        return None
    sign = 1 if evidence.removed(1)[1] >= evidence.removed(-1)[1] else -1
    side = "rollout" if sign > 0 else "trainer"
    mean, significance = evidence.removed(sign)
    falling = np.maximum(-sign * evidence.margin, 0.0)
    shows = mean >= LEAST_REMOVED and significance >= CERTAINLY_REMOVED
    cut = f"the tokens that the {side} cannot sample have probability {mean:.2g}, {significance:.0f} standard errors"
    cut = cut if mean > 0 else "neither side lacks probability"
    may_show = shows or (mean > 0 and significance > PERHAPS_REMOVED)
    kept, whole = (evidence.target, evidence.golden)[::sign]
    laws = [_share(kept, whole, evidence.noise, evidence.is_quiet), *([_count(kept, whole)] if sign > 0 else [])]
    law = next((one for one in laws if one.fits), None)
    lacks = "" if law is not None and shows else cut if not shows else "no share of top-p and no number of top-k fits"
    remains = remains_of(falling) if law is None else max(law.remains, remains_of(falling))
    refuted: tuple[str, ...] = () if may_show else (cut,)
    tops = evidence.tops
    if tops is not None:
        rest = remains_of(tops.of_nucleus(evidence.pair.floor))
        lost = f"{percent(tops.removed)} of positions lack a likely token"
        noise = noise_of(tops.lowest, evidence.pair.floor)
        rises = float((tops.offsets > BEYOND * noise).mean()) >= OFTEN
        if rest > BEYOND or not tops.is_level:
            refuted += (f"the most likely tokens of a position do not rise alike, {rest:.1f} times the noise; {lost}",)
        elif rises or _share(tops.offsets + tops.lowest, tops.lowest, noise, True).fits:
            lacks, shows, refuted = "", True, ()
            cut = f"the most likely tokens of a position rise alike, by {tops.offset:.2g} in the mean; {lost}"
    words = f"the {side} records log-probabilities behind top-p or top-k"
    because = (words, *([] if law is None else [law.words]), cut)
    fit_of = evidence.candidate(
        NAME, TokenClass.TOP_P, falling, because, refuted=refuted, lacks=lacks, remains=remains, shows=shows,
        proven=law is not None and law.proven,
    )  # fmt: skip
    may_be_other = not shows and not refuted  # what does not show explains no more than other causes do
    return (fit_of._replace(remains=None) if may_be_other else fit_of,)


def _share(kept: Floats, whole: Floats, noise: Floats, is_quiet: bool) -> Law:
    """Return the law of top-p: one share bounds what each position keeps. Within noise, tokens have to rise alike."""
    stride = -(-len(kept) // MOST_TOKENS)
    kept, whole, noise = kept[::stride], whole[::stride], noise[::stride]
    d, own = kept - whole, np.exp(np.minimum(whole, 0.0))
    found = []
    for share in SHARES:
        outside = np.maximum(-np.log(np.minimum(share + own, 1.0)) - d, d + np.log(share))
        found.append((outside_of(np.maximum(outside, 0.0) / noise), float(share)))
    remains, share = min(found)
    width = np.log(np.minimum(share + own, 1.0)) - np.log(share)
    chance = np.minimum((width + 2 * BEYOND * noise) / np.maximum(-whole, 1e-9), 1.0)  # of d from 0 to -log p
    tight = d[width < noise]
    share = float(np.exp(-np.median(tight))) if len(tight) >= TIGHT else share
    words = f"each position keeps at least {share:.2g}, and less without its last token"
    rises = len(tight) >= TIGHT and float(tight.mean()) * np.sqrt(len(tight)) > CERTAINLY_REMOVED * float(tight.std())
    rises = rises and float(np.median(tight)) > ALIKE * float(tight.mean())
    fits = remains <= BEYOND and (rises or (not is_quiet and float(-np.log(chance).sum()) > NO_CHANCE))
    return Law(remains, fits, fits and rises, words)


def _count(kept: Floats, whole: Floats) -> Law:
    """Return the law of top-k: the mean of 1/p' is one whole number for positions that keep little, or much."""
    numbers = np.exp(-np.minimum(kept, 0.0))
    mean, error = float(numbers.mean()), float(numbers.std() / np.sqrt(len(numbers)))
    count = round(mean)
    words = f"the mean of 1/p is {mean:.3g}, as of {count} tokens that can be sampled"
    if not 2 <= count <= MOST_KEPT or error > NEAR_WHOLE or len(numbers) < PARTS * TIGHT:
        return Law(0.0, False, False, words)
    order = np.argsort(kept - whole)
    parts = [numbers[part] for part in np.array_split(order, PARTS)]
    apart = [abs(float(part.mean()) - count) / max(float(part.std()) / np.sqrt(len(part)), 1e-9) for part in parts]
    fits = max(apart) <= ERRORS and abs(mean - count) <= ERRORS * error
    return Law(0.0, fits, fits, words)


def first_of_nucleus(pair: TokenPair) -> Optional[tuple[int, int]]:
    """Return the first token that is alone in its nucleus, else beyond noise, else the first that rises."""
    alone = pair.counted & (pair.target == 0) & (pair.golden < ALONE)
    return first_place(alone) or first_place(pair.far) or first_place(pair.counted & (pair.difference > 0))


def may_be_cut(evidence: StepEvidence) -> bool:
    """Return whether the rollout seems to lack probability: too much for a silent step."""
    mean, significance = evidence.removed(1)
    has_error = len(evidence.margin) >= LEAST_TOKENS  # the error of a few tokens is no error
    return has_error and mean >= LEAST_REMOVED and significance >= PERHAPS_REMOVED
