"""The limit by rounding in the working precision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npucmp.judge.precision import Precision
from npucmp.model.relation import SUM, Relation
from tests.localise.rules.craft import RuleContract, case, drawn, rule

RULE = rule("round_off")

normal, _ = drawn(__name__)

Y = normal(32, 32)


class TestRoundOff(RuleContract):
    name = "round_off"
    fires = {
        "float32": case("tanh", [(Y, Y)], (Y, Y)),
        "bfloat16": case("tanh", [(Y, Y)], (Y, Y, "bfloat16")),
        "float32 on paper": case("tanh", [(Y, Y)], (Y, Y), precision=Precision(2.0**-8)),
    }
    silent = {"whole numbers": case("argmax", [(Y, Y)], (Y, Y, "int64"), precision=Precision())}


def test_types_of_few_bits_have_no_limit_that_anything_meets(rulebook):
    for bits in (1, 2, 3):
        one = case("tanh", [(Y, Y)], (Y, Y), precision=Precision(2.0**-bits))
        assert rulebook.limit(one).value == 0.5


def test_it_is_eight_round_offs(rulebook):
    assert rulebook.limit(TestRoundOff.fires["bfloat16"]).value == 8 * 2.0**-8


@pytest.mark.parametrize(
    "rounding, bits, bound", [(None, 8, 8), (4.0, 8, 32), (4.0, 24, 32), (64.0, 8, None), (8.0, 7, None)]
)
def test_a_sum_over_ranks_has_the_rounding_of_its_terms(rounding, bits, bound):
    """Half the size is the most."""
    one = case("tanh", [(Y, Y)], (Y, Y), precision=Precision(2.0**-bits))
    if rounding:
        target = one.pair.target._replace(relation=Relation((0, 1), (SUM,), rounding=rounding))
        pair = one.pair._replace(target=target)
        one = replace(one, finding=one.finding._replace(measurement=one.finding.measurement._replace(pair=pair)))
    assert RULE.bound(one) == (bound * 2.0**-bits if bound else 0.5)


def test_a_tensor_of_the_golden_alone_has_a_limit(rulebook):
    one = case("tanh", [(Y, Y)], (Y, Y), precision=Precision(2.0**-8))
    pair = one.pair._replace(target=None)
    alone = replace(one, finding=one.finding._replace(measurement=one.finding.measurement._replace(pair=pair)))
    assert RULE.applies(alone) and RULE.bound(alone) == 2.0**-5
    assert not RULE.applies(replace(one, precision=Precision()))
