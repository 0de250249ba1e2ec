"""The places of the trainer's tokens in the response of the rollout, where both sides record ids.

Ids lead: where they differ, the rows are aligned by them before masks, lengths or padding are read. Tokens behind one
that only one side has are compared at their own ids. Tokens in front of the other side's first one are those of a
prompt if nothing counts them; else they are other tokens. A row may lack tokens that the other one masks, as those of a
tool's answer. Without ids, a row is longer by a prompt if it begins with
so many masked places or zeros, or with null.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.model.token_batch import Bools, Integers, TokenRequest, TopLogProbs

RUN = 4  # equal ids from which two rows are together again: chosen, three may be chance
WINDOWS = (64, 1 << 14)  # tokens that are searched for the next such run: work, most changes are short
LEAST_EQUAL = 0.5  # share of the shorter row whose ids are equal, aligned: chosen, fewer are other texts
LEAST_ZEROS = 2  # tokens in front that are 0, without ids: chosen, one may be a certain token
_MOST_CHANGES = 2000  # changes of a row: work
_END = -2  # id: definition, of what is behind the last token; -1 is an id that is not recorded
_CUT = (-3, -4)  # id: definition, of what is behind the last token that is searched, never equal on both sides


class AlignedTokens(NamedTuple):
    """Two requests at the places of the rollout.

    others  places of tokens that the trainer has not, or in front of which it has more; None if ids do not align rows
    front   tokens in front of the response that nothing counts: of the rollout, and of the trainer
    """

    rollout: TokenRequest
    trainer: TokenRequest
    others: Optional[Bools] = None
    front: tuple[int, int] = (0, 0)


class _Change(NamedTuple):
    """Different ids: from `i` to `i_end` of the rollout, from `j` to `j_end` of the trainer."""

    i: int
    i_end: int
    j: int
    j_end: int


def align_tokens(rollout: TokenRequest, trainer: TokenRequest) -> AlignedTokens:
    """Return both requests at the places of the rollout; unchanged if ids are equal or of other texts."""
    a, b = rollout.ids, trainer.ids
    if a is None or b is None or rollout.are_texts != trainer.are_texts:
        return _behind_prompt(rollout, trainer)
    ends = _end(rollout, trainer), _end(trainer, rollout)
    both = min(ends)
    counted = _counted(rollout, both) & _counted(trainer, both)
    if not both or (counted.any() and np.array_equal(a[:both][counted], b[:both][counted])):
        return _behind_prompt(rollout, trainer)
    changes = [*_changes(a[: ends[0]], b[: ends[1]])]
    places = _places(changes, *ends)
    held = places >= 0
    equal = int((a[: ends[0]][held] == b[places[held]]).sum())
    if equal < LEAST_EQUAL * both:
        return AlignedTokens(rollout, trainer)
    return _aligned(rollout, trainer, changes, places, ends)


def _behind_prompt(rollout: TokenRequest, trainer: TokenRequest) -> AlignedTokens:
    """Return requests whose ids show no difference, one behind the prompt by which the other is longer."""
    both = rollout, trainer
    ends = len(rollout.log_probs), len(trainer.log_probs)
    more = ends[0] - ends[1]
    longer = both[more < 0]
    if not more or not all(one.is_ragged for one in both) or _are_counted(longer, abs(more)):
        return AlignedTokens(rollout, trainer)
    begins_with_null = longer.known is not None and not longer.known[:1].all()
    is_short = longer.mask is None and abs(more) < LEAST_ZEROS
    if not begins_with_null and (is_short or all(one.ids is not None for one in both)):
        return AlignedTokens(rollout, trainer)
    changes = [_Change(0, max(more, 0), 0, max(-more, 0))]
    return _aligned(rollout, trainer, changes, _places(changes, *ends), ends)


def _end(request: TokenRequest, other: TokenRequest) -> int:
    """Return the number of places that may hold tokens of the response."""
    count = len(request.log_probs)
    if request.mask is not None:
        used = np.flatnonzero(request.mask)
        return int(used[-1]) + 1 if len(used) else 0
    if request.is_ragged or other.is_ragged or other.mask is not None:
        return count
    used = np.flatnonzero(request.log_probs != 0.0)
    return int(used[-1]) + 1 if len(used) else 0


def _counted(request: TokenRequest, count: int) -> Bools:
    return np.ones(count, np.bool_) if request.mask is None else request.mask[:count]


def _changes(a: Integers, b: Integers) -> Iterator[_Change]:
    """Yield what differs between two rows of ids, in order. Each change ends where a run of ids is equal again, or the
    rows end together."""
    i = j = 0
    for _ in range(_MOST_CHANGES):
        shared = min(len(a) - i, len(b) - j)
        differs = a[i : i + shared] != b[j : j + shared]
        equal = int(np.argmax(differs)) if differs.any() else shared
        i, j = i + equal, j + equal
        if i == len(a) and j == len(b):
            return
        ahead = next((found for size in WINDOWS if (found := _together_again(a[i:], b[j:], size)) is not None), None)
        if ahead is None:
            break
        yield _Change(i, i + ahead[0], j, j + ahead[1])
        i, j = i + ahead[0], j + ahead[1]
    yield _Change(i, len(a), j, len(b))


def _together_again(a: Integers, b: Integers, size: int) -> Optional[tuple[int, int]]:
    """Return the nearest places, within so many tokens, from which on a run of ids is equal; None if there is none."""
    first: dict[tuple[int, ...], int] = {}
    for place, run in enumerate(_runs(b, size, _CUT[1])):
        first.setdefault(run, place)
    best: Optional[tuple[int, int]] = None
    for place, run in enumerate(_runs(a, size, _CUT[0])):
        if best is not None and place >= sum(best):
            break
        at = first.get(run)
        if at is not None and (best is None or place + at < sum(best)):
            best = place, at
    return best


def _runs(row: Integers, size: int, cut: int) -> Iterator[tuple[int, ...]]:
    """Yield the run of ids from each of the first `size` places on, then that of the end."""
    ids = [*row[:size].tolist(), *[_END if len(row) <= size else cut] * RUN]
    return zip(*(ids[at:] for at in range(RUN)))


def _places(changes: list[_Change], count: int, other_count: int) -> Integers:
    """Return the place in the trainer's row of each place of the rollout, -1 without one. Tokens of a change are paired
    one to one as far as they go."""
    found = np.full(count, -1, np.int64)
    i = j = 0
    for change in [*changes, _Change(count, count, other_count, other_count)]:
        found[i : change.i] = np.arange(j, j + change.i - i)
        paired = min(change.i_end - change.i, change.j_end - change.j)
        found[change.i : change.i + paired] = np.arange(change.j, change.j + paired)
        i, j = change.i_end, change.j_end
    return found


def _aligned(
    rollout: TokenRequest, trainer: TokenRequest, changes: list[_Change], places: Integers, ends: tuple[int, int]
) -> AlignedTokens:
    others = np.zeros(ends[0], np.bool_)
    alone = np.zeros(ends[0], np.bool_)  # tokens of the rollout without one of the trainer
    front, more = (0, 0), 0
    for change in changes:
        count, other = change.i_end - change.i, change.j_end - change.j
        is_front = change.i == change.j == 0 and 0 in (count, other)
        if is_front and not (_are_counted(rollout, count) or _are_counted(trainer, other)):
            front = count, other
            alone[:count] = True
        elif 0 in (count, other) and (change.i_end, change.j_end) == ends:  # one row is longer: the masks say how
            more = other
        else:
            alone[change.i + min(count, other) : change.i_end] = True
            if (
                0 not in (count, other)
                or _counts(rollout, change.i, change.i_end)
                or _counts(trainer, change.j, change.j_end)
            ):
                others[change.i + min(count, other) : change.i_end] = True
                others[change.i : change.i + 1] |= count < other
    places = np.concatenate([places, np.arange(ends[1] - more, ends[1])])
    return AlignedTokens(_without(rollout, alone), _at(trainer, places), others, front)


def _counts(request: TokenRequest, start: int, stop: int) -> bool:
    """Return whether a request counts any of these tokens: all without a mask."""
    return start < stop and (request.mask is None or bool(request.mask[start:stop].any()))


def _are_counted(request: TokenRequest, count: int) -> bool:
    """Return whether a request counts any of its first tokens: by its mask, else if an engine has numbers for them all,
    which it has not for the first token of a prompt."""
    if request.mask is not None:
        return bool(request.mask[:count].any())
    is_known = request.known is None or bool(request.known[:1].all())
    return count > 0 and is_known and bool((request.log_probs[:count] != 0.0).any())


def _without(request: TokenRequest, alone: Bools) -> TokenRequest:
    """Return the rollout, which does not count tokens that the trainer has not."""
    mask = request.mask
    if mask is None and request.is_ragged:
        mask = np.ones(len(request.log_probs), np.bool_)
    if mask is not None:
        mask = mask.copy()
        mask[: len(alone)] &= ~alone
    return replace(request, mask=mask)


def _at(request: TokenRequest, places: Integers) -> TokenRequest:
    """Return the trainer's request at the places of the rollout."""
    held = places >= 0
    mask = request.mask
    if mask is None and request.is_ragged:
        mask = np.ones(len(request.log_probs), np.bool_)
    top = request.top
    return replace(
        request,
        log_probs=_taken(request.log_probs, places, 0.0),
        known=None if request.known is None else _taken(request.known, places, True),
        mask=None if mask is None else _taken(mask, places, False) & held,
        ids=None if request.ids is None else _taken(request.ids, places, -1),
        experts=None if request.experts is None else _taken(request.experts, places, 0),
        top=None if top is None else TopLogProbs(_taken(top.ids, places, -1), _taken(top.log_probs, places, np.nan)),
    )


def _taken(values: Any, places: Integers, fill: Any) -> Any:
    found = values[np.maximum(places, 0)] if len(values) else np.full(len(places), fill)
    found[places < 0] = fill
    return found
