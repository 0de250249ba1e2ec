"""Sums of terms that nearly cancel."""

from __future__ import annotations

import numpy as np

from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled

RULE = rule("cancellation")

normal, noisy = drawn(__name__)

X = normal(64, 64)
CLOSE = X + normal(64, 64, size=1e-4)
LEFT = X - CLOSE
READ = [(X, X), (CLOSE, CLOSE)]
GRADIENT = normal(64, 64)
ZERO = normal(64, size=1e-9)


SOFT = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
NEAR = 1 + 0.01 * GRADIENT
SPREAD = SOFT * (NEAR - (NEAR * SOFT).sum(-1, keepdims=True))
NORMAL = (X - X.mean(-1, keepdims=True)) / X.std(-1, keepdims=True)
CENTRED = NEAR - NEAR.mean(-1, keepdims=True) - NORMAL * (NEAR * NORMAL).mean(-1, keepdims=True)
SAVED = [("input:0", (X, X)), ("output:0", (SOFT, SOFT))]
WEIGHTS, NUMBER = (("input:1", (one, one)) for one in (np.full(64, 1e4), np.full(1, 1e4)))
IMAGE, ARRIVED, FILTER = normal(4, 8, 16, 16), normal(4, 8, 16, 16), normal(8, 8, 3, 3)
OF_FILTER = 20.0 * FILTER  # of 1024 terms that would sum up to 32
CONVOLVED = [("input:0", (IMAGE, IMAGE)), ("input:1", (FILTER, FILTER))]


class TestCancellation(RuleContract):
    name = "cancellation"
    fires = {
        **spelled("add", lambda op: case(op, READ, (LEFT + normal(64, 64, size=1e-7), LEFT))),
        **spelled("sum", lambda op: case(op, READ[:1], (ZERO + normal(64, size=1e-7), ZERO))),
        "of nothing at all": case("sub", [(X, X), (X, X)], (normal(64, 64, size=1e-8), np.zeros((64, 64)))),
        "the gradient of a bias": case(
            "linear", [(GRADIENT, GRADIENT)], (normal(64, size=1e-7), ZERO), phase="backward"
        ),
        **spelled(
            "softmax",
            lambda op: case(op, [(NEAR, NEAR)], (SPREAD + 1e-7 * SOFT * X, SPREAD), SAVED, phase="backward"),
        ),
        **spelled(
            "layer_norm",
            lambda op: case(op, [(NEAR, NEAR)], (CENTRED + 1e-7 * X, CENTRED), SAVED[:1], phase="backward"),
        ),
        "of a norm with large weights": case(
            "layer_norm", [(NEAR, NEAR)], (CENTRED + 1e-4 * X, CENTRED), [*SAVED[:1], WEIGHTS], phase="backward"
        ),
        "a filter, which sums over all positions": case(
            "conv2d",
            [(ARRIVED, ARRIVED)],
            (noisy(OF_FILTER, 2e-6), OF_FILTER),
            CONVOLVED,
            phase="backward",
            input_error=1.2e-7,
            slot="output:1",
        ),
        "of a graph": case("MatMulV2Grad", [(GRADIENT, GRADIENT)], (normal(64, size=1e-7), ZERO), phase=""),
    }
    silent = {
        "of a norm without weights": case(
            "layer_norm", [(NEAR, NEAR)], (CENTRED + 1e-4 * X, CENTRED), SAVED[:1], phase="backward"
        ),
        "of a norm that reads a large number": case(
            "layer_norm", [(NEAR, NEAR)], (CENTRED + 1e-4 * X, CENTRED), [*SAVED[:1], NUMBER], phase="backward"
        ),
        "more than rounding": case("sub", READ, (LEFT + normal(64, 64, size=1e-4), LEFT)),
        "a gradient of softmax of which much is left": case(
            "softmax", [(GRADIENT, GRADIENT)], (noisy(SOFT * GRADIENT, 1e-3), SOFT * GRADIENT), SAVED, phase="backward"
        ),
        "a gradient of softmax that is off by more": case(
            "softmax", [(NEAR, NEAR)], (1.01 * SPREAD, SPREAD), SAVED, phase="backward"
        ),
        "a filter that is off by more": case(
            "conv2d",
            [(ARRIVED, ARRIVED)],
            (noisy(OF_FILTER, 1e-5), OF_FILTER),
            CONVOLVED,
            phase="backward",
            input_error=1.2e-7,
            slot="output:1",
        ),
        "no sum": case("mul", READ, (LEFT + normal(64, 64, size=1e-7), LEFT)),
        "what a graph's gradient of products sums is not what it reads": case(
            "MatMulV2Grad", [(GRADIENT, GRADIENT)], (noisy(X[:8], 1e-3), X[:8]), phase=""
        ),
    }


def test_a_sum_that_is_no_choice_has_the_rounding_of_its_terms():
    terms = (np.resize([1.0, -1.0], 64),) * 2
    for dtype, applies in (("float32", True), ("int64", False)):
        one = case("sum", [terms], (np.array([0.5]), np.array([0.25]), dtype), input_error=1e-3)
        assert RULE.applies(one) == applies and RULE.bound(one) == one.rounding_of_terms > 0
    assert not RULE.applies(case("sum", [terms], (np.array([9.0]), np.array([8.5])), input_error=1e-3))
