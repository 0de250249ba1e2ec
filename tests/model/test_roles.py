"""Which tensors of an operator are parameters and workspaces, by its type and their slots."""

from npucmp.model import Operator, Pair, TensorRef
from npucmp.model.roles import is_golden_parameter


def pair(op, slot, phase="forward"):
    tensor = TensorRef(slot, "float32", (4,))
    operator = Operator(f"{op}.0", op, op, phase, 0, (tensor,))
    return Pair(0, slot, operator, operator, tensor, tensor)


def test_the_golden_of_another_slot_is_a_parameter_by_its_own():
    one = pair("linear", "input:0")
    assert is_golden_parameter(one._replace(golden=one.golden._replace(own_slot="input:1")))
    assert not is_golden_parameter(one._replace(golden=None))
    assert not is_golden_parameter(one._replace(golden_op=None))
