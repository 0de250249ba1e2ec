"""Parameters that both runs were given in one 16-bit type."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

Y = normal(64, 64)
NEAREST = Y.astype(ml_dtypes.bfloat16).astype(np.float64)
DOWN = np.where(np.abs(NEAREST) > np.abs(Y), NEAREST * (1 - 2.0**-8), NEAREST)  # about as rounded toward zero
BFLOAT16 = ("bfloat16",)


def parameter(target, golden=Y, dtypes=BFLOAT16, slot="param:weight", **more):
    return case("linear", wrote=(target, golden, *dtypes), slot=slot, node=False, input_error=0.0, **more)


class TestGiven(RuleContract):
    name = "given"
    fires = {
        "all scaled": parameter(0.9857 * Y),
        "noise": parameter(noisy(Y, 0.012)),
        "float16": parameter(noisy(Y, 0.002), dtypes=("float16",)),
        "a weight by its place": parameter(0.98 * Y, slot="input:1"),
    }
    silent = {
        "the same": parameter(Y),
        "rounded toward zero on one side": parameter(DOWN, NEAREST),
        "float32, which has a limit of its own": parameter(0.9857 * Y, dtypes=("float32",)),
        "another type on the other side": parameter(0.9857 * Y, dtypes=("bfloat16", "float32")),
        "a step has updated it": parameter(0.9857 * Y, inherited=1e-3),
        "what an operator reads beside it": parameter(0.9857 * Y, slot="input:0"),
        "an output": case("linear", [(Y, Y, "bfloat16")], (0.9857 * Y, Y, "bfloat16")),
    }
