"""Parts of a tensor on the ranks of a mesh: how they may be cut, and how they are put together again."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.align import placement
from npucmp.align.placement import (
    Allowed,
    Fit,
    candidates,
    distance,
    fit,
    fit_blocks,
    fit_figures,
    norm_of_terms,
    payload_of,
    splits,
    squared_distance,
    statistics_of,
)
from npucmp.align.rank_mesh import Maker, Mesh, Misfit, assemble, axes_of, primes
from npucmp.align.rank_run import Values
from npucmp.dump.limits import ANYWHERE
from npucmp.model import Statistics, TensorRef
from npucmp.model.relation import MAX, MEAN, SUM, Placement
from npucmp.model.relation import WHOLE as COPY
from tests.align.craft import Recorded
from tests.align.rank_craft import held

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
    found = [one.blocks for one in splits((360,), (720,), 2, False) if len({*one.blocks}) > 1 and one.kind == "shard"]
    assert found == [(heads, 1, 1) for heads in (2, 3, 4, 6, 8, 16)]
    found = [one.blocks for one in splits((8,), (16,), 2, False) if len({*one.blocks}) > 1 and one.kind == "shard"]
    assert found == [(2, 1, 1), (6, 1, 1)]
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


def same(one):
    """The cells of these meshes are tensors."""
    return one


def mesh_of(parts, sizes=None):
    """A mesh of parts, the fastest axis first."""
    sizes = sizes or (len(parts),)
    places = [at[::-1] for at in product(*(range(size) for size in sizes[::-1]))]
    return Mesh(dict(zip(places, parts)), sizes, tuple(range(len(parts))))


# Placements that shapes allow

ROWS, COLUMNS = Placement("shard", 0), Placement("shard", 1)


def allowed_in(shapes, golden, sizes=None, contents=None, **allowed):
    parts = [SimpleNamespace(shape=shape, content=None if contents is None else contents[at])
             for at, shape in enumerate(shapes)]  # fmt: skip
    return candidates(mesh_of(parts, sizes), same, golden, Allowed(**allowed))


def in_blocks(*counts, kind="shard", dim=0):
    return [(Placement(kind, dim, (1,) * count),) for count in counts]


@pytest.mark.parametrize(
    "shapes, golden, sizes, allowed, found",
    [
        ([(4, 6)], (4, 6), (1,), {}, [(COPY,)]),
        ([(4, 6)], (4, 6), (1,), {"sums": {0}, "maxima": True}, [(COPY,)]),
        ([(4, 6)] * 2, (4, 6), (2,), {}, [(COPY,)]),
        ([(4, 6)] * 2, (4, 6), (2,), {"sums": {1}}, [(COPY,)]),
        ([(4, 6)] * 2, (4, 6), (2,), {"sums": {0}}, [(COPY,), (SUM,)]),
        ([(4, 6)] * 2, (4, 6), (2,), {"sums": {0}, "maxima": True}, [(COPY,), (MAX,), (SUM,)]),
        ([(4, 6)] * 2, (4, 6), (2,), {"sums": {0}, "reduces": True}, [(COPY,), (SUM,)]),  # no number
        ([(4,)] * 2, (4, 1), (2,), {}, []),
        ([(4,), (4, 1)], (4, 1), (2,), {}, []),
        ([(3, 6)] * 2, (4, 6), (2,), {}, []),
        ([(2, 3)] * 2, (4, 6), (2,), {}, []),
        ([(1,)] * 2, (1,), (2,), {"sums": {0}}, [(COPY,), (SUM,), (MEAN,)]),
        ([()] * 2, (), (2,), {"sums": {0}, "reduces": True}, [(MEAN,), (SUM,)]),
        ([()] * 2, (), (2,), {"sums": {0}, "reduces": True, "maxima": True}, [(MEAN,), (MAX,), (SUM,)]),
        ([()] * 2, (), (2,), {"sums": {1}, "reduces": True}, [(COPY,)]),
        ([()] * 2, (), (2, 1), {"sums": {0, 1}, "reduces": True}, [(MEAN, COPY), (SUM, COPY)]),
        # parts of unequal length
        ([(3, 6), (1, 6)], (4, 6), (2,), {}, [(ROWS,)]),
        ([(4, 5), (4, 1)], (4, 6), (2,), {}, [(COLUMNS,)]),
        ([(3, 6), (4, 1)], (4, 6), (2,), {}, [(ROWS,), (COLUMNS,)]),
        ([(3, 6), (1, 6)], (4, 6), (2,), {"sums": {0}}, [(ROWS,)]),
        ([(3, 6), (1, 6), (3, 6), (1, 6)], (4, 6), (2, 2), {}, [(COPY, ROWS), (ROWS, COPY), (ROWS, ROWS)]),
    ],
)
def test_placements_that_shapes_allow(shapes, golden, sizes, allowed, found):
    assert allowed_in(shapes, golden, sizes, **allowed) == found


@pytest.mark.parametrize("contents, has_copies", [("aa", True), ("ab", False), ([None, None], False)])
def test_a_number_of_which_ranks_have_copies_is_no_mean(contents, has_copies):
    found = allowed_in([()] * 2, (), (2,), contents, sums={0}, reduces=True)
    assert found == ([(COPY,), (SUM,), (MEAN,)] if has_copies else [(MEAN,), (SUM,)])


@pytest.mark.parametrize("contents, axes", [("aabb", {0}), ("abab", {1}), ("aaaa", {0, 1}), ("aaab", set())])
def test_copies_stand_along_an_axis(contents, axes):
    found = allowed_in([()] * 4, (), (2, 2), contents, sums={0, 1}, reduces=True)
    assert {axis for axis in (0, 1) if any(one[axis] == COPY for one in found)} == axes


def test_simple_placements_come_first():
    """One block, then few blocks, then many; a sum is less simple than few blocks."""
    groups = [(Placement("shard", 0, (count, 1, 1)),) for count in (2, 6)]
    zigzags = in_blocks(1, 2, 4, kind="zigzag")
    expected = [*in_blocks(1, 2), *groups, zigzags[0], *in_blocks(4, 8), *zigzags[1:]]
    assert allowed_in([(8,)] * 2, (16,)) == expected
    assert allowed_in([(8,)] * 2, (16,), zigzag=False) == [one for one in expected if one[0].kind == "shard"]
    assert allowed_in([(4, 4)] * 2, (4, 8), zigzag=True)[-1:] == in_blocks(4, dim=1)
    assert sum(one[0].kind == "zigzag" for one in allowed_in([(4, 4)] * 2, (4, 8))) == 1  # batches stand along rows
    three = allowed_in([(6, 1)] * 2, (12, 1), zigzag=False)
    assert three == [*in_blocks(1, 2, 3), (Placement("shard", 0, (4, 1, 1)),), *in_blocks(6)]
    mixed = allowed_in([(8, 1)] * 4, (16, 1), (2, 2), sums={0}, zigzag=False)
    cost = {1: 1, 2: 2, 3: 2, 4: 4, 8: 4}
    costs = [sum(3 if each == SUM else cost[len(each.blocks)] * each.is_split for each in one) for one in mixed]
    assert costs == sorted(costs) and {1, 2, 4, 5, 7} == {*costs}


def test_two_axes_split_one_dimension_or_two():
    found = allowed_in([(2, 3)] * 4, (4, 6), (2, 2), zigzag=False)
    assert found[:2] == [(ROWS, COLUMNS), (COLUMNS, ROWS)]
    assert {tuple(each.dim for each in one) for one in found} == {(0, 1), (1, 0)}
    assert allowed_in([(2, 6)] * 4, (8, 6), (2, 2), zigzag=False)[0] == (ROWS, ROWS)
    assert allowed_in([(2, 6)] * 6, (4, 6), (2, 3), zigzag=False)[0] == (ROWS, COPY)
    assert all(one[1] == COPY for one in allowed_in([(2, 6)] * 6, (4, 6), (2, 3)))


# Values

EXACT = np.float32([[1, 2], [3, 4]])


def tensor(array, content=None):
    return SimpleNamespace(array=None if array is None else np.float32(array), content=content)


@pytest.mark.parametrize(
    "parts, one, scale, error, copy",
    [
        ([[[1, 2]], [[3, 4]]], ROWS, 1.0, 0.0, ()),
        ([[[1, 2]], [[3, 7]]], ROWS, 1.0, 3 / 30**0.5, ()),
        ([[[2, 4]], [[6, 8]]], ROWS, 2.0, 0.0, ()),
        ([[[1], [3]], [[2], [4]]], COLUMNS, 1.0, 0.0, ()),
        ([EXACT, EXACT], COPY, 1.0, 0.0, ((0, 0),)),
        ([EXACT, EXACT * 2], COPY, 1.0, 1.0, ((0, 1),)),  # the worst copy
        ([EXACT * 2, EXACT], COPY, 1.0, 1.0, ((0, 0),)),
        ([EXACT, EXACT * 3], SUM, 4.0, 0.0, ()),
        ([EXACT, EXACT * 3], MEAN, 1.0, 1.0, ()),
        ([EXACT, EXACT * 3], MAX, 3.0, 0.0, ()),
        ([[[1, 2]], [[3, 4]]], COPY, 1.0, math.inf, ((0, 0),)),  # of another shape
        ([EXACT[:1], EXACT[:1, :1]], ROWS, 1.0, None, ()),  # not to be joined
        ([EXACT, None], COPY, 1.0, None, ()),
        ([EXACT, None], SUM, 1.0, None, ()),
    ],
)
def test_the_error_of_a_placement(parts, one, scale, error, copy):
    found = fit(mesh_of([*map(tensor, parts)]), same, tensor(EXACT), (one,), scale)
    assert found == (None if error is None else (pytest.approx(error), (one,), scale, copy))


@pytest.mark.parametrize("contents, error", [(("a", "a"), 0.0), (("a", "b"), 1.0), ((None, None), 1.0)])
def test_copies_with_one_content_are_read_once(tmp_path, contents, error):
    parts = [tensor(EXACT, contents[0]), tensor(EXACT * 2, contents[1])]
    assert fit(mesh_of(parts), same, tensor(EXACT), (COPY,)).error == error


def test_copies_along_one_axis_and_parts_along_another():
    parts = [tensor(one) for one in (EXACT[:1], EXACT[1:], EXACT[:1], EXACT[1:] * 2)]
    found = fit(mesh_of(parts, (2, 2)), same, tensor(EXACT), (ROWS, COPY))
    assert found.error == pytest.approx(5 / 30**0.5) and found.copy == ((1, 1),)


@pytest.mark.parametrize(
    "parts, one, scale, error",
    [
        ([EXACT[:1], EXACT[1:]], ROWS, 1.0, 0.0),
        ([EXACT[:1], np.add(EXACT[1:], [[0, 3]])], ROWS, 1.0, 3 / 30**0.5),
        ([EXACT[:, :1], EXACT[:, 1:]], COLUMNS, 1.0, 0.0),
        ([EXACT, EXACT], COPY, 1.0, 0.0),
        ([EXACT, EXACT * 2], COPY, 1.0, 1.0),
        ([EXACT * 2, EXACT], COPY, 1.0, 1.0),
        ([EXACT, EXACT * 3], SUM, 4.0, 0.0),
        ([EXACT, EXACT * 3], SUM, 1.0, 3.0),
        ([EXACT, EXACT * 3], MEAN, 2.0, 0.0),
        ([EXACT * [[1, 9], [1, 1]], EXACT], MAX, 1.0, 16 / 30**0.5),
        ([EXACT[:1], EXACT[:1]], COPY, 1.0, None),  # of another shape
        ([EXACT[:, :1], EXACT[:, :1]], Placement("zigzag", 1), 1.0, None),
        ([Recorded(Statistics(4.0, 1.0, 2.5, 5.0), (2, 2)), EXACT], COPY, 1.0, None),
    ],
)
def test_the_error_of_a_placement_block_by_block(tmp_path, monkeypatch, parts, one, scale, error):
    monkeypatch.setattr(placement, "BLOCK", 2)
    *parts, golden = held(
        tmp_path, *(each if isinstance(each, Recorded) else np.float32(each) for each in parts), EXACT
    )
    found = fit_blocks(mesh_of(parts), same, golden, (one,), scale)
    assert (found and found.error) == (None if error is None else pytest.approx(error))
    if found is not None:
        assert found == fit(mesh_of(parts), same, golden, (one,), scale)._replace(error=found.error)


def test_a_placement_that_the_first_blocks_contradict_is_not_read_further(tmp_path, monkeypatch):
    """If the square of the error is above a quarter after five blocks."""
    monkeypatch.setattr(placement, "BLOCK", 2)
    exact = np.ones(14, np.float32)
    own = np.float32([*[1.6] * 10, *[9.0] * 4])
    near = np.float32([*[1.5] * 10, *[9.0] * 4])
    early = np.float32([*[1.6] * 8, *[1.0] * 6])
    one, other, third, golden = held(tmp_path, own, near, early, exact)
    assert fit_blocks(mesh_of([one]), same, golden, (COPY,)).error == pytest.approx(0.6)
    assert fit_blocks(mesh_of([other]), same, golden, (COPY,)).error == pytest.approx(math.sqrt((2.5 + 128) / 12))
    assert fit_blocks(mesh_of([third]), same, golden, (COPY,)).error == pytest.approx(math.sqrt(0.36 * 8 / 10))


@pytest.mark.parametrize("own, error", [([0.0, 0.0], 0.0), ([0.0, 1.0], math.inf)])
def test_a_golden_of_zeros_has_no_relative_error(tmp_path, own, error):
    one, golden = held(tmp_path, np.float32(own), np.zeros(2, np.float32))
    assert fit_blocks(mesh_of([one]), same, golden, (COPY,)).error == error
    assert distance(one.array, golden.array) == error


@pytest.mark.parametrize(
    "own, golden, error",
    [
        ([np.nan, 3.0, 5.0], [np.nan, 3.0, 4.0], 0.2),
        ([-np.inf, 3.0, 5.0], [-np.inf, 3.0, 4.0], 0.2),
        ([np.nan, 3.0, 5.0], [1.0, 3.0, 4.0], math.inf),
        ([1.0, 3.0, 4.0], [np.nan, 3.0, 4.0], math.inf),
        ([np.inf, 3.0, 4.0], [-np.inf, 3.0, 4.0], math.inf),
        ([1e200, 3.0, 4.0], [1e200, 3.0, 4.0], math.inf),  # the square has no number
    ],
)
def test_blocks_of_numbers_that_are_not_finite(tmp_path, own, golden, error):
    one, exact = held(tmp_path, np.float64(own), np.float64(golden))
    found = fit_blocks(mesh_of([one]), same, exact, (COPY,))
    assert found.error == pytest.approx(error)


@pytest.mark.parametrize(
    "own, exact, scale, sums",
    [
        ([1, 3], [1, 2], 1.0, (1.0, 5.0)),
        ([2, 8], [1, 2], 2.0, (4.0, 5.0)),
        ([math.nan, math.inf, 3], [math.nan, math.inf, 1], 1.0, (4.0, 1.0)),
        ([math.inf, 1], [-math.inf, 1], 1.0, (math.inf, 1.0)),
        ([3e38], [-3e38], 1.0, (3.6e77, 9e76)),
        ([], [], 1.0, (0.0, 0.0)),
    ],
)
def test_squared_distances_of_blocks(own, exact, scale, sums):
    found = squared_distance(np.array(own, np.float32), np.array(exact, np.float32), scale)
    assert found == pytest.approx(sums)


def test_a_file_that_ends_early_fits_nothing(tmp_path):
    one, golden = held(tmp_path, np.float32([1, 2, 3, 4]), np.float32([1, 2, 3, 4]))
    assert one.payload is not None and golden.payload is not None
    with open(one.ref.file, "r+b") as file:
        file.truncate(130)
    assert fit_blocks(mesh_of([one]), same, golden, (COPY,)) is None


MASK = -1e4


@pytest.mark.parametrize(
    "found, exact, apart",
    [
        ([3.0, 4.0], [3.0, 0.0], 4 / 3),
        ([6.0, 8.0], [6.0, 8.0], 0.0),
        ([1.0], [1.0, 2.0], math.inf),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.nan, 1.0], [np.nan, 2.0], math.inf),
        ([np.nan, 1.0], [0.0, 1.0], math.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([-np.inf, 1.0], [np.inf, 1.0], math.inf),
        ([3e200, 5e200], [3e200, 4e200], 0.2),  # their squares are beyond all numbers
        ([1e200, 1.0], [0.0, 1.0], 1e200),
        # masks
        ([1.0] * 8 + [MASK], [1.0] * 8 + [MASK], 0.0),
        ([2.0] * 8 + [MASK], [1.0] * 8 + [MASK], 1.0),
        ([1.0] * 8 + [9 * MASK], [1.0] * 8 + [MASK], 0.0),  # far below all values
        ([1.0] * 7 + [MASK] * 2, [1.0] * 8 + [MASK], math.inf),  # another element is masked
        ([1.0] * 9, [1.0] * 8 + [MASK], math.inf),
        ([2.0] * 7 + [MASK], [1.0] * 7 + [MASK], 7**0.5 / 1e4),  # of eight elements, all count
        ([2.0] * 8 + [-1000.0], [1.0] * 8 + [-1000.0], 1.0),
        ([2.0] * 8 + [-999.0], [1.0] * 8 + [-999.0], 8**0.5 / 999),
        ([2.0] * 8 + [-1000.0], [19.9] * 8 + [-1000.0], 17.9 / 19.9),
        ([2.0] * 8 + [-1000.0], [20.0] * 8 + [-1000.0], 18 * 8**0.5 / (1e6 + 8 * 400) ** 0.5),  # too near to the values
        ([-1001.0] * 9, [-1000.0] * 9, 1e-3),
        ([1.0] * 8 + [-501.0], [1.0] * 8 + [-1000.0], 0.0),  # less than half a mask is none
        ([1.0] * 8 + [-499.0], [1.0] * 8 + [-1000.0], math.inf),
    ],
)
def test_the_relative_distance_of_two_arrays(found, exact, apart):
    assert distance(np.float64(found), np.float64(exact)) == pytest.approx(apart, rel=1e-3)
    assert distance(2 * np.float64(found), np.float64(exact), 2.0) == pytest.approx(apart, rel=1e-3)


@pytest.mark.parametrize(
    "norms, sizes, placements, scale, terms",
    [
        ([3.0, 4.0], (2,), (SUM,), 1.0, 5.0),
        ([3.0, 4.0], (2,), (SUM,), 2.0, 2.5),
        ([3.0, 4.0], (2,), (MEAN,), 1.0, 2.5),
        ([3.0, 4.0, 3.0, 4.0], (2, 2), (SUM, COPY), 1.0, 5.0),
        ([3.0, 4.0, 3.0, 4.0], (2, 2), (MEAN, COPY), 1.0, 2.5),
        ([3.0, 4.0, 4.0, 3.0], (2, 2), (MEAN, MEAN), 1.0, 50**0.5 / 4),
        ([3.0, None], (2,), (SUM,), 1.0, None),
    ],
)
def test_the_norm_of_the_terms_of_a_sum(norms, sizes, placements, scale, terms):
    mesh = mesh_of([SimpleNamespace(norm=norm) for norm in norms], sizes)
    found = norm_of_terms(mesh, same, Fit(0.0, placements, scale))
    assert found == (terms if terms is None else pytest.approx(terms))


@pytest.mark.parametrize(
    "parts, one, scale, copy, whole",
    [
        ([[1, 2], [3, 4]], ROWS, 1.0, (), [1, 2, 3, 4]),
        ([[1, 2], [3, 4]], ROWS, 2.0, (), [0.5, 1, 1.5, 2]),
        ([[1, 2], [3, 4]], SUM, 1.0, (), [4, 6]),
        ([[1, 2], [3, 4]], MEAN, 1.0, (), [2, 3]),
        ([[1, 6], [3, 4]], MAX, 1.0, (), [3, 6]),
        ([[1, 6], [3, 4]], COPY, 1.0, ((0, 0),), [1, 6]),
        ([[1, 6], [3, 4]], COPY, 1.0, ((0, 1),), [3, 4]),
        ([[1, 6], [3, 4]], COPY, 2.0, ((0, 1),), [1.5, 2]),
        ([[1], [3]], Placement("zigzag", 0), 1.0, (), None),
        ([Recorded(Statistics(4.0, 1.0, 2.5, 5.0), (2,)), [3, 4]], SUM, 1.0, (), None),
    ],
)
def test_an_assembled_tensor_is_read_from_its_parts(tmp_path, parts, one, scale, copy, whole):
    parts = held(tmp_path, *(each if isinstance(each, Recorded) else np.float32(each) for each in parts))
    found = payload_of(mesh_of(parts), same, Fit(0.0, (one,), scale, copy))
    assert (found is None) is (whole is None)
    if found is not None:
        ref = TensorRef("output:0", "float32", found.shape, payload=found)
        assert Values(ANYWHERE).array(ref).tolist() == whole


# Statistics


def recorded(shape, *figures):
    return Recorded(Statistics(*figures), shape)


PARTS = recorded((2,), 2.0, -1.0, 0.5, 3.0), recorded((6,), 1.5, -2.0, -0.5, 4.0)
NUMBERS = recorded((), 2.0, 2.0, 2.0, 2.0), recorded((), 6.0, 6.0, None, 6.0)


@pytest.mark.parametrize(
    "parts, one, scale, copy, figures",
    [
        (PARTS, ROWS, 1.0, (), (2.0, -2.0, -0.25, 5.0)),
        (PARTS, Placement("zigzag", 0, (1, 1, 1)), 1.0, (), (2.0, -2.0, -0.25, 5.0)),
        (PARTS, Placement("shard", 0, (2, 1, 1)), 1.0, (), (2.0, -2.0, -0.25, 5.0)),
        (PARTS, ROWS, 2.0, (), (1.0, -1.0, -0.125, 2.5)),
        (PARTS, COPY, 1.0, ((0, 0),), (2.0, -1.0, 0.5, 3.0)),
        (PARTS, COPY, 1.0, ((0, 1),), (1.5, -2.0, -0.5, 4.0)),
        (PARTS, SUM, 1.0, (), None),  # the largest element of a sum does not follow
        (PARTS, MAX, 1.0, (), None),
        (NUMBERS, SUM, 1.0, (), (8.0,) * 4),
        (NUMBERS, MEAN, 1.0, (), (4.0,) * 4),
        (NUMBERS, MEAN, 2.0, (), (2.0,) * 4),
        ([recorded((2,), 2.0, -1.0, None, 3.0), PARTS[1]], ROWS, 1.0, (), (2.0, -2.0, None, 5.0)),
        ([recorded((2,), 2.0, -1.0, 0.5, None), PARTS[1]], ROWS, 1.0, (), (2.0, -2.0, -0.25, None)),
        ([np.zeros((0,), np.float32), PARTS[1]], ROWS, 1.0, (), (1.5, -2.0, -0.5, 4.0)),  # an empty part
        ([np.zeros((0,), np.float32)] * 2, ROWS, 1.0, (), None),
        (
            [recorded((2,), 2.0, -1.0, 0.5, 3 * 2.0**600), recorded((2,), 1.0, 0.0, 0.5, 4 * 2.0**600)],
            ROWS,
            1.0,
            (),
            (2.0, -1.0, 0.5, 5 * 2.0**600),
        ),
        ([recorded((2,), None, -1.0, 0.5, 3.0), PARTS[1]], ROWS, 1.0, (), None),
    ],
)
def test_statistics_of_an_assembled_tensor(tmp_path, parts, one, scale, copy, figures):
    mesh = mesh_of(held(tmp_path, *parts))
    found = statistics_of(mesh, same, Fit(0.0, (one,), scale, copy))
    assert found == (None if figures is None else Statistics(*figures))


WIDE = Statistics(4.0, -4.0, 1.0, 8.0)  # of four elements: the root mean square is 4


@pytest.mark.parametrize(
    "parts, golden, one, scale, error",
    [
        ([(4.0, -4.0, 1.0, 8.0)], WIDE, COPY, 1.0, 0.0),
        ([(8.0, -8.0, 2.0, 16.0)], WIDE, COPY, 2.0, 0.0),
        ([(5.0, -4.0, 1.0, 8.0)], WIDE, COPY, 1.0, 0.25),
        ([(4.0, -6.0, 1.0, 8.0)], WIDE, COPY, 1.0, 0.5),
        ([(4.0, -4.0, 4.0, 8.0)], WIDE, COPY, 1.0, 0.75),
        ([(4.0, -4.0, 1.0, 9.0)], WIDE, COPY, 1.0, 0.125),
        ([(4.0, -4.0, None, 8.0)], WIDE, COPY, 1.0, 0.0),
        ([(4.0, -4.0, 1.0, None)], WIDE, COPY, 1.0, 0.0),
        ([(5.0, -4.0, 1.0, 8.0), (4.0, -6.0, 1.0, 8.0)], WIDE, COPY, 1.0, 0.5),  # the worst copy
        ([(4.0, -6.0, 1.0, 8.0), (5.0, -4.0, 1.0, 8.0)], WIDE, COPY, 1.0, 0.5),
        ([(8.0, -7.0, 1.0, 8.0)], Statistics(10.0, -7.0, 1.0, 8.0), COPY, 1.0, 0.2),  # of the largest value
        ([(4.0, -4.0, 9.0, 8.0)], Statistics(4.0, -4.0, 1.0, None), COPY, 1.0, 4.0),  # no norm: of the larger end
        ([(3.0, -9.0, 1.0, 8.0)], Statistics(3.0, -8.0, 1.0, None), COPY, 1.0, 0.125),
        ([(4.0, -4.0, 9.0, 8.0)], Statistics(4.0, -4.0, None, 8.0), COPY, 1.0, 0.0),
        ([(math.inf, -4.0, 1.0, 8.0)], Statistics(math.inf, -4.0, 1.0, 8.0), COPY, 1.0, 0.0),
        ([(4.0, -math.inf, 1.0, 8.0)], Statistics(4.0, -4.0, 1.0, 8.0), COPY, 1.0, math.inf),
        ([(0.0, 0.0, 0.0, 0.0)], Statistics(0.0, 0.0, 0.0, 0.0), COPY, 1.0, 0.0),
        # without a finite norm, of the larger end
        ([(5.0, -4.0, 1.0, math.nan)], Statistics(4.0, -4.0, 1.0, math.nan), COPY, 1.0, 0.25),
        ([(5.0, -4.0, 1.0, math.inf)], Statistics(4.0, -4.0, 1.0, math.inf), COPY, 1.0, 0.25),
        ([(5.0, -4.0, 1.0, 9.0)], Statistics(4.0, -4.0, 1.0, math.inf), COPY, 1.0, math.inf),
        ([(math.nan, -4.0, 1.0, 8.0)], Statistics(math.nan, -5.0, 1.0, math.nan), COPY, 1.0, math.inf),
        ([(math.nan, -4.0, 1.0, math.nan)], Statistics(math.nan, -4.0, 1.0, math.nan), COPY, 1.0, 0.0),
        ([(9.0, -9.0, 1.5, 8.0), (9.0, -9.0, -0.5, 8.0)], WIDE, SUM, 1.0, 0.0),  # the mean alone
        ([(9.0, -9.0, 1.5, 8.0), (9.0, -9.0, 0.5, 8.0)], WIDE, SUM, 1.0, 0.25),
        ([(9.0, -9.0, 1.5, 8.0), (9.0, -9.0, 0.5, 8.0)], WIDE, MEAN, 1.0, 0.0),
        ([(9.0, -9.0, None, 8.0), (9.0, -9.0, 0.5, 8.0)], WIDE, SUM, 1.0, None),
        ([(4.0, -9.0, 1.5, 8.0), (3.0, -9.0, 0.5, 8.0)], WIDE, MAX, 1.0, 0.0),  # the largest value alone
        ([(2.0, -9.0, 1.5, 8.0), (3.0, -9.0, 0.5, 8.0)], WIDE, MAX, 1.0, 0.25),
        # any sum of centred tensors has the mean 0: little evidence
        ([(9.0, -9.0, 0.1, 8.0), (9.0, -9.0, 0.09, 8.0)], Statistics(4.0, -4.0, 0.19, 8.0), SUM, 1.0, 1.5e-3),
        ([(9.0, -9.0, 0.1, 8.0), (9.0, -9.0, 0.1, 8.0)], Statistics(4.0, -4.0, 0.2, 8.0), SUM, 1.0, 0.0),
        ([(9.0, -9.0, -0.1, 8.0), (9.0, -9.0, -0.1, 8.0)], Statistics(4.0, -4.0, -0.2, 8.0), SUM, 1.0, 0.0),
        ([(9.0, -9.0, 0.1, 8.0), (9.0, -9.0, 0.49, 8.0)], Statistics(4.0, -4.0, 0.19, 8.0), SUM, 1.0, 0.1),
        ([(4.0, -4.0, 0.1, 8.0)], Statistics(4.0, -4.0, 0.1, 8.0), COPY, 1.0, 0.0),
        ([(None, -4.0, 0.1, 8.0)], WIDE, COPY, 1.0, None),
        ([(4.0, -4.0, 1.0, 8.0)], Statistics(None, -4.0, 1.0, 8.0), COPY, 1.0, None),
    ],
)
def test_the_error_of_statistics(tmp_path, parts, golden, one, scale, error):
    """Ends and mean in root mean squares of the golden, an end of its own size if that is larger, a norm in norms."""
    *parts, whole = held(tmp_path, *(recorded((4,), *each) for each in parts), golden)
    found = fit_figures(mesh_of(parts), same, whole, (one,), scale)
    assert (None if found is None else found.error) == (error if error is None else pytest.approx(error))
    if found is not None:
        assert (
            found.placements == (one,) and found.scale == scale and len(found.copy) == (one == COPY and len(parts) > 1)
        )
