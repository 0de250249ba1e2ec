"""The errors that stand for one that nothing recorded."""

import math

import numpy as np
import pytest

from npucmp.localise.seen_errors import SeenErrors
from tests.localise.rules.craft import case, drawn

normal, noisy = drawn(__name__)
X, Y, BIAS = normal(8, 16), normal(16, 8), normal(128)


def written(values, error, phase="backward"):
    return case("linear", [(noisy(X, 1e-7), X)], (noisy(values, error), values), phase=phase)


@pytest.mark.parametrize(
    "addend, phase, is_read, found",
    [
        (Y, "backward", False, True),  # as many elements, however they are arranged
        (Y, "backward", True, False),  # the operator that reads it passes its error on
        (Y, "forward", False, False),
        (BIAS, "backward", False, False),  # the gradient of a bias is no term of another
        (normal(4, 4), "backward", False, False),
    ],
)
def test_a_gradient_that_nothing_recorded_is_a_sum_of_gradients_that_nothing_reads(addend, phase, is_read, found):
    seen = SeenErrors(lambda finding: is_read)
    for values, error, way in [(addend, 1e-3, phase), *[(X, 1e-7, "backward")] * 40]:
        one = written(values, error, way)
        seen.learn(one.node, one.node.inputs)
    asked = case("tanh", [], (X, X), slot="input:0", phase="backward").finding
    assert (seen.usual(asked) > 1e-4) is found
    assert seen.usual(case("tanh", [], (X, X), phase="backward").finding) < 1e-6  # of an output


ZERO = np.zeros(1)


@pytest.mark.parametrize(
    "left, value, golden, found",
    [
        (ZERO, 5e-6, ZERO, math.inf),  # not larger than a rest that the golden has as zero, within its factor
        (ZERO, 5e-3, ZERO, 0.0),
        (ZERO, 0.0, ZERO, 0.0),  # it has no error to explain
        (ZERO, 5e-6, np.ones(1), 0.0),
        (np.full(1, 1e-3), 5e-6, ZERO, 1e-3),  # this rest has a relative error
    ],
)
def test_a_rest_of_a_sum_that_is_zero_in_the_golden_has_no_relative_error(left, value, golden, found):
    seen = SeenErrors()
    seen.learn_left(case("sub", [], (left + 1e-6, left)).finding)
    asked = case("mul", [], (np.full(1, value), golden), slot="input:0").finding
    assert seen.usual(asked) == pytest.approx(found, rel=1e-6)
