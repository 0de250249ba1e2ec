"""Measurements + rules → verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp import Tolerances
from npucmp.errors import DumpError, UsageError
from npucmp.judge.precision import round_off_of
from npucmp.judge.tolerance import DEFAULT_RULES, Limit, judge_bound, load_tolerances
from npucmp.localise.rules import Rulebook
from npucmp.localise.thresholds import make_findings
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement, Operator, Pair, Statistics, TensorRef, Tolerance, Verdict

U = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def a_pair(dtype="float32", golden_dtype="", op_type="add", shape=(2,), sides="both") -> Pair:
    operator = Operator(f"{op_type}.0", op_type, op_type, "forward", 0, ())
    target, golden = TensorRef("output:0", dtype, shape), TensorRef("output:0", golden_dtype or dtype, shape)
    if sides == "both":
        return Pair(0, "output:0", operator, operator, target, golden, "name", 1.0)
    if sides == "target":
        return Pair(0, "output:0", operator, None, target, None, note="the golden run has no such operator")
    return Pair(0, "output:0", None, operator, None, golden, note="the target run has no such operator")


def measured(x, y, dtype="float64", rtol=0.0, atol=0.0, **more) -> Measurement:
    """Values in float64, whatever the pair is said to hold: the rules look at the pair's own types."""
    bars = bars_for("float64", "float64", rtol, atol)
    moments = measure_block(np.array(x, np.float64), np.array(y, np.float64), bars)
    return Measurement(a_pair(dtype, **more), moments)


def judge(measurements, tolerances=Tolerances()):
    return make_findings(list(measurements), tolerances, Rulebook())


def verdict(measurement, tolerances=Tolerances()):
    (found,) = judge([measurement], tolerances)
    return found


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "measurement, expected, error",
    [
        (measured([1, 2], [1, 2]), Verdict.MATCH, 0.0),
        (measured([], []), Verdict.MATCH, 0.0),
        (measured([NAN, 2], [NAN, 2]), Verdict.MATCH, 0.0),
        (measured([1.0 + 2**-50], [1.0]), Verdict.MATCH, 2.0**-50),
        (measured([1.0 + 2**-49], [1.0]), Verdict.DIVERGED, 2.0**-49),
        (measured([1.0 + 2**-21], [1.0], "float32"), Verdict.MATCH, 2.0**-21),
        (measured([1.0 + 2**-20], [1.0], "float32"), Verdict.DIVERGED, 2.0**-20),
        (measured([1.0 + 2**-8], [1.0], "float16"), Verdict.MATCH, 2.0**-8),
        (measured([1.0 + 2**-7], [1.0], "float16"), Verdict.DIVERGED, 2.0**-7),
        (measured([1.0 + 2**-5], [1.0], "bfloat16"), Verdict.MATCH, 2.0**-5),
        (measured([1.0 + 2**-5], [1.0], golden_dtype="bfloat16"), Verdict.MATCH, 2.0**-5),
        (measured([1.0 + 2**-4], [1.0], "bfloat16"), Verdict.DIVERGED, 2.0**-4),
        (measured([1.25], [1.0], "float8_e4m3fn"), Verdict.MATCH, 0.25),
        (measured([1, 2], [1, 3], "int64"), Verdict.DIVERGED, 1 / math.sqrt(10)),
        (measured([0, 0], [1, 1], "bfloat16"), Verdict.DIVERGED, 1.0),
        (measured([0, 0], [1, 1], "float8_e5m2"), Verdict.DIVERGED, 1.0),
        (measured([1e-30, 0], [0, 0]), Verdict.DIVERGED, INF),
        (measured([-0.0], [0.0]), Verdict.MATCH, 0.0),
        (measured([NAN, 1], [1, 1]), Verdict.NONFINITE, INF),
        (measured([1, 1], [1, INF], "bfloat16"), Verdict.NONFINITE, INF),
        (measured([1, -INF], [1, INF]), Verdict.NONFINITE, INF),
        (Measurement(a_pair(), unlike="shape [2] against [3]", shapes_differ=True), Verdict.SHAPE, INF),
        (Measurement(a_pair(), unlike="dtype float32 cannot be compared with complex64"), Verdict.DTYPE, None),
        (Measurement(a_pair(), problem="target: ended early"), Verdict.UNREADABLE, None),
        (Measurement(a_pair(sides="target")), Verdict.MISSING, None),
        (Measurement(a_pair(sides="golden")), Verdict.MISSING, None),
        (Measurement(a_pair(sides="golden"), problem="golden: ended early"), Verdict.UNREADABLE, None),
        (Measurement(a_pair()), Verdict.UNKNOWN, None),
        (Measurement(a_pair(), same=True), Verdict.MATCH, 0.0),
        (Measurement(a_pair(), same=False), Verdict.DIVERGED, NAN),
        (Measurement(a_pair(), bound=0.0), Verdict.UNKNOWN, None),
        (Measurement(a_pair(), bound=0.5), Verdict.DIVERGED, NAN),
        (Measurement(a_pair("bfloat16"), bound=2.0**-5), Verdict.UNKNOWN, None),
        (Measurement(a_pair(), bound=INF), Verdict.NONFINITE, INF),
    ],
)
def test_verdict(measurement, expected, error):
    found = verdict(measurement)
    assert found.verdict is expected and found.because
    assert found.error == error if error is None else found.error == pytest.approx(error, rel=1e-9, nan_ok=True)


def test_words_of_a_verdict():
    found = verdict(measured([NAN, 1, 1], [1, 1, INF]))
    assert (found.metric, found.limit, found.rule) == ("nonfinite_mismatch", 0.0, "nonfinite")
    assert "2 of 3 positions" in found.because and "target 1 NaN, 0 Inf, golden 0 NaN, 1 Inf" in found.because
    assert verdict(measured([1.5], [1.0])).because == "rel_l2 5.00e-01, limit 8.88e-16"
    assert verdict(Measurement(a_pair(sides="target"))).because == "the golden run has no such operator"
    assert "target is all zero" in verdict(measured([0.0], [1.0])).because
    assert "golden is all zero" in verdict(measured([1.0], [0.0])).because


XOR = {"checksum": "0x1f"}


@pytest.mark.parametrize(
    "measurement, words",
    [
        (measured([1.0], [1.0], "float32"), "the same bits"),
        (measured([1.0], [1.0], "float32", golden_dtype="float64"), "equal values"),
        (Measurement(a_pair(), same=True), "equal checksums"),
        (Measurement(a_pair(shape=(0, 3)), same=True), "both empty"),
        (Measurement(a_pair()), "neither values nor comparable statistics"),
        (
            Measurement(
                a_pair()._replace(
                    **{side: TensorRef("output:0", "float32", (2,), **XOR) for side in ("target", "golden")}
                )
            ),
            "equal XOR checksums, which prove nothing",
        ),
        (
            Measurement(a_pair(), bound=INF, statistics=(Statistics(NAN), Statistics(1.0))),
            "NaN or Inf in its statistics",
        ),
        (Measurement(a_pair(), bound=INF, statistics=(Statistics(1.0), Statistics(0.0))), "the golden is all zero"),
        (Measurement(a_pair(), bound=INF, statistics=(Statistics(INF, 0.0), Statistics(1.0))), "NaN or Inf in its"),
        (Measurement(a_pair(), bound=0.5), "by the statistics, rel_l2 is at least 5.00e-01, limit 8.11e-06"),
    ],
)
def test_the_reason_of_a_verdict(measurement, words):
    assert words in verdict(measurement).because


@pytest.mark.parametrize(
    "bound, expected, error, limit",
    [(0.25 + 2.0**-17, Verdict.UNKNOWN, None, 0.0), (0.2501, Verdict.DIVERGED, NAN, 0.25 + 2.0**-17)],
)
def test_a_bound_proves_a_difference_beyond_the_limit_and_the_rounding_of_sums(bound, expected, error, limit):
    found = judge_bound(bound, Tolerances(), Limit(0.25, "rule"))
    assert (found[0], repr(found[2]), found[3]) == (expected, repr(error), limit)
    assert found[4:] == (("rel_l2", "rule") if expected is Verdict.DIVERGED else ("", ""))
    trusted = judge_bound(bound, Tolerances(trust_statistics=True), Limit(0.25, "rule"))
    if expected is Verdict.UNKNOWN:
        assert (trusted[0], trusted[2:]) == (Verdict.MATCH, (bound, 0.25, "rel_l2", "rule"))


@pytest.mark.parametrize(
    "given, by_round_off", [({}, True), ({"closeness": True}, False), ({"table": (Tolerance("cosine", 1.0),)}, False)]
)
def test_default_limits_are_in_force_without_tolerances_of_the_user(given, by_round_off):
    assert Tolerances(**given).by_round_off is by_round_off


def test_the_tensor_inside_a_fused_operator_is_not_missing():
    one = Measurement(a_pair(sides="target"))
    inside = one.pair._replace(target_op=one.pair.target_op._replace(inserted=True))
    assert verdict(one._replace(pair=inside)).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "bound, same, trusted",
    [
        (0.0, None, Verdict.MATCH),
        (2.0**-22, None, Verdict.MATCH),
        (0.1, None, Verdict.DIVERGED),
        (INF, None, Verdict.NONFINITE),
        (None, None, Verdict.UNKNOWN),
        (None, False, Verdict.DIVERGED),
    ],
)
def test_trust_statistics(bound, same, trusted):
    one = Measurement(a_pair(), bound=bound, same=same, statistics=(Statistics(1.0), Statistics(1.0)))
    assert verdict(one, Tolerances(trust_statistics=True)).verdict is trusted
    assert verdict(one).verdict is (Verdict.UNKNOWN if trusted is Verdict.MATCH else trusted)


@pytest.mark.parametrize(
    "x, y, expected",
    [
        ([1.05, 1.0], [1.0, 1.0], Verdict.MATCH),
        ([1.2, 1.0], [1.0, 1.0], Verdict.DIVERGED),
        ([0.0, 0.0], [1e-6, -1e-6], Verdict.MATCH),
        ([1.0, NAN], [1.0, 1.0], Verdict.NONFINITE),
    ],
)
def test_closeness_decides_when_given(x, y, expected):
    found = verdict(measured(x, y, rtol=0.1, atol=1e-5), Tolerances(closeness=True))
    assert found.verdict is expected
    assert found.metric in ("mismatch_ratio", "nonfinite_mismatch")


def measured_types(target, golden=""):
    return measured([1.5], [1.0], target, golden_dtype=golden)


def test_all_tensors_of_an_operator_share_its_precision():
    assert [found.limit for found in judge([measured_types("float32"), measured_types("float16")])] == [
        8 * U["float16"]
    ] * 2


def test_integers_alone_have_no_slack():
    assert round_off_of(a_pair("int32")) == round_off_of(a_pair("odd word")) == 0.0
    assert verdict(measured([2**40 + 1], [2**40], "int64")).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("value", [2e-162, 5e-324, 1e-310, 1e-170, 1e300])
def test_values_at_the_edge_of_float64_are_judged(value):
    found = verdict(measured([1.5 * value] + [0.0] * 999, [value] + [0.0] * 999))
    assert found.verdict in (Verdict.DIVERGED, Verdict.MATCH)


@pytest.mark.parametrize("phase, op_type", [("forward", "linear"), ("forward", "sum"), ("backward", "linear")])
def test_an_absurd_shape_elsewhere_in_the_operator_does_no_harm(phase, op_type):
    tensors = (TensorRef("input:0", "float32", (10**400,)), TensorRef("input:1", "float32", (10**400,)))
    operator = Operator("odd.0", op_type, op_type, phase, 0, tensors)
    one = measured([1.5, 1.0], [1.0, 1.0], "float32")
    odd = one._replace(pair=one.pair._replace(target_op=operator, golden_op=operator))
    assert verdict(odd).verdict in (Verdict.DIVERGED, Verdict.MATCH)


def test_judge_keeps_rows_and_order():
    measurements = [measured([1], [1]), Measurement(a_pair()), measured([2], [1])] * 5
    assert [found.measurement for found in judge(iter(measurements))] == measurements


COSINE = Tolerance("cosine", 0.99, "bfloat16")
MATMUL = Tolerance("rel_l2", 0.5, op_type="matmul")
ERROR = Tolerance("max_abs_err", 0.1)


@pytest.mark.parametrize(
    "x, y, dtype, op_type, metric, expected",
    [
        ([1.0, 0.0], [1.0, 0.01], "bfloat16", "add", "cosine", Verdict.MATCH),
        ([1.0, 0.0], [1.0, 1.0], "bfloat16", "add", "cosine", Verdict.DIVERGED),
        ([1.0, 0.0], [1.0, 1.0], "bfloat16", "matmul", "cosine", Verdict.DIVERGED),
        ([1.4], [1.0], "float32", "matmul", "rel_l2", Verdict.MATCH),
        ([1.6], [1.0], "float32", "matmul", "rel_l2", Verdict.DIVERGED),
        ([1.05], [1.0], "float32", "add", "max_abs_err", Verdict.MATCH),
        ([1.2], [1.0], "float32", "add", "max_abs_err", Verdict.DIVERGED),
        ([NAN], [1.0], "float32", "add", "nonfinite_mismatch", Verdict.NONFINITE),
    ],
)
def test_the_first_row_that_fits_decides(x, y, dtype, op_type, metric, expected):
    found = verdict(measured(x, y, dtype, op_type=op_type), Tolerances((COSINE, MATMUL, ERROR)))
    assert (found.metric, found.verdict) == (metric, expected)


def test_without_a_fitting_row_the_default_stands():
    found = verdict(measured([1.5], [1.0], "float32"), Tolerances((COSINE, MATMUL)))
    assert (found.verdict, found.metric, found.limit) == (Verdict.DIVERGED, "rel_l2", 8 * U["float32"])


def test_rows_choose_by_the_narrower_type():
    found = verdict(measured([1.0, 0.0], [1.0, 0.01], "float32", golden_dtype="bfloat16"), Tolerances((COSINE,)))
    assert found.metric == "cosine"


def test_a_metric_without_a_value_is_unknown():
    found = verdict(measured([1.5], [1.0], "int32"), Tolerances((Tolerance("max_rel_err", 0.1),)))
    assert found.verdict is Verdict.DIVERGED
    integers = Measurement(
        a_pair("int32"), measure_block(np.ones(2, "i4"), np.zeros(2, "i4"), bars_for("int32", "int32", 0, 0))
    )
    assert verdict(integers, Tolerances((Tolerance("max_ulp", 4),))).verdict is Verdict.UNKNOWN


def test_larger_is_better_for_some():
    rules = Tolerances((Tolerance("exact_ratio", 0.5),))
    assert verdict(measured([1, 1, 2], [1, 1, 1]), rules).verdict is Verdict.MATCH
    assert verdict(measured([1, 2, 1, 2], [1, 1, 1, 1]), rules).verdict is Verdict.MATCH  # at the limit
    assert verdict(measured([1, 2, 2], [1, 1, 1]), rules).verdict is Verdict.DIVERGED


CSV = "metric,limit,dtype,op_type,why\ncosine,0.99,bfloat16,,evidence\nrel_l2,0.5,,matmul,\n"
TOML = """
[[tolerance]]
metric = "cosine"
limit = 0.99
dtype = "bfloat16"
why = "evidence"
[[tolerance]]
limit = 0.5
op_type = "matmul"
"""
ROWS = (Tolerance("cosine", 0.99, "bfloat16", "", "evidence"), Tolerance("rel_l2", 0.5, "", "matmul", ""))


@pytest.mark.parametrize(
    "name, text",
    [
        ("t.csv", CSV),
        ("t.toml", TOML),
        ("T.TOML", TOML),
        ("t.csv", CSV.replace("\n", "\r\n")),
        ("t.csv", "limit,why,metric,dtype,op_type\n0.99,evidence,cosine,bfloat16,\n0.5,,,,matmul\n"),
        ("t.csv", "\ufeff" + CSV),
    ],
    ids=["csv", "toml", "suffix", "crlf", "columns", "byte order mark"],
)
def test_tolerance_file(tmp_path, name, text):
    file = tmp_path / name
    file.write_bytes(text.encode())
    assert load_tolerances(file) == ROWS


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("t.csv", "", "contains no tolerance"),
        ("t.csv", "metric,limit\n", "contains no tolerance"),
        ("t.csv", "metric,limit\ncosin,0.9\n", "row 1: no metric 'cosin'; nearest: cosine"),
        ("t.csv", "metric,limit\ncosine,0.9\nrel_l2,small\n", "row 2: limit 'small' is not a number"),
        ("t.csv", "metric,limit\nrel_l2\n", "row 1: limit None is not a number"),
        ("t.csv", "metric,why\nrel_l2,because\n", "it has no column limit"),
        ("t.csv", "metric,limit\nrel_l2,nan\n", "row 1: limit 'nan' is not a number"),
        ("t.csv", "limit,dtype\n1,float3\n", "row 1: no dtype 'float3'; nearest: float32"),
        ("t.csv", "metric,limit\nrel_l2," + "9" * 200_000, "t.csv"),
        ("t.toml", "", "contains no tolerance"),
        ("t.toml", "limit = 3", "contains no tolerance"),
        ("t.toml", "tolerance = 3", "contains no tolerance"),
        ("t.toml", "tolerance = [3]", "row 1"),
        ("t.toml", "[[tolerance]]\nmetric = ['a']\nlimit = 1", "row 1: no metric"),
        ("t.toml", "[[tolerance]]\nlimit = []", "row 1: limit [] is not a number"),
        ("t.toml", "[[tolerance]\n", "not TOML"),
        ("t.toml", "a = " + "[" * 100_000, "t.toml"),
    ],
)
def test_bad_tolerance_file(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        load_tolerances(tmp_path / name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff\xfe\x00")]
)
def test_a_tolerance_file_that_cannot_be_read(tmp_path, make):
    make(tmp_path / "t.csv")
    with pytest.raises(DumpError):
        load_tolerances(tmp_path / "t.csv")


def test_default_rules_are_eight_round_offs_of_each_float_type():
    rows = {row.dtype: row.limit for row in DEFAULT_RULES}
    small = {"hifloat8": 1.0, "float8_e4m3fn": 0.5, "float8_e5m2": 1.0}
    assert rows == {name: 8 * u for name, u in U.items()} | small
    assert {row.metric for row in DEFAULT_RULES} == {"rel_l2"} and "8 unit round-offs" in DEFAULT_RULES[0].why
