"""Ranks as a mesh: pipeline stages, lanes of one rank for each stage, axes of ranks, and the cells of an operator.

stages   sends and receives of the forward pass lead from a stage to the next
lanes    a rank of every stage, in the order of ranks
axes     sizes of the groups that collectives name, fastest first; prime factors where no group is named
cells    the operators of one golden operator, by coordinates: the axes of ranks, and the micro batch last
"""

from __future__ import annotations

import math
from collections import defaultdict
from types import MappingProxyType
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, TypeVar

from npucmp.model.relation import Placement
from npucmp.model.roles import peer_of
from npucmp.relations.held_values import RankOperator, RankRun

X = TypeVar("X")
Coordinates = tuple[int, ...]


def stages_of(runs: Mapping[int, RankRun]) -> dict[int, int]:
    """The pipeline stage of each rank, by the first send or receive of its forward pass."""
    first: dict[int, tuple[bool, int]] = {}
    for rank, run in runs.items():
        for one in run.operators:
            peer = peer_of(one.op) if one.type.has("point to point") else None
            if peer is not None:
                first[rank] = (one.type.has("receives"), peer)
                break
    stages = dict.fromkeys(runs, 0)
    for _ in runs:
        for rank, (receives, peer) in first.items():
            if receives and peer in stages:
                stages[rank] = stages[peer] + 1
    return stages


def lanes_of(stages: Mapping[int, int]) -> list[list[int]]:
    """The ranks of each lane, in the order of stages."""
    by_stage: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(stages):
        by_stage[stages[rank]].append(rank)
    width = max(map(len, by_stage.values()))
    return [[some[at] for _, some in sorted(by_stage.items()) if at < len(some)] for at in range(width)]


def axes_of(ranks: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """The sizes of the axes of ranks that hold an operator, fastest first."""
    count, found, step = len(ranks), [], 1
    place = {rank: at for at, rank in enumerate(ranks)}
    strides: dict[int, int] = {}
    for group in groups:
        at = [place[rank] for rank in group if rank in place]
        gaps = {b - a for a, b in zip(at, at[1:])}
        if len(at) == len(group) > 1 and len(gaps) == 1:
            gap = gaps.pop()
            strides[gap] = min(strides.get(gap, len(at)), len(at))
    while step < count:
        size = strides.get(step, 0)
        left = count // step
        if not size or left % size:
            nearer = [
                stride // step
                for stride in strides
                if stride > step and stride % step == 0 and left % (stride // step) == 0
            ]
            size = min(nearer, default=left)
        found += primes(size)
        step *= size
    return found


def primes(number: int) -> list[int]:
    """The prime factors of a number."""
    found, prime = [], 2
    while number > 1:
        while number % prime == 0:
            found.append(prime)
            number //= prime
        prime += 1
    return found


class Mesh(NamedTuple):
    """The operator at each coordinate. `sizes`: of the axes, the micro batches last."""

    cells: Mapping[Coordinates, RankOperator]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def is_full(self) -> bool:
        return len(self.cells) == math.prod(self.sizes)

    @property
    def first(self) -> RankOperator:
        return self.cells[min(self.cells, key=lambda at: at[::-1])]

    @property
    def split_axes(self) -> list[int]:
        return [axis for axis, size in enumerate(self.sizes) if size > 1]


def mesh_of(partners: Mapping[tuple[int, int], RankOperator], axes: Callable[[Sequence[int]], list[int]]) -> Mesh:
    """The mesh of the operators by (rank, micro batch)."""
    ranks = sorted({rank for rank, _ in partners})
    batches = sorted({batch for _, batch in partners})
    sizes = axes(ranks)
    cells = {}
    for at, rank in enumerate(ranks):
        where = []
        for size in sizes:
            at, own = divmod(at, size)
            where.append(own)
        for number, batch in enumerate(batches):
            if (rank, batch) in partners:
                place = (*where, number)
                cells[place] = partners[rank, batch]
    holders = {rank for one in partners.values() for rank in one.ranks}
    return Mesh(cells, (*sizes, len(batches)), tuple(sorted(holders)))


class Maker(NamedTuple):
    """How tensors are put together: of arrays, or of payloads."""

    join: Callable[[Sequence[Any], int], Any]
    part: Callable[[Any, int, int, int], Any]
    total: Callable[[Sequence[Any], str], Any]
    length: Callable[[Any, int], int]
    # equal blocks of parts by turns; the second halves of zigzag blocks in reversed order
    interleave: Optional[Callable[[Sequence[Any], int, int, bool], Any]] = None


class Misfit(Exception):
    """A placement that the shapes do not allow."""


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


def same_copies(mesh: Mesh, placements: Sequence[Placement]) -> list[dict[int, int]]:
    """Every choice of a copy: coordinates by the axes whose ranks hold equal values."""
    choices: list[dict[int, int]] = [{}]
    for axis, (one, size) in enumerate(zip(placements, mesh.sizes)):
        if one.has_copies and size > 1:
            choices = [{**choice, axis: at} for choice in choices for at in range(size)]
    return choices


def chosen(
    mesh: Mesh, placements: Sequence[Placement], choice: Mapping[int, int], of: Callable[[RankOperator], Optional[X]]
) -> dict[Coordinates, X]:
    """The cells of one copy of the whole, as coordinates with what `of` gives."""
    found = {}
    choice = {axis: place for axis, place in choice.items() if placements[axis].kind == "whole"}
    for at, operator in mesh.cells.items():
        if all(at[axis] == place for axis, place in choice.items()):
            one = of(operator)
            if one is None:
                raise Misfit
            found[tuple(0 if axis in choice else place for axis, place in enumerate(at))] = one
    return found
