"""The log-probabilities of one side stand one or two positions beside those of the other.

At another place they agree as well as noise allows; at their own place they do not, and by four times as much. A
request that is shifted alone is found by its own tokens.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass, percent
from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.noise import BEYOND, margin_of
from npucmp.token_parity.token_pair import TokenPair, first_place

OFFSETS = (1, -1, 2, -2)  # positions: definition, the next token and its neighbour
AGREES = 1.5  # median margin at the other place: chosen, noise has 0.67
FOURTH = 0.25  # median |d| at the other place over that at the own: chosen
LEAST_BEYOND = 0.3  # share of tokens beyond noise at the own place: chosen
LEAST_TOKENS = 12  # tokens of a median: chosen


class ShiftedTokens(NamedTuple):
    """Tokens whose partner stands `offset` positions later, the share beyond noise at their own place, and the
    median |d| at the other."""

    tokens: Bools
    offset: int
    share: float
    median: float


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token of the first request that is shifted."""
    found = shifted_tokens(pair)
    if found is None:
        return None
    places = abs(found.offset)
    beside = f"{places} position{'s' * (places > 1)} {'later' if found.offset > 0 else 'earlier'}"
    because = f"the trainer has the log-probability of a token {beside}: there the median |d| is {found.median:.2g}"
    own = f"at the own position {percent(found.share)} of tokens are beyond noise"
    return finding_at(pair, TokenClass.SHIFT, first_place(found.tokens), because, own)


def shifted_tokens(pair: TokenPair) -> Optional[ShiftedTokens]:
    """Return the tokens that stand beside their own place, of all requests or of those that are beyond noise alone."""
    counted = pair.counted
    if not counted.any():
        return None
    found = _shifted(pair, counted)
    if found is None:
        count = counted.sum(axis=1)
        apart = (pair.far.sum(axis=1) > LEAST_BEYOND * count) & (count >= LEAST_TOKENS)
        found = _shifted(pair, counted & apart[:, None]) if apart.any() else None
    return found


def _shifted(pair: TokenPair, tokens: Bools) -> Optional[ShiftedTokens]:
    width = tokens.shape[1]
    for offset in OFFSETS:
        if width <= 2 * abs(offset):
            continue
        a, b = (
            (slice(0, width - offset), slice(offset, width))
            if offset > 0
            else (slice(-offset, width), slice(0, offset))
        )
        both = tokens[:, a] & tokens[:, b]
        if both.sum() < LEAST_TOKENS:
            continue
        here = _Compared.of(pair.target[:, a][both], pair.golden[:, a][both], pair.floor)
        if here.share <= LEAST_BEYOND:
            continue
        there = _Compared.of(pair.target[:, a][both], pair.golden[:, b][both], pair.floor)
        if there.margin < AGREES and there.size < FOURTH * here.size:
            return ShiftedTokens(tokens, offset, here.share, there.size)
    return None


class _Compared(NamedTuple):
    margin: float
    size: float
    share: float

    @classmethod
    def of(cls, target: Floats, golden: Floats, floor: float) -> _Compared:
        d = target - golden
        margin = margin_of(d, np.minimum(target, golden), floor)
        return cls(float(np.median(margin)), float(np.median(np.abs(d))), float((margin > BEYOND).mean()))
