"""Moments of a tensor from those of its blocks, field by field."""

import math

import pytest

from npucmp.measure.kernel.merge import merge, merge_sides
from npucmp.model import HISTOGRAM_BINS, Moments, Side

NAN, NONE = math.nan, None
COUNTS = "elements compared masked mismatched equal below_1e3 below_5e3 outside".split()
SUMS = "xx yy xy sum_d sum_abs sum_dd sum_rel".split()


@pytest.mark.parametrize("name", [*COUNTS, *SUMS])
def test_counts_and_sums_add_up(name):
    a, b = Moments(**{name: 5}), Moments(**{name: 3})
    assert merge(a, b) == Moments(**{name: 8})


@pytest.mark.parametrize("name", "nan posinf neginf total squares nonzero full_8 full_11".split())
def test_counts_and_sums_of_a_side_add_up(name):
    a, b = Side(**{name: 5}, minimum=1.0, maximum=1.0), Side(**{name: 3})
    expected = Side(**{name: 8}, minimum=1.0, maximum=1.0)
    assert merge_sides(a, b) == merge_sides(b, a) == expected
    found = merge(Moments(target=a, golden=b), Moments(target=b, golden=b._replace(minimum=1.0, maximum=1.0)))
    assert found.target == expected and getattr(found.golden, name) == 6


@pytest.mark.parametrize(
    "name, x, y, expected",
    [
        ("max_abs", 1.0, 2.0, 2.0),
        ("max_rel", 1.0, 2.0, 2.0),
        ("max_abs_exact", 2**60, 2**60 + 1, 2**60 + 1),
        ("max_abs_exact", NONE, 3, 3),
        ("max_abs_exact", NONE, NONE, NONE),
        ("max_ulp", 1, 2, 2),
        ("max_ulp", NONE, 0, 0),
        ("max_ulp", NONE, NONE, NONE),
    ],
)
def test_the_largest_error_is_that_of_either_block(name, x, y, expected):
    for one, other in ((x, y), (y, x)):
        assert getattr(merge(Moments(**{name: one}), Moments(**{name: other})), name) == expected


@pytest.mark.parametrize(
    "name, x, y, expected",
    [
        ("minimum", 1.0, 2.0, 1.0),
        ("minimum", NAN, 2.0, 2.0),
        ("minimum", NAN, NAN, NAN),
        ("maximum", 1.0, 2.0, 2.0),
        ("maximum", NAN, -2.0, -2.0),
        ("bits", 8, 11, 11),
        ("last_bit", 0.5, 0.25, 0.25),
    ],
)
def test_the_extremes_of_a_side_are_those_of_either_block(name, x, y, expected):
    for one, other in ((x, y), (y, x)):
        found = getattr(merge_sides(Side(**{name: one}), Side(**{name: other})), name)
        assert found == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", ["max_abs", "max_rel"])
@pytest.mark.parametrize("first, second, index", [(2.0, 1.0, 3), (1.0, 2.0, 7), (2.0, 2.0, 3), (0.0, 2.0, 7)])
def test_the_index_is_that_of_the_largest_error(name, first, second, index):
    a, b = (Moments(**{name: size, f"{name}_index": at}) for size, at in ((first, 3), (second, 7)))
    found = merge(a, b)
    assert (getattr(found, name), getattr(found, f"{name}_index")) == (max(first, second), index)


def test_the_histogram_adds_up_bin_by_bin():
    a, b = (tuple(range(start, start + HISTOGRAM_BINS)) for start in (0, 100))
    expected = tuple(100 + 2 * at for at in range(HISTOGRAM_BINS))
    assert merge(Moments(histogram=a), Moments(histogram=b)).histogram == expected


def test_both_words_of_a_hash_add_up_without_a_carry():
    a, b = Side(hash=(5 << 32) | 0xFFFFFFFF), Side(hash=(0xFFFFFFFF << 32) | 2)
    assert merge_sides(a, b).hash == (4 << 32) | 1
