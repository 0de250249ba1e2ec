"""One side moves the logits of certain tokens: a bias, bad words, a minimum length.

Needs the ids. A few tokens move in one direction wherever they stand, and hardly any other does. A bias multiplies the
odds of a token by one factor, unless others with a bias are likely at its place.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Bools, Integers
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.noise import BEYOND, SMALLEST, SPREAD
from npucmp.token_parity.systematic_fit import UNSURE

NAME = "a bias on certain tokens"
LEAST_TIMES = 3  # occurrences of a token: chosen
ALWAYS = 0.8  # share of the occurrences of a token that move: chosen
LEAST_MOVED = 8  # tokens that move: chosen
LEAST_OF_ALL = 0.5  # share below which they are nothing of their own: chosen
OF_ALL = 0.75  # share of what moves in this direction that is of such tokens, and of these with one factor: chosen
MOST_IDS = 10  # tokens with a bias: chosen


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit of the direction in which certain tokens move."""
    if not evidence.has_ids or not evidence.far.any():
        return None
    all_ids = np.maximum(evidence.pair.target_ids, evidence.pair.golden_ids)
    ids = all_ids[evidence.tokens]
    names, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
    found = []
    for sign, word in ((1, "rise"), (-1, "fall")):
        moved = evidence.far & (sign * evidence.margin > 0)
        often = np.bincount(place, weights=moved, minlength=len(names))
        is_biased = (counts >= LEAST_TIMES) & (often >= ALWAYS * counts)
        covered = int(often[is_biased].sum())
        share = covered / max(int(moved.sum()), 1)
        if covered >= LEAST_MOVED and int(is_biased.sum()) <= MOST_IDS and share >= LEAST_OF_ALL:
            found.append((share, sign, word, covered, names[is_biased]))
    if not found:
        return None
    share, sign, word, covered, tokens = max(found, key=lambda one: one[0])
    is_biased = np.isin(ids, tokens)
    refuted = []
    apart = _apart(evidence, ids, is_biased)
    if apart > BEYOND:
        refuted.append(f"their odds do not change by one factor, {apart:.1f} times the noise")
    clean = evidence.pair.counted & ~evidence.tokens & (evidence.pair.lower < UNSURE)
    unmoved = int(np.isin(all_ids[clean], tokens).sum())
    if unmoved >= LEAST_TIMES:
        refuted.append(f"they do not move {unmoved} times in what is clean")
    listed = ", ".join(map(str, tokens.tolist()))
    words = f"{covered} of the tokens that {word} in the rollout are {listed}, which do so nearly always"
    lacks = "" if share >= OF_ALL else words
    because = ("certain tokens move, as a bias of the logits makes them", words)
    wrong = np.maximum(np.where(is_biased, -sign, sign) * evidence.margin, 0.0)
    return (
        evidence.candidate(
            NAME, TokenClass.LOGITS, wrong, because, refuted=tuple(refuted), lacks=lacks,
            remains=None if lacks else 0.0, proven=True,
        ),
    )  # fmt: skip


def _apart(evidence: StepEvidence, ids: Integers, is_biased: Bools) -> float:
    """Return how far the factors of the odds of one token are apart, in units of the noise."""
    sides = [np.minimum(side, -SMALLEST) for side in (evidence.target, evidence.golden)]
    odds = np.subtract(*(side - np.log(-np.expm1(side)) for side in sides))
    apart = [odds[ids == token] - np.median(odds[ids == token]) for token in np.unique(ids[is_biased])]
    noise = SPREAD * evidence.pair.floor + SMALLEST
    return float(np.quantile(np.abs(np.concatenate(apart)), OF_ALL)) / noise
