"""Parts of a tensor on the ranks of a mesh: how they may be cut, and how they are put together again."""

import numpy as np
import pytest

from npucmp.align.placement import splits
from npucmp.align.rank_mesh import Maker, Misfit, assemble, axes_of, primes
from npucmp.model.relation import Placement

TOTALS = {"sum": sum, "mean": lambda parts: sum(parts) / len(parts), "max": lambda parts: np.maximum.reduce(parts)}
ARRAYS = Maker(
    lambda parts, dim: np.concatenate(parts, dim),
    lambda array, dim, start, stop: np.take(array, range(start, stop), dim),
    lambda parts, kind: TOTALS[kind](parts),
    lambda array, dim: array.shape[dim],
)
WHOLE = np.random.default_rng(2).standard_normal((8, 24))


def cut(whole, one, size):
    """The parts of `size` ranks."""
    pieces, start = [], 0
    for block in one.blocks:
        stop = start + whole.shape[one.dim] * block // sum(one.blocks)
        pieces.append(np.take(whole, range(start, stop), one.dim))
        start = stop
    if one.kind == "shard":
        cuts = [np.split(piece, size, one.dim) for piece in pieces]
        return [np.concatenate([each[rank] for each in cuts], one.dim) for rank in range(size)]
    cuts = [np.split(piece, 2 * size, one.dim) for piece in pieces]
    return [
        np.concatenate([half for each in cuts for half in (each[rank], each[-1 - rank])], one.dim)
        for rank in range(size)
    ]


KINDS = [
    Placement("shard", 0),
    Placement("shard", 1),
    Placement("shard", 1, (1, 1)),
    Placement("shard", 1, (1, 1, 1)),
    Placement("shard", 1, (2, 1, 1)),
    Placement("zigzag", 1),
    Placement("zigzag", 0, (1, 1)),
]


@pytest.mark.parametrize("one", KINDS, ids=lambda one: one.words)
def test_parts_are_put_together_as_they_were_cut(one):
    parts = cut(WHOLE, one, 2)
    found = assemble({(at,): part for at, part in enumerate(parts)}, [one], ARRAYS)
    assert np.array_equal(found, WHOLE)
    assert one in splits(parts[0].shape, WHOLE.shape, 2, True)
    assert (one in splits(parts[0].shape, WHOLE.shape, 2, False)) is (one.kind == "shard")
    odd = {(at,): part[:3, :5] for at, part in enumerate(parts)}
    if len(one.blocks) > 1 or one.kind == "zigzag":
        with pytest.raises(Misfit):
            assemble(odd, [one], ARRAYS)
    assert np.array_equal(assemble({(0,): odd[0,]}, [one], ARRAYS), odd[0,])  # one rank holds all of it


@pytest.mark.parametrize("kind, whole", [("sum", 4.0), ("mean", 2.0), ("max", 3.0), ("whole", 1.0)])
def test_totals_and_copies(kind, whole):
    parts = {(at,): np.full(3, value) for at, value in enumerate((1.0, 3.0))}
    assert assemble(parts, [Placement(kind)], ARRAYS).tolist() == [whole] * 3


def test_axes_are_put_together_from_the_fastest():
    outer = cut(WHOLE, Placement("shard", 0), 2)
    cells = {(at, number): part for number, rows in enumerate(outer)
             for at, part in enumerate(cut(rows, Placement("shard", 1, (1, 1)), 3))}  # fmt: skip
    placements = [Placement("shard", 1, (1, 1)), Placement("shard", 0)]
    assert np.array_equal(assemble(cells, placements, ARRAYS), WHOLE)


def test_rows_of_ranks_in_any_order():
    order = (4, 5, 0, 1, 2, 6, 7, 3)
    parts = {(at,): part for at, part in enumerate(np.split(WHOLE, 2))}
    assert np.array_equal(assemble(parts, [Placement("rows", 0, order)], ARRAYS), WHOLE[list(order)])
    assert np.array_equal(assemble(parts, [Placement("rows", 0, tuple(range(8)))], ARRAYS), WHOLE)
    with pytest.raises(Misfit):
        assemble(parts, [Placement("rows", 0, order[:7])], ARRAYS)


@pytest.mark.parametrize(
    "local, shape, kinds",
    [
        ((4, 8), (4, 8), set()),
        ((0, 8), (4, 8), set()),
        ((3,), (6,), {("shard", 1), ("shard", 3)}),  # half of an odd part is no zigzag
        ((1,), (5,), {("shard", 1)}),
        ((2, 4, 4), (4, 4, 4), {("shard", 1), ("shard", 2), ("zigzag", 1)}),
        ((4, 4, 4), (8, 4, 4), {("shard", 1), ("shard", 2), ("shard", 4), ("shard", 3), ("zigzag", 1)}),
        ((4,), (8,), {("shard", 1), ("shard", 2), ("shard", 4), ("shard", 3), ("zigzag", 1), ("zigzag", 2)}),
    ],
)
def test_the_splits_of_a_shape(local, shape, kinds):
    assert {(one.kind, len(one.blocks)) for one in splits(local, shape, 2, True)} == kinds
    assert {one.dim for one in splits(local, shape, 2, True)} <= {0}


def test_query_heads_stand_before_one_key_head_and_one_value_head():
    found = [one.blocks for one in splits((360,), (720,), 2, False) if len({*one.blocks}) > 1]
    assert found == [(heads, 1, 1) for heads in (2, 3, 4, 6, 8, 16)]
    assert [one.blocks for one in splits((8,), (16,), 2, False) if len({*one.blocks}) > 1] == [(2, 1, 1), (6, 1, 1)]
    assert all(len({*one.blocks}) == 1 for one in splits((7,), (14,), 2, False))


@pytest.mark.parametrize(
    "ranks, groups, axes",
    [
        (range(1), [], []),
        (range(4), [], [2, 2]),
        (range(6), [], [2, 3]),
        (range(8), [(0, 1), (0, 2, 4, 6)], [2, 2, 2]),
        (range(12), [(0, 1, 2), (0, 3, 6, 9)], [3, 2, 2]),
        (range(12), [(0, 4, 8)], [2, 2, 3]),
        (range(4), [(0,), (0, 1, 3), (2, 9)], [2, 2]),  # no axes
        ([3, 5, 7, 9, 11, 13], [(3, 5, 7), (3, 9)], [3, 2]),
    ],
)
def test_groups_of_collectives_are_the_axes_of_ranks(ranks, groups, axes):
    assert axes_of([*ranks], groups) == axes


def test_prime_factors():
    assert [primes(number) for number in (1, 2, 12, 35, 49)] == [[], [2], [2, 2, 3], [5, 7], [7, 7]]
