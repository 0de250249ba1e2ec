"""How far an earlier step may have moved a parameter."""

import math

import numpy as np
import pytest

from npucmp.localise.parameter_drift import Updates
from tests.localise.rules.craft import case

random = np.random.default_rng(6)
X, W, B = random.standard_normal((8, 16)), random.standard_normal((16, 16)), random.standard_normal(16)
ROUND_OFF = 2.0**-24


def layer(bias, read=X, error=0.0):
    """A linear layer with that bias on both sides, or with an error of all its elements in the target's."""
    return case("linear", [(read, X), (W, W), ((1 + error) * bias, bias)], (X @ W, X @ W)).node


def bound(before, bias):
    """The bound of the bias in the step after `before`."""
    return Updates([*before.inputs, *before.outputs]).bound(layer(bias).inputs[2])


NOISY = X * (1 + 1e-6 * random.standard_normal(X.shape))
STEPS = [1e-3, 1e-2, 0.3]


@pytest.mark.parametrize("step", STEPS)
def test_a_bias_without_a_recorded_gradient_moved_by_some_steps_at_most(step):
    """Its gradient may be noise, as errors are known: 8 steps by the golden's figures, and no more than a half."""
    length = math.sqrt(16) * step / np.linalg.norm(B + step)
    sums = abs(np.linalg.norm(B + step) - np.linalg.norm(B)), 4 * step
    expected = min(0.5, 8 * length * max(step, *sums) / step)
    assert bound(layer(B, NOISY), B + step) == pytest.approx(expected)
    assert bound(layer(B, NOISY, 1e-7), B + step) == pytest.approx(expected + 2 * 1e-7, rel=1e-6)


def test_a_bias_whose_step_is_unknown_moved_by_a_half_at_most():
    """Here it has another number of elements, so that its figures show no step."""
    assert bound(layer(B, NOISY), np.resize(B, 17)) == 0.5


def test_a_parameter_that_stayed_did_not_move_apart():
    """Its error may be twice that of the step before."""
    assert bound(layer(B, NOISY), B) == 0.0
    assert bound(layer(B, NOISY, 1e-7), B) == pytest.approx(2 * 1e-7)


def test_only_a_step_with_exact_gradients_moves_a_parameter_by_no_more_than_a_rounding():
    """Without any gradient, the one of a bias may be noise."""
    own = layer(B)
    exact = case("linear", [(X @ W, X @ W)], (X, X), phase="backward", name="linear.0").node
    findings = [*own.inputs, *own.outputs]
    behind = [one._replace(measurement=one.measurement._replace(pair=one.pair._replace(order=1)))
              for one in (*exact.inputs, *exact.outputs)]  # fmt: skip
    now = layer(B + 1.0).inputs[2]
    assert Updates(findings).bound(now) == 0.5
    assert Updates([*findings, *behind]).bound(now) == pytest.approx(ROUND_OFF)


def test_a_parameter_that_the_earlier_step_does_not_have_has_no_bound():
    before = case("linear", [(NOISY, X), (W, W)], (X @ W, X @ W)).node
    assert bound(before, B + 0.1) == 0.0
