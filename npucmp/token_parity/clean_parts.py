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
    """The tokens of the clean parts and the others; which they are, as a reason against a cause and as a sentence.

    may_be_settings   whether whole requests are clean, or all of them to one position: sampling has settings for a
                      request or a run, and does not change them within one request of several
    """

    clean: Bools
    others: Bools
    clean_words: str
    words: str
    may_be_settings: bool


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
    common = _from_position(pair, others, shown)
    found = common or _own_positions(pair, others, shown)
    if not rows.any() and found is None:
        return None
    counted = pair.counted
    clean_words, differ = [], "from the first tokens on"
    if rows.any():
        count = int((counted & rows[:, None]).sum())
        clean_words.append(f"{_requests(pair, rows, ' are')} clean ({count:,} tokens)")
    if found is not None:
        others, place, differ = found
        inside = "the rest is" if rows.any() else "all requests are"
        clean_words.append(f"{inside} clean {place} ({int((counted & ~others & ~rows[:, None]).sum()):,} tokens)")
    bad: Bools = others.sum(axis=1) > 0
    who = _requests(pair, bad, " differ") if rows.any() or found is None else "all differ"
    share = percent(float(pair.far[others].mean()))
    reason = ", ".join(clean_words)
    may_be_settings = rows.any() != (common is not None) and (common is not None or found is None)
    words = f"{reason}, {who} {differ} ({share} of tokens)"
    return CleanParts(counted & ~others, others, reason, words, may_be_settings)


def _requests(pair: TokenPair, rows: Bools, verb: str) -> str:
    """Return "requests 0, 3, 6 are"; for one request "request 0 is"."""
    names = [str(int(number)) for number in pair.numbers[rows]]
    if len(names) == 1:
        return f"request {names[0]}{' is' if verb == ' are' else f'{verb}s'}"
    return f"requests {first_of_names(names, _LISTED)}{verb}"


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
    share, tokens_of_row = far / np.maximum(tokens, 1), pair.counted.sum(axis=1)
    order = np.lexsort((-tokens, share))
    order = order[tokens_of_row[order] > 0]
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
    if is_end:
        return bad, f"before position {at}", f"from position {at} on"
    return bad, f"from position {at} on", f"before position {at}"


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
    listed = [f"{int(pair.numbers[row])} from {int(starts[row])}" for row in np.flatnonzero(bad.any(axis=1))]
    differ = f"from positions of their own on: {first_of_names(listed, _LISTED)}"
    return bad, "up to positions of their own", differ
