"""The parts of a detail: the worst elements over blocks, histograms, grids and masks, of crafted values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.measure import error_map
from npucmp.measure.error_map import WORST, bar_of, histogram, number, tensor_detail
from npucmp.measure.heat_map import ACROSS, DOWN, Grid
from npucmp.model import Moments
from tests.measure.test_error_map import finding

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("count", [WORST - 1, WORST, WORST + 1, 3 * WORST])
@pytest.mark.parametrize("read", [4, WORST, 100])
def test_the_worst_elements_of_all_blocks_are_kept_the_first_of_equal_ones(tmp_path, monkeypatch, count, read):
    monkeypatch.setattr(error_map, "READ", read)
    errors = np.tile([1.0, 3.0, 2.0], 3 * WORST)[: 3 * count]
    y = np.full(len(errors), 64.0)
    found = tensor_detail(finding(tmp_path, y + errors, y)).worst
    order = sorted(range(len(errors)), key=lambda at: (-errors[at], at))[:10]
    assert [(one.at, one.abs_err) for one in found] == [(at, errors[at]) for at in order]
    assert [(one.target, one.golden) for one in found] == [(64 + errors[at], 64.0) for at in order]


def test_equal_tensors_have_no_worst_element(tmp_path):
    found = tensor_detail(finding(tmp_path, np.ones(5), np.ones(5)))
    assert found.worst == () and sum(found.picture.counts) == 0 and found.bar == 0.0


def test_elements_that_are_nan_or_infinite_on_one_side_are_the_worst(tmp_path):
    x, y = np.array([NAN, INF, INF, -INF, NAN, 2.0, 1.0]), np.array([NAN, INF, -INF, 1.0, 3.0, 1.0, 1.0])
    found = tensor_detail(finding(tmp_path, x, y))
    assert [(one.at, one.abs_err, one.rel_err) for one in found.worst] == [
        (2, INF, INF), (3, INF, INF), (4, INF, INF), (5, 1.0, 1.0),
    ]  # fmt: skip
    assert sum(found.errors.counts) == 2 and [sum(one.counts) for one in found.values] == [2, 4]
    assert sum(found.picture.counts) == 4  # above the bar


def test_the_relative_error_has_the_smallest_normal_number_as_its_floor(tmp_path):
    y = np.array([0.0, 4.0], np.float32)
    found = tensor_detail(finding(tmp_path, np.array([1.0, 5.0], np.float32), y)).worst
    assert [one.rel_err for one in found] == [1.0 / float(np.finfo(np.float32).tiny), 0.25]


@pytest.mark.parametrize("masks, left", [(2, 4), (1, 5)])
def test_masks_of_both_sides_are_left_out_where_the_measurement_left_them_out(tmp_path, masks, left):
    """A single one is a value."""
    y = np.array([1.0, 2.0, 3.0, 4.0, *[-1e9] * masks], np.float32)
    x = y + np.array([0.0, 0.5, 0.0, 0.0, *[0.0] * masks], np.float32)
    found = tensor_detail(finding(tmp_path, x, y))
    assert sum(found.errors.counts) == left and [one.at for one in found.worst] == [1]


def test_masks_of_two_constants_are_no_error(tmp_path):
    """The measurement left them out, and no compared element has such an error."""
    y = np.array([1.0, 2.0, 3.0, -1e4, -1e4], np.float16)
    x = np.array([1.0, 2.5, 3.0, -1e9, -1e9], np.float32)
    found = tensor_detail(finding(tmp_path, x, y))
    assert [one.at for one in found.worst] == [1] and sum(found.errors.counts) == 3
    assert sum(found.picture.counts) == 1


def test_complex_errors_are_magnitudes_that_begin_at_0(tmp_path):
    x, y = np.array([3 + 4j, 1 + 1j], np.complex64), np.array([0j, 1 + 1j], np.complex64)
    found = tensor_detail(finding(tmp_path, x, y))
    assert (found.errors.low, found.errors.high) == (0.0, 5.0)
    assert found.errors.counts[0] == found.errors.counts[-1] == 1 and found.worst[0].target == 3 + 4j
    signed = tensor_detail(finding(tmp_path, np.array([1.0, -1.0]), np.array([0.0, 4.0]), 1)).errors
    assert (signed.low, signed.high, signed.counts[0], sum(signed.counts)) == (-5.0, 5.0, 1, 2)


def test_a_side_without_finite_values_has_the_range_of_the_other(tmp_path):
    found = tensor_detail(finding(tmp_path, np.full(3, NAN), np.array([1.0, 2.0, 3.0])))
    assert (found.values[0].low, found.values[0].high) == (1.0, 3.0)
    assert (sum(found.values[0].counts), sum(found.values[1].counts)) == (0, 3)


def test_a_detail_needs_both_sides_and_values(tmp_path):
    one = finding(tmp_path, np.ones(4, np.float32), np.zeros(4, np.float32))
    for side in ("target", "golden"):
        for tensor in (None, getattr(one.pair, side)._replace(file="")):
            pair = one.pair._replace(**{side: tensor})
            assert tensor_detail(one._replace(measurement=one.measurement._replace(pair=pair))) is None
    assert tensor_detail(one).vendor is None and tensor_detail(one, vendor=True).vendor is not None


@pytest.mark.parametrize("sum_dd, compared, bar", [(36.0, 4, 2.997), (0.0, 4, 0.0), (36.0, 0, 0.0), (9.0, 1, 2.997)])
def test_the_bar_is_just_below_the_root_mean_square_of_the_error(sum_dd, compared, bar):
    assert bar_of(Moments(8, compared=compared, sum_dd=sum_dd)) == pytest.approx(bar)


@pytest.mark.parametrize(
    "values, low, high, parts, counts",
    [
        ([0, 1, 2, 3, 4], 0, 4, 4, [1, 1, 1, 2]),
        ([-2, -1, 0, 1, 2], -2, 2, 2, [2, 3]),
        ([10, 10.9, 11, 12], 10, 12, 2, [2, 2]),
        ([5, 5, 5], 5, 5, 5, [0, 0, 3, 0, 0]),
        ([1, 2], 3, 1, 4, [0, 0, 2, 0]),  # no range
        ([], 0, 1, 3, [0, 0, 0]),
        ([0, 2.0**-1000, 2.0**-999, 2.0**-998], 0, 2.0**-998, 4, [1, 1, 1, 1]),
        ([-5e-324, 5e-324], -5e-324, 5e-324, 2, [1, 1]),
        ([0, 0], 0, 0, 3, [0, 2, 0]),
        ([-1.7e308, 0, 1.7e308], -1.7e308, 1.7e308, 4, [1, 0, 1, 1]),
        ([0, 1e305, 2e305], 0, 2e305, 2, [1, 2]),
        ([1, 2], 1, NAN, 4, [0, 0, 2, 0]),
        ([1, 2], -INF, 2, 4, [0, 0, 2, 0]),
        ([-1, 9], 0, 8, 4, [1, 0, 0, 1]),  # beyond the range
    ],
)
def test_a_histogram_has_equal_parts(values, low, high, parts, counts):
    assert histogram(np.array(values, float), low, high, parts).tolist() == counts


@pytest.mark.parametrize(
    "value, expected",
    [
        (np.bool_(True), True),
        (np.int64(2**62 + 1), 2**62 + 1),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float16(0.5), 0.5),
        (np.complex64(1 + 2j), 1 + 2j),
    ],
)
def test_an_element_is_a_number_of_python(value, expected):
    found = number(value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    "shape, rows, columns",
    [
        ((), 1, 1),
        ((7,), 1, 7),
        ((3, 5), 3, 5),
        ((2, 3, 5), 6, 5),
        ((3, 5, 1), 3, 5),
        ((3, 2), 3, 2),
        ((1, 1), 1, 1),
        ((0, 5), 1, 5),
    ],
)
def test_the_last_axis_with_elements_runs_across(shape, rows, columns):
    grid = Grid(shape)
    assert (grid.rows, grid.columns, len(grid.counts)) == (rows, columns, rows * columns)
    if math.prod(shape):
        for place in range(rows * columns):
            grid.add(np.array([place, place]))
        assert grid.counts.tolist() == [2] * rows * columns


def test_a_large_tensor_has_a_bounded_grid():
    grid = Grid((2 * DOWN, 4 * ACROSS))
    assert (grid.down, grid.across, len(grid.counts)) == (24, 64, 24 * 64)
    grid.add(np.arange(4 * ACROSS * 2 * DOWN))
    assert {*grid.counts.tolist()} == {8}
    last = Grid((2 * DOWN, 4 * ACROSS))
    last.add(np.array([0, 3, 4, 4 * ACROSS, 8 * ACROSS * DOWN - 1]))
    assert (last.counts[0], last.counts[1], last.counts[-1]) == (3, 1, 1)
