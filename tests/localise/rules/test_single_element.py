"""Single elements that differ while all others have the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, spelled, without_values

RULE = rule("single_element")

normal, noisy = drawn(__name__)

X, Y = normal(256, 256), normal(256, 256)
READ = [(X, X)]


def off_by(size, *places):
    """Y with an error at some places."""
    wrong = Y.copy()
    for place in places:
        wrong.reshape(-1)[place] += size
    return wrong


WRONG = off_by(5e-5, 300)


class TestSingleElement(RuleContract):
    name = "single_element"
    fires = {
        **spelled("linear", lambda op: case(op, READ, (WRONG, Y))),
        **spelled("relu", lambda op: case(op, READ, (WRONG, Y))),
        "two": case("linear", READ, (off_by(5e-5, 300, 9), Y)),
        "a float16 value": case("linear", [(X, X, "float16")], (off_by(0.1, 300), Y, "float16")),
        "a parameter": case("linear", wrote=(off_by(1e-6, 300), Y), slot="param:weight", node=False, input_error=1.0),
    }
    silent = {
        "a rounding": case("linear", READ, (off_by(5e-7, 300), Y)),
        "a step of float16": case("linear", [(X, X, "float16")], (off_by(2.0**-11, 300), Y, "float16")),
        "values of bfloat16 in float32": case("linear", READ, (WRONG, Y), round_off=2.0**-8),
        "three": case("linear", READ, (off_by(5e-5, 300, 9, 7), Y)),
        "few elements": case("linear", READ, (WRONG[1:2, 40:50], Y[1:2, 40:50])),
        "an error came in": case("linear", [(noisy(X, 1e-7), X)], (WRONG, Y)),
        "a parameter that was updated": case(
            "linear", wrote=(WRONG, Y), slot="param:weight", node=False, inherited=1e-3, input_error=0.0
        ),
        "HF32 somewhere before": case("linear", READ, (WRONG, Y), round_off=2.0**-11, precision=Precision(2.0**-11)),
    }


LIMIT = 8 * 2.0**-24


def wrong(*offsets, count=64, times=1.0, op="linear", **more):
    target, golden = ones(count, *offsets)
    types = more.pop("types", ())
    return case(op, [ones(9)], (times * target, times * golden, *types), **{"input_error": 0.0, **more})


@pytest.mark.parametrize("one, applies", [
    (wrong(0.5), True), (wrong(0.5, -0.5), True), (wrong(0.5, 0.5, 0.5), False), (wrong(), False),
    (wrong(0.5, count=63), False), (wrong(0.5, input_error=1e-12), False),
    (wrong(LIMIT), False), (wrong(LIMIT * 1.01), True), (wrong(-LIMIT * 1.01), True),
    (wrong(0.5, types=("int64",)), False), (wrong(0.5, round_off=0.0), False),
    (wrong(0.5, op="sum", count=64), True),
])  # fmt: skip
def test_one_or_two_elements_differ_by_more_than_rounding(one, applies):
    assert RULE.applies(one) == applies
    assert not RULE.applies(replace(one, finding=without_values(one.finding)))
    for fields in ({"error": None}, {"metric": "noise"}, {"metric": "cosine"}):
        assert not RULE.applies(replace(one, finding=one.finding._replace(**fields)))


@pytest.mark.parametrize("off, applies", [(2.9e-6, False), (3.1e-6, True)])
def test_the_limit_is_a_share_of_the_largest_element(off, applies):
    target, golden = ones(65, off, 5.5)
    golden[1] = target[1]
    assert RULE.applies(case("linear", [ones(9)], (target, golden), input_error=0.0)) == applies


@pytest.mark.parametrize("off, inherited, applies", [
    (LIMIT, 0.0, False), (LIMIT * 1.01, 0.0, True), (0.5, 0.0, True), (0.5, 1e-9, False),
])  # fmt: skip
def test_an_element_of_a_parameter_differs_by_more_than_its_own_rounding(off, inherited, applies):
    target, golden = ones(65, off / 1024)
    golden[0] /= 1024
    target[0] = golden[0] * (1 + off)
    one = case("linear", [], (target, golden), slot="input:1", node=False, input_error=9.0, inherited=inherited)
    assert RULE.applies(one) == applies


def test_a_sum_that_cancels_differs_in_single_elements():
    terms = (np.resize([1.0, -1.0], (64, 64)),) * 2
    for size, applies in ((2.0**-10, False), (1.0, True)):
        one = case("sum", [terms], (size * ones(64, 1e-3)[0], size * ones(64)[1]), input_error=0.0)
        assert one.cancels == (not applies) and RULE.applies(one) == applies


@pytest.mark.parametrize("one, words", [
    (wrong(0.5), "1 of 64 elements differs, by up to 5.00e-01 (5.0e-01 of the golden value); all others have the same"),
    (wrong(0.5, -0.25, times=2), "2 of 64 elements differ, by up to 1.00e+00 (5.0e-01 of the golden value)"),
])  # fmt: skip
def test_the_words_count_the_elements(one, words):
    found = RULE.judged(one)
    assert found.verdict.value == "diverged" and found.because.startswith(words)


def test_zeros_of_another_sign_are_equal_values():
    target, golden = ones(64, 0.5)
    target[9], golden[9] = 0.0, -0.0
    one = case("linear", [ones(9)], (target, golden), input_error=0.0)
    assert RULE.applies(one) and RULE.judged(one).because.endswith("all others have the same values")
