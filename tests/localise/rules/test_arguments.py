"""Arguments that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule

RULE = rule("arguments")

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


def differs(error, came, dtype="float32", arguments=EPS, **more):
    return case(
        "layer_norm", [ones(9)], (*ones(64, *[error] * 64), dtype), arguments=arguments, input_error=came, **more
    )


@pytest.mark.parametrize("one, applies", [
    (differs(0.25, 0.125), False), (differs(0.251, 0.125), True), (differs(0.25, 0.0), True),
    (differs(2.0**-8, 0.0, "bfloat16"), False), (differs(1.01 * 2.0**-8, 0.0, "bfloat16"), True),
    (differs(0.25, 0.0, arguments=EPS[:1] * 2), False), (differs(0.25, 0.0, node=False), False),
])  # fmt: skip
def test_an_argument_that_differs_enlarges_an_error_more_than_twice(one, applies):
    """Or makes one that is larger than a rounding."""
    assert RULE.applies(one) == applies
    for side in ("target_op", "golden_op", "target"):
        pair = one.pair._replace(**{side: None})
        finding = one.finding._replace(measurement=one.finding.measurement._replace(pair=pair))
        assert not RULE.applies(replace(one, finding=finding))
    assert not RULE.applies(replace(one, finding=one.finding._replace(error=None)))
