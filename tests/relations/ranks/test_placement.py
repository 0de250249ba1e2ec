"""Parts of a tensor on the ranks of a mesh: how they may be cut, and how they are put together again."""

import math
from itertools import product

import numpy as np
import pytest

from npucmp.model import Statistics
from npucmp.model.relation import MAX, MEAN, SUM, Placement
from npucmp.model.relation import WHOLE as COPY
from npucmp.relations.ranks import placement
from npucmp.relations.ranks.joined_shards import Maker, assemble
from npucmp.relations.ranks.placement import distance, fit_blocks, fit_figures
from npucmp.relations.ranks.rank_mesh import Mesh, Misfit
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


def test_rows_of_ranks_in_any_order():
    order = (4, 5, 0, 1, 2, 6, 7, 3)
    parts = {(at,): part for at, part in enumerate(np.split(WHOLE, 2))}
    assert np.array_equal(assemble(parts, [Placement("rows", 0, order)], ARRAYS), WHOLE[list(order)])
    assert np.array_equal(assemble(parts, [Placement("rows", 0, tuple(range(8)))], ARRAYS), WHOLE)
    with pytest.raises(Misfit):
        assemble(parts, [Placement("rows", 0, order[:7])], ARRAYS)


def same(one):
    """The cells of these meshes are tensors."""
    return one


def mesh_of(parts, sizes=None):
    """A mesh of parts, the fastest axis first."""
    sizes = sizes or (len(parts),)
    places = [at[::-1] for at in product(*(range(size) for size in sizes[::-1]))]
    return Mesh(dict(zip(places, parts)), sizes, tuple(range(len(parts))))


# Values


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


# Statistics


def recorded(shape, *figures):
    return Recorded(Statistics(*figures), shape)


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


@pytest.mark.parametrize("order, share", [((2, 0, 3, 1), 0.0), ((0, 1, 3, 3), 0.75)])
def test_chunks_in_another_order_are_a_share_and_a_wrong_chunk_is_none(tmp_path, order, share):
    chunks = np.split(WHOLE.astype("f4"), 4)
    parts = np.split(np.concatenate([chunks[at] for at in order]), 2)
    *own, golden = held(tmp_path, *parts, WHOLE.astype("f4"))
    mesh = mesh_of(own)
    fit = placement.Fit(0.5, (Placement("shard", 0),))
    assert placement.share_alike(mesh, same, golden, fit, 1e-4) == share
