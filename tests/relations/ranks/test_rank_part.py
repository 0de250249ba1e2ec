"""The part of a rank is what `assemble` puts together: both are inverse to each other."""

from __future__ import annotations

import numpy as np

from npucmp.model.relation import Placement
from npucmp.relations.ranks.joined_shards import assemble
from npucmp.relations.ranks.placement import ARRAYS
from npucmp.relations.ranks.rank_part import PartOfRank

SHARD, ROWS = Placement("shard", 1), Placement("shard", 0)


def test_parts_of_unequal_length():
    golden = np.arange(20.0).reshape(2, 10)
    shapes = {(0, 0): (1, 6), (1, 0): (1, 4), (0, 1): (1, 6), (1, 1): (1, 4)}
    parts = PartOfRank(shapes, (2, 2), (SHARD, ROWS), ARRAYS())
    assert np.array_equal(parts.of(golden, (1, 0)), golden[:1, 6:]) and np.array_equal(
        parts.of(golden, (0, 1)), golden[1:, :6]
    )
    cells = {at: parts.of(golden, at) for at in shapes}
    assert np.array_equal(assemble(cells, (SHARD, ROWS), ARRAYS()), golden)
