"""The part of a rank is what `assemble` puts together: both are inverse to each other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from npucmp.align.placement import ARRAYS
from npucmp.align.rank_mesh import Misfit, assemble
from npucmp.align.rank_part import PartOfRank
from npucmp.model.relation import WHOLE, Placement

SHARD, ROWS = Placement("shard", 1), Placement("shard", 0)
CASES = [
    ((2,), (SHARD,), (4, 12)),
    ((4,), (Placement("shard", 1, (1, 1, 1)),), (4, 12)),
    ((2,), (Placement("shard", 1, (4, 1, 1)),), (4, 12)),
    ((2, 2), (SHARD, SHARD), (4, 12)),
    ((2, 2), (SHARD, ROWS), (4, 12)),
    ((2, 2), (Placement("shard", 1, (1, 1)), SHARD), (4, 16)),
    ((2, 2), (SHARD, Placement("shard", 1, (1, 1))), (4, 16)),
    ((2, 3), (WHOLE, SHARD), (4, 12)),
    ((4,), (Placement("zigzag", 0),), (16, 3)),
    ((2, 2), (Placement("zigzag", 0), Placement("zigzag", 0)), (16, 3)),
    ((2, 2), (SHARD, Placement("zigzag", 0)), (8, 6)),
]


@pytest.mark.parametrize("sizes, placements, shape", CASES)
def test_parts_of_ranks_make_the_whole(sizes, placements, shape):
    golden = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    local = [*shape]
    for size, one in zip(sizes, placements):
        if one.is_split:
            local[one.dim] //= size
    places = [*product(*map(range, sizes))]
    parts = PartOfRank(dict.fromkeys(places, tuple(local)), sizes, placements, ARRAYS())
    cells = {at: parts.of(golden, at) for at in places}
    first = {tuple(0 if one == WHOLE else place for place, one in zip(at, placements)) for at in places}
    assert np.array_equal(assemble({at: cells[at] for at in first}, placements, ARRAYS()), golden)
    copies = {parts.key(at): cells[at] for at in places}
    assert all(np.array_equal(copies[parts.key(at)], cells[at]) for at in places)
    assert sum(one.size for one in copies.values()) == golden.size


def test_parts_of_unequal_length():
    golden = np.arange(20.0).reshape(2, 10)
    shapes = {(0, 0): (1, 6), (1, 0): (1, 4), (0, 1): (1, 6), (1, 1): (1, 4)}
    parts = PartOfRank(shapes, (2, 2), (SHARD, ROWS), ARRAYS())
    assert np.array_equal(parts.of(golden, (1, 0)), golden[:1, 6:]) and np.array_equal(
        parts.of(golden, (0, 1)), golden[1:, :6]
    )
    cells = {at: parts.of(golden, at) for at in shapes}
    assert np.array_equal(assemble(cells, (SHARD, ROWS), ARRAYS()), golden)


def test_a_part_of_another_shape_is_a_misfit():
    parts = PartOfRank({(0,): (4, 5), (1,): (4, 5)}, (2,), (Placement("zigzag", 1),), ARRAYS())
    with pytest.raises(Misfit):
        parts.of(np.zeros((4, 12)), (0,))


@pytest.mark.parametrize("placement", [SHARD, Placement("shard", 1, (1, 1)), WHOLE])
@pytest.mark.parametrize("held, fits", [(5, True), (4, False), (6, False)])
def test_one_rank_holds_all_of_a_tensor_and_no_less(placement, held, fits):
    golden = np.arange(10.0).reshape(2, 5)
    parts = PartOfRank({(0,): (2, held)}, (1,), (placement,), ARRAYS())
    if fits:
        assert parts.of(golden, (0,)).tolist() == golden.tolist()
        return
    with pytest.raises(Misfit):
        parts.of(golden, (0,))
