"""The tokens of one step of both engines, as arrays of (request, position).

A position is that of the rollout. Where both sides record ids, the trainer's tokens stand at the places of equal ids.
A mask is what a side records. A side of arrays without a mask takes the mask of the other. A list of an engine has the
length of the response, so all its tokens count, but for those with log-probability exactly 0 (never sampled) that the
other side masks. If neither side has a mask, zeros of both sides at the end of a request are padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model.token_batch import Bools, Floats, Integers, TokenRequest, TopLogProbs
from npucmp.token_parity.noise import BEYOND, margin_of, noise_of
from npucmp.token_parity.token_alignment import AlignedTokens, align_tokens

_NONE = np.zeros(0, np.bool_)
MOST_CELLS = 1 << 27  # requests of a step times the longest: work, about 60 bytes each, 8 GB


class Sums(NamedTuple):
    """Requests with one number on a side: the numbers, the tokens of each (0: not recorded), the noise of the sum, and
    whether both sides have one number, which may then be a mean."""

    requests: Integers
    target: Floats
    golden: Floats
    tokens: Integers
    noise: Floats
    of_both: Bools


@dataclass(frozen=True, eq=False)
class TokenPair:
    """One step of both engines; the target is the rollout, the golden the trainer.

    step       its number, None without one
    numbers    the place of each request in the rollout, as a user counts it
    target, golden              (B, S) log-probabilities, 0 where there is no token
    target_mask, golden_mask    (B, S) the tokens that a side counts
    target_ids, golden_ids      (B, S) tokens, -1 where they are not recorded
    missing    (B, S) tokens that count and for which a side holds null
    sums       requests with one number on a side, which have no row in the arrays
    floor      error of a logit that is noise, declared or assumed
    tops       most likely tokens of both sides by row, where both record them
    notes      sentences on masks and ids that are not those of the files
    others     (B, S) tokens that the trainer has not, or in front of which it has more; None if ids do not align rows
    other_experts   (B, S) tokens with other experts; None unless both sides record those of all requests
    """

    step: Optional[int]
    numbers: Integers
    target: Floats
    golden: Floats
    target_mask: Bools
    golden_mask: Bools
    target_ids: Integers
    golden_ids: Integers
    missing: Bools
    sums: Optional[Sums]
    floor: float
    tops: tuple[tuple[int, TopLogProbs, TopLogProbs], ...] = ()
    notes: tuple[str, ...] = ()
    others: Optional[Bools] = None
    other_experts: Optional[Bools] = None

    @cached_property
    def other_ids(self) -> Bools:
        """Tokens that both sides count and that are not the same by their ids."""
        known = self.target_mask & self.golden_mask & (self.target_ids >= 0) & (self.golden_ids >= 0)
        found: Bools = known & (self.target_ids != self.golden_ids)
        return found if self.others is None else found | self.others

    @cached_property
    def counted(self) -> Bools:
        """Tokens that either side counts and both hold."""
        return (self.target_mask | self.golden_mask) & ~self.missing

    @cached_property
    def difference(self) -> Floats:
        """Rollout minus trainer where a token counts, else 0."""
        with np.errstate(invalid="ignore"):
            return np.where(self.counted, self.target - self.golden, 0.0)

    @cached_property
    def lower(self) -> Floats:
        """The smaller log-probability of both sides."""
        return np.minimum(self.target, self.golden)

    @cached_property
    def margin(self) -> Floats:
        """The difference in units of the noise of `floor`."""
        return margin_of(self.difference, self.lower, self.floor)

    @cached_property
    def noise(self) -> Floats:
        """The noise of each token."""
        return noise_of(self.lower, self.floor)

    @cached_property
    def far(self) -> Bools:
        """Tokens beyond noise."""
        return self.counted & (np.abs(self.difference) > BEYOND * self.noise)

    @property
    def share_far(self) -> float:
        """The share of tokens beyond noise; 0 without tokens."""
        count = int(self.counted.sum())
        return float(self.far.sum()) / count if count else 0.0


def first_place(places: Bools) -> Optional[tuple[int, int]]:
    """Return the row and position of the first true place, by request and position; None if there is none."""
    rows = places.any(axis=1)
    if not rows.any():
        return None
    row = int(np.argmax(rows))
    return row, int(np.argmax(places[row]))


def without_tokens(pair: TokenPair, tokens: Bools) -> tuple[TokenPair, str]:
    """Return a pair without some of its tokens, and words for what is left."""
    masks = {name: getattr(pair, name) & ~tokens for name in ("target_mask", "golden_mask")}
    others = None if pair.others is None else pair.others & ~tokens
    rest = replace(pair, **masks, others=others, sums=None)
    return rest, f"the other {int(rest.counted.sum()):,} tokens"


def why_open(rollout: TokenRequest, trainer: TokenRequest) -> str:
    """Return why two requests cannot be compared, "" if they can."""
    is_sum = rollout.is_total or trainer.is_total
    lacks = any(one.known is not None and not one.known.all() for one in (rollout, trainer))
    return rollout.open or trainer.open or ("its sum has null" if is_sum and lacks else "")


def make_pair(
    step: Optional[int],
    numbers: Sequence[int],
    rollout: Sequence[TokenRequest],
    trainer: Sequence[TokenRequest],
    floor: float,
) -> TokenPair:
    """Return the arrays of a step; requests of equal places belong together."""
    is_sum = [a.is_total or b.is_total for a, b in zip(rollout, trainer)]
    rows = [at for at, sum_only in enumerate(is_sum) if not sum_only]
    aligned = [align_tokens(rollout[at], trainer[at]) for at in rows]
    found = [_masks((one.rollout, one.trainer)) for one in aligned]
    width = max((_end(one.masks[0] | one.masks[1]) for one in found), default=0)  # padding takes no memory
    width = max([width, *(_end(one.others) for one in aligned if one.others is not None)])
    shape = (len(rows), width)
    log_probs = [np.zeros(shape) for _ in range(2)]
    masks = [np.zeros(shape, np.bool_) for _ in range(2)]
    ids = [_no_ids(shape, [getattr(both, side) for both in aligned]) for side in ("rollout", "trainer")]
    known = [np.ones(shape, np.bool_) for _ in range(2)]
    notes = {
        f"{name}: {one.note}" for name, side in (("rollout", rollout), ("trainer", trainer)) for one in side if one.note
    }
    notes |= {*_front_notes(aligned)}
    others = [one.others for one in aligned]
    tops = []
    for row, requests in enumerate(aligned):
        both = requests.rollout, requests.trainer
        for side, one in enumerate(both):
            count = min(len(one.log_probs), width)
            log_probs[side][row, :count] = one.log_probs[:count]
            masks[side][row] = _wide(found[row].masks[side], width)
            if one.known is not None:
                known[side][row, :count] = one.known[:count]
            if one.ids is not None and both[0].are_texts == both[1].are_texts:
                ids[side][row, :count] = one.ids[:count]
        notes |= {found[row].note} - {""}
        if both[0].ids is not None and both[1].ids is not None and both[0].are_texts != both[1].are_texts:
            notes.add("the ids are not compared: one side has numbers, the other texts")
        if both[0].top is not None and both[1].top is not None:
            tops.append((row, both[0].top, both[1].top))
    for mask in masks:  # the first position has no log-probability in an engine that repeats the prompt
        mask[:, :1] &= (known[0] | known[1])[:, :1]
    missing = ~(known[0] & known[1]) & (masks[0] | masks[1])
    for values in log_probs:
        values[~(known[0] & known[1])] = 0.0
    sums = _sums([(at, rollout[at], trainer[at]) for at in range(len(is_sum)) if is_sum[at]], numbers, floor)
    return TokenPair(
        step,
        np.array([numbers[at] for at in rows], np.int64),
        log_probs[0],
        log_probs[1],
        masks[0],
        masks[1],
        ids[0],
        ids[1],
        missing,
        sums,
        floor,
        tuple(tops),
        tuple(sorted(notes)),
        None
        if all(one is None for one in others)
        else np.array([_wide(_NONE if one is None else one, width) for one in others]),
        _other_experts(aligned, width),
    )


def _other_experts(aligned: Sequence[AlignedTokens], width: int) -> Optional[Bools]:
    """Return the tokens with other experts, in any order; None unless both sides record those of all requests."""
    rows = []
    for one in aligned:
        a, b = one.rollout.experts, one.trainer.experts
        if a is None or b is None or a.shape[1:] != b.shape[1:]:
            return None
        both = min(len(a), len(b))
        rows.append(_wide((np.sort(a[:both]) != np.sort(b[:both])).any(axis=(1, 2)), width))
    return np.array(rows) if rows else None


def _front_notes(aligned: Sequence[AlignedTokens]) -> Iterator[str]:
    """Yield sentences on tokens in front of responses that only one side records and nothing counts."""
    for side, name, other in ((0, "rollout", "trainer"), (1, "trainer", "rollout")):
        counts = [one.front[side] for one in aligned if one.front[side]]
        if counts:
            many = str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
            tokens = f"{many} token{'s' * (max(counts) > 1)}"
            yield (
                f"the {name} records {tokens} in front of {len(counts)} responses, as of a prompt; "
                f"the {other} begins behind them"
            )


def _no_ids(shape: tuple[int, int], requests: Sequence[TokenRequest]) -> Integers:
    """Return -1 for each token, without memory if no request has ids."""
    has_ids = any(one.ids is not None for one in requests)
    return np.full(shape, -1, np.int64) if has_ids else np.broadcast_to(np.int64(-1), shape)


def _end(mask: Bools) -> int:
    """Return the number of places up to the last that counts."""
    used = np.flatnonzero(mask)
    return int(used[-1]) + 1 if len(used) else 0


class _Masks(NamedTuple):
    """The masks of two requests, of one width, and a sentence on a mask that a side takes from the other."""

    masks: list[Bools]
    note: str


def _masks(both: tuple[TokenRequest, TokenRequest]) -> _Masks:
    """Return the masks of two requests."""
    width = max(len(one.log_probs) for one in both)
    lengths = [np.arange(width) < len(one.log_probs) for one in both]
    own = [None if one.mask is None else _wide(one.mask, width) for one in both]
    values = [_wide(one.log_probs, width) for one in both]
    found, words = [], ""
    for side, one in enumerate(both):
        mask, other = own[side], own[1 - side]
        if mask is not None:
            found.append(mask)
        elif one.is_ragged:
            never = (values[side] == 0.0) & ~other if other is not None else False
            found.append(lengths[side] & ~never)
        elif other is not None or both[1 - side].is_ragged:
            found.append(other if other is not None else lengths[1 - side])
            words = f"the {'trainer' if side else 'rollout'} records no mask and takes the other's"
        else:
            found.append(lengths[side] & (np.arange(width) < _end((values[0] != 0.0) | (values[1] != 0.0))))
    return _Masks(found, words)


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    return np.concatenate([values[:width], np.zeros(max(width - len(values), 0), values.dtype)])


def _sums(
    found: Sequence[tuple[int, TokenRequest, TokenRequest]], numbers: Sequence[int], floor: float
) -> Optional[Sums]:
    """Return the requests with one number; a side with tokens gives its sum, and their noise."""
    if not found:
        return None
    rows = []
    for at, a, b in found:
        sums, tokens, noise = [], None, None
        for one in (a, b):
            if one.is_total:
                sums.append(float(one.log_probs[0]) if len(one.log_probs) else np.nan)
                tokens = tokens if one.length is None else one.length
                continue
            mask = np.ones(len(one.log_probs), np.bool_) if one.mask is None else one.mask
            used = one.log_probs[mask[: len(one.log_probs)]]
            sums.append(float(used.sum()))
            tokens, noise = len(used), float(np.sqrt(np.square(noise_of(used, floor)).sum()))
        count = tokens or 0
        of_both = a.is_total and b.is_total
        rows.append((numbers[at], sums[0], sums[1], count, noise or floor * np.sqrt(max(count, 1)), of_both))
    requests, target, golden, counts, noises, both = (np.array(column) for column in zip(*rows))
    return Sums(requests.astype(np.int64), target, golden, counts.astype(np.int64), noises, both)
