"""The errors that stand for one that nothing recorded."""

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
