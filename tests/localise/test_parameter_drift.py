"""How far an earlier step may have moved a parameter."""

import math

import numpy as np
import pytest

from npucmp.localise.parameter_drift import Updates
from tests.localise.rules.craft import case
from tests.localise.step_craft import Op, Tensor, layer, step

random = np.random.default_rng(6)
X, W, B = random.standard_normal((8, 16)), random.standard_normal((16, 16)), random.standard_normal(16)


def biased(bias, read=X, error=0.0):
    """A linear layer with that bias on both sides, or with an error of all its elements in the target's."""
    return case("linear", [(read, X), (W, W), ((1 + error) * bias, bias)], (X @ W, X @ W)).node


def bound(before, bias):
    """The bound of the bias in the step after `before`."""
    return Updates([*before.inputs, *before.outputs]).bound(biased(bias).inputs[2])


# What noise does not cause


@pytest.mark.parametrize("elements, is_scaled", [(2, False), (3, False), (4, False), (8, True)])
def test_few_elements_may_lie_along_the_values_by_chance(elements, is_scaled):
    """A random direction has a cosine above √(1 - 0.001^(2/(n-1))) once in a thousand: 0.95 of 4, 0.93 of 8 elements
    and nine tenths are below 0.94."""
    share = 0.94 if elements > 2 else 1.0  # two elements are too few in any case
    shape = (elements, 1)
    others = [Op("mul", (Tensor("input:0", (3, 3), 0.04),)) for _ in range(30)]
    updates = Updates(step(*layer(0, Tensor("", shape), gradients=((shape, 1.0),)), *others))
    found = updates.bound(step(*layer(0, Tensor("", shape, 0.1, high=2.25, gain=share * 0.1)))[1])
    chance = math.sqrt(1 - 0.001 ** (2 / (elements - 1))) if elements > 1 else 1.0
    assert (share > chance) is is_scaled or elements == 2
    assert found == pytest.approx(0.5 * 0.2 if is_scaled else 0.5)
