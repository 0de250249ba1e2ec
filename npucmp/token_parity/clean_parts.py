"""The parts of a step that are clean: whole requests, the positions before or behind one, or each request up to a
position of its own. They refute every cause that concerns all tokens alike.

A part is clean if it has no more tokens beyond noise than chance, and would have them if it were as the others are.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.cause import first_of_names
from npucmp.model.parity_result import percent
from npucmp.model.token_batch import Bools, Floats, Integers
from npucmp.token_parity.outliers import WITHIN, median_margin_of, most_outliers
from npucmp.token_parity.systematic_fit import UNSURE
from npucmp.token_parity.token_pair import TokenPair

DENSE = 0.25  # share of the other tokens beyond noise: chosen, fewer are scattered
LEAST_FAR = 6  # tokens beyond noise: chosen
DEVIATIONS = 3.0  # standard deviations of the number of clean requests: chosen
CERTAIN = 10.0  # gain in log-likelihood by two shares of tokens beyond noise over one: chosen, chance alone has 5e-5
_LISTED = 8  # requests in a sentence: work


class CleanParts(NamedTuple):
    """The tokens of the clean parts and the others; which they are, as a sentence and as a reason against a cause.

    place   request (row) and position with which the others begin
    """

    clean: Bools
    others: Bools
    clean_words: str
    words: str


class _Shares(NamedTuple):
    """Numbers of tokens whose noise shows, and of those beyond it."""

    tokens: Floats
    far: Floats


def clean_parts(pair: TokenPair) -> Optional[CleanParts]:
    """Return the clean parts of a pair; None if there are none, or all of it is clean."""
    shown = pair.counted & ((pair.lower < UNSURE) | pair.far)
    if int(pair.far.sum()) < LEAST_FAR:
        return None
    rows = _clean_rows(pair, shown)
    others = pair.counted & ~rows[:, None]
    found = _from_position(pair, others, shown) or _own_positions(pair, others, shown)
    if not rows.any() and found is None:
        return None
    clean_words, words = "", ""
    names = [str(int(number)) for number in pair.numbers[rows]]
    rest = int(pair.counted.any(axis=1).sum()) - len(names)
    if names:
        tokens = int((pair.counted & rows[:, None]).sum())
        listed = f"request{'s' if len(names) > 1 else ''} {first_of_names(names, _LISTED)}"
        clean_words = f"{listed} {'are' if len(names) > 1 else 'is'} clean ({tokens:,} tokens)"
        bad = np.flatnonzero(others.any(axis=1))
        worse = first_of_names([str(int(number)) for number in pair.numbers[bad]], _LISTED)
        words = f"{clean_words}, request{'s' if rest > 1 else ''} {worse} differ{'' if rest > 1 else 's'}"
    if found is not None:
        others = found[0]
        clean_words = f"{clean_words}; {found[1]}" if clean_words else found[1]
        words = f"{words}: {found[2]}" if words else found[2]
    elif rest:
        words += " from the first tokens on"
    return CleanParts(pair.counted & ~others, others, clean_words, words)


def _gain(clean: _Shares, others: _Shares) -> Floats:
    """Return the gain in log-likelihood by two shares over one; minus infinity unless the first is clean and the
    second is dense."""
    both = _likelihood(clean.far + others.far, clean.tokens + others.tokens)
    found = _likelihood(clean.far, clean.tokens) + _likelihood(others.far, others.tokens) - both
    dense = (others.far >= DENSE * others.tokens) & (others.far >= LEAST_FAR)
    return np.where(dense & (clean.far <= most_outliers(clean.tokens)), found, -np.inf)


def _likelihood(far: Floats, tokens: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        near = tokens - far
        terms = [np.where(one > 0, one * np.log(one / tokens), 0.0) for one in (far, near)]
    return terms[0] + terms[1]


def _clean_rows(pair: TokenPair, shown: Bools) -> Bools:
    """Return the requests that are clean from end to end, no one if they are not certain to be."""
    tokens, far = shown.sum(axis=1).astype(float), pair.far.sum(axis=1).astype(float)
    share = far / np.maximum(tokens, 1)
    order = np.lexsort((-tokens, share))
    order = order[pair.counted.any(axis=1)[order]]
    none = np.zeros(len(far), np.bool_)
    if len(order) < 2:
        return none
    sums = np.cumsum(tokens[order]), np.cumsum(far[order])
    before = _Shares(sums[0][:-1], sums[1][:-1])
    gain = _gain(before, _Shares(sums[0][-1] - before.tokens, sums[1][-1] - before.far))
    alone = far[order][:-1] <= most_outliers(tokens[order][:-1])
    gain = np.where(np.logical_and.accumulate(alone), gain, -np.inf)
    at = int(np.argmax(gain))
    if gain[at] < CERTAIN or not are_more_than_chance(at + 1, tokens[order], float(far.sum() / max(tokens.sum(), 1))):
        return none
    none[order[: at + 1]] = True
    is_within = median_margin_of(pair, pair.counted & none[:, None]) < WITHIN
    return none if is_within else np.zeros_like(none)


def are_more_than_chance(clean: int, tokens: Floats, share: float) -> bool:
    """Return whether so many requests are clean although all have the same share of tokens beyond noise by chance."""
    chance = (1 - share) ** tokens
    return bool(clean - chance.sum() > DEVIATIONS * np.sqrt((chance * (1 - chance)).sum()))


def _from_position(pair: TokenPair, others: Bools, shown: Bools) -> Optional[tuple[Bools, str, str]]:
    """Return the tokens from, or up to, one position that differ in all requests of `others`."""
    tokens, far = (one.sum(axis=0).astype(float) for one in (shown & others, pair.far & others))
    width = len(tokens)
    sums = np.cumsum(tokens), np.cumsum(far)
    first = _Shares(sums[0][:-1], sums[1][:-1])
    last = _Shares(sums[0][-1] - first.tokens, sums[1][-1] - first.far)
    if width < 2:
        return None
    gains = _gain(first, last), _gain(last, first)
    is_end = bool(gains[0].max() >= gains[1].max())
    gain = gains[0] if is_end else gains[1]
    at = int(np.argmax(gain)) + 1
    if gain[at - 1] < CERTAIN + math.log(width):
        return None
    bad = others & ((np.arange(width) >= at) if is_end else (np.arange(width) < at))
    clean = others & ~bad
    if median_margin_of(pair, clean) >= WITHIN:
        return None
    where = f"before position {at}" if is_end else f"from position {at} on"
    there = f"from position {at} on" if is_end else f"before position {at}"
    count = int(clean.sum())
    all_of = "all requests" if bool(others.any(axis=1).sum() == pair.counted.any(axis=1).sum()) else "these requests"
    share = percent(float(pair.far[bad].mean()))
    clean_words = f"the tokens {where} are clean in {all_of} ({count:,} tokens)"
    return bad, clean_words, f"{clean_words}, {there} {share} of tokens differ"


def _own_positions(pair: TokenPair, others: Bools, shown: Bools) -> Optional[tuple[Bools, str, str]]:
    """Return the tokens from a position of its own on that differ in each request of `others`."""
    gain = np.where(others & shown, pair.far - DENSE, 0.0)
    later = np.cumsum(gain[:, ::-1], axis=1)[:, ::-1]
    starts: Integers = np.argmax(np.where(pair.far & others, later, -np.inf), axis=1)
    bad = others & (np.arange(others.shape[1]) >= starts[:, None])
    clean = others & ~bad
    counts = [
        _Shares(np.array(float((shown & part).sum())), np.array(float((pair.far & part).sum())))
        for part in (clean, bad)
    ]
    free = float(np.log(np.maximum(others.sum(axis=1), 1)).sum())
    if float(_gain(counts[0], counts[1])) < CERTAIN + free or median_margin_of(pair, clean) >= WITHIN:
        return None
    rows = np.flatnonzero(bad.any(axis=1))
    listed = [f"{int(pair.numbers[row])} from {int(starts[row])}" for row in rows]
    clean_words = f"{int(clean.sum()):,} tokens before a position of each request are clean"
    if len(rows) == 1:
        return bad, clean_words, f"it differs from position {int(starts[rows[0]])} on"
    return bad, clean_words, f"each differs from a position of its own on (request {first_of_names(listed, _LISTED)})"
