"""Sums of terms that nearly cancel."""

from __future__ import annotations

import numpy as np

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, noisy = drawn(__name__)

X = normal(64, 64)
CLOSE = X + normal(64, 64, size=1e-4)
LEFT = X - CLOSE
READ = [(X, X), (CLOSE, CLOSE)]
GRADIENT = normal(64, 64)
ZERO = normal(64, size=1e-9)


class TestCancellation(RuleContract):
    name = "cancellation"
    fires = {
        **spelled("add", lambda op: case(op, READ, (LEFT + normal(64, 64, size=1e-7), LEFT))),
        **spelled("sum", lambda op: case(op, READ[:1], (ZERO + normal(64, size=1e-7), ZERO))),
        "of nothing at all": case("sub", [(X, X), (X, X)], (normal(64, 64, size=1e-8), np.zeros((64, 64)))),
        "the gradient of a bias": case(
            "linear", [(GRADIENT, GRADIENT)], (normal(64, size=1e-7), ZERO), phase="backward"
        ),
        "of a graph": case("MatMulV2Grad", [(GRADIENT, GRADIENT)], (normal(64, size=1e-7), ZERO), phase=""),
    }
    silent = {
        "more than rounding": case("sub", READ, (LEFT + normal(64, 64, size=1e-4), LEFT)),
        "no sum": case("mul", READ, (LEFT + normal(64, 64, size=1e-7), LEFT)),
        "what a graph's gradient of products sums is not what it reads": case(
            "MatMulV2Grad", [(GRADIENT, GRADIENT)], (noisy(X[:8], 1e-3), X[:8]), phase=""
        ),
    }
