"""Arguments that differ."""

from __future__ import annotations

from tests.localise.rules.craft import RuleContract, case, drawn

normal, noisy = drawn(__name__)

X, Y = normal(64, 64), normal(64, 64)
READ = [(X, X, "bfloat16")]
EPS = ({"eps": 1e-3}, {"eps": 1e-5})


class TestArguments(RuleContract):
    name = "arguments"
    fires = {
        "below the limit": case("layer_norm", READ, (noisy(Y, 6e-3), Y, "bfloat16"), arguments=EPS, input_error=1e-3)
    }
    silent = {
        "the same": case("layer_norm", READ, (noisy(Y, 6e-3), Y, "bfloat16"), arguments=EPS[:1] * 2, input_error=1e-3),
        "without effect": case("layer_norm", READ, (noisy(Y, 1e-3), Y, "bfloat16"), arguments=EPS, input_error=1e-3),
        "of devices": case("to", READ, (noisy(Y, 6e-3), Y, "bfloat16"), input_error=1e-3,
                           arguments=({"device": "npu:0"}, {"device": "cuda:0"})),
    }  # fmt: skip
