"""Parameters that are off by one factor together."""

from __future__ import annotations

import numpy as np
import pytest

import npucmp
from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule
from tests.synthetic import write_run

RULE = rule("common_factor")

normal, noisy = drawn(__name__)
W, B = normal(64, 64), normal(4)


class TestCommonFactor(RuleContract):
    name = "common_factor"
    fields = {"node": False, "round_off": 2.0**-9, "no_producer": True}
    fires = {
        "a weight": case("linear", [], (noisy(1.0003 * W, 1e-3), W), slot="input:1", factor=3e-4, **fields),
        "less than its noise": case("linear", [], (1.0003 * B, B), slot="input:2", factor=3e-4, **fields),
        "an input that may be a weight": case("matmul", [], (1.0003 * W, W), slot="input:1", factor=3e-4, **fields),
    }
    silent = {
        "no factor": case("linear", [], (1.0003 * W, W), slot="input:1", **fields),
        "another sign": case("linear", [], (0.9997 * W, W), slot="input:1", factor=3e-4, **fields),
        "the same bits": case("linear", [], (W, W), slot="input:1", factor=3e-4, **fields),
        "an input with noise": case("matmul", [], (noisy(W, 1e-3), W), slot="input:1", factor=3e-4, **fields),
        "behind a root": case(
            "linear", [], (1.0003 * W, W), slot="input:1", factor=3e-4, **{**fields, "no_producer": False}
        ),
    }


def layers(folder, error=0.0, factors=(1.0,) * 4):
    """Four layers at two steps in float16, whose gradients and, at the second, whose parameters have an error."""
    random = np.random.default_rng(5)
    sign = np.random.default_rng(6)
    for step in range(2):
        operators = {}
        for layer, factor in enumerate(factors):
            x, dy = random.standard_normal((2, 16, 32))
            w = random.standard_normal((32, 32))
            dw = random.standard_normal((32, 32))
            off = w * (1 + (factor - 1) * step) + error * step * w * sign.standard_normal(w.shape)
            gradient = dw + error * sign.standard_normal(dw.shape)
            arrived = dy + error * sign.standard_normal(dy.shape)
            operators[f"Functional.linear.{layer}.forward"] = {"in": [x, off], "out": [x @ w.T]}
            operators[f"Functional.linear.{layer}.backward"] = {"in": [arrived], "out": [dy @ w, gradient]}
        floats = {
            name: {way: [np.asarray(one, np.float16) for one in some] for way, some in tensors.items()}
            for name, tensors in operators.items()
        }
        write_run(folder, floats, step=step)
    return folder


@pytest.mark.parametrize(
    "factors, name",
    [
        ((1.0,) * 4, ""),
        ((1.0003,) * 4, "Functional.linear.0.forward"),
        ((1.0003, 0.9997, 1.0003, 0.9997), ""),
        ((1.0, 1.0003, 1.0, 1.0), ""),
    ],
)
def test_parameters_within_their_bounds_are_evidence_together(tmp_path, factors, name):
    report = npucmp.compare(layers(tmp_path / "target", 1e-3, factors), layers(tmp_path / "golden"))
    assert [root.pair.operator.name for root in report.roots[:1]] == ([name] if name else [])


def scaled(by, beside, slot="input:1", op="linear", count=64, **more):
    """Ones that are off by a factor, and beside it by as much in either direction."""
    off = [by + (beside if at % 2 else -beside) for at in range(count)]
    more = {"node": False, "no_producer": True, "factor": 1e-3, **more}
    return case(op, [], ones(count, *off), slot=slot, **more)


@pytest.mark.parametrize("one, applies", [
    (scaled(1e-6, 0.5), True), (scaled(-1e-6, 0.5), False), (scaled(1e-6, 0.5, factor=-1e-3), False),
    (scaled(-1e-6, 0.5, factor=-1e-3), True), (scaled(1e-6, 0.5, factor=0.0), False),
    (scaled(1e-6, 0.5, no_producer=False), False), (scaled(1e-6, 0.5, node=True), False),
    (scaled(0.0, 0.0), False),
    # eight deviations of an input
    (scaled(0.25, 0.0, op="matmul", count=64), False), (scaled(0.25, 0.0, op="matmul", count=65), True),
    (scaled(-0.25, 0.0, op="matmul", count=65, factor=-1e-3), True),
    (scaled(0.25, 0.25, op="matmul", count=126), False),
    (scaled(0.25, 0.25, op="matmul", count=130), True),
])  # fmt: skip
def test_a_parameter_has_the_factor_of_all(one, applies):
    assert RULE.applies(one) == applies


@pytest.mark.parametrize("factor, words", [(3e-4, "1 + 3.0e-04"), (-3e-4, "1 - 3.0e-04")])
def test_the_words_have_the_factor(factor, words):
    found = RULE.judged(scaled(factor, 0.0, factor=factor))
    assert found.verdict.value == "diverged" and found.because == f"all parameters are scaled by about {words}"
