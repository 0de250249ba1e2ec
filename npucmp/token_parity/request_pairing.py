"""Which request of the trainer is which request of the rollout: by identity, by the tokens of whole requests, by row.

Log-probabilities have no part in it. Tokens decide only if most rows have other tokens, and at least half of the
requests of the smaller side have exactly one request of equal tokens.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Optional, Sequence

from npucmp.model.token_batch import TokenBatch, TokenRequest

_MOST_EQUAL_ROWS = 0.5  # share of rows with equal tokens from which rows are the pairing: chosen


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
    return _unique_pairs(*names)


def _unique_pairs(rollout: Sequence[bytes], trainer: Sequence[bytes]) -> Optional[list[tuple[int, int]]]:
    """Return the pairs of responses that are equal and occur once on each side, then rows that are left on
    both sides, then the only two that are left; None if the first are less than half of the smaller side."""
    counts = Counter(rollout), Counter(trainer)
    places = {name: at for at, name in enumerate(trainer)}
    found = [(at, places[name]) for at, name in enumerate(rollout) if counts[0][name] == counts[1][name] == 1]
    if 2 * len(found) < min(len(rollout), len(trainer)):
        return None
    taken = {a for a, _ in found}, {b for _, b in found}
    both = [at for at in range(min(len(rollout), len(trainer))) if at not in taken[0] and at not in taken[1]]
    found += [(at, at) for at in both]
    left = [{*range(len(side))} - {pair[at] for pair in found} for at, side in enumerate((rollout, trainer))]
    if len(left[0]) == len(left[1]) == 1:
        found.append((left[0].pop(), left[1].pop()))
    return found


def _response(one: TokenRequest) -> bytes:
    """Return the tokens under the mask, as bytes; b"" if they are not recorded."""
    if one.ids is None:
        return b""
    ids = one.ids if one.mask is None else one.ids[one.mask]
    return ids.tobytes()
