"""The log-probabilities of one side stand some positions beside those of the other.

At another place they are correlated, at their own place they are not. The correlation decides, not the size of the
difference, so that a shift and another temperature are found together. A request that is shifted alone is found by its
own tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass, percent
from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.token_pair import TokenPair, first_place

OFFSETS = (1, -1, 2, -2, 3, -3)  # positions: chosen, the next tokens
LEAST_BEYOND = 0.25  # share of tokens beyond noise at the own place: chosen
LEAST_TOKENS = 12  # tokens of a correlation: chosen
CORRELATED = 0.6  # correlation at the other place: chosen, a shift beside other weights has more
APART = 0.3  # correlation at the other place over that at the own: chosen
ERRORS = 4.5  # standard errors between the two correlations, by Fisher's transformation: chosen
LOWEST = -8.0  # log-probability: chosen, lower ones would decide alone
MOST_CORRELATED = 0.999  # correlation: definition, of the transformation, which is infinite at 1


class ShiftedTokens(NamedTuple):
    """Tokens whose partner stands `offset` positions later, the share beyond noise at their own place, and the
    correlations at both places."""

    tokens: Bools
    offset: int
    share: float
    own: float
    beside: float


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token of the first request that is shifted."""
    found = shifted_tokens(pair)
    if found is None:
        return None
    places = abs(found.offset)
    beside = f"{places} position{'s' * (places > 1)} {'later' if found.offset > 0 else 'earlier'}"
    because = f"the trainer has the log-probability of a token {beside}: there the correlation is {found.beside:.2f}"
    own = f"at the own position it is {found.own:.2f}, and {percent(found.share)} of tokens are beyond noise"
    return finding_at(pair, TokenClass.SHIFT, first_place(found.tokens), because, own)


def without(pair: TokenPair, _: ParityFinding) -> tuple[TokenPair, str]:
    """Return the pair with the shifted tokens beside their partners."""
    found = shifted_tokens(pair)
    assert found is not None
    rows: Bools = found.tokens.sum(axis=1) > 0
    moved: dict[str, Any] = {"others": None, "sums": None, "tops": (), "other_experts": None}
    own, other = _slices(found.tokens.shape[1], found.offset)
    for name, fill in (("golden", 0.0), ("golden_mask", False), ("golden_ids", -1), ("missing", True)):
        recorded = getattr(pair, name)
        values = np.full_like(recorded, fill)
        values[:, own] = recorded[:, other]
        moved[name] = np.where(rows[:, None], values, recorded)
    both = np.where(rows[:, None], pair.target_mask & moved["golden_mask"] & ~moved["missing"], pair.counted)
    moved["missing"] &= ~rows[:, None]
    moved["golden_ids"] = np.where(rows[:, None], -1, pair.golden_ids)
    moved["golden_mask"] = np.where(rows[:, None], both, pair.golden_mask)
    target_mask = np.where(rows[:, None], both, pair.target_mask)
    return replace(pair, target_mask=target_mask, **moved), "beside it"


@lru_cache(maxsize=4)  # the finding and the rest ask about one pair
def shifted_tokens(pair: TokenPair) -> Optional[ShiftedTokens]:
    """Return the tokens that stand beside their own place, of all requests or of those that are beyond noise alone."""
    counted = pair.counted
    if pair.share_far <= 0:
        return None
    found = _shifted(pair, counted)
    if found is None:
        count = counted.sum(axis=1)
        apart = (pair.far.sum(axis=1) > LEAST_BEYOND * count) & (count >= LEAST_TOKENS)
        found = _shifted(pair, counted & apart[:, None]) if apart.any() else None
    return found


def _slices(width: int, offset: int) -> tuple[slice, slice]:
    """Return the places of the rollout and, `offset` later, those of the trainer."""
    if offset > 0:
        return slice(0, width - offset), slice(offset, width)
    return slice(-offset, width), slice(0, width + offset)


def _shifted(pair: TokenPair, tokens: Bools) -> Optional[ShiftedTokens]:
    width = tokens.shape[1]
    best: Optional[ShiftedTokens] = None
    for offset in OFFSETS:
        if width <= 2 * abs(offset):
            continue
        a, b = _slices(width, offset)
        both = tokens[:, a] & tokens[:, b]
        count = int(both.sum())
        share = float(pair.far[:, a][both].mean()) if count >= LEAST_TOKENS else 0.0
        if share <= LEAST_BEYOND:
            continue
        target = pair.target[:, a][both]
        own, beside = (_correlation(target, golden[both]) for golden in (pair.golden[:, a], pair.golden[:, b]))
        apart = (np.arctanh(beside) - np.arctanh(own)) * np.sqrt(max(count - 3, 1) / 2)
        if beside < CORRELATED or beside - own < APART or apart < ERRORS:
            continue
        if best is None or beside > best.beside:
            best = ShiftedTokens(tokens, offset, share, own, beside)
    return best


def _correlation(first: Floats, second: Floats) -> float:
    """Return the correlation of log-probabilities; 0 if one side does not vary."""
    one, other = np.clip(first, LOWEST, 0.0), np.clip(second, LOWEST, 0.0)
    if not np.isfinite(one + other).all() or one.std() == 0 or other.std() == 0:
        return 0.0
    found = float(np.corrcoef(one, other)[0, 1])
    return float(np.clip(found, -MOST_CORRELATED, MOST_CORRELATED))
