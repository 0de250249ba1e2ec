"""Ranks that hold each other's parts, and parts that were joined in another order."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.model.relation import WHOLE, Placement
from npucmp.relations.ranks.rank_mesh import Mesh
from npucmp.relations.ranks.rank_origin import exchanged_parts, joined_order

ROWS, COLUMNS = Placement("shard", 0), Placement("shard", 1)
GOLDEN = np.arange(1.0, 25.0).reshape(4, 6)
UPPER, LOWER = GOLDEN[:2], GOLDEN[2:]


def asked(of, parts, sizes, placements, golden=GOLDEN, first=3):
    """What a function says of parts by rank, the fastest axis first; the ranks count from `first`."""
    places = [at[::-1] for at in product(*(range(size) for size in sizes[::-1]))]
    cells = {at: SimpleNamespace(rank=first + rank) for rank, at in enumerate(places)}
    arrays = {first + rank: None if part is None else SimpleNamespace(array=part.get("array"), shape=part["shape"])
              for rank, part in enumerate(parts)}  # fmt: skip
    search = SimpleNamespace(
        part=lambda name, op, slot: arrays[op.rank] if (name, slot) == ("op", "output:0") else None
    )
    whole = SimpleNamespace(array=golden, operator=SimpleNamespace(name="op"), slot="output:0")
    return of(search, Mesh(cells, sizes, tuple(arrays)), whole, placements)


def values(*arrays):
    return [None if one is None else {"array": one, "shape": one.shape} for one in arrays]


def test_parts_without_values_have_no_order():
    parts = [*values(LOWER), {"shape": UPPER.shape}]
    assert asked(exchanged_parts, parts, (2,), (ROWS,)) is None
    assert asked(exchanged_parts, values(LOWER, UPPER), (2,), (ROWS,), golden=None) is None
    assert asked(joined_order, [{"shape": GOLDEN.shape}] * 2, (2,), (ROWS,)) is None
    assert asked(joined_order, [None, None], (2,), (ROWS,)) is None
    assert asked(joined_order, values(GOLDEN[[2, 3, 0, 1]]) * 2, (2,), (ROWS,), golden=None) is None


@pytest.mark.parametrize(
    "read, sizes, written, order",
    [
        (GOLDEN, (2,), (ROWS,), None),
        (GOLDEN[[2, 3, 0, 1]], (2,), (ROWS,), [4, 3]),
        (GOLDEN[[2, 3, 0, 1]] * 1.0009, (2,), (ROWS,), [4, 3]),
        (GOLDEN[[2, 3, 0, 1]] * 1.0011, (2,), (ROWS,), None),
        (GOLDEN[[1, 3, 0, 2]], (4,), (ROWS,), [4, 6, 3, 5]),
        (GOLDEN[[2, 3, 0, 1]], (4,), (ROWS,), [5, 6, 3, 4]),
        (GOLDEN[[2, 3, 2, 3]], (2,), (ROWS,), None),
        (GOLDEN[:, [3, 4, 5, 0, 1, 2]], (2,), (COLUMNS,), [4, 3]),
        (GOLDEN[[2, 3, 0, 1]], (2, 2), (ROWS, WHOLE), [4, 3]),
        (GOLDEN[[2, 3, 0, 1]], (2, 2), (WHOLE, ROWS), [5, 3]),
        (GOLDEN[[2, 3, 0, 1]], (2, 2), (ROWS, ROWS), None),  # along two axes
        (GOLDEN[[2, 3, 0, 1]], (2,), (WHOLE,), None),
        (GOLDEN[[2, 3, 0, 1]], (3,), (ROWS,), None),  # three ranks do not split four rows
        (GOLDEN[[2, 3, 0, 1]], (2,), (Placement("zigzag", 0),), None),
        (GOLDEN[[2, 3, 0, 1]], (2,), (Placement("shard", 0, (1, 1)),), None),
        (np.concatenate([LOWER, -UPPER]), (2,), (ROWS,), None),
        (np.concatenate([-UPPER, UPPER]), (2,), (ROWS,), None),
        (LOWER, (2,), (ROWS,), None),  # a part
    ],
)
def test_the_order_in_which_parts_were_joined(read, sizes, written, order):
    assert asked(joined_order, values(*[read] * np.prod(sizes)), sizes, written) == order
