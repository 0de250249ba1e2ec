"""Equal bits in, and more than roundings apart."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
SAME = [(X, X, "bfloat16")]
OFF = noisy(Y, 0.015)


class TestEqualBits(RuleContract):
    name = "equal_bits"
    fires = {
        "bfloat16": case("linear", SAME, (OFF, Y, "bfloat16")),
        "an inserted cast": case("tanh", SAME, (noisy(Y, 0.02), Y, "bfloat16")),
    }
    silent = {
        "roundings": case("linear", SAME, (noisy(Y, 3e-3), Y, "bfloat16")),
        "an error came in": case("linear", [(noisy(X, 1e-2), X, "bfloat16")], (OFF, Y, "bfloat16")),
        "float32 sums in itself": case("linear", [(X, X)], (noisy(Y, 3e-7), Y)),
        "two types": case("linear", SAME, (OFF, Y, "bfloat16", "float32")),
        "it reads nothing": case("rand", [], (OFF, Y, "bfloat16")),
    }
