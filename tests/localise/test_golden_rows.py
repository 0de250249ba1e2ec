"""Conclusions from the figures of one golden tensor: constants, masks, expansions and casts."""

import math

import numpy as np
import pytest

from npucmp.localise.golden_rows import (
    GoldenRow,
    SharedRecords,
    constant_of,
    is_expansion,
    is_mask,
    round_off_of_row,
    rounds_to,
    side_of,
)
from npucmp.model import Measurement, Side
from npucmp.model.dtypes import SUM_ROUNDING
from tests.localise.networks import network, paired, with_golden


def row_of(values: np.ndarray) -> GoldenRow:
    return GoldenRow.of(network("relu t ->", t=np.asarray(values))[0])


def without_values(row: GoldenRow) -> GoldenRow:
    return GoldenRow.of(row.finding._replace(measurement=Measurement(row.finding.pair)))


ROW = row_of(np.float32([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))


@pytest.mark.parametrize(
    "changes, elements",
    [
        ({}, 6),
        ({"golden": None}, 6),  # the target's
        ({"golden": None, "target": None}, None),
        ({"golden": ROW.finding.pair.golden._replace(slot="", shape=())}, None),
        ({"golden": ROW.finding.pair.golden._replace(slot="", shape=(2,))}, 2),
        ({"golden": ROW.finding.pair.golden._replace(shape=())}, 1),
        ({"golden": ROW.finding.pair.golden._replace(shape=(0, 3))}, 0),
    ],
)
def test_the_number_of_elements_is_unknown_without_a_header(changes, elements):
    assert GoldenRow.of(paired(ROW.finding, **changes)).elements == elements


def test_the_operator_is_that_of_the_golden():
    target = ROW.finding.pair.target_op._replace(name="other")
    both, alone = (GoldenRow.of(paired(ROW.finding, target_op=one)) for one in (target, None))
    bare = GoldenRow.of(paired(ROW.finding, target_op=target, golden_op=None))
    assert [one.operator.name for one in (both, alone, bare)] == ["relu.0.forward", "relu.0.forward", "other"]
    assert [one.is_alone for one in (both, alone, bare)] == [False, True, False]


def test_a_content_has_its_writers_and_then_its_readers():
    records = SharedRecords()
    assert records.rows == []
    records.writers.append(ROW)
    records.readers.append(without_values(ROW))
    assert records.rows == [ROW, without_values(ROW)]


def test_figures_are_those_of_the_golden():
    values = {"t": np.float32([1.0, 2.0]), "g": np.float32([3.0, 4.0])}
    row = GoldenRow.of(network("relu g~t ->", **values)[0])
    assert (side_of(row).minimum, side_of(row).maximum) == (3.0, 4.0)
    assert side_of(without_values(row)) is None


@pytest.mark.parametrize(
    "dtype, unit", [("float32", 2.0**-24), ("bfloat16", 2.0**-8), ("float16", 2.0**-11), ("int32", 0.0), ("own", 0.0)]
)
def test_the_round_off_is_that_of_the_golden_type(dtype, unit):
    assert round_off_of_row(GoldenRow.of(with_golden(ROW.finding, dtype=dtype))) == unit
    assert round_off_of_row(GoldenRow.of(paired(ROW.finding, golden=None))) == 0.0


ONES, NAN = np.ones((2, 3), np.float32), math.nan


def test_a_constant_is_known_by_its_value_its_shape_and_its_type():
    key = constant_of(row_of(ONES))
    assert key is not None and constant_of(row_of(ONES.copy())) == key
    others = [2 * ONES, ONES.T, ONES.astype(np.float64), np.float32([[1, 1, NAN], [1, 1, 1]])]
    others += [np.float32([[1, 1, sign * math.inf], [1, 1, 1]]) for sign in (1, -1)]
    keys = [key, *(constant_of(row_of(one)) for one in others)]
    assert None not in keys and len({*keys}) == 7
    assert constant_of(ROW) is None
    assert constant_of(without_values(row_of(ONES))) is None
    assert constant_of(GoldenRow.of(paired(row_of(ONES).finding, golden=None))) is None


@pytest.mark.parametrize(
    "values, found",
    [
        ([True, False], True),
        ([True, True], True),
        ([0.0, -math.inf], True),
        ([0.0, -1.0, -math.inf], False),
        ([0.0, 0.0, -math.inf, math.nan], False),
        ([0.0, -math.inf, math.inf], False),
        ([1.0, -math.inf], False),
        ([0.0, -1e4], True),
        ([0.0, -1e4, -1e4, 0.0], True),
        ([0.0, -9999.0], False),
        ([0.0, -1e10], True),
        ([0.0, -1e4, -2e4], False),
        ([0.0, -1e4, -1.001e4], False),
        ([0.0, -1e4, math.nan], False),
        ([0.0, -1e4, math.inf], False),
        ([1.0, -1e4], False),
        ([-1e4, -1e4], False),
        ([0.0, 0.0], False),
        ([0.0, 1.0], False),
    ],
)
def test_a_mask_holds_0_and_one_very_low_value(values, found):
    dtype = bool if isinstance(values[0], bool) else np.float32
    row = row_of(np.array(values, dtype))
    assert is_mask(row) is found
    assert is_mask(without_values(row)) is (dtype is bool)


def test_a_mask_is_known_within_the_rounding_of_sums():
    row = row_of(np.float32([0.0, -1e4, -1e4]))
    moments = row.finding.measurement.moments
    for away, found in ((0.5 * SUM_ROUNDING, True), (2 * SUM_ROUNDING, False)):
        side = moments.golden._replace(squares=moments.golden.squares * (1 + away))
        measured = row.finding.measurement._replace(moments=moments._replace(golden=side))
        assert is_mask(GoldenRow.of(row.finding._replace(measurement=measured))) is found


FEW = np.float32([[1.25, -3.1], [0.7, 9.9]])


@pytest.mark.parametrize(
    "written, read, found",
    [
        (FEW, np.concatenate([FEW, FEW]), True),
        (FEW, np.repeat(FEW, 3), True),
        (FEW, np.concatenate([FEW, FEW])[:3], False),  # no multiple
        (FEW, FEW, False),
        (FEW, np.concatenate([FEW, 2 * FEW]), False),
        (np.concatenate([FEW, FEW]), FEW, False),
        (ONES, np.concatenate([ONES, ONES]), False),  # a constant
        (FEW[:0], FEW, False),
        (FEW, FEW[:0], False),
    ],
)
def test_an_expansion_holds_each_element_as_often(written, read, found):
    written, read = row_of(written), row_of(read)
    assert is_expansion(written, read) is found
    assert not is_expansion(without_values(written), read) and not is_expansion(written, without_values(read))


SIDE, UNIT = Side(minimum=-4.0, maximum=8.0, total=5.0, squares=100.0), 2.0**-8


@pytest.mark.parametrize("factor, found", [(0.99, True), (1.01, False)])
@pytest.mark.parametrize(
    "field, value, size",
    [("minimum", -4.0, 4.0), ("maximum", 8.0, 8.0), ("squares", 100.0, 200.0)],
)
@pytest.mark.parametrize("way", [-1.0, 1.0])
def test_a_rounded_tensor_has_extremes_and_a_norm_near_those_before(field, value, size, way, factor, found):
    """A square is off by two roundings. The larger of two extremes is the measure of their distance."""
    more = 1 / (1 - UNIT) if field != "squares" and way * value > 0 else 1.0
    near = SIDE._replace(**{field: value + way * factor * size * (UNIT + SUM_ROUNDING) * more})
    assert rounds_to(SIDE, near, UNIT) is found


@pytest.mark.parametrize("field", ["nan", "posinf", "neginf"])
def test_a_rounded_tensor_has_the_same_numbers_of_nan_and_infinities(field):
    assert rounds_to(SIDE, SIDE, 0.0)
    assert not rounds_to(SIDE, SIDE._replace(**{field: 1}), UNIT)
    assert rounds_to(SIDE._replace(**{field: 1}), SIDE._replace(**{field: 1}), UNIT)


def test_zeros_are_near_zeros():
    zeros = Side(minimum=0.0, maximum=0.0)
    assert rounds_to(zeros, zeros, UNIT) and rounds_to(zeros, zeros, 0.0)
    assert rounds_to(SIDE._replace(minimum=0.0), SIDE._replace(minimum=0.0), UNIT)
    assert not rounds_to(SIDE._replace(minimum=0.0), SIDE._replace(minimum=-1e-30), UNIT)


def test_a_tensor_of_its_own_type_has_the_rounding_of_sums():
    for away, found in ((0.5, True), (3.0, False)):
        assert rounds_to(SIDE, SIDE._replace(squares=100.0 * (1 + away * SUM_ROUNDING)), 0.0) is found
