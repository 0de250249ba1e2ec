"""Parameters that both runs were given in one 16-bit type."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.localise.rules.craft import RuleContract, case, drawn, ones, rule

RULE = rule("given")

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


U = 2.0**-8


@pytest.mark.parametrize("dtype, u", [("bfloat16", U), ("float16", 2.0**-11), ("float8_e5m2", 2.0**-3)])
@pytest.mark.parametrize("error, applies", [(2.0, False), (2.01, True)])
def test_each_side_rounds_a_parameter_once(dtype, u, error, applies):
    one = parameter(*ones(64, *[error * u] * 64), dtypes=(dtype,))
    assert RULE.applies(one) == applies
    for side in ("target", "golden"):
        pair = one.pair._replace(**{side: None})
        finding = one.finding._replace(measurement=one.finding.measurement._replace(pair=pair))
        assert not RULE.applies(replace(one, finding=finding))
    assert not RULE.applies(replace(one, node=case("linear", [ones(9)], ones(9)).node))


def test_the_words_have_the_error_and_its_limit():
    found = RULE.judged(parameter(*ones(64, *[0.25] * 64)))
    assert (found.verdict.value, found.limit) == ("diverged", 2 * U)
    assert found.because.startswith("rel_l2 2.50e-01") and found.because.endswith(": 7.81e-03")
