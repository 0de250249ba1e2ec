"""Copies that change."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn, spelled

normal, noisy = drawn(__name__)

X = normal(64, 64)
READ = [(noisy(X, 1e-4), X)]
WORSE = noisy(X, 3e-4)


class TestCopy(RuleContract):
    name = "copy"
    fires = {
        **spelled("clone", lambda op: case(op, READ, (WORSE, X))),
        "into a device's layout": case("TransData", READ, (WORSE.reshape(128, 32), X.reshape(128, 32))),
    }
    silent = {
        "as it is": case("clone", READ, (READ[0][0], X)),
        "computes": case("tanh", READ, (WORSE, X)),
        "a cast rounds": case("Cast", READ, (WORSE, X)),
        "the golden is no copy either": case("Identity", READ, (WORSE, X + 1)),
    }
