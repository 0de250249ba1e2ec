"""Join the shards of ranks to the golden's tensor."""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.relation import Placement
from npucmp.relations.ranks.rank_mesh import Coordinates, Misfit


class Maker(NamedTuple):
    """How tensors are put together: of arrays, or of payloads."""

    join: Callable[[Sequence[Any], int], Any]
    part: Callable[[Any, int, int, int], Any]
    total: Callable[[Sequence[Any], str], Any]
    length: Callable[[Any, int], int]
    # equal blocks of parts by turns; the second halves of zigzag blocks in reversed order
    interleave: Optional[Callable[[Sequence[Any], int, int, bool], Any]] = None


def assemble(
    cells: Mapping[Coordinates, Any],
    placements: Sequence[Placement],
    make: Maker,
    choice: Mapping[int, int] = MappingProxyType({}),
) -> Any:
    """Put the parts of a mesh together, axis by axis from the fastest. If ranks hold copies, the first one is taken, or
    that of a choice. Raises Misfit."""
    zigzag = [axis for axis, one in enumerate(placements) if one.kind == "zigzag"]
    for axis, one in enumerate(placements):
        own = zigzag if one.kind == "zigzag" else [axis]  # the first zigzag joins them all
        groups: dict[Coordinates, list[tuple[Coordinates, Any]]] = defaultdict(list)
        for at, cell in cells.items():
            rest = tuple(0 if number in own else place for number, place in enumerate(at))
            groups[rest].append((tuple(at[number] for number in reversed(own)), cell))
        copy = choice.get(axis, 0)
        cells = {at: _joined([cell for _, cell in sorted(some, key=lambda pair: pair[0])], one, make, copy)
                 for at, some in groups.items()}  # fmt: skip
    (found,) = cells.values()
    return found


def _joined(parts: Sequence[Any], one: Placement, make: Maker, copy: int) -> Any:
    if one.kind == "rows":
        return _picked(make.join(parts, 0) if len(parts) > 1 else parts[0], one.blocks, make)
    if len(parts) == 1 or one.kind == "whole":
        return parts[0]
    if one.is_partial:
        return make.total(parts, one.kind)
    lengths = {make.length(part, one.dim) for part in parts}
    if one.kind == "zigzag":
        (length,) = lengths
        half, rest = divmod(length, 2 * len(one.blocks))
        if rest:
            raise Misfit
        if make.interleave is not None:
            return make.interleave(parts, one.dim, len(one.blocks), True)
        chunks = []
        for start in range(0, length, 2 * half):
            chunks += [make.part(part, one.dim, start, start + half) for part in parts]
            chunks += [make.part(part, one.dim, start + half, start + 2 * half) for part in reversed(parts)]
        return make.join(chunks, one.dim)
    if len(one.blocks) == 1:
        return make.join(parts, one.dim)
    (length,) = lengths
    unit, rest = divmod(length, sum(one.blocks))
    if rest:
        raise Misfit
    if make.interleave is not None and one.kind == "shard" and sum(one.blocks) == len(one.blocks):
        return make.interleave(parts, one.dim, len(one.blocks), False)
    found, start = [], 0
    for number, block in enumerate(one.blocks):
        stop = start + block * unit
        held = [parts[copy]] if number and one.kind == "grouped" else parts
        found += [make.part(part, one.dim, start, stop) for part in held]
        start = stop
    return make.join(found, one.dim)


def _picked(whole: Any, order: Sequence[int], make: Maker) -> Any:
    """Rows in another order, by runs of neighbours."""
    if make.length(whole, 0) != len(order):
        raise Misfit
    runs: list[list[int]] = []
    for row in order:
        if runs and runs[-1][1] == row:
            runs[-1][1] += 1
        else:
            runs.append([row, row + 1])
    return make.join([make.part(whole, 0, *run) for run in runs], 0) if len(runs) > 1 else whole
