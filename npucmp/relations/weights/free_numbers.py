"""Numbers that neither names nor shapes show, once for the whole checkpoint: query groups, head size, scale of LoRA.

A number is declared by the user, else stated by a configuration, else taken by the majority of all parts: at least a
third of them agree under it, and no other number has half as many. A number that would make a wrong layout trivial is
not offered: one query group is plain concatenation.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, sliced
from npucmp.dump.readers.weight_payloads import paired_rows
from npucmp.errors import if_unreadable
from npucmp.model import Payload
from npucmp.relations.weights.limits import limit_of
from npucmp.relations.weights.part import Part, changed
from npucmp.relations.weights.role import Role
from npucmp.relations.weights.sample import part_agrees

SHARE = 1 / 3  # of parts: chosen: q, k and v of most layers agree, faults are in a few tensors (specification, layer 3)
SECOND = 0.5  # of the votes: chosen: another number with half as many leaves the choice open
SMALLEST_HEAD = 4  # rows of a head: chosen: heads in use are larger
LAYERS = 24  # layers that vote: work


class FreeNumber(NamedTuple):
    """The number, None if nothing decides; how it was decided, in words; the number that most parts have."""

    value: Optional[float]
    words: str = ""
    likely: Optional[float] = None


def decided(votes: Mapping[float, int], parts: int) -> FreeNumber:
    """Return the number with enough votes of so many parts."""
    ranked = sorted(votes.items(), key=lambda one: (-one[1], one[0]))
    if not ranked or not ranked[0][1]:
        return FreeNumber(None)
    best, count = ranked[0]
    second = ranked[1][1] if len(ranked) > 1 else 0
    if count >= SHARE * parts and second < SECOND * count:
        return FreeNumber(best, f"by values: {count} of {parts} parts", best)
    return FreeNumber(None, likely=best)


def divisors(number: int, least: int = 1) -> list[int]:
    """Return the divisors of a number from `least` on."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted(one for one in {*small, *(number // one for one in small)} if one >= least)


def spread(items: Sequence[Part], most: int = LAYERS) -> list[Part]:
    """Return the parts of at most `most` layers, spread over all."""
    layers = sorted({part.role.layer or 0 for part in items})
    chosen = {layers[at * len(layers) // most] for at in range(most)} if len(layers) > most else {*layers}
    return [part for part in items if (part.role.layer or 0) in chosen]


# query groups


def cut_of(kind: str, groups: int, rows: tuple[int, int, int], payload: Payload) -> Payload:
    """Return q, k or v of a tensor that holds them per query group."""
    sizes = [one // groups for one in rows]
    step, number = sum(sizes), "qkv".index(kind)
    start = sum(sizes[:number])
    pieces = [sliced(payload, 0, at * step + start, at * step + start + sizes[number]) for at in range(groups)]
    return joined(pieces, 0)


def group_rows(fused: Part, query: int) -> Optional[tuple[int, int, int]]:
    """Return the rows of q, k and v; None if they do not fill the tensor."""
    rest = fused.shape[0] - query if fused.shape else 0
    return (query, rest // 2, rest // 2) if query > 0 and rest > 1 and rest % 2 == 0 else None


def query_groups(
    fused: Sequence[tuple[Part, tuple[int, int, int]]], others: Mapping[Role, Part], shards: int, context: ReadContext
) -> FreeNumber:
    """Return the number of query groups under which most parts are those of the other side."""
    votes: Counter[float] = Counter()
    chosen = {part.role for part in spread([part for part, _ in fused])}
    parts = 0
    for part, rows in fused:
        if part.role not in chosen or part.payload is None:
            continue
        there = {kind: others.get(part.role._replace(kind=kind)) for kind in "qkv"}
        parts += sum(one is not None for one in there.values())
        for groups in divisors(rows[1], 2):
            if groups % shards or rows[0] % groups or rows[1] // groups < 2:
                continue
            for kind, other in there.items():
                votes[groups] += _is_same(part, cut_of(kind, groups, rows, part.payload), other, context)
    return decided(votes, parts)


@if_unreadable(False)
def _is_same(part: Part, payload: Payload, other: Optional[Part], context: ReadContext) -> bool:
    if other is None or other.payload is None:
        return False
    limit = limit_of(part, other)
    same = part_agrees(payload, other.payload, limit.rtol, context, limit.is_quantised, limit.atol)
    return bool(same)


# order of rotary embedding


def with_halves(part: Part, size: int) -> Part:
    """Return q or k of neighbouring pairs in the order of halves, for heads of `size` rows."""
    return changed(part, lambda payload: paired_rows(payload, size))


def head_size(own: Sequence[Part], others: Mapping[Role, Part], context: ReadContext) -> FreeNumber:
    """Return the size of a head under which most q and k of neighbouring pairs are those of the other side."""
    votes: Counter[float] = Counter()
    chosen = spread(own)
    for part in chosen:
        for size in divisors(part.shape[0], SMALLEST_HEAD) if part.shape else ():
            if size % 2 == 0:
                turned = with_halves(part, size).payload
                assert turned is not None
                votes[size] += _is_same(part, turned, others.get(part.role), context)
    return decided(votes, len(chosen))
