"""Equal bits in, and more than roundings apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.model.relation import SUM, Relation
from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule, without_values

RULE = rule("equal_bits")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
SAME = [(X, X, "bfloat16")]
OFF = noisy(Y, 0.015)
U = 2.0**-8


def rounded(y, share, toward_zero=False):
    """y with a share of its elements one unit in the last place away: here and there, or all toward zero."""
    places = np.arange(y.size).reshape(y.shape) % 100 < 100 * share
    sign = -1.0 if toward_zero else np.where(np.arange(y.size).reshape(y.shape) % 2, 1.0, -1.0)
    return np.where(places, y * (1 + 2 * U * sign * 0.72), y)


class TestEqualBits(RuleContract):
    name = "equal_bits"
    fires = {
        "bfloat16": case("linear", SAME, (OFF, Y, "bfloat16")),
        "half of the elements": case("softmax", SAME, (rounded(Y, 0.45), Y, "bfloat16")),
        "truncation": case("linear", SAME, (rounded(Y, 0.3, toward_zero=True), Y, "bfloat16")),
        "an inserted cast": case("tanh", SAME, (noisy(Y, 0.02), Y, "bfloat16")),
    }
    silent = {
        "roundings": case("linear", SAME, (rounded(Y, 0.15), Y, "bfloat16")),
        "a module of which nobody knows the inside": case(
            "Block", SAME, (rounded(Y, 0.45), Y, "bfloat16"), path="Module.block"
        ),
        "an error came in": case("linear", [(noisy(X, 1e-2), X, "bfloat16")], (OFF, Y, "bfloat16")),
        "float32 sums in itself": case("linear", [(X, X)], (noisy(Y, 3e-7), Y)),
        "two types": case("linear", SAME, (OFF, Y, "bfloat16", "float32")),
        "it reads nothing": case("rand", [], (OFF, Y, "bfloat16")),
    }


def spread(count, off, size, bias=False):
    """Ones, some of which are off by so many round-offs, of either sign or of one."""
    return ones(count, *[size * U * (1 if bias or at % 2 else -1) for at in range(off)])


def accused(wrote, types=("bfloat16",), **more):
    return RULE.applies(case(more.pop("op", "linear"), SAME, (*wrote, *types), **more))


@pytest.mark.parametrize("count, off, size, is_one", [
    (64, 16, 3, False), (64, 16, 3.01, True),  # an error of 1.5 round-offs
    (160, 64, 1, False), (160, 66, 1, True),  # two fifths of the elements
    (63, 63, 1.9, False), (63, 63, 2.0, False), (63, 63, 2.01, True), (64, 64, 1.0, True),  # few elements
])  # fmt: skip
def test_roundings_are_few_and_small(count, off, size, is_one):
    wrote = spread(count, off, size)
    assert accused(wrote) == is_one
    golden = wrote[1]
    assert not accused((golden, golden))
    assert accused(wrote, ("bfloat16", "float32"), op="linear") is False
    assert not accused(wrote, input_error=1e-9)


@pytest.mark.parametrize("count, off, size, is_one", [
    (1024, 256, 1.0, False), (1024, 256, 1.01, True),  # a quarter of a round-off in common
    (252, 63, 1.01, False), (260, 65, 1.01, True),  # eight standard deviations of the error
])  # fmt: skip
def test_roundings_to_one_side_are_no_chance(count, off, size, is_one):
    assert accused(spread(count, off, size, bias=True)) == is_one
    assert accused(spread(count, off, -size, bias=True)) == is_one
    assert not accused(spread(count, off, size))


def test_one_large_element_shows_no_factor():
    target, golden = spread(1024, 256, 1.01, bias=True)
    assert accused((target, golden))
    for largest, is_one in ((18.0, True), (19.0, False)):
        wrote = (np.append(target, largest * 1.004), np.append(golden, largest))
        assert accused(wrote) == is_one


@pytest.mark.parametrize("off, is_one", [(1.99, False), (2.01, True)])
def test_modules_and_tensors_without_values_have_two_round_offs(off, is_one):
    wrote = spread(64, 64, off)
    assert accused(wrote, op="Block", path="Module.block") == is_one
    one = case("linear", SAME, (*wrote, "bfloat16"))
    assert RULE.applies(replace(one, finding=without_values(one.finding))) == is_one
    assert not accused(wrote, op="Block", path="Module.block", changed_choice_share=0.1)
    assert accused(wrote, changed_choice_share=0.1)


@pytest.mark.parametrize("types, is_one", [
    (("bfloat16", "float32"), False), (("float32", "bfloat16"), False), (("float32",), False),
    (("strange",), False),
    (("float16",), True), (("bfloat16",), True), (("int32",), False),
])  # fmt: skip
def test_outputs_of_one_short_type_are_judged(types, is_one):
    assert accused(spread(64, 64, 8), types, round_off=U) == is_one


@pytest.mark.parametrize("off, is_one", [(2.01, True), (1.99, False)])
@pytest.mark.parametrize("types", [("bfloat16", "float32"), ("float32", "bfloat16"), ("bfloat16", "strange")])
def test_an_inserted_cast_rounds_once_from_any_type(types, off, is_one):
    one = case("cast", SAME, (*spread(64, 64, off), *types))
    inserted = one.pair.operator._replace(inserted=True)
    node = replace(one.node, pair=one.pair._replace(target_op=inserted, golden_op=inserted))
    assert not RULE.applies(one) and RULE.applies(replace(one, node=node)) == is_one


@pytest.mark.parametrize("off, is_one", [(6.0, False), (6.01, True)])
def test_a_sum_over_ranks_rounds_each_term(off, is_one):
    one = case("linear", SAME, (*spread(64, 64, off), "bfloat16"))
    relation = Relation((0, 1), (SUM,), rounding=4.0)
    pair = one.pair._replace(target=one.pair.target._replace(relation=relation))
    finding = one.finding._replace(measurement=one.finding.measurement._replace(pair=pair))
    assert RULE.applies(replace(one, finding=finding)) == is_one


def test_equal_inputs_of_an_operator_are_known():
    wrote = (*spread(64, 64, 8), "bfloat16")
    one = case("linear", SAME, wrote)
    assert RULE.applies(one) and not RULE.applies(replace(one, node=None))
    assert not RULE.applies(case("linear", [], wrote))
    for fields in ({"error": None}, {"metric": "noise"}):
        assert not RULE.applies(replace(one, finding=one.finding._replace(**fields)))
    for side in ("target", "golden"):
        finding = one.finding._replace(
            measurement=one.finding.measurement._replace(pair=one.pair._replace(**{side: None}))
        )
        assert not RULE.applies(replace(one, finding=finding))
