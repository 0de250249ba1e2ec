"""The noise of repeated runs: its file, and the verdicts that it changes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.errors import DumpError, UsageError
from npucmp.judge.tolerance import Limit, Tolerances, judge, load_noise
from npucmp.measure.kernel.numpy_kernel import bars_for, measure_block
from npucmp.model import Tolerance, Verdict
from tests.judge.test_tolerance import measured

LIMIT = Limit(0.125, "round_off")


@pytest.mark.parametrize(
    "rows, known",
    [
        (["a,output:0,0.25", "b,input:0,0"], {("a", "output:0"): 0.25, ("b", "input:0"): 0.0}),
        (["a,output:0,nan", "a,output:1,inf", "b,input:0,1"], {("b", "input:0"): 1.0}),
        (["'=a,output:0,1"], {("'=a", "output:0"): 1.0, ("=a", "output:0"): 1.0}),
        (["a,'-x,1"], {("a", "'-x"): 1.0, ("a", "-x"): 1.0}),
        ([r"a\x1b,b,1"], {(r"a\x1b", "b"): 1.0, ("a\x1b", "b"): 1.0}),
        ([r"a\u202e,b\ue003,1"], {(x, y): 1.0 for x in (r"a\u202e", "a\u202e") for y in (r"b\ue003", "b\ue003")}),
        ([r"a\u12G4,b,1"], {(r"a\u12G4", "b"): 1.0}),
    ],
)
def test_the_noise_of_a_slot_is_read_under_all_names_behind_its_cells(tmp_path, rows, known):
    (tmp_path / "noise.csv").write_text("\n".join(["op,slot,rel_l2", *rows]))
    assert load_noise(tmp_path / "noise.csv") == known


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "not a noise.csv with the columns op, slot, rel_l2"),
        ("op,slot,rel_l2\n", "not a noise.csv with the columns"),
        ("op,rel_l2\na,1\n", "not a noise.csv with the columns"),
        ("op,slot,rel_l2,verdict\na,output:0,1,match\n", "is a table of errors"),
        ("op,slot,rel_l2,cause\na,output:0,1,BORN\n", "is a table of errors"),
        ("op,slot,rel_l2\na,output:0,much\n", "its rel_l2 is not a number"),
        ("op,slot,rel_l2\na,output:0\n", "a row has no name, or its rel_l2"),
        ("rel_l2,op,slot\n1e-3,a\n", "a row has no name, or its rel_l2"),
        ("slot,rel_l2,op\noutput:0,1e-3\n", "a row has no name, or its rel_l2"),
        ("op,slot,rel_l2\na,output:0," + "9" * 200_000, "not CSV"),
    ],
)
def test_another_file_is_no_noise(tmp_path, text, words):
    (tmp_path / "noise.csv").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        load_noise(tmp_path / "noise.csv")
    assert str(tmp_path / "noise.csv") in str(caught.value)


def test_the_noise_of_no_file_is_an_error(tmp_path):
    with pytest.raises(DumpError):
        load_noise(tmp_path / "none.csv")


def judged(measurement, noise, limit=LIMIT, **more):
    return judge(measurement, Tolerances(noise=noise, **more), limit)


@pytest.mark.parametrize(
    "error, noise, expected",
    [
        (0.125, 0.1, (Verdict.MATCH, 0.125, "round_off", "limit 1.25e-01")),  # at its limit: no noise is asked
        (0.25, 0.0625, (Verdict.MATCH, 0.25, "noise", "within 4 times its own run-to-run noise of 6.25e-02")),
        (0.25, 0.0624, (Verdict.DIVERGED, 0.125, "round_off", "beyond 4 times its own run-to-run noise of 6.24e-02")),
        (0.25, 0.0, (Verdict.DIVERGED, 0.125, "round_off", "rel_l2 2.50e-01, limit 1.25e-01")),
    ],
)
def test_an_error_within_four_times_the_noise_of_its_slot_matches(error, noise, expected):
    verdict, limit, rule, words = expected
    found = judged(measured([1.0 + error], [1.0]), {("add.0", "output:0"): noise, ("add.0", "output:1"): 9.0})
    assert (found.verdict, found.error, found.rule) == (verdict, error, rule)
    assert found.limit == (4 * noise if rule == "noise" else limit)
    assert found.metric == rule.replace("round_off", "rel_l2") and words in found.because
    assert ("noise" in found.because) is (error > 0.125 and noise > 0)


def test_the_name_of_either_run_finds_the_noise():
    one = measured([1.25], [1.0])
    other = one._replace(pair=one.pair._replace(target_op=one.pair.target_op._replace(name="sum.0")))
    for name in ("add.0", "sum.0"):
        assert judged(other, {(name, "output:0"): 0.1}).rule == "noise"
    assert judged(other, {("add.0", "output:0"): 0.1, ("sum.0", "output:0"): 0.01}).rule == "noise"


@pytest.mark.parametrize(
    "x, y, rule",
    [([math.nan, 1.0], [1.0, 1.0], "nonfinite"), ([0.0, 0.0], [1.0, 1.0], "dead"), ([1.0, 1.0], [1.0, 1.0], "equal")],
)
def test_noise_explains_no_nan_and_no_zeros_of_one_side(x, y, rule):
    assert judged(measured(x, y), {("add.0", "output:0"): 9.0}).rule == rule


LARGE = Limit(4.0, "round_off")


@pytest.mark.parametrize(
    "x, y, limit, more, rule",
    [
        ([0.0], [1.0], LIMIT, {}, "dead"),
        ([1.0], [0.0], LIMIT, {}, "dead"),
        ([0.0], [1.0], LARGE, {}, "dead"),  # whatever the limit is
        ([0.0], [1.0], Limit(math.inf, "any"), {}, "any"),
        ([0.0], [1.0], LIMIT, {"table": (Tolerance("rel_l2", 4.0),)}, "tolerance"),
        ([0.0], [1.0], LIMIT, {"closeness": True}, "closeness"),
        ([1e-300, 0.0], [1.0, 1.0], LARGE, {}, "dead"),  # its square is 0
        ([2.0], [1.0], LARGE, {}, "round_off"),
    ],
)
def test_zeros_of_one_side_diverge_unless_a_tolerance_of_the_user_decides(x, y, limit, more, rule):
    found = judged(measured(x, y), {}, limit, **more)
    assert found.rule == rule
    if rule == "dead":
        side = "target" if y[0] else "golden"
        assert f"the {side} is all zero; rel_l2" in found.because and found.verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    "types, off, rule",
    [
        (("float32", "int64"), 0.25, "round_off"),
        (("float32", "int64"), 0.5, "whole_numbers"),
        (("int64", "float32"), 0.75, "whole_numbers"),
        (("float32", "float32"), 0.75, "round_off"),
        (("int64", "int64"), 0.0625, "whole_numbers"),
    ],
)
def test_a_float_that_is_half_a_step_from_a_whole_number_is_another_number(types, off, rule):
    target, golden = types
    found = judged(measured([4.0 + off, 9.0], [4.0, 9.0], target, golden_dtype=golden), {})
    assert found.rule == rule and found.limit == (0.0 if rule == "whole_numbers" else 0.125)
    assert found.verdict is (Verdict.DIVERGED if rule == "whole_numbers" else Verdict.MATCH)


def test_steps_of_floats_are_no_numbers_to_compare():
    steps, floats = [1.0, 5.0, 9.0, -7.0], [0.1, 0.5, 0.9, -0.7]
    found = judged(measured(steps, floats, "int8", golden_dtype="float32"), {})
    assert found.verdict is Verdict.DTYPE and "int8 against float32: quantised" in found.because
    given = judged(measured(steps, floats, "int8", golden_dtype="float32"), {}, closeness=True)
    assert given.verdict is Verdict.DIVERGED


@pytest.mark.parametrize(
    "types, y, named",
    [
        (("int8", "float32"), [0.1, 0.1, -0.1, -0.1, 0.1], True),
        (("int64", "int64"), [1, 1, -1, -1, 1], False),
        (("int64", "float32"), [0.9, -0.9, 0.9, -0.9, 0.2], False),  # a scale does
    ],
)
def test_whole_numbers_that_no_scale_relates_to_floats_are_named(types, y, named):
    found = judged(measured([9.0, -9.0, 9.0, -9.0, 2.0], y, types[0], golden_dtype=types[1]), {})
    assert found.verdict is Verdict.DIVERGED and ("no scale relates the two" in found.because) is named


def test_an_undefined_metric_decides_nothing():
    one = measured([1.5], [1.0])
    sides = np.array([2, 3], np.int32), np.array([2, 4], np.int32)
    integers = one._replace(moments=measure_block(*sides, bars_for("int32", "int32", 0.0, 0.0)))
    found = judged(integers, {}, table=(Tolerance("max_ulp", 4.0),))
    assert (found.verdict, found.error, found.limit) == (Verdict.UNKNOWN, None, 4.0)
    assert found.metric == "max_ulp" and "max_ulp is undefined here" in found.because
