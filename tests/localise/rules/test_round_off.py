"""The limit by rounding in the working precision."""

from __future__ import annotations

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn

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
