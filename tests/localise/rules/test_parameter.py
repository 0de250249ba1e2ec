"""Parameters that differ."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

W = normal(64, 64)
ALONE = {"node": False, "slot": "param:weight", "round_off": 2.0**-8}


class TestParameter(RuleContract):
    name = "parameter"
    fires = {
        "at the first step": case("Linear", [], (noisy(W, 1e-3), W), **ALONE),
        "more than the others": case("Linear", [], (noisy(W, 1e-2), W), usual=1e-4, **ALONE),
        "of a function, by its place": case("linear", [], (noisy(W, 1e-3), W), **{**ALONE, "slot": "input:1"}),
    }
    silent = {
        "as the others": case("Linear", [], (noisy(W, 1e-3), W), usual=1e-3, **ALONE),
        "rounded to its type": case("Linear", [], (noisy(W, 1e-3), W, "bfloat16"), **ALONE),
        "an input": case("Linear", [], (noisy(W, 1e-3), W), **{**ALONE, "slot": "input:0"}),
    }
