"""Equal bits in, and more than roundings apart."""

from __future__ import annotations

import numpy as np

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
SAME = [(X, X, "bfloat16")]
OFF = noisy(Y, 0.015)
U = 2.0**-8


def rounded(y, share, toward_zero=False):
    """y with a share of its elements one unit in the last place away: here and there, or all toward zero."""
    places = np.arange(y.size).reshape(y.shape) % 100 < 100 * share
    sign = -1.0 if toward_zero else np.where(np.arange(y.size).reshape(y.shape) % 2, 1.0, -1.0)
    return np.where(places, y * (1 + 2 * U * sign * 0.72), y)


class TestEqualBits(RuleContract):
    name = "equal_bits"
    fires = {
        "bfloat16": case("linear", SAME, (OFF, Y, "bfloat16")),
        "half of the elements": case("softmax", SAME, (rounded(Y, 0.45), Y, "bfloat16")),
        "truncation": case("linear", SAME, (rounded(Y, 0.3, toward_zero=True), Y, "bfloat16")),
        "an inserted cast": case("tanh", SAME, (noisy(Y, 0.02), Y, "bfloat16")),
    }
    silent = {
        "roundings": case("linear", SAME, (rounded(Y, 0.15), Y, "bfloat16")),
        "a module of which nobody knows the inside": case(
            "Block", SAME, (rounded(Y, 0.45), Y, "bfloat16"), path="Module.block"
        ),
        "an error came in": case("linear", [(noisy(X, 1e-2), X, "bfloat16")], (OFF, Y, "bfloat16")),
        "float32 sums in itself": case("linear", [(X, X)], (noisy(Y, 3e-7), Y)),
        "two types": case("linear", SAME, (OFF, Y, "bfloat16", "float32")),
        "it reads nothing": case("rand", [], (OFF, Y, "bfloat16")),
    }
