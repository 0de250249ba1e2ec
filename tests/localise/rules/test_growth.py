"""Growth of an error that came in."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
READ = [(noisy(X, 1e-4), X)]


class TestGrowth(RuleContract):
    name = "growth"
    fires = {
        "handed on": case("tanh", READ, (noisy(Y, 1e-4), Y)),
        "seven times": case("tanh", READ, (noisy(Y, 7e-4), Y)),
        "bigger before": case("tanh", READ, (noisy(Y, 0.1), Y), input_error=0.5),
        "an infinite one": case("tanh", READ, (noisy(Y, 0.1), Y), input_error=float("inf")),
    }
    silent = {
        "nine times": case("tanh", READ, (noisy(Y, 9e-4), Y)),
        "from nothing": case("tanh", [(X, X)], (noisy(Y, 1e-6), Y)),
    }
