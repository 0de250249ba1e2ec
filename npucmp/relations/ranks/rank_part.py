"""The part of a golden tensor that each rank holds: the inverse of `assemble`."""

from __future__ import annotations

import math
from operator import mul
from typing import Any, Mapping, NamedTuple, Sequence

from npucmp.model.relation import Placement
from npucmp.relations.ranks.joined_shards import Maker
from npucmp.relations.ranks.rank_mesh import Coordinates, Misfit


class PartOfRank(NamedTuple):
    """Cuts parts out of a golden tensor.

    shapes      of the parts, by coordinates
    sizes       of the axes of the mesh
    placements  along each axis; none is a sum, mean or maximum
    """

    shapes: Mapping[Coordinates, tuple[int, ...]]
    sizes: Sequence[int]
    placements: Sequence[Placement]
    make: Maker

    def key(self, at: Coordinates) -> Coordinates:
        """The coordinates along the axes that split the tensor; copies of one part have the same."""
        return tuple(place if one.is_split else 0 for place, one in zip(at, self.placements))

    def of(self, golden: Any, at: Coordinates) -> Any:
        """Return the part of the golden tensor at these coordinates. Raises Misfit if it has another shape."""
        zigzag = [axis for axis, one in enumerate(self.placements) if one.kind == "zigzag"]
        found = golden
        for axis in reversed(range(len(self.placements))):
            one = self.placements[axis]
            if one.kind in ("shard", "grouped") and self.sizes[axis] > 1:
                found = self._shard(found, at, axis)
            elif zigzag and axis == zigzag[0]:
                found = self._zigzag(found, at, zigzag)
        if tuple(found.shape) != tuple(self.shapes[at]):
            raise Misfit
        return found

    def _shard(self, golden: Any, at: Coordinates, axis: int) -> Any:
        dim, blocks = self.placements[axis].dim, self.placements[axis].blocks
        place, size = at[axis], self.sizes[axis]
        if len(blocks) == 1:
            lengths = [self._length(at, axis, number) for number in range(place + 1)]
            return self.make.part(golden, dim, sum(lengths[:-1]), sum(lengths))
        counts = [1 if number and self.placements[axis].kind == "grouped" else size for number in range(len(blocks))]
        unit, rest = divmod(self.make.length(golden, dim), sum(map(mul, counts, blocks)))
        if rest:
            raise Misfit
        found, start = [], 0
        for block, count in zip(blocks, counts):
            own = block * unit
            first = start + min(place, count - 1) * own
            found.append(self.make.part(golden, dim, first, first + own))
            start += count * own
        return self.make.join(found, dim)

    def _length(self, at: Coordinates, axis: int, place: int) -> int:
        """The length, along the dimension that an axis splits, of what the faster axes make at a place of the axis."""
        dim = self.placements[axis].dim
        faster = [other for other in range(axis) if self.placements[other].is_split]
        joined = {other for other in faster if self.placements[other].dim == dim}
        own = self.shapes[at][dim]
        if len({*self.shapes.values()}) == 1:
            return own * math.prod(self.sizes[other] for other in joined)
        return sum(
            shape[dim]
            for other, shape in self.shapes.items()
            if other[axis] == place
            and all(other[number] == at[number] for number in range(len(at)) if number != axis and number not in joined)
        )

    def _zigzag(self, golden: Any, at: Coordinates, axes: Sequence[int]) -> Any:
        dim, number, count = self.placements[axes[0]].dim, 0, 1
        for axis in reversed(axes):
            number, count = number * self.sizes[axis] + at[axis], count * self.sizes[axis]
        blocks = len(self.placements[axes[0]].blocks)
        length, rest = divmod(self.make.length(golden, dim), 2 * count * blocks)
        if rest:
            raise Misfit
        chunks = [2 * count * block + one for block in range(blocks) for one in (number, 2 * count - 1 - number)]
        return self.make.join([self.make.part(golden, dim, one * length, (one + 1) * length) for one in chunks], dim)
