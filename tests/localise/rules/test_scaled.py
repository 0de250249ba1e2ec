"""One factor on a whole tensor."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
SAME = [(X, X)]
ROUNDED = [(noisy(X, 4e-3), X, "bfloat16")]


class TestScaled(RuleContract):
    name = "scaled"
    fires = {
        "2 % under bfloat16, which no limit sees": case("layer_norm", ROUNDED, (1.02 * noisy(Y, 3e-3), Y, "bfloat16")),
        "a tensor from nowhere": case(
            "linear", [], (1.02 * Y, Y, "bfloat16"), node=False, no_producer=True, slot="input:0"
        ),
        "float32 beside rounding to float32, where the run works in bfloat16": case(
            "relu", [(noisy(X, 1e-7), X)], (1.0001 * noisy(Y, 1e-7), Y), round_off=2.0**-8
        ),
    }
    silent = {
        "no one factor": case("layer_norm", ROUNDED, (noisy(Y, 0.02), Y, "bfloat16")),
        "one that came in": case("mul", [(1.02 * X, X, "bfloat16")], (1.02 * Y, Y, "bfloat16")),
        "rounding of few": case("mean", ROUNDED, (1.02 * Y[0, :4], Y[0, :4], "bfloat16")),
        "an input that an operator wrote": case("linear", [], (1.02 * Y, Y, "bfloat16"), node=False, slot="input:0"),
        "float32 beside rounding to bfloat16": case(
            "relu", ROUNDED, (1.0001 * noisy(Y, 4e-5), Y, "float32"), round_off=2.0**-8
        ),
        "a tensor from nowhere, by a number that may be of bfloat16": case(
            "linear", [], (1.001 * Y, Y), node=False, no_producer=True, slot="input:0", round_off=2.0**-8
        ),
        "float32, within its rounding": case("mul", SAME, ((1 + 1e-7) * Y, Y)),
    }
