"""The limit behind whole numbers that stand for floats."""

from __future__ import annotations

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn, rule

RULE = rule("quantised")

normal, _ = drawn(__name__)

Y = normal(32, 32)


class TestQuantised(RuleContract):
    name = "quantised"
    fires = {"numbers again": case("linear", [(Y, Y)], (Y, Y), precision=Precision(2.0**-24, quantised=True))}
    silent = {"never": case("linear", [(Y, Y)], (Y, Y))}


def test_half_a_step_of_8_bits_counts_eight_times():
    assert RULE.bound(TestQuantised.fires["numbers again"]) == 8 * 2.0**-8
