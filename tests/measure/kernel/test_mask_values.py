"""Which values are masks, and what the extremes of a tensor say of them; tests/measure/test_masks.py measures files."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from npucmp.measure.kernel.mask_values import (
    Masks,
    all_others_in_range,
    are_rounded,
    masks_of,
    may_hold_masks,
    unseen_bounds,
)
from npucmp.model import Moments, Side
from npucmp.model.dtypes import DTYPES

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
FLOATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
SIZES = (1e4, 65504.0, 1e5, 1e6, 1e8, 1e9, 1e10, 1e12, 1e15, 1e20, 1e30)


def rounded(sizes, dtype):
    """The negative of each size that a type can hold, as the type holds it."""
    return {float(FLOATS[dtype](-size)) for size in sizes if size <= LARGEST[dtype]}


@pytest.mark.parametrize(
    "target, golden, coarse",
    [
        ("float32", "float32", "float32"),
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float32", "float16", "float16"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_masks_of_two_types_are_constants_rounded_to_the_coarser_one(target, golden, coarse):
    found = masks_of(DTYPES[target], DTYPES[golden])
    assert {*found.values} == rounded(SIZES, coarse) and found.bound == -LARGEST[coarse] / 2
    if target == golden:
        assert found.target == found.golden == ()
    for name, own in ((target, found.target), (golden, found.golden)) if target != golden else ():
        assert {*own} == rounded((1e4, 1e5, 1e9, LARGEST[name], LARGEST[name] / 2), name)
    assert found.highest == max(found.bound, *found.values, *found.target, *found.golden)
    assert found.unseen == (-math.inf, -math.inf)


def test_the_greatest_mask_may_be_that_of_the_finer_type():
    assert masks_of(DTYPES["float8_e5m2"], DTYPES["float32"]).highest == -1e4  # rounded to -10240 in float8
    assert masks_of(DTYPES["float8_e5m2"], DTYPES["float8_e5m2"]).highest == -10240.0
    assert masks_of(DTYPES["float64"], DTYPES["float64"]).values == tuple(-size for size in SIZES)


@pytest.mark.parametrize(
    "target, golden",
    [
        ("int32", "int32"),
        ("float32", "int64"),
        ("int64", "float32"),
        ("complex64", "complex64"),
        ("float8_e4m3fn", "float8_e4m3fn"),  # reaches 448
        ("float8_e4m3fn", "float32"),
        ("float32", "float8_e4m3fn"),
    ],
)
def test_types_without_masks(target, golden):
    found = masks_of(DTYPES[target], DTYPES[golden])
    assert found == Masks() and found.highest == found.bound == -math.inf
    assert not found.where_equal(*np.full((2, 3), -1e9)).any()


@pytest.mark.parametrize(
    "masks, x, y, is_mask",
    [
        (Masks(bound=-100.0), -100.0, -100.0, True),
        (Masks(bound=-100.0), -99.0, -99.0, False),
        (Masks(bound=-100.0), -101.0, -102.0, False),
        (Masks(values=(-7.0, -5.0)), -5.0, -5.0, True),
        (Masks(values=(-7.0, -5.0)), -7.0, -7.0, True),
        (Masks(values=(-7.0, -5.0)), -6.0, -6.0, False),
        (Masks(values=(-7.0, -5.0)), -7.0, -5.0, False),
        (Masks(target=(-7.0, -5.0), golden=(-9.0, -3.0)), -5.0, -9.0, True),
        (Masks(target=(-7.0, -5.0), golden=(-9.0, -3.0)), -9.0, -5.0, False),
        (Masks(target=(-7.0, -5.0), golden=(-9.0, -3.0)), -5.0, -5.0, False),
        (Masks(unseen=(-4.0, -8.0)), -4.0, -8.0, True),
        (Masks(unseen=(-4.0, -8.0)), -3.9, -8.0, False),
        (Masks(unseen=(-4.0, -8.0)), -4.0, -7.9, False),
        (Masks(unseen=(-4.0, -math.inf)), -9.0, -9.0, False),
        (Masks(values=(-1.0,), unseen=(-4.0, -8.0)), -1.0, -1.0, True),
        (Masks(values=(-1.0,), target=(-2.0,), golden=(-3.0,)), -1.0, -1.0, True),
    ],
)
def test_a_position_with_a_mask_on_both_sides_is_masked(masks, x, y, is_mask):
    found = masks.where_equal(np.array([1.0, x, 0.0]), np.array([1.0, y, 0.0]))
    assert found.tolist() == [False, is_mask, False]


def moments(target, golden=None, **more):
    """Moments of two sides (minimum, maximum), the same if one is given."""
    sides = (Side(minimum=low, maximum=high) for low, high in (target, golden or target))
    return Moments(8, *sides, **more)


@pytest.mark.parametrize(
    "side, bound",
    [((-1000.0, 5.0), -250.0), ((-100.0, 5.0), -95.0), ((-1000.0, -300.0), -400.0), ((-1e4, 10.0), -2500.0)],
)
def test_masks_are_100_below_all_others_and_below_a_quarter_of_the_lowest(side, bound):
    assert unseen_bounds(moments(side)) == (bound, bound)
    assert unseen_bounds(moments(side, (-4.0, 100.0))) == (bound, -1.0)
    assert unseen_bounds(moments((-4.0, 100.0), side)) == (-1.0, bound)


@pytest.mark.parametrize(
    "side, may",
    [
        ((-100.0, -100.0), True),  # one constant
        ((-99.0, -99.0), False),
        ((-100.0, 0.0), True),
        ((-99.5, 0.5), True),
        ((-99.0, 0.5), False),
        ((0.0, 100.0), False),
        ((-101.0, 0.5), True),
        ((-100.5, -0.5), True),
        ((-1000.0, -950.0), False),
        ((500.0, 501.0), False),
        ((4.0, 1000.0), False),
        ((math.nan, math.nan), False),
    ],
)
def test_extremes_of_both_sides_leave_room_for_masks(side, may):
    assert may_hold_masks(moments(side)) is may
    assert may_hold_masks(moments(side, (-1e9, 1.0))) is (may and side[0] != side[1])
    assert may_hold_masks(moments((-1e9, 1.0), side)) is (may and side[0] != side[1])
    assert not may_hold_masks(moments(side, (0.0, 1.0))) and not may_hold_masks(moments((0.0, 1.0), side))
    assert may_hold_masks(moments(side, (-200.0, -200.0))) is (side == (-100.0, -100.0))


@pytest.mark.parametrize(
    "masked, xx, yy, others",
    [
        (2, 62_000.0, 62_000.0, True),
        (1, 0.0, 0.0, True),
        (2, 62_500.0, 0.0, False),  # 250²
        (2, 0.0, 62_500.0, False),
        (0, 0.0, 0.0, False),
    ],
)
def test_sums_of_squares_show_that_nothing_else_is_as_low(masked, xx, yy, others):
    assert all_others_in_range(moments((-1000.0, 5.0), masked=masked, xx=xx, yy=yy)) is others


@pytest.mark.parametrize(
    "low, bits, found",
    [
        (-65504.0, (8, 8), True),
        (-65504.0, (11, 11), True),
        (-65504.0, (0, 11), True),
        (-65504.0, (11, 0), True),
        (-65504.0, (0, 1), True),
        (-65504.0, (12, 11), False),
        (-65504.0, (11, 24), False),
        (-65504.0, (0, 0), False),
        (-LARGEST["bfloat16"], (8, 8), True),
        (-LARGEST["bfloat16"] / 2, (8, 8), True),
        (-32752.0, (8, 8), True),
        (-9984.0, (8, 8), True),  # 1e4 in bfloat16
        (-1e4, (8, 8), True),  # and in float16
        (-LARGEST["float32"], (8, 8), False),
        (-9999.0, (8, 8), False),
    ],
)
def test_a_mask_that_was_rounded_to_16_bits_is_the_minimum_of_both_sides(low, bits, found):
    sides = [Side(minimum=low, maximum=1.0, bits=one) for one in bits]
    assert are_rounded(*sides) is found
    assert not are_rounded(sides[0], sides[1]._replace(minimum=-65503.0))
