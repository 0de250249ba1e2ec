"""Ranks as a mesh: pipeline stages, lanes of one rank for each stage, axes of ranks, and the cells of an operator.

stages   sends and receives of the forward pass lead from a stage to the next
lanes    a rank of every stage, in the order of ranks
axes     sizes of the groups that collectives name, fastest first; prime factors where no group is named
cells    the operators of one golden operator, by coordinates: the axes of ranks, and the micro batch last
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, TypeVar

from npucmp.model.relation import Placement
from npucmp.model.roles import peer_of
from npucmp.relations.held_values import RankOperator
from npucmp.relations.ranks.rank_run import RankRun

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


class Misfit(Exception):
    """A placement that the shapes do not allow."""


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
