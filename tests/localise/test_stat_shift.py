"""The shift of each figure in roundings, counted by hand; the shifts of many rows at once are those of each row."""

import math
import random

import pytest

from npucmp.localise.stat_shift import Level, is_hidden, level, likely_error, movement, movements
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.relation import Placement, Relation
from tests.localise.rules.craft import case
from tests.localise.stat_craft import FIGURES, HALF, SINGLE, Op, Row, findings_of, of

SHAPES = [(), (0,), (3,), (64, 64), (1 << 20, 1 << 12)]


def drawn_finding(draw):
    """A row of statistics, of which one in three is odd: no figure, NaN, infinity, zeros, integers, no tensor."""

    def statistics():
        largest = draw.choice([1.0, 1e-3, 3e4])
        found = Statistics(largest, -largest * draw.random(), largest * draw.uniform(-0.1, 0.1), 8 * largest)
        if draw.random() < 0.1:
            odd = {draw.choice(found._fields): draw.choice([None, math.nan, math.inf, -math.inf, 0.0])}
            found = found._replace(**odd)
        return found

    golden = statistics()
    target = golden if draw.random() < 0.2 else statistics()
    if draw.random() < 0.5 and None not in golden:
        target = Statistics(*(figure * (1 + draw.choice([0.0, 1e-7, 1e-3])) for figure in golden))
    dtype, shape = draw.choice(["float32", "float32", "bfloat16", "int32"]), draw.choice(SHAPES)
    other = shape if draw.random() < 0.9 else (5, 5)
    tensors = [
        TensorRef("output:0", dtype, size, statistics=one, rounding=draw.choice([0.0, 1e-6]))
        for size, one in ((other, target), (shape, golden))
    ]
    operator = Operator("add.0", "add", "add", "forward", 0, tuple(tensors))
    pair = Pair(0, "output:0", operator, operator, *(one if draw.random() < 0.97 else None for one in tensors))
    measurement = Measurement(pair, bound=0.0, statistics=(target, golden), shapes_differ=other != shape)
    return Finding(measurement, Verdict.UNKNOWN, "", rule=OTHER_NODE if draw.random() < 0.05 else "")


@pytest.mark.parametrize("seed", range(3))
def test_shifts_of_many_rows_are_those_of_each(seed):
    draw = random.Random(seed)
    findings = [drawn_finding(draw) for _ in range(300)]
    found, shifted = movements(findings), 0
    for at, finding in enumerate(findings):
        moved = movement(finding)
        own = (*level(finding), moved.unit) if moved is not None else (0.0, 0.0, 0.0)
        assert tuple(column[at] for column in found) == own, finding
        shifted += own[0] > 0.0
    assert shifted > 60


def finding(**more):
    """A tensor of one operator."""
    (found,) = findings_of(Op("mul", (Row("output:0", **more),)))
    return found


def with_sides(found, *sides):
    """The finding with other tensors; a function changes one, None takes it away."""
    refs = [make and make(ref) for make, ref in zip(sides, (found.pair.target, found.pair.golden))]
    pair = found.pair._replace(target=refs[0], golden=refs[1])
    return found._replace(measurement=found.measurement._replace(pair=pair))


def assert_column(found):
    """The shifts of many rows are those of each: the same row behind another."""
    moved = movement(found)
    own = (*level(found), moved.unit) if moved is not None else (0.0, 0.0, 0.0)
    assert [tuple(column) for column in movements([finding(), found])] == [*zip((0.0, 0.0, HALF), own)]


RMS = 64.01 / 64
NAN, INF = math.nan, math.inf
MASKED = Statistics(4.0, -INF, -INF, INF)


@pytest.mark.parametrize(
    ("target", "golden", "more", "each"),
    [
        # four roundings of bfloat16: of extremes, in u of themselves
        (FIGURES._replace(max=4 + 2.0**-4), FIGURES, {}, (4, 0, 0, 0)),
        (FIGURES._replace(min=-3 - 3 * 2.0**-6), FIGURES, {}, (0, 4, 0, 0)),
        (FIGURES._replace(mean=0.1 + 4 * HALF / 64 * RMS), FIGURES, {}, (0, 0, 4, 0)),
        (FIGURES._replace(norm=64.01 - 4 * HALF * RMS), FIGURES, {}, (0, 0, 0, 4)),
        # an extreme of less than the rms counts as large as that
        (Statistics(4.0, -0.5 + 4 * HALF, 0.1, 4.0), Statistics(4.0, -0.5, 0.1, 4.0), {"shape": (4, 4)}, (0, 4, 0, 0)),
        (Statistics(0.5 + 4 * HALF, -4, 0.1, 4.0), Statistics(0.5, -4, 0.1, 4.0), {"shape": (4, 4)}, (4, 0, 0, 0)),
        # float32 has other roundings, and no mean is finer than its own
        (FIGURES._replace(max=4 + 2.0**-20), FIGURES, {"dtype": "float32"}, (4, 0, 0, 0)),
        (FIGURES._replace(max=4 + 2.0**-20), FIGURES, {"dtype": "float64"}, (4, 0, 0, 0)),
        (FIGURES._replace(mean=0.1 + 4 * SINGLE * RMS), FIGURES, {"dtype": "float32"}, (0, 0, 4, 0)),
        (FIGURES._replace(norm=64.01 + 4 * SINGLE * RMS), FIGURES, {"dtype": "float32"}, (0, 0, 0, 4)),
        (FIGURES._replace(max=4 + 2.0**-4), FIGURES, {"dtype": ("float32", "bfloat16")}, (4, 0, 0, 0)),
        (FIGURES._replace(max=4 + 2.0**-4), FIGURES, {"dtype": ("bfloat16", "float32")}, (4, 0, 0, 0)),
        # figures of one side alone, and of neither
        (Statistics(4 + 2.0**-4, None, 0.1, 64.01), FIGURES, {}, (4, 0, 0, 0)),
        (FIGURES._replace(max=4 + 2.0**-4), FIGURES._replace(min=None, mean=None), {}, (4, 0, 0, 0)),
        (FIGURES._replace(norm=None), FIGURES._replace(max=4 - 2.0**-4), {}, (4 / (1 - 2.0**-6), 0, 0, 0)),
        # numbers that are no finite number
        (FIGURES._replace(max=NAN), FIGURES, {}, (INF, 0, 0, 0)),
        (FIGURES, FIGURES._replace(min=-INF), {}, (0, INF, 0, 0)),
        (FIGURES, FIGURES._replace(min=NAN), {}, (0, INF, 0, 0)),
        (FIGURES._replace(max=NAN), FIGURES._replace(max=float("nan")), {}, (0, 0, 0, 0)),
        (FIGURES._replace(max=INF), FIGURES._replace(max=-INF), {}, (INF, 0, 0, 0)),
        (Statistics(4 + 2.0**-4, -INF, -INF, INF), Statistics(4.0, -INF, -INF, INF), {}, (4, 0, 0, 0)),
        (Statistics(4.0, -3.0, 0.2, INF), Statistics(4.0, -3.0, 0.1, INF), {}, (0, 0, INF, 0)),
        (Statistics(1.0, 0.0, 0.0, 0.0), Statistics(0.0, 0.0, 0.0, 0.0), {}, (INF, 0, 0, 0)),
        # zeros and copies of one value, as a mask has, round alike: roundings of figures are those of themselves
        (Statistics(1.0, 0.0, 0.25 + HALF, 32.0), Statistics(1.0, 0.0, 0.25, 32.0), {}, (0, 0, 4, 0)),
        (Statistics(1.0, 0.0, 0.25, 32.5), Statistics(1.0, 0.0, 0.25, 32.0), {}, (0, 0, 0, 4)),
        (Statistics(0.0, -1.0, -0.25, 32.5), Statistics(0.0, -1.0, -0.25, 32.0), {}, (0, 0, 0, 4)),
        (Statistics(1.0, 0.0, 0.2476, 32.5), Statistics(1.0, 0.0, 0.2476, 32.0), {}, (0, 0, 0, 4)),
        (Statistics(1.0, 0.0, 0.2474, 32.5), Statistics(1.0, 0.0, 0.2474, 32.0), {}, (0, 0, 0, 0.5 / HALF * 2)),
        (Statistics(1.0, 0.0, 0.2526, 32.5), Statistics(1.0, 0.0, 0.2526, 32.0), {}, (0, 0, 0, 0.5 / HALF * 2)),
        (Statistics(1.05, 0.95, 1.0, 64.5), Statistics(1.05, 0.95, 1.0, 64.0), {}, (0, 0, 0, 0.5 / HALF)),
        (
            Statistics(1e300, 0.0, 0.0, 1e-300),
            Statistics(1e-300, 0.0, 0.0, 1e-300),
            {"dtype": "float64"},
            (INF, 0, 0, 0),
        ),
        (Statistics(1.0, 0.0, None, 64.5), Statistics(1.0, 0.0, None, 64.0), {}, (0, 0, 0, 0.5 / HALF)),
        (Statistics(-1.0, 0.0, None, 32.5), Statistics(-1.0, 0.0, None, 32.0), {}, (0, 0, 0, 0.5 / HALF * 2)),
    ],
)
def test_figures_shift_by_roundings_of_their_elements(target, golden, more, each):
    found = movement(finding(target=target, golden=golden, **more))
    assert found.each == pytest.approx(each, rel=1e-6) and found.size == max(found.each)
    assert found.is_still == (not any(each)) and found.elements == (16 if "shape" in more else 4096)
    assert_column(finding(target=target, golden=golden, **more))
    assert found.unit == (SINGLE if more.get("dtype") in ("float32", "float64") else HALF)


NOTHING = Statistics()
SAME = lambda ref: ref  # noqa: E731


@pytest.mark.parametrize(
    ("found", "is_known"),
    [
        (finding(), True),
        (finding(judged={"rule": OTHER_NODE}), False),  # figures of another tensor
        (finding(golden=NOTHING, target=NOTHING), False),
        (finding(golden=None), False),
        (finding(known={"statistics": (None, FIGURES)}), False),
        (finding(golden=FIGURES._replace(norm=None)), False),
        (finding(golden=FIGURES, target=NOTHING), False),
        (finding(golden=FIGURES, target=NOTHING._replace(min=-3.0)), True),
        (finding(golden=FIGURES._replace(min=None), target=NOTHING._replace(min=-3.0)), False),
        (finding(dtype="int32"), False),
        (finding(dtype=("int32", "float32")), True),
        (finding(shape=(0,)), False),
        (finding(shape=(1,)), True),
        (finding(shape=(2**61,)), True),
        (finding(shape=(2**31, 2**31)), False),
        (finding(known={"shapes_differ": True}), False),
        (with_sides(finding(), None, SAME), False),
        (with_sides(finding(), SAME, None), False),
        (case("mul", [], ([1.0], [1.0])).finding, False),  # values
    ],
)
def test_a_shift_needs_a_figure_of_floats_on_both_sides(found, is_known):
    assert (movement(found) is not None) is is_known
    assert (likely_error(found) is not None) is is_known
    assert_column(found)


def rounded(target, golden):
    """The tensors of a pair whose figures are as coarse as that."""
    return lambda found: with_sides(
        found, lambda ref: ref._replace(rounding=target), lambda ref: ref._replace(rounding=golden)
    )


def placed(kind):
    relation = Relation((0, 1), (Placement("replica"), Placement(kind)))
    return lambda found: with_sides(found, lambda ref: ref._replace(relation=relation), SAME)


PARTS = 2 * SINGLE * 64 * 64.01  # the rounding of a norm of parts that are summed in another order


@pytest.mark.parametrize(
    ("change", "less"),
    [
        (SAME, (0.0, 0.0, 0.0)),
        (rounded(2.0**-12, 0.0), (2.0**-12,) * 3),
        (rounded(2.0**-12, 2.0**-13), (1.5 * 2.0**-12,) * 3),
        (placed("shard"), (0.0, 0.0, PARTS)),
        (placed("sum"), (0.0, 0.0, 0.0)),
        (lambda found: placed("rows")(rounded(2.0**-12, 0.0)(found)), (2.0**-12, 2.0**-12, 2.0**-12 + PARTS)),
    ],
)
def test_the_rounding_of_figures_is_no_shift(change, less):
    """The target's are written with fewer digits, or are those of parts on several ranks."""
    off = Statistics(4.0 + 2.0**-4, -3.0, 0.1 + 2.0**-8, 64.01 + 2.0**-4)
    found = movement(change(finding(target=off)))
    sizes = (2.0**-4, 4 * HALF), (2.0**-8, HALF / 64 * RMS), (2.0**-4, HALF * RMS)
    assert_column(change(finding(target=off)))
    expected = [(size - own) / unit for (size, unit), own in zip(sizes, less)]
    assert [found.each[at] for at in (0, 2, 3)] == pytest.approx(expected)
    small = movement(change(finding(target=Statistics(4.0, -3.0, 0.1, 64.01 + less[2] / 2))))
    assert small.is_still == (less[2] > 0.0 or small.each == (0.0,) * 4)


@pytest.mark.parametrize(
    ("target", "golden", "more", "mean", "norm"),
    [
        # two roundings of float32 of themselves
        ((0.1, 64.02), (0.1, 64.01), {}, 2 * SINGLE * 0.1, 2 * SINGLE * 64.02),
        ((0.2, 64.01), (0.3, 64.02), {}, 2 * SINGLE * 0.3, 2 * SINGLE * 64.02),
        # one of bfloat16, if it is a number of bfloat16 on either side
        ((0.1, 64.0), (0.1, 64.01), {}, 2 * SINGLE * 0.1, HALF * 64.0),
        ((0.1, 64.01), (0.1, 64.5), {}, 2 * SINGLE * 0.1, HALF * 64.5),
        ((0.1, 64.01), (0.1, 64.125), {}, 2 * SINGLE * 0.1, 2 * SINGLE * 64.125),
        ((0.125, 64.02), (0.1, 64.01), {}, HALF * 0.125, 2 * SINGLE * 64.02),
        ((0.0, 64.02), (0.1, 64.01), {}, 2 * SINGLE * 0.1, 2 * SINGLE * 64.02),
        ((math.inf, 64.02), (0.1, 64.01), {}, 2 * SINGLE * 0.1, 2 * SINGLE * 64.02),
        ((None, 64.02), (0.1, 64.01), {}, 2 * SINGLE * 0.1, 2 * SINGLE * 64.02),
        # the digits of a dump
        ((0.1, 64.02), (0.1, 64.01), {"digits": 2.0**-10}, 2.0**-10, 2.0**-10),
    ],
)
def test_the_resolution_of_a_figure_is_that_of_its_record(target, golden, more, mean, norm):
    found = finding(target=Statistics(4.0, -3.0, *target), golden=Statistics(4.0, -3.0, *golden))
    found = movement(rounded(more.get("digits", 0.0), 0.0)(found))
    rms = golden[1] / 64
    assert found.resolution == pytest.approx((0.0, 0.0, mean / (HALF / 64 * rms), norm / (HALF * rms)))
    assert movement(finding()).resolution == (0.0,) * 4
    masked = movement(finding(target=MASKED._replace(max=3.0), golden=MASKED))
    assert masked.resolution == (0.0,) * 4 and masked.each[0] == 64.0  # infinite sums have none


SHARE = 16 / RMS**2 / 64  # of the largest value in a sum of 4096 elements


@pytest.mark.parametrize(
    ("shifts", "more", "extremes", "sums"),
    [
        ((0, 0, 0, 0), {}, 0, 0),
        ((5, 2, 0, 0), {}, 5, 5 * SHARE),
        ((2, 5, 0, 0), {}, 5, 5 * SHARE),
        ((0, 0, 3, 2), {}, 0, 3),
        ((5, 0, 2, 3), {}, 5, 3),
        ((5, 0, 0, 0.5), {}, 5, 5 * SHARE),
        ((0, 0, 0, 5), {"judged": {"rule": OTHER_NODE}}, 0, 0),
        ((5, 0, 0, 0), {"dtype": "int32"}, 0, 0),
        ((5, 0, 0, 0), {"golden": Statistics(4.0, -3.0, 0.1, 64.01), "shape": (4, 4)}, None, None),
        ((5, 0, 0, 0), {"golden": Statistics(40.0, -3.0, 0.1, 64.01)}, 5, 5),  # one element is most of the norm
    ],
)
def test_an_element_that_is_off_affects_sums_little(shifts, more, extremes, sums):
    """By the square of the largest value relative to the rms, among √n."""
    found = finding(shifts=shifts, **more)
    if extremes is None:
        ratio = max(4.0, 64.01 / 4) / (64.01 / 4)
        extremes, sums = 5, 5 * ratio**2 / 4
    assert level(found) == pytest.approx((extremes * HALF, sums * HALF))
    assert_column(found)


def test_infinite_shifts_pass_on_nothing():
    far = finding(target=of(1e-300, 1e-300, 1e308), golden=of(1e-300, 1e-300, 0.0), dtype="float64")
    assert level(far) == Level(0.0, 0.0) and movement(far).each[2] == INF
    assert_column(far)
    found = finding(target=Statistics(NAN, -3 - 6 * 2.0**-8, 0.1, 64.01))
    assert level(found) == Level(0.0, 0.0)
    found = finding(target=Statistics(4.0, -3.0, INF, 64.01 + 2 * HALF * RMS))
    assert level(found) == pytest.approx((0.0, 2 * HALF)) and movement(found).size == INF


@pytest.mark.parametrize(
    ("shifts", "error"),
    [((9, 9, 0, 0), 0.0), ((9, 0, 3, 2), 3 * HALF), ((0, 0, 2, 3), 3 * HALF), ((0, 0, 0, 500), 1.0)],
)
def test_mean_and_norm_show_the_likely_error(shifts, error):
    assert likely_error(finding(shifts=shifts)) == pytest.approx(error)


def test_levels_combine_figure_by_figure():
    assert Level(1.0, 4.0).most(Level(2.0, 3.0)) == Level(2.0, 3.0).most(Level(1.0, 4.0)) == Level(2.0, 4.0)
    assert Level(1.0, 4.0).times(3.0) == Level(3.0, 12.0) and Level() == (0.0, 0.0)


@pytest.mark.parametrize(
    ("golden", "hides"),
    [
        (Statistics(4.0, -INF, -INF, INF), True),
        (Statistics(-2.0, -INF, -INF, INF), True),
        (Statistics(4.0, -1e4, -9.0, 1e6), True),
        (Statistics(99.0, -1e4, -9.0, 1e6), True),
        (Statistics(100.0, -1e4, -9.0, 1e6), True),
        (Statistics(101.0, -1e4, -9.0, 1e6), False),
        (Statistics(-101.0, -1e4, -9.0, 1e6), False),
        (Statistics(0.0, -999.0, -9.0, 1e6), False),  # it is no mask of half precision
        (Statistics(4.0, 1e4, 9.0, 1e6), False),
        (Statistics(INF, -INF, NAN, INF), False),
        (Statistics(NAN, -INF, NAN, NAN), False),
        (Statistics(None, -INF, None, None), False),
        (Statistics(4.0, None, 0.1, 64.0), False),
        (None, False),
    ],
)
def test_a_mask_hides_values_from_figures(golden, hides):
    assert is_hidden(finding(golden=golden, target=golden)) is hides
    other = finding(golden=FIGURES, target=golden)
    assert is_hidden(other) is False  # the golden decides


@pytest.mark.parametrize("least", [-1e5, -2e4])
def test_measured_values_are_not_hidden(least):
    values = [4.0, least]
    found = case("mul", [], (values, values)).finding
    figures = Statistics(4.0, least, least / 2, -least)
    refs = [lambda ref: ref._replace(statistics=figures)] * 2
    assert is_hidden(with_sides(found, *refs)) is False
