"""Pairs of .npy files, statistics and checksums → Measurements."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npucmp.measure.pairs import Closeness, allclose_bars, measure, measure_pairs
from npucmp.measure.recorded_stats import lower_bound
from npucmp.model import Operator, Pair, Statistics, TensorRef

OPERATOR = Operator("add.0", "add", "add", "forward", 0, ())
STATISTICS = Statistics(3.0, -1.0, 1.0, 4.0)


def tensor(folder, name, values, **said) -> TensorRef:
    """Writes the values; the record says the same as the file unless told otherwise."""
    values = np.asarray(values)
    file = str(folder / f"{name}.npy")
    np.save(file, values)
    return TensorRef("output:0", values.dtype.name, values.shape, file, "npy", label=name)._replace(**said)


def recorded(shape=(2, 3), dtype="float32", **more) -> TensorRef:
    return TensorRef("output:0", dtype, shape, **more)


def pair(target, golden) -> Pair:
    return Pair(0, "output:0", OPERATOR if target else None, OPERATOR if golden else None, target, golden)


def compare(folder, x, y, **said):
    return measure(pair(tensor(folder, "x", x, **said), tensor(folder, "y", y)))


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "x, y",
    [
        (ARRAY, ARRAY),
        (ARRAY, ARRAY.astype(np.float64)),
        (ARRAY, ARRAY.astype(np.int64)),
        (ARRAY, np.asfortranarray(ARRAY)),
        (ARRAY, ARRAY.astype(">f4")),
        (ARRAY.astype(np.float16), ARRAY),
        (ARRAY > 0, (ARRAY > 0).astype(np.uint8)),
        (ARRAY.astype(np.complex64), ARRAY.astype(np.complex128)),
        (np.float32(3.0), np.array([3.0], np.float32)),
        (np.array([[3.0]]), np.float64(3.0)),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (ARRAY, ARRAY.reshape(1, 2, 1, 3)),
        (ARRAY.reshape(2, 3, 1), ARRAY),
        (np.zeros((4, 0, 2), np.int8), np.zeros((4, 0, 2), np.int8)),
    ],
)
def test_alike(tmp_path, x, y):
    found = compare(tmp_path, x, y)
    assert (found.unlike, found.problem) == ("", "")
    assert found.moments.elements == x.size and found.moments.sum_dd == 0 and found.moments.equal == x.size
    assert found.bytes_read == x.nbytes + y.nbytes


@pytest.mark.parametrize(
    "x, y, words",
    [
        (ARRAY, ARRAY.T, "shape [2, 3] against [3, 2]"),
        (ARRAY, ARRAY.reshape(6), "shape [2, 3] against [6]"),
        (np.zeros(0), np.zeros(1), "shape [0] against [1]"),
        (ARRAY.reshape(2, 1, 3), ARRAY.reshape(3, 1, 2), "shape [2, 1, 3] against [3, 1, 2]"),
        (ARRAY.reshape(1, 6), ARRAY, "shape [1, 6] against [2, 3]"),
        (np.zeros((0, 2)), np.zeros((2, 0)), "shape [0, 2] against [2, 0]"),
        (ARRAY, ARRAY.astype(np.complex64), "dtype float32 cannot be compared with complex64"),
    ],
)
def test_unlike(tmp_path, x, y, words):
    found = compare(tmp_path, x, y)
    assert (found.unlike, found.moments, found.problem) == (words, None, "")


@pytest.mark.parametrize(
    "said, words",
    [
        ({"shape": (3, 2)}, "target: the file holds shape [2, 3], the dump says [3, 2]"),
        ({"shape": ()}, "target: the file holds shape [2, 3], the dump says []"),
        ({"dtype": "float64"}, "target: the file holds float32, the dump says float64"),
        ({"dtype": "int32"}, "target: the file holds float32, the dump says int32"),
        ({"problem": "refused: outside"}, "target: refused: outside"),
        ({"file": "/nowhere/at/all.npy"}, "target: "),
        ({"file": "/nowhere/a\0b.npy"}, "target: "),
        ({"file": "/nowhere/\ud800.npy"}, "target: "),
        ({"encoding": "hdf9"}, "target: files of encoding 'hdf9' cannot be read"),
        ({"encoding": ""}, "target: "),
        ({"encoding": "torch_pt"}, "target: "),
    ],
)
def test_trouble_with_one_side_is_a_problem(tmp_path, said, words):
    found = compare(tmp_path, ARRAY, ARRAY, **said)
    assert found.problem.startswith(words) and found.moments is None
    one_sided = measure(pair(None, tensor(tmp_path, "y", ARRAY, **said)))
    assert one_sided.problem.startswith(words.replace("target", "golden"))


@pytest.mark.parametrize(
    "stored, said", [("float32", "bfloat16"), ("float32", "float8_e4m3fn"), ("float32", "odd word")]
)
def test_stored_wider_than_recorded(tmp_path, stored, said):
    found = compare(tmp_path, ARRAY.astype(stored), ARRAY, dtype=said)
    assert (found.problem, found.moments.equal) == ("", 6)


@pytest.mark.parametrize("stored, said", [("float16", "bfloat16"), ("float16", "float32"), ("int64", "int32")])
def test_stored_otherwise_than_recorded(tmp_path, stored, said):
    assert compare(tmp_path, ARRAY.astype(stored), ARRAY, dtype=said).problem


def test_bfloat16_in_float32_files_keeps_the_bars_of_bfloat16(tmp_path):
    one_ulp = np.array([1 + 2.0**-7], np.float32)
    sides = tensor(tmp_path, "x", one_ulp, dtype="bfloat16"), tensor(tmp_path, "y", one_ulp * 0 + 1, dtype="bfloat16")
    moments = measure(pair(*sides)).moments
    assert (moments.outside, moments.max_ulp) == (0, 1)


@pytest.mark.parametrize("cut", [0, 5, 60, 127, 130, -1])
def test_a_cut_file_is_a_problem(tmp_path, cut):
    sides = tensor(tmp_path, "x", ARRAY), tensor(tmp_path, "y", ARRAY)
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:cut])
    found = measure(pair(*sides))
    assert found.problem.startswith("target: ") and found.moments is None


@pytest.mark.parametrize("side", ["target", "golden"])
def test_one_side_fills_its_half(tmp_path, side):
    one = tensor(tmp_path, "x", np.array([1.0, -3.0, np.nan, np.inf]))
    moments = measure(pair(one, None) if side == "target" else pair(None, one)).moments
    half, other = getattr(moments, side), getattr(moments, {"target": "golden", "golden": "target"}[side])
    assert (moments.elements, half.nan, half.posinf, half.minimum, half.total, half.squares) == (
        4,
        1,
        1,
        -3.0,
        -2.0,
        10.0,
    )
    assert (moments.compared, moments.mismatched, other.squares, other.nan) == (0, 0, 0.0, 0)


def test_one_side_without_values_keeps_its_statistics():
    found = measure(pair(None, recorded(statistics=STATISTICS)))
    assert (found.moments, found.problem, found.statistics) == (None, "", (None, STATISTICS))


@pytest.mark.parametrize(
    "target, golden, same",
    [
        ({"checksum": "724f369b"}, {"checksum": "724f369b"}, True),
        ({"checksum": "724f369b"}, {"checksum": "724f369c"}, False),
        ({"checksum": "724f369b"}, {}, None),
        ({}, {}, None),
        ({"checksum": "724f369b"}, {"checksum": "0x0105e873ffe8cc56"}, None),
        ({"checksum": "724f369b"}, {"checksum": "724f369b", "dtype": "bfloat16"}, None),
        ({"checksum": "724f369b"}, {"checksum": "00000000", "dtype": "bfloat16"}, None),
        ({"shape": (0, 3)}, {"shape": (0, 3)}, True),
    ],
)
def test_checksums(target, golden, same):
    found = measure(pair(recorded(**target), recorded(**golden)))
    assert (found.same, found.moments, found.problem, found.unlike) == (same, None, "", "")


def test_values_on_one_side_are_held_against_statistics(tmp_path):
    y = np.array([3.0, 4.0])
    found = measure(
        pair(recorded((2,), "float64", statistics=Statistics(4.0, 3.0, 3.5, 10.0)), tensor(tmp_path, "y", y))
    )
    assert found.statistics[1] == Statistics(4.0, 3.0, 3.5, 5.0)
    assert found.bound == pytest.approx(1.0)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "values",
    [
        [3.0, -4.0], [-INF, 0.0, -2.0], [INF, 1.0, 5.0], [INF, -INF, 2.0], [-INF, -INF], [INF, INF], [INF, -INF],
        [NAN, 1.0], [NAN, INF], [NAN, NAN],
    ],
)  # fmt: skip
def test_what_is_not_finite_is_recorded_of_values_as_dumps_do(tmp_path, values, dtype):
    """An attention mask of -Inf and its statistics: NaN or Inf on one side only would be a false alarm."""
    x = np.array(values, dtype)
    with np.errstate(invalid="ignore"):
        expected = Statistics(*map(float, (x.max(), x.min(), x.mean(), np.sqrt(np.square(x).sum()))))
    kept = tensor(tmp_path, "x", x)
    found = measure(pair(kept, recorded(x.shape, dtype, statistics=expected)))
    assert found.statistics[0] == pytest.approx(expected, nan_ok=True)
    assert found.bound in (None, 0.0)
    other = measure(pair(kept, recorded(x.shape, dtype, statistics=Statistics(9.0, 8.0, 8.5, 20.0))))
    assert (other.bound == INF) is (not np.isfinite(x).all())


def test_recorded_shapes_must_agree():
    assert measure(pair(recorded((2, 3)), recorded((3, 2)))).unlike == "shape [2, 3] against [3, 2]"
    assert measure(pair(recorded((2, 3)), recorded((3, 2)))).problem == ""


def test_one_element_is_alike_in_records_too():
    assert measure(pair(recorded(()), recorded((1,)))).unlike == ""


@pytest.mark.parametrize("shape", [(10**200, 10**200), (2**63, 2**63), (10**400,)])
def test_absurd_recorded_shapes_do_not_raise(shape):
    one = recorded(shape, statistics=STATISTICS)
    assert measure(pair(one, one._replace(statistics=Statistics(3.0, -1.0, 1.0, 5.0)))).moments is None


@pytest.mark.parametrize("lowest, is_known", [(-65504.0, False), (-1e4, False), (-12.0, True)])
def test_masks_of_two_types_prove_no_difference(lowest, is_known):
    """Attention scores in float16 and float32: "minus infinity" is another number, and decides mean and norm."""
    target = Statistics(3.0, lowest, lowest / 2, -lowest * 4)
    golden = Statistics(3.0, -3.4028234663852886e38, -1.7e38, 2.7e38)
    x, y = recorded((8, 8), "float16", statistics=target), recorded((8, 8), statistics=golden)
    assert (measure(pair(x, y)).bound or 0.0) == pytest.approx(5.04 if is_known else 0.0, rel=0.01)


NONE = Statistics()
WITHOUT_NORM = STATISTICS._replace(norm=None)


@pytest.mark.parametrize(
    "target, golden, bound",
    [
        (STATISTICS, STATISTICS, 0.0),
        (STATISTICS, STATISTICS._replace(norm=8.0), 0.5),
        (STATISTICS._replace(max=5.0), STATISTICS, 0.5),
        (STATISTICS._replace(min=-3.0), STATISTICS, 0.5),
        (STATISTICS._replace(mean=0.0), STATISTICS, 0.75),
        (STATISTICS._replace(norm=0.0), STATISTICS._replace(norm=0.0), 0.0),
        (STATISTICS, STATISTICS._replace(norm=0.0), math.inf),
        (STATISTICS._replace(max=math.inf), STATISTICS, math.inf),
        (STATISTICS, STATISTICS._replace(min=math.nan), math.inf),
        (STATISTICS, None, None),
        (None, None, None),
        (NONE, STATISTICS, None),
        (NONE, NONE, None),
        (WITHOUT_NORM, WITHOUT_NORM, 0.0),
        (WITHOUT_NORM._replace(max=5.0), WITHOUT_NORM, 2.0 / 9.0),
        (WITHOUT_NORM._replace(mean=0.0), STATISTICS, 0.75),
        (STATISTICS._replace(mean=0.0), WITHOUT_NORM, 3.0 / 9.0),
        (WITHOUT_NORM, WITHOUT_NORM._replace(max=0.0, min=0.0), math.inf),
        (WITHOUT_NORM._replace(mean=0.0), WITHOUT_NORM._replace(max=None), None),
        (WITHOUT_NORM._replace(max=5.0), WITHOUT_NORM._replace(norm=math.inf), 2.0 / 9.0),
        (STATISTICS, STATISTICS._replace(norm=math.inf), None),
        (STATISTICS._replace(max=1.5e308), WITHOUT_NORM._replace(max=1.7e308), None),
    ],
)
def test_lower_bound(target, golden, bound):
    assert lower_bound(target, golden, 9) == bound


@pytest.mark.parametrize("elements, lost", [(2**20, 5.2e-5), (2**22, 2.5e-4), (2**24, 3.9e-3), (2**27, 1.4e-2)])
def test_a_norm_of_many_elements_that_was_added_in_float32_proves_no_difference(elements, lost):
    """As much as was seen; and four more times that much is still told."""
    right = Statistics(4.0, -4.0, 0.0, 1000.0)
    for times, proven in ((1, False), (16, True)):
        short = right._replace(norm=1000.0 * (1 - times * lost))
        for pair in ((short, right), (right, short)):
            assert (lower_bound(*pair, elements) > 2.0**-17) is proven
    assert lower_bound(right._replace(norm=1001.0), right, 2**18) == pytest.approx(1e-3)


def test_partial_sums_in_float32_lose_what_is_allowed_for(tmp_path):
    """The squares of two million numbers, added as torch.norm does on a CPU, against the numbers themselves."""
    x = np.random.default_rng(5).standard_normal(2**21).astype(np.float32)
    norm = float(np.sqrt(np.add.accumulate(np.square(x).reshape(-1, 8), axis=0)[-1].sum()))
    told = Statistics(float(x.max()), float(x.min()), float(x.mean(dtype=np.float64)), norm)
    found = measure(pair(tensor(tmp_path, "x", x), recorded(x.shape, statistics=told)))
    assert abs(norm / found.statistics[0].norm - 1) > 2.0**-17 > found.bound


def test_what_dumps_rounded_their_figures_by_is_taken_off():
    x, y = (
        recorded((4,), statistics=Statistics(max=2.0, norm=3.0)),
        recorded((4,), statistics=Statistics(2.5, norm=4.0)),
    )
    assert measure(pair(x, y)).bound == 0.25
    assert measure(pair(x._replace(rounding=0.25), y)).bound == 0.75 / 4.25
    assert measure(pair(x._replace(rounding=0.5), y._replace(rounding=0.5))).bound == 0.0


def test_a_norm_that_overflowed_proves_nothing_nonfinite():
    """A low-precision dump sums the norm in float16: it is inf although every value is finite."""
    target = Statistics(256.0, -256.0, 0.0, math.inf)
    assert lower_bound(target, Statistics(256.0, -256.0, 0.0, 65504.0), 70000) != math.inf


def statistics(values) -> Statistics:
    return Statistics(
        max(values), min(values), math.fsum(values) / len(values), math.sqrt(math.fsum(v * v for v in values))
    )


VALUE = st.floats(-1e6, 1e6, allow_subnormal=False).filter(lambda v: v == 0 or abs(v) > 1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=30))
@example([(1.0, 1.0), (1.0, -1.0)])
@example([(2.0, 1.0)] * 30)
@example([(1.0, 1.0)] * 29 + [(2.0, 1.0)])
def test_lower_bound_is_below_the_truth(values):
    x, y = zip(*values)
    golden = math.sqrt(math.fsum(b * b for b in y))
    distance = math.sqrt(math.fsum((a - b) ** 2 for a, b in values))
    truth = distance / golden if golden else (math.inf if distance else 0.0)
    rounding = 1e-15 * len(x) * max(map(abs, x + y)) / golden if golden else 0.0  # of the statistics themselves
    for recorded_of_golden in (statistics(y), statistics(y)._replace(norm=None)):
        bound = lower_bound(statistics(x), recorded_of_golden, len(x))
        assert bound <= truth * (1 + 1e-12) + rounding


def test_no_elements_prove_nothing():
    assert lower_bound(WITHOUT_NORM._replace(max=5.0), WITHOUT_NORM, 0) is None


def test_lower_bound_is_sharp_for_a_scaled_tensor():
    y = [0.5, -2.0, 3.0]
    assert lower_bound(statistics([1.5 * v for v in y]), statistics(y), 3) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "target, golden, closeness, expected",
    [
        ("float32", "float32", Closeness(), (1.3e-6, 1e-5)),
        ("float32", "bfloat16", Closeness(), (1.6e-2, 1e-5)),
        ("float64", "float16", Closeness(), (1e-3, 1e-5)),
        ("int64", "float32", Closeness(), (1.3e-6, 1e-5)),
        ("int64", "int32", Closeness(), (0.0, 0.0)),
        ("float32", "float32", Closeness(rtol=0.5), (0.5, 0.0)),
        ("float32", "float32", Closeness(atol=0.5), (0.0, 0.5)),
        ("int64", "int64", Closeness(0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_bars_of_allclose(target, golden, closeness, expected):
    assert allclose_bars(target, golden, closeness) == expected


@pytest.mark.parametrize("rtol, atol, outside", [(None, None, 2), (0.1, None, 1), (0.1, 1.0, 0), (None, 0.5, 1)])
def test_closeness_reaches_the_elements(tmp_path, rtol, atol, outside):
    one = pair(tensor(tmp_path, "x", [1.0, 1.0, 3.0, 4.2]), tensor(tmp_path, "y", [1.0, 1.0, 2.0, 4.0]))
    assert measure(one, Closeness(rtol, atol)).moments.outside == outside


def test_places_count_through_the_blocks(tmp_path):
    y = np.zeros((7, 20000), np.float32)
    x = y.copy()
    x[5, 12345] = 2.0
    moments = compare(tmp_path, x, y).moments
    assert (moments.max_abs_index, moments.max_rel_index, moments.elements) == (112345, 112345, 140000)


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_pairs(tmp_path, jobs):
    pairs = [pair(tensor(tmp_path, f"x{i}", np.full(i, 2.0)), tensor(tmp_path, f"y{i}", np.ones(i))) for i in range(20)]
    assert [one.moments.sum_abs for one in measure_pairs(pairs, jobs=jobs)] == list(map(float, range(20)))


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    values = np.arange(2**23, dtype=np.float32)  # 32 MB a side
    sides = tensor(tmp_path, "x", values), tensor(tmp_path, "y", values[::-1])
    del values
    tracemalloc.start()
    try:
        found = measure(pair(*sides))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.bytes_read == 64 * 2**20 and found.moments.elements == 2**23
    assert peak < 30 * 2**20
