"""The limit of products whose units keep 11 bits."""

from __future__ import annotations

from npucmp.judge.precision import Precision
from tests.localise.rules.craft import RuleContract, case, drawn, rule

RULE = rule("reduced")

normal, _ = drawn(__name__)

Y = normal(32, 32)


class TestReduced(RuleContract):
    name = "reduced"
    fires = {"HF32": case("linear", [(Y, Y)], (Y, Y), precision=Precision(2.0**-24, reduced=True))}
    silent = {
        "float32": case("linear", [(Y, Y)], (Y, Y)),
        "coarser all the same": case(
            "linear", [(Y, Y)], (Y, Y, "bfloat16"), precision=Precision(2.0**-8, reduced=True)
        ),
    }


def test_products_of_11_bits_have_eight_round_offs_of_11_bits():
    one = TestReduced.fires["HF32"]
    assert RULE.bound(one) == 8 * 2.0**-11 and RULE.applies(one)
    assert "keep 11 bits" in RULE.why
