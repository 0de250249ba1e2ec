"""Growth of an error that came in."""

from __future__ import annotations

import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule

RULE = rule("growth")

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
READ = [(noisy(X, 1e-4), X)]


class TestGrowth(RuleContract):
    name = "growth"
    fires = {
        "handed on": case("tanh", READ, (noisy(Y, 1e-4), Y)),
        "three times what agrees, and rounding": case(
            "tanh", READ, (noisy(Y, 4.4e-4), Y), round_off=2e-5, inputs_agree=True
        ),
        "seven times": case("tanh", READ, (noisy(Y, 7e-4), Y)),
        "bigger before": case("tanh", READ, (noisy(Y, 0.1), Y), input_error=0.5),
        "an infinite one": case("tanh", READ, (noisy(Y, 0.1), Y), input_error=float("inf")),
    }
    silent = {
        "nine times": case("tanh", READ, (noisy(Y, 9e-4), Y)),
        "seven times what agrees": case("tanh", READ, (noisy(Y, 7e-4), Y), round_off=2e-5, inputs_agree=True),
        "from nothing": case("tanh", [(X, X)], (noisy(Y, 1e-6), Y)),
    }


@pytest.mark.parametrize("dtype, came, applies", [
    ("float32", 0.125, True), ("float32", 0.0, True), ("int64", 0.125, False), ("int64", 0.0, True),
])  # fmt: skip
def test_an_error_grows_by_eight_unless_it_is_a_choice(dtype, came, applies):
    one = case("tanh", [], (*ones(9, 1.0), dtype), input_error=came)
    assert RULE.applies(one) == applies and RULE.bound(one) == 8 * came
