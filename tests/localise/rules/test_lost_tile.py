"""Single elements that are lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, spelled, without_values

RULE = rule("lost_tile")

normal, noisy = drawn(__name__)

X, Y = normal(256, 256), normal(256, 256)
READ = [(noisy(X, 3e-3), X, "float16")]
LOST = noisy(Y, 4e-4)
LOST[100, 200] = 3.0
Y[100, 200] = -3.0
TORN = noisy(X, 4e-4)
TORN[100, 200] += 0.8 * abs(X).max()


class TestLostTile(RuleContract):
    name = "lost_tile"
    fires = {**spelled("linear", lambda op: case(op, READ, (LOST, Y, "float16")))}
    silent = {
        "rounding": case("linear", READ, (noisy(Y, 3e-3), Y, "float16")),
        "a flipped mask": case("relu", READ, (LOST, Y, "float16"), phase="backward"),
        "an error came in that is as large": case("linear", READ, (LOST, Y, "float16"), input_error=0.1),
        "an element came in that is as far off": case("batch_norm", [(TORN, X)], (LOST, Y)),
        "few": case("linear", READ, (LOST[100:101, 200:208], Y[100:101, 200:208], "float16")),
        "rounding of terms": case("sub", [(1e6 * X, 1e6 * X), (1e6 * X, 1e6 * X)], (LOST, Y)),
    }


def lost(size, count=64, op="linear", read=(), **more):
    """One of many ones is off by this size."""
    return case(op, list(read) or [ones(9)], (*ones(count, size), "float16"), **{"input_error": 0.0, **more})


@pytest.mark.parametrize("size, more, is_one", [
    (0.25, {}, False), (0.26, {}, True), (-0.26, {}, True), (0.26, {"count": 16}, True),
    (0.26, {"count": 15}, False),
    (0.5, {"input_error": 2.0**-6}, False),
    (0.51, {"input_error": 2.0**-6}, True),  # 32 times the incoming error
    (0.26, {"input_error": 2.0**-7}, True), (0.26, {"input_error": 2.0**-6}, False),
])  # fmt: skip
def test_an_element_that_is_off_by_a_quarter_of_the_largest_is_lost(size, more, is_one):
    one = lost(size, **more)
    assert RULE.applies(one) == is_one
    assert not RULE.applies(replace(one, node=None))


@pytest.mark.parametrize("dtype, size, is_one", [
    ("float16", 0.26, True), ("bfloat16", 0.26, True), ("float8_e4m3fn", 0.99, False),
    ("float8_e4m3fn", 2.0, False),
    ("float8_e4m3fn", 2.01, True),
])  # fmt: skip
def test_an_element_is_off_by_more_than_32_round_offs(dtype, size, is_one):
    one = case("linear", [ones(9)], (*ones(64, size), dtype), input_error=0.0)
    assert RULE.applies(one) == is_one


@pytest.mark.parametrize("arrived, size, is_one", [
    (0.25, 0.51, True), (0.25, 0.5, False), (0.125, 0.26, True), (0.0, 0.26, True), (4.0, 0.26, False),
])  # fmt: skip
def test_an_element_that_came_in_as_far_off_was_lost_before(arrived, size, is_one):
    """It may double."""
    read = (2 * ones(64, arrived)[0], 2 * ones(64)[1])
    assert RULE.applies(lost(size, read=[ones(9), read])) == is_one
    assert RULE.applies(lost(size, read=[(read[0][:9], read[1][:9])])) == (size > 0.25)  # another number of elements
    zeros = (read[0] - 2, np.zeros(64))
    assert RULE.applies(lost(size, read=[zeros])) == (size > 0.25)
    unknown = lost(size, read=[read])
    unknown.node.inputs[0] = without_values(unknown.node.inputs[0])
    assert RULE.applies(unknown) == (size > 0.25)


@pytest.mark.parametrize("size, is_one", [(2.0, False), (2.01, True)])
def test_an_ill_conditioned_operator_enlarges_what_came_in(size, is_one):
    """exp of 4 enlarges a relative error 4 times, and that of an element too."""
    four = (np.full(64, 4.0), np.full(64, 4.0))
    assert RULE.applies(lost(size, op="exp", read=[four], input_error=2.0**-6)) == is_one
    off = (4.0 * ones(64, 0.25)[0], four[1])
    assert RULE.applies(lost(size, op="exp", read=[off])) == is_one


@pytest.mark.parametrize("op, path, applies", [
    ("linear", "", True), ("index_select", "", False), ("Block", "Module.block", False),
    ("Linear", "Module.fc", True),
])  # fmt: skip
def test_rows_that_were_chosen_otherwise_are_not_lost(op, path, applies):
    one = lost(0.5, op=op, path=path)
    assert RULE.applies(one) and RULE.applies(replace(one, changed_choice_share=0.1)) == applies


def test_only_measured_numbers_are_lost():
    one = lost(0.5)
    for fields in ({"error": None}, {"metric": "noise"}):
        assert not RULE.applies(replace(one, finding=one.finding._replace(**fields)))
    assert not RULE.applies(replace(one, finding=without_values(one.finding)))
    assert not RULE.applies(case("linear", [ones(9)], (np.ones(64), np.zeros(64), "float16"), input_error=0.0))
    assert not RULE.applies(case("topk", [ones(9)], (*ones(64, 3.0), "int64"), input_error=0.0))
    assert not RULE.applies(case("relu", [ones(9)], (*ones(64, 3.0), "float16"), phase="backward", input_error=0.0))


def test_a_sum_that_cancels_loses_nothing():
    terms = (np.resize([1.0, -1.0], (64, 64)),) * 2
    for size, applies in ((2.0**-7, False), (1.0, True)):
        wrote = (size * ones(64, 0.5)[0], size * ones(64)[1], "float16")
        one = case("sum", [terms], wrote, input_error=0.0)
        assert one.cancels == (not applies) and RULE.applies(one) == applies
