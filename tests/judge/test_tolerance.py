"""Measurements + rules → verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp import Tolerances
from npucmp.errors import UsageError
from npucmp.judge.tolerance import DEFAULT_RULES, load_tolerances
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Measurement, Operator, Pair, TensorRef, Tolerance

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


@pytest.mark.parametrize(
    "given, by_round_off", [({}, True), ({"closeness": True}, False), ({"table": (Tolerance("cosine", 1.0),)}, False)]
)
def test_default_limits_are_in_force_without_tolerances_of_the_user(given, by_round_off):
    assert Tolerances(**given).by_round_off is by_round_off


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


def test_default_rules_are_eight_round_offs_of_each_float_type():
    rows = {row.dtype: row.limit for row in DEFAULT_RULES}
    small = {"hifloat8": 1.0, "float8_e4m3fn": 0.5, "float8_e5m2": 1.0}
    assert rows == {name: 8 * u for name, u in U.items()} | small
    assert {row.metric for row in DEFAULT_RULES} == {"rel_l2"} and "8 unit round-offs" in DEFAULT_RULES[0].why
