"""What recorded figures and checksums prove of a pair; and of many pairs at once what they prove of each."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npucmp.measure.pairs import measure
from npucmp.measure.recorded_stats import (
    equal_by_record,
    has_equal_xor,
    least_error,
    lost_in_norm,
    lower_bound,
    lower_bounds,
    measured_by_record,
    statistics_of,
)
from npucmp.model import Operator, Pair, Payload, Side, Statistics, TensorRef

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


@settings(max_examples=100, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_bounds_of_many_are_those_of_each(rows):
    columns = [*zip(*rows)]
    assert all(map(same, lower_bounds(*columns), [lower_bound(*row) for row in rows]))


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


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.none() | tensors(), tensors()), min_size=1, max_size=6))
def test_pairs_that_are_measured_by_their_record_are_measured_alike(sides):
    operator = Operator("add", "add", "add", "forward", 0, ())
    pairs = [Pair(0, "output:0", operator, operator, *both) for both in sides]
    for pair, found in zip(pairs, measured_by_record(pairs)):
        assert found is None or same(found, measure(pair))


NAN, INF = math.nan, math.inf


def tensor(checksum="", shape=(4,), dtype="float32", **more):
    return TensorRef("output:0", dtype, shape, checksum=checksum, **more)


@pytest.mark.parametrize(
    "target, golden, equal",
    [
        (tensor("ab"), tensor("ab"), True),
        (tensor("ab"), tensor("AB"), True),
        (tensor("ab"), tensor("ac"), False),
        (tensor("ab"), tensor("abc"), None),  # another algorithm
        (tensor("ab"), tensor("ab", dtype="float16"), None),
        (tensor(), tensor(), None),
        (tensor("ab"), tensor(), None),
        (tensor("0x1f"), tensor("0X1F"), None),  # an XOR proves no equality
        (tensor("0x1f"), tensor("0x1e"), False),
        (tensor("0x1f"), tensor("001f"), None),
        (tensor("001f"), tensor("0x1f"), None),
        (tensor("what"), tensor("what"), None),  # no digits
        (tensor("what"), tensor("abcd"), None),
        (tensor("ab", (0, 3)), tensor("ac", (0, 3)), True),
    ],
)
def test_checksums_of_one_algorithm_and_type_decide(target, golden, equal):
    assert equal_by_record(target, golden) is equal


def pair_of(target, golden):
    operator = Operator("add", "add", "add", "forward", 0, ())
    return Pair(0, "output:0", operator, operator, target, golden)


VALUES = Payload("x", "float32", (4,), 0)


@pytest.mark.parametrize(
    "target, golden, has",
    [
        (tensor("0x1f"), tensor("0X1F"), True),
        (tensor("0x1f"), tensor("0x1e"), False),
        (tensor("0x1f"), tensor(file="x"), True),
        (tensor("0x1f"), tensor(payload=VALUES), True),
        (tensor("0x1f"), tensor(), False),
        (tensor("0x1f"), tensor("ab", file="x"), False),
        (tensor("1f"), tensor(file="x"), False),
        (tensor(), tensor(), False),
        (tensor("0x1f"), tensor("0x1f", dtype="float16"), False),
        (tensor("0x1f"), None, False),
    ],
)
def test_an_equal_xor_proves_nothing(target, golden, has):
    assert has_equal_xor(pair_of(target, golden)) is has and has_equal_xor(pair_of(golden, target)) is has


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


GOLDEN = Statistics(4.0, -2.0, 1.0, 10.0)


@pytest.mark.parametrize(
    "change, elements, rounding, bound",
    [
        ({}, 100, 0.0, 0.0),
        ({"max": 5.0}, 100, 0.0, 0.1),
        ({"min": -4.0}, 100, 0.0, 0.2),
        ({"mean": 1.5}, 100, 0.0, 0.5),  # times √n
        ({"norm": 7.0}, 100, 0.0, 0.3),
        ({"norm": 7.0, "max": 9.0}, 100, 0.0, 0.5),
        ({"max": 6.0}, 100, 0.5, 1.5 / 10.5),
        ({"max": 4.5}, 100, 0.5, 0.0),
        ({"max": None}, 100, 0.0, 0.0),
        ({"max": None, "norm": 7.0}, 100, 0.0, 0.3),
        ({"max": NAN}, 100, 0.0, INF),
        ({"norm": INF}, 100, 0.0, None),  # a norm may overflow in its own type
        ({"max": INF, "norm": INF}, 100, 0.0, INF),
        ({"max": None, "min": None, "norm": INF}, 100, 0.0, INF),
        ({"max": None, "min": None, "mean": None, "norm": None}, 100, 0.0, None),
    ],
)
def test_differences_of_figures_bound_the_error_from_below(change, elements, rounding, bound):
    found = lower_bound(GOLDEN._replace(**change), GOLDEN, elements, rounding)
    assert found == (bound if bound is None else pytest.approx(bound))


@pytest.mark.parametrize(
    "target, golden, elements, bound",
    [
        (Statistics(5.0, -2.0), Statistics(4.0, -2.0), 100, 1.0 / 40),  # at most √n times the largest value
        (Statistics(5.0, -5.0), Statistics(4.0, -5.0), 100, 1.0 / 50),
        (Statistics(5.0), Statistics(4.0), 100, None),
        (Statistics(4.0), Statistics(4.0), 100, 0.0),
        (Statistics(1.0, 0.0), Statistics(0.0, 0.0), 100, INF),
        (Statistics(0.0, 0.0), Statistics(0.0, 0.0), 100, 0.0),
        (Statistics(5.0, -2.0), Statistics(4.0, -2.0), 1, 0.25),
        (Statistics(5.0, -2.0), Statistics(4.0, -2.0), 0, None),
        (Statistics(5.0, -2.0), Statistics(4.0, -2.0), 2**62, 2.0**-33),
        (Statistics(5.0, -2.0), Statistics(4.0, -2.0), 2**62 + 1, None),
        (Statistics(5.0, -2.0), Statistics(1.7e308, -2.0), 100, None),
        (Statistics(norm=5.0), Statistics(norm=4.0), 100, 0.25),
        (Statistics(INF, -1.0), Statistics(INF, -1.0), 4, 0.0),
        (Statistics(NAN, NAN, NAN, NAN), Statistics(NAN, NAN, NAN, NAN), 4, None),
        (Statistics(4.0, -INF), Statistics(4.0, -INF), 4, 0.0),
        (None, GOLDEN, 4, None),
        (GOLDEN, None, 4, None),
    ],
)
def test_figures_that_a_dump_lacks_prove_less(target, golden, elements, bound):
    found = lower_bound(target, golden, elements)
    assert found == (bound if bound is None else pytest.approx(bound))


@pytest.mark.parametrize(
    "elements, lost", [(1, 0), (2**18, 0), (2**20, 7), (2**22, 63), (2**62, 2**66 - 1), (2**80, 2**66 - 1)]
)
def test_a_norm_of_many_elements_loses_more(elements, lost):
    """In units of 2^-17: the power 3/2 of the elements beyond 2^18."""
    assert lost_in_norm(elements) == pytest.approx(lost * 2.0**-17)


@pytest.mark.parametrize("elements, slack", [(2**18, 0.0), (2**20, 7 * 2.0**-17)])
def test_what_a_norm_lost_is_no_difference(elements, slack):
    target, golden = Statistics(1.0, -1.0, 0.0, 101.0), Statistics(1.0, -1.0, 0.0, 100.0)
    for one, other in ((target, golden), (golden, target)):
        assert lower_bound(one, other, elements) == pytest.approx((1.0 - slack * 101.0) / other.norm)
    assert lower_bound(Statistics(norm=100.001), golden, 2**20) == 0.0
    assert lower_bound(target._replace(max=2.0, norm=100.0), golden, elements) == pytest.approx(0.01)
    assert lower_bound(Statistics(2.0, -1.0), golden, elements) == pytest.approx(0.01)  # no norm to correct


@pytest.mark.parametrize(
    "types, target, golden, bound",
    [
        (("float32", "float16"), Statistics(1.0, -1e9), Statistics(1.0, -65504.0), None),
        (("float32", "float16"), Statistics(2.0, -1e9, 0, 4.0), Statistics(1.0, -65504.0, 0, 4.0), None),
        (("float32", "float16"), Statistics(1.0, -1e9), Statistics(1.0, -60000.0), (1e9 - 6e4) / 2 / 6e4),
        (("float32", "float16"), Statistics(1.0, -999.0), Statistics(1.0, -65504.0), (65504 - 999) / 2 / 65504),
        (("float32", "float32"), Statistics(1.0, -1e9), Statistics(1.0, -65504.0), (1e9 - 65504) / 2 / 65504),
        (("float32", "float16"), Statistics(-1e9, -1e9), Statistics(1.0, -65504.0), (1e9 + 1) / 2 / 65504),
        (("float32", "float16"), Statistics(1.0, -1e9), Statistics(-65504.0, -65504.0), (1e9 - 65504) / 2 / 65504),
        (("float32", "odd"), Statistics(1.0, -1e9), Statistics(1.0, -65504.0), (1e9 - 65504) / 2 / 65504),
        (("float32", "float16"), None, Statistics(1.0, -65504.0), None),
    ],
)
def test_masks_of_two_types_beside_other_values_are_no_difference(types, target, golden, bound):
    sides = [tensor(dtype=dtype, statistics=one) for dtype, one in zip(types, (target, golden))]
    found = least_error(*sides)
    if bound is None and target is not None and target.max == golden.max:
        bound = 0.0  # of the maxima alone
    assert found == (bound if bound is None else pytest.approx(bound))


def test_the_rounding_of_both_dumps_is_no_difference():
    x, y = tensor(statistics=GOLDEN._replace(max=5.0), rounding=0.25), tensor(statistics=GOLDEN, rounding=0.5)
    assert least_error(x, y) == pytest.approx(0.25 / 10.75)


@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"file": "x"},
        {"problem": "damaged"},
        {"checksum": "ab"},
        {"payload": VALUES},
        {"statistics": None},
        {"statistics": GOLDEN._replace(mean=None)},
        {"dtype": "float64"},
        {"shape": (2, 2)},
    ],
)
def test_pairs_with_four_figures_and_nothing_else_are_measured_together(side, change):
    plain = pair_of(tensor(statistics=GOLDEN._replace(max=5.0)), tensor(statistics=GOLDEN))
    changed = plain._replace(**{side: getattr(plain, side)._replace(**change)})
    found = measured_by_record([plain, changed, plain._replace(order=3), plain._replace(target=None)])
    assert [one is None for one in found] == [False, bool(change), False, True]
    assert found[2].pair.order == 3 and found[0].bound == pytest.approx(0.1)
    assert found[0].statistics == (GOLDEN._replace(max=5.0), GOLDEN)
    assert measured_by_record([]) == []
    empty = pair_of(*[tensor(statistics=GOLDEN, shape=(0, 2))] * 2)
    assert measured_by_record([empty]) == [None]
