"""Which request of the trainer is which request of the rollout: by identity, by the tokens of requests, by row.

Log-probabilities have no part in it. Tokens decide only if most rows have other tokens, and at least half of the
requests of the smaller side have exactly one request of equal tokens, or one that shares most runs of tokens.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Optional, Sequence

from npucmp.model.token_batch import Integers, TokenBatch, TokenRequest
from npucmp.token_parity.token_alignment import RUN

_MOST_EQUAL_ROWS = 0.5  # share of rows with equal tokens from which rows are the pairing: chosen
_MOST_RUNS = 0.5  # share of the runs of the shorter response that are in the other: chosen


class RequestPairs(NamedTuple):
    """Pairs of (rollout, trainer) by their places in the batches, and the places of the others."""

    pairs: tuple[tuple[int, int], ...]
    rollout_alone: tuple[int, ...]
    trainer_alone: tuple[int, ...]
    by: str


def pair_requests(rollout: Sequence[TokenRequest], trainer: Sequence[TokenRequest]) -> RequestPairs:
    """Return the pairs of two batches."""
    by_key = _by_key(rollout, trainer)
    if by_key is not None:
        return _complete(by_key, rollout, trainer, "identity")
    rows = [(at, at) for at in range(min(len(rollout), len(trainer)))]
    by_tokens = _by_tokens(rollout, trainer, rows)
    if by_tokens is not None:
        return _complete(by_tokens, rollout, trainer, "tokens")
    return _complete(rows, rollout, trainer, "row")


def pair_steps(
    rollout: Sequence[TokenBatch], trainer: Sequence[TokenBatch]
) -> tuple[list[tuple[TokenBatch, TokenBatch]], list[TokenBatch], list[TokenBatch]]:
    """Return the batches of equal steps, and those of one side alone. A single batch on each side always pairs."""
    if len(rollout) == len(trainer) == 1:
        return [(rollout[0], trainer[0])], [], []
    other = {batch.step: batch for batch in trainer}
    together = [(batch, other[batch.step]) for batch in rollout if batch.step in other]
    used = {batch.step for batch, _ in together}
    return together, [one for one in rollout if one.step not in used], [one for one in trainer if one.step not in used]


def _complete(
    pairs: Sequence[tuple[int, int]], rollout: Sequence[TokenRequest], trainer: Sequence[TokenRequest], by: str
) -> RequestPairs:
    used = {at for at, _ in pairs}, {at for _, at in pairs}
    alone = [tuple(at for at in range(len(side)) if at not in seen) for side, seen in zip((rollout, trainer), used)]
    return RequestPairs(tuple(sorted(pairs)), alone[0], alone[1], by)


def _by_key(rollout: Sequence[TokenRequest], trainer: Sequence[TokenRequest]) -> Optional[list[tuple[int, int]]]:
    """Return the pairs of equal identities; None unless both sides have distinct ones, some of them equal."""
    places = []
    for side in (rollout, trainer):
        keys = [one.key for one in side]
        if not keys or "" in keys or len({*keys}) < len(keys):
            return None
        places.append({key: at for at, key in enumerate(keys)})
    found = [(places[0][key], places[1][key]) for key in places[0] if key in places[1]]
    return found or None


def _by_tokens(
    rollout: Sequence[TokenRequest], trainer: Sequence[TokenRequest], rows: Sequence[tuple[int, int]]
) -> Optional[list[tuple[int, int]]]:
    """Return the pairs of equal responses, if rows do not pair them."""
    names = [[_response(one) for one in side] for side in (rollout, trainer)]
    if not all(names[0]) or not all(names[1]) or len({one.are_texts for one in (*rollout, *trainer)}) > 1:
        return None
    equal = sum(names[0][a] == names[1][b] for a, b in rows)
    if len(rollout) == len(trainer) and equal > _MOST_EQUAL_ROWS * len(rows):
        return None
    if len(rollout) != len(trainer) and equal == len(rows):
        return None
    found = _equal_once(*names)
    if not found and _are_alike(rollout, trainer, rows):
        return None
    return _completed(found + _alike(rollout, trainer, found), len(rollout), len(trainer))


def _equal_once(rollout: Sequence[bytes], trainer: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the pairs of responses that are equal and occur once on each side."""
    counts = Counter(rollout), Counter(trainer)
    places = {name: at for at, name in enumerate(trainer)}
    return [(at, places[name]) for at, name in enumerate(rollout) if counts[0][name] == counts[1][name] == 1]


def _are_alike(
    rollout: Sequence[TokenRequest], trainer: Sequence[TokenRequest], rows: Sequence[tuple[int, int]]
) -> bool:
    """Return whether most responses share most of their runs of tokens with that of the same row."""
    both = [(_runs_of(rollout[a]), _runs_of(trainer[b])) for a, b in rows]
    alike = sum(len(a & b) > _MOST_RUNS * min(len(a), len(b)) for a, b in both)
    return alike > _MOST_EQUAL_ROWS * len(rows)


def _alike(
    rollout: Sequence[TokenRequest], trainer: Sequence[TokenRequest], found: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the pairs of other responses than those found that share most of their runs of tokens, and more than with
    any other."""
    taken = {a for a, _ in found}, {b for _, b in found}
    runs = [
        {at: _runs_of(one) for at, one in enumerate(side) if at not in used}
        for side, used in zip((rollout, trainer), taken)
    ]
    owners: dict[tuple[int, ...], list[int]] = {}
    for place, of_request in runs[1].items():
        for run in of_request:
            owners.setdefault(run, []).append(place)
    pairs: dict[int, int] = {}
    for place, of_request in runs[0].items():
        best = Counter(owner for run in of_request for owner in owners.get(run, ())).most_common(2)
        if len(best) < 2 or best[1][1] < best[0][1]:
            for owner, shared in best[:1]:
                if shared > _MOST_RUNS * min(len(of_request), len(runs[1][owner])):
                    pairs.setdefault(owner, place)
    return [(a, b) for b, a in pairs.items()]


def _runs_of(request: TokenRequest) -> set[tuple[int, ...]]:
    """Return the runs of a few tokens of a response."""
    ids = [] if request.ids is None else _counted_ids(request).tolist()
    return {*zip(*(ids[at:] for at in range(min(RUN, len(ids)))))}


def _completed(found: list[tuple[int, int]], rollout: int, trainer: int) -> Optional[list[tuple[int, int]]]:
    """Return the pairs, then rows that are left on both sides, then the only two that are left; None if the pairs are
    less than half of the smaller side."""
    if 2 * len(found) < min(rollout, trainer):
        return None
    taken = {a for a, _ in found}, {b for _, b in found}
    both = [at for at in range(min(rollout, trainer)) if at not in taken[0] and at not in taken[1]]
    found += [(at, at) for at in both]
    left = [{*range(count)} - {pair[at] for pair in found} for at, count in enumerate((rollout, trainer))]
    if len(left[0]) == len(left[1]) == 1:
        found.append((left[0].pop(), left[1].pop()))
    return found


def _response(one: TokenRequest) -> bytes:
    """Return the tokens under the mask, as bytes; b"" if they are not recorded."""
    return b"" if one.ids is None else _counted_ids(one).tobytes()


def _counted_ids(request: TokenRequest) -> Integers:
    assert request.ids is not None
    return request.ids if request.mask is None else request.ids[request.mask]
