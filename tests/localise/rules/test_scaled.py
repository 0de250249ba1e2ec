"""One factor on a whole tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, without_values

RULE = rule("scaled")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
SAME = [(X, X)]
ROUNDED = [(noisy(X, 4e-3), X, "bfloat16")]


class TestScaled(RuleContract):
    name = "scaled"
    fires = {
        "2 % under bfloat16, which no limit sees": case("layer_norm", ROUNDED, (1.02 * noisy(Y, 3e-3), Y, "bfloat16")),
        "a tensor from nowhere": case(
            "linear", [], (1.02 * Y, Y, "bfloat16"), node=False, no_producer=True, slot="input:0"
        ),
        "float32 beside rounding to float32, where the run works in bfloat16": case(
            "relu", [(noisy(X, 1e-7), X)], (1.0001 * noisy(Y, 1e-7), Y), round_off=2.0**-8
        ),
    }
    silent = {
        "no one factor": case("layer_norm", ROUNDED, (noisy(Y, 0.02), Y, "bfloat16")),
        "one that came in": case("mul", [(1.02 * X, X, "bfloat16")], (1.02 * Y, Y, "bfloat16")),
        "rounding of few": case("mean", ROUNDED, (1.02 * Y[0, :4], Y[0, :4], "bfloat16")),
        "an input that an operator wrote": case("linear", [], (1.02 * Y, Y, "bfloat16"), node=False, slot="input:0"),
        "float32 beside rounding to bfloat16": case(
            "relu", ROUNDED, (1.0001 * noisy(Y, 4e-5), Y, "float32"), round_off=2.0**-8
        ),
        "a tensor from nowhere, by a number that may be of bfloat16": case(
            "linear", [], (1.001 * Y, Y), node=False, no_producer=True, slot="input:0", round_off=2.0**-8
        ),
        "float32, within its rounding": case("mul", SAME, ((1 + 1e-7) * Y, Y)),
    }


U = 2.0**-8


def factor(size, beside=0.0, dtype="bfloat16", count=64, **more):
    """All ones are off by one factor, and by an error of either sign beside it."""
    off = np.array([beside, -beside] * (count // 2) + [0.0] * (count % 2))
    return case("tanh", [ones(9)], (1 + size + off, np.ones(count), dtype), **{"input_error": 0.0, **more})


@pytest.mark.parametrize("dtype, round_off, beside, bound", [
    ("bfloat16", None, 0.0, 4 * U), ("float32", U, 0.0, 4 * 2.0**-24), ("float32", U, U / 4, U),
    ("float32", U, 2 * U, 4 * U),
    ("bfloat16", 2.0**-11, 0.0, 4 * 2.0**-11),
])  # fmt: skip
def test_rounding_scatters_errors_as_large_as_its_factor(dtype, round_off, beside, bound):
    one = factor(0.125, beside, dtype, round_off=round_off)
    assert RULE.judged(one).limit == pytest.approx(bound, rel=1e-6)
    assert RULE.judged(replace(one, node=None, no_producer=True)).limit == 4 * (U if round_off is None else round_off)


def test_a_factor_beyond_the_error_leaves_no_scatter():
    one = factor(0.125, 0.0, "float32", round_off=U)
    assert RULE.judged(replace(one, finding=one.finding._replace(error=0.1))).limit == 4 * 2.0**-24


@pytest.mark.parametrize("size, beside, more, is_one", [
    (4 * U, 0.0, {}, False), (4.01 * U, 0.0, {}, True), (-4.01 * U, 0.0, {}, True), (-4 * U, 0.0, {}, False),
    (0.125, 0.0625, {}, False), (0.125, 0.0605, {}, True),  # 90 % of the error
    (0.125, 0.0, {"count": 16}, True), (0.125, 0.0, {"count": 15}, False),
    (0.125, 0.0, {"input_error": 0.0625}, False), (0.125, 0.0, {"input_error": 0.0624}, True),
    (0.125, 0.0, {"node": False}, False), (0.125, 0.0, {"node": False, "no_producer": True}, True),
    (0.125, 0.0, {"no_producer": True}, True),
])  # fmt: skip
def test_a_factor_of_the_whole_tensor_is_no_rounding(size, beside, more, is_one):
    assert RULE.applies(factor(size, beside, **more)) == is_one


@pytest.mark.parametrize("arrived, is_one", [(0.03125, False), (0.031, True), (-0.03125, False)])
def test_a_factor_of_an_input_may_grow_four_times(arrived, is_one):
    one = factor(0.125)
    read = case("tanh", [ones(16, *[arrived] * 16)], ones(9), input_error=0.0).node
    assert RULE.applies(replace(one, node=read)) == is_one


def test_a_factor_needs_values():
    one = factor(0.125)
    assert RULE.applies(one)
    assert not RULE.applies(replace(one, finding=without_values(one.finding)))
    assert not RULE.applies(replace(one, finding=one.finding._replace(metric="noise")))


def test_a_sum_that_cancels_has_no_factor():
    terms = (np.resize([1.0, -1.0], (64, 64)),) * 2
    for size, applies in ((2.0**-7, False), (1.0, True)):
        one = case("sum", [terms], (1.125 * size * np.ones(64), size * np.ones(64), "float16"), input_error=0.0)
        assert one.cancels == (not applies) and RULE.applies(one) == applies


@pytest.mark.parametrize(
    "size, words", [(0.125, "1 + 1.2e-01, limit ±1.6e-02"), (-0.125, "1 - 1.2e-01, limit ±1.6e-02")]
)
def test_the_words_have_the_factor_and_its_limit(size, words):
    found = RULE.judged(factor(size))
    assert found.because == f"whole tensor scaled by {words}"
    assert (found.verdict.value, found.metric, found.limit) == ("diverged", "gain", 4 * U)


def test_a_factor_makes_up_nine_tenths_of_an_error():
    one = factor(0.125)
    for error, applies in ((0.125 / 0.9, True), (0.126 / 0.9, False)):
        assert RULE.applies(replace(one, finding=one.finding._replace(error=error))) == applies
