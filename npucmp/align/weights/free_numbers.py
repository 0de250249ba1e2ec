"""Numbers that neither names nor shapes show, once for the whole checkpoint: query groups, head size, scale of LoRA.

A number is declared by the user, else stated by a configuration, else taken by the majority of all parts: at least a
third of them agree under it, and no other number has half as many. A number that would make a wrong layout trivial is
not offered: one query group is plain concatenation.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.align.weights.limits import limit_of
from npucmp.align.weights.part import Part, changed
from npucmp.align.weights.role import Role
from npucmp.align.weights.sample import PART, part_agrees, row_numbers, rows_of
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import joined, sliced
from npucmp.dump.readers.weight_payloads import paired_rows
from npucmp.errors import NpucmpError
from npucmp.model import Payload

SHARE = 1 / 3  # of parts: chosen: q, k and v of most layers agree, faults are in a few tensors (specification, layer 3)
SECOND = 0.5  # of the votes: chosen: another number with half as many leaves the choice open
LAYERS = 24  # layers that vote: work
NEAR = 0.05  # of a scale of LoRA: chosen: estimates of one number differ less in bfloat16
_DIGITS = 4  # significant digits of a scale of LoRA: chosen: alpha and rank are whole numbers


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


def cut_groups(fused: Part, groups: int, rows: tuple[int, int, int]) -> dict[str, Payload]:
    """Return q, k and v of a tensor that holds them per query group."""
    assert fused.payload is not None
    return dict(zip("qkv", _cut(fused.payload, groups, rows)))


def _cut(payload: Payload, groups: int, rows: tuple[int, int, int]) -> list[Payload]:
    sizes = [one // groups for one in rows]
    step, found = sum(sizes), []
    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        pieces = [sliced(payload, 0, at * step + start, at * step + start + size) for at in range(groups)]
        found.append(joined(pieces, 0))
    return found


def group_rows(fused: Part, query: int) -> Optional[tuple[int, int, int]]:
    """Return the rows of q, k and v; None if they do not fill the tensor."""
    rest = fused.shape[0] - query if fused.shape else 0
    return (query, rest // 2, rest // 2) if query > 0 and rest > 1 and rest % 2 == 0 else None


def query_groups(
    fused: Sequence[tuple[Part, tuple[int, int, int]]], others: Mapping[Role, Part], shards: int, context: ReadContext
) -> FreeNumber:
    """Return the number of query groups under which most parts are those of the other side."""
    votes: Counter[float] = Counter()
    chosen = {id(part) for part in spread([part for part, _ in fused])}
    parts = 0
    for part, rows in fused:
        if id(part) not in chosen or part.payload is None:
            continue
        there = {kind: others.get(part.role._replace(kind=kind)) for kind in "qkv"}
        parts += sum(one is not None for one in there.values())
        for groups in divisors(rows[1], 2):
            if groups % shards or rows[0] % groups or rows[1] // groups < 2:
                continue
            for kind, payload in cut_groups(part, groups, rows).items():
                votes[groups] += _is_same(part, payload, there[kind], context)
    return decided(votes, parts)


def _is_same(part: Part, payload: Payload, other: Optional[Part], context: ReadContext) -> bool:
    if other is None or other.payload is None:
        return False
    limit = limit_of(part, other)
    try:
        same = part_agrees(payload, other.payload, limit.rtol, context, limit.is_quantised, limit.atol)
    except NpucmpError:
        return False
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
        for size in divisors(part.shape[0], 4) if part.shape else ():
            if size % 2 == 0:
                turned = with_halves(part, size).payload
                assert turned is not None
                votes[size] += _is_same(part, turned, others.get(part.role), context)
    return decided(votes, len(chosen))


# the scale of LoRA


def lora_scale(
    pairs: Sequence[tuple[Part, Part, Payload]], context: ReadContext, share_under: Callable[[int, float], float]
) -> FreeNumber:
    """Return the factor of the update of low rank under which most merged weights are those of the other side.

    `pairs` are (weight without the update, merged weight, update times 1); `share_under` returns the share of elements
    of a pair that agree under a factor. The estimates of a factor differ by rounding: the simplest number that fits
    best is taken.
    """
    estimates = sorted(one for one in (_scale_of(*pair, context) for pair in pairs) if one is not None)
    votes: Counter[float] = Counter()
    chosen = pairs if len(pairs) <= LAYERS else pairs[:: len(pairs) // LAYERS]
    while estimates:
        near = [one for one in estimates if abs(one - estimates[0]) <= NEAR * abs(estimates[0])]
        estimates = [one for one in estimates if one not in near]
        middle = near[len(near) // 2]
        shares = {one: [share_under(at, one) for at in range(len(chosen))] for one in _simple_numbers(middle)}
        best = max(shares, key=lambda one: round(sum(shares[one]), _DIGITS))
        votes[best] = sum(share >= PART for share in shares[best])
    return decided(votes, len(chosen))


def _simple_numbers(value: float) -> list[float]:
    """Return numbers near a value, the simplest first: few digits, and the quotients of a rank of LoRA."""
    rounded = [float(f"{value:.{digits}g}") for digits in range(1, _DIGITS + 1)]
    quotients = [round(value * rank) / rank for rank in (1, 2, 4, 8, 16, 32, 64)]
    found = [one for one in (*quotients[:1], *rounded, *quotients) if abs(one - value) <= NEAR * abs(value)]
    return list(dict.fromkeys([*found, value]))


def _scale_of(base: Part, merged: Part, update: Payload, context: ReadContext) -> Optional[float]:
    """Return the scale by least squares on some rows; None if the update is zero there."""
    if base.payload is None or merged.payload is None or not base.shape == merged.shape == update.shape:
        return None
    numbers = row_numbers(base.shape[0])
    try:
        x, y, z = (rows_of(one, numbers, context) for one in (merged.payload, base.payload, update))
    except NpucmpError:
        return None
    with np.errstate(all="ignore"):
        squares = float((z * z).sum())
        value = float(((x - y) * z).sum()) / squares if squares else float("nan")
    return value if np.isfinite(value) and value else None
