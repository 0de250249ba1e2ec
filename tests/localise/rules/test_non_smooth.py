"""Gradients of choices."""

from __future__ import annotations

import numpy as np

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
READ = [(noisy(X, 1e-4), X)]
FLIPPED = np.where(np.arange(Y.size).reshape(Y.shape) % 1000 == 7, 0.0, Y)
ONE = np.where(np.arange(Y.size).reshape(Y.shape) == 7, 0.0, Y)
UNEVEN = np.where(np.arange(Y.size).reshape(Y.shape) % 5 == 0, 1e-4 * Y, Y)
MANY = np.where(np.arange(Y.size).reshape(Y.shape) % 5 == 0, 0.0, np.where(ONE == 0, 0.0, UNEVEN))
SPREAD = noisy(Y, 0.03)
SMALL = normal(4, 4)
TWO = SMALL.copy()
TWO[0, 0] = 0


class TestNonSmooth(RuleContract):
    name = "non_smooth"
    fires = {
        **spelled("relu", lambda op: case(op, READ, (FLIPPED, Y), phase="backward")),
        "of a graph, by its type": case("ReluGrad", READ, (FLIPPED, Y), phase=""),
        "of max-pooling": case("MaxPoolGradWithArgmax", READ, (FLIPPED, Y), phase=""),
        "a module of which nobody knows the inside": case(
            "Block", READ, (SPREAD, Y), phase="backward", path="Module.block"
        ),
        "errors of what the forward read": case(
            "relu", [(noisy(X, 1e-5), X)], (FLIPPED, Y), [("input:0", (noisy(X, 1e-4), X))], phase="backward"
        ),
        "one element, where nothing was recorded of what it reads": case(
            "MaxPoolGrad", [], (ONE, Y), phase="", input_error=1e-7
        ),
        "one element of few": case("relu", [(noisy(SMALL, 1e-5), SMALL)], (TWO, SMALL), phase="backward"),
    }
    silent = {
        **spelled("relu", lambda op: case(op, READ, (SPREAD, Y), phase="backward")),
        "forward": case("relu", READ, (FLIPPED, Y)),
        "more than that": case("relu", READ, (noisy(Y, 0.3), Y), phase="backward"),
        "smooth": case("tanh", READ, (FLIPPED, Y), phase="backward"),
        "a smooth layer": case("Linear", READ, (FLIPPED, Y), phase="backward", path="Module.fc"),
        "one factor, where nothing was recorded of what it reads": case(
            "MaxPoolGrad", [], (1.01 * FLIPPED, FLIPPED), phase="", input_error=1e-7
        ),
        "errors of the gradient alone, which flip nothing": case(
            "relu",
            [(noisy(X, 1e-3), X)],
            (FLIPPED, Y),
            [("input:0", (noisy(X, 1e-7), X))],
            phase="backward",
            round_off=1e-8,
        ),
        "many small elements beside one that flipped": case("relu", READ, (MANY, UNEVEN), phase="backward"),
        "nothing came in": case("relu", [(X, X)], (FLIPPED, Y), phase="backward"),
    }
