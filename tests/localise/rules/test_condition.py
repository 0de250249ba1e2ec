"""Ill-conditioned operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npucmp.localise.conditioning import scale_of
from npucmp.model import Finding, Measurement, Operator, Pair, Statistics, TensorRef, Verdict
from tests.localise.rules.craft import RuleContract, case, drawn, rule, spelled

RULE = rule("condition")

normal, noisy = drawn(__name__)

X = normal(64, 64, size=10)
READ = [(noisy(X, 1e-6), X)]
WIDE = 3000 + normal(64, 64)
SMOOTH = normal(64, 64)


def after(function, of):
    return function(of[0][0]), function(of[0][1])


def standardised(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


OFFSET = [(noisy(WIDE, 1e-6), WIDE)]
NEAR_ZERO = [(noisy(0.01 + abs(SMOOTH), 1e-6), 0.01 + abs(SMOOTH))]


class TestCondition(RuleContract):
    name = "condition"
    fires = {
        **spelled("exp", lambda op: case(op, READ, (noisy(np.exp(X), 4e-5), np.exp(X)))),
        **spelled("softmax", lambda op: case(op, READ, (noisy(softmax(X), 4e-5), softmax(X)))),
        **spelled("layer_norm", lambda op: case(op, OFFSET, after(standardised, OFFSET))),
        **spelled("div", lambda op: case(op, NEAR_ZERO, (noisy(1 / NEAR_ZERO[0][1], 1e-5), 1 / NEAR_ZERO[0][1]))),
        "a power": case("pow", READ, (noisy(X**8, 2e-5), X**8), arguments=({"input:1": 8}, {"input:1": 8})),
    }
    silent = {
        **{
            f"{one}, whose slope is at most about 1": case(one, READ, (noisy(wrote, 2e-5), wrote))
            for one, wrote in (("silu", X / (1 + np.exp(-X))), ("softplus", np.logaddexp(0, X)))
        },
        "more than that": case("exp", READ, (noisy(np.exp(X), 1e-2), np.exp(X))),
        "well-conditioned": case("tanh", READ, (noisy(SMOOTH, 4e-5), SMOOTH)),
        "an argument no float holds": case(
            "pow", READ, (noisy(X, 1e-4), X), arguments=({"e": 10**400}, {"e": 10**400})
        ),
        "nothing came in": case("exp", [(X, X)], (noisy(np.exp(X), 1e-6), np.exp(X))),
    }


def test_a_recorded_mean_beyond_all_bounds_is_no_traceback():
    """A dump of statistics may claim any number."""
    tensor = TensorRef("output:0", "float32", (4,), statistics=Statistics(1e300, 1e300, 1e300, 1e300))
    operator = Operator("tanh.0", "tanh", "tanh", "forward", 0, (tensor,))
    pair = Pair(0, "output:0", operator, operator, tensor, tensor, "name", 1.0)
    assert scale_of(Finding(Measurement(pair), Verdict.UNKNOWN, "")).largest == 1e300


@pytest.mark.parametrize("largest, times", [(4.0, 12.0), (1.5, 4.5), (1.0, None), (0.5, None)])
def test_three_times_the_condition_number_explains_an_error(largest, times):
    """That of exp is the largest magnitude that it reads."""
    read = np.array([largest, -largest / 2])
    one = case("exp", [(read, read)], (np.exp(read), np.exp(read)), input_error=0.125)
    assert RULE.applies(one) == (times is not None) and (times is None or RULE.bound(one) == 0.125 * times)
    assert not RULE.applies(replace(one, input_error=0.0)) and not RULE.applies(replace(one, node=None))
    assert not RULE.applies(case("exp", [(read, read)], (read, read, "int64"), input_error=0.125))
