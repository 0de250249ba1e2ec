"""Which tensors of an operator are parameters and workspaces, by its type and their slots."""

import pytest

from npucmp.model import Operator, Pair, TensorRef
from npucmp.model.roles import is_golden_parameter, is_meaningless, is_output, is_parameter


def pair(op, slot, phase="forward"):
    tensor = TensorRef(slot, "float32", (4,))
    operator = Operator(f"{op}.0", op, op, phase, 0, (tensor,))
    return Pair(0, slot, operator, operator, tensor, tensor)


@pytest.mark.parametrize(
    "op, slot, phase, expected",
    [
        ("linear", "input:0", "forward", False),
        ("linear", "input:1", "forward", True),
        ("linear", "input:2", "forward", True),
        ("linear", "input:weight", "forward", False),
        ("linear", "param:weight", "forward", True),
        ("relu", "param:weight", "forward", True),
        ("linear", "input:1", "backward", False),
        ("batch_norm", "input:1", "forward", True),
        ("native_layer_norm", "input:3", "forward", True),
        ("native_layer_norm", "output:1", "forward", False),  # the mean, at the place of an input
        ("native_layer_norm", "output:2", "forward", False),
    ],
)
def test_a_parameter_is_an_input_at_the_place_of_one(op, slot, phase, expected):
    one = pair(op, slot, phase)
    assert is_parameter(one) is is_golden_parameter(one) is expected
    assert is_output(one) is slot.startswith("output")


def test_the_golden_of_another_slot_is_a_parameter_by_its_own():
    one = pair("linear", "input:0")
    assert is_golden_parameter(one._replace(golden=one.golden._replace(own_slot="input:1")))
    assert not is_golden_parameter(one._replace(golden=None))
    assert not is_golden_parameter(one._replace(golden_op=None))


def test_a_workspace_and_memory_that_was_not_cleared_mean_nothing():
    assert is_meaningless(pair("empty", "output:0")) and not is_meaningless(pair("empty", "input:0"))
    assert not is_meaningless(pair("relu", "output:0"))
