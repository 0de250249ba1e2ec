"""The operators that may have written an input whose producer was not recorded or compared."""

from types import MappingProxyType

import numpy as np
import pytest

from npucmp.localise.sources import (
    excluded_forward,
    unpaired_operators,
    unpaired_writers,
)
from npucmp.model import Measurement, Operator, Pair, TensorRef, Verdict
from npucmp.model.finding import Finding
from tests.localise.networks import paired, with_golden
from tests.localise.rules.craft import case

X = np.ones((4, 4))


def node(name, phase="forward"):
    return case("linear", [(X, X)], (X, X), name=name, phase=phase).node


def writers(outputs, finding):
    return [one.operator.name for one, _ in outputs.writers(finding)]


def output(order, name="op", golden=MappingProxyType({}), slot="output:0", **tensor):
    """The output of an operator that could not be compared."""
    one = TensorRef(slot, "float32", (4, 4))._replace(**tensor)
    operator = Operator(f"{name}.{order}", name, name, "forward", order, (one,), call=f"{name}.{order}")
    pair = Pair(order, slot, operator, operator._replace(name=f"{name}.golden"), one, one._replace(**golden))
    return Finding(Measurement(pair), Verdict.UNREADABLE, "")


def at(order, op="add", slot="input:0", target=MappingProxyType({}), **golden):
    """An input of an operator at a place."""
    found = case(op, [], (X, X), slot=slot).finding
    return with_golden(paired(found, order=order, target=found.pair.target._replace(**target)), **golden)


@pytest.mark.parametrize("phase, call, name", [("forward", "linear.0", "op"), ("backward", "linear.0", ""),
                                               ("forward", "linear.1", "")])  # fmt: skip
def test_the_forward_of_a_gradient_that_the_user_excluded(phase, call, name):
    operators = [Operator("other", "add", "add", "forward", 0, (), call="add.0"),
                 Operator("op", "linear", "linear", phase, 1, (), call=call)]  # fmt: skip
    left_out = [output(order).pair._replace(target_op=one) for order, one in enumerate(operators)]
    gradient = node("linear.0.backward", "backward")
    gradient.operator = gradient.operator._replace(call="linear.0")
    assert excluded_forward({pair.order: pair for pair in left_out}, gradient) == name
    assert excluded_forward({}, gradient) == ""


def alone(order, wrote=(4, 4), reads=(4, 4), golden=False):
    """An operator of one run; no shape for a tensor that it does not have."""
    slots = [("input:0", reads), ("output:0", wrote)]
    tensors = tuple(TensorRef(slot, "float32", shape) for slot, shape in slots if shape is not None)
    operator = Operator(f"op{order}", "op", "op", "forward", order, tensors)
    return Pair(order, "", None if golden else operator, operator if golden else None, None, None)


def orders(pairs, start, is_origin, asked):
    findings = [Finding(Measurement(pair), Verdict.MISSING, "") for pair in pairs]
    return [one.order for one in unpaired_writers(unpaired_operators(findings), asked, start, is_origin)]


def test_operators_of_one_run_write_tensors_of_their_own_run():
    asked = at(10, target={"shape": (5,)})
    assert orders([alone(8), alone(9, golden=True)], 7, True, asked) == [9]
    assert orders([alone(8, (5,)), alone(9, (5,), golden=True)], 7, True, asked) == [8]
    assert orders([alone(8, None), alone(9, None, golden=True)], 7, True, paired(asked, golden=None)) == [8]
    assert orders([alone(8, None), alone(9, None, golden=True)], 7, True, paired(asked, target=None)) == [9]
    assert orders([alone(8, None)], 7, True, paired(asked, target=None)) == [8]  # all between, if none may have
