"""The limit below the smallest normal number."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, _ = drawn(__name__)

SMALL = normal(32, 32, size=1e-7)


class TestSubnormal(RuleContract):
    name = "subnormal"
    fires = {"float16 gradients": case("linear", [(SMALL, SMALL)], (SMALL, SMALL, "float16"), phase="backward")}
    silent = {
        "bfloat16 reaches as far as float32": case("tanh", [(SMALL, SMALL)], (SMALL, SMALL, "bfloat16")),
        "of ordinary size": case("tanh", [(SMALL, SMALL)], (1e7 * SMALL, 1e7 * SMALL, "float16")),
    }
