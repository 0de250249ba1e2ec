"""What recorded figures and checksums prove of a pair; and of many pairs at once what they prove of each."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npucmp.measure.pairs import measure
from npucmp.measure.recorded_stats import (
    lower_bounds,
    measured_by_record,
    statistics_of,
)
from npucmp.model import Operator, Pair, Side, Statistics, TensorRef

FIGURES = st.one_of(
    st.floats(), st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, 1e308, -1e308])
)
ALL = st.tuples(*[FIGURES] * 4).map(lambda some: Statistics(*some))
NEAR = st.tuples(ALL, st.sampled_from([1.0, 1 + 1e-7, 1.05, 0.0])).map(
    lambda one: Statistics(*(f * one[1] for f in one[0]))
)
ELEMENTS = st.one_of(st.integers(1, 100), st.integers(2**17, 2**19), st.integers(2**40, 2**70))
ROWS = st.tuples(ALL, ALL | NEAR, ELEMENTS, st.sampled_from([0.0, 1e-6, 0.5]))


def same(a, b):
    return repr(a) == repr(b)


def bound(target, golden, elements=4, rounding=0.0):
    (found,) = lower_bounds([target], [golden], [elements], [rounding])
    return found


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_bounds_of_many_are_those_of_each(rows):
    assert all(map(same, lower_bounds(*zip(*rows)), [bound(*row) for row in rows]))


NAN, INF = math.nan, math.inf
PLAIN = Statistics(2.0, -1.0, 0.5, 4.0)


@pytest.mark.parametrize(
    "target, golden, expected",
    [
        (PLAIN, PLAIN, 0.0),
        (PLAIN._replace(norm=5.0), PLAIN, 0.25),
        (PLAIN._replace(mean=1.0), PLAIN, 0.25),  # half of the root of 4 elements
        (PLAIN._replace(max=5.0), PLAIN._replace(norm=None), 0.75),  # the norm is at most 2 times the root of 4
        (PLAIN, None, None),
        (PLAIN, Statistics(), None),
        (PLAIN, Statistics(mean=0.5), 0.0),
        (PLAIN, Statistics(mean=1.5), None),  # nothing bounds the norm
        (PLAIN._replace(max=NAN), PLAIN, INF),
        (PLAIN, PLAIN._replace(min=-INF), INF),
        (PLAIN, PLAIN._replace(norm=INF), None),  # it may have overflowed
        (Statistics(norm=INF), Statistics(norm=4.0), INF),
        (PLAIN._replace(max=INF), PLAIN._replace(max=INF), 0.0),
        (PLAIN._replace(max=INF), PLAIN._replace(max=INF, mean=1.0), None),
        (PLAIN._replace(max=NAN), PLAIN._replace(max=NAN), None),
        (PLAIN, PLAIN._replace(norm=0.0), INF),
    ],
)
def test_the_bound_of_a_pair(target, golden, expected):
    assert same(bound(target, golden), expected)


def test_rounding_and_long_sums_are_no_difference():
    assert bound(PLAIN._replace(max=2.5), PLAIN, rounding=0.5) == 0.0
    assert bound(PLAIN._replace(norm=4.001), PLAIN, 2**26) == 0.0 < bound(PLAIN._replace(norm=4.001), PLAIN, 2**17)


SHAPES = st.sampled_from([(), (0,), (1,), (2, 3), (1, 2, 3)])
RECORDED = st.none() | st.tuples(*[st.none() | FIGURES] * 4).map(lambda some: Statistics(*some)) | ALL


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int64"]))
    checksum = draw(st.sampled_from(["", "", "", "0x12", "ab"]))
    more = {"problem": "cannot be read"} if draw(st.integers(0, 9)) == 0 else {}
    rounding = draw(st.sampled_from([0.0, 1e-6]))
    return TensorRef(
        "output:0", dtype, draw(SHAPES), statistics=draw(RECORDED), checksum=checksum, rounding=rounding, **more
    )


@given(st.lists(st.tuples(st.none() | tensors(), tensors()), min_size=1, max_size=6))
def test_pairs_that_are_measured_by_their_record_are_measured_alike(sides):
    operator = Operator("add", "add", "add", "forward", 0, ())
    pairs = [Pair(0, "output:0", operator, operator, *both) for both in sides]
    for pair, found in zip(pairs, measured_by_record(pairs)):
        assert found is None or same(found, measure(pair))


SIDE = Side(minimum=-1.0, maximum=2.0, total=6.0, squares=16.0)


@pytest.mark.parametrize(
    "side, elements, expected",
    [
        (SIDE, 4, (2.0, -1.0, 1.5, 4.0)),
        (SIDE._replace(nan=1), 4, (NAN,) * 4),
        (SIDE._replace(nan=1, posinf=1), 4, (NAN,) * 4),
        (Side(), 0, (None,) * 4),
        (SIDE._replace(posinf=1), 4, (INF, -1.0, INF, INF)),
        (SIDE._replace(neginf=2), 4, (2.0, -INF, -INF, INF)),
        (SIDE._replace(neginf=1, posinf=1), 4, (INF, -INF, NAN, INF)),
        (Side(posinf=4), 4, (INF, INF, INF, INF)),
    ],
)
def test_statistics_of_values_are_those_that_a_dump_records(side, elements, expected):
    assert repr(statistics_of(side, elements)) == repr(Statistics(*expected))
