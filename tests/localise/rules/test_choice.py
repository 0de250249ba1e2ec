"""Masks and indices."""

from __future__ import annotations

import numpy as np

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X = normal(64, 64)
INDEX = np.arange(4096)
FEW, MANY = INDEX.copy(), INDEX[::-1].copy()
FEW[[3, 4, 5]] = FEW[[5, 3, 4]]
TWO = INDEX.copy()
TWO[[3, 4]] = TWO[[4, 3]]


class TestChoice(RuleContract):
    name = "choice"
    fires = {
        "near ties": case("argsort", [(noisy(X, 1e-6), X)], (FEW, INDEX, "int64")),
        "any, under errors of 16 bits": case("topk", [(noisy(X, 1e-3), X)], (MANY, INDEX, "int64")),
        "a mask": case("gt", [(noisy(X, 1e-3), X)], (FEW > 4, INDEX > 4, "bool")),
    }
    silent = {
        "too many": case("argsort", [(noisy(X, 1e-6), X)], (MANY, INDEX, "int64")),
        "nothing came in": case("argsort", [(X, X)], (FEW, INDEX, "int64")),
        "nothing came in, and two elements differ": case("argsort", [(X, X)], (TWO, INDEX, "int64")),
        "numbers": case("sort", [(noisy(X, 1e-3), X)], (noisy(X, 1e-3), X)),
    }
