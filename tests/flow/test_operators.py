"""Operators with what they read."""

import pytest

from npucmp.flow.operators import nodes_of
from npucmp.model import Finding, Measurement, Operator, Pair, TensorRef, Verdict

LINEAR = "Module.rnn.Linear"


def rows(*records):
    """The rows of records (name, call, slots) of a backward pass."""
    found = []
    for order, (name, call, slots) in enumerate(records):
        operator = Operator(name, "linear", "linear", "backward", order, (), call=call)
        for slot in slots:
            ref = TensorRef(slot, "float32", (4, 4))
            pair = Pair(order, slot, operator, operator, ref, ref)
            found.append(Finding(Measurement(pair), Verdict.MATCH, "", row=len(found)))
    return found


def gradients(number):
    return f"{LINEAR}.parameters_grad.{number}", LINEAR, ["output:weight"]


def backward(number):
    return f"{LINEAR}.backward.{number}", f"{LINEAR}.{number}", ["input:0", "output:0"]


@pytest.mark.parametrize(
    "records, read",
    [
        ([gradients(1), backward(1), gradients(0), backward(0)], {"1": ["1"], "0": ["1", "0"]}),
        ([backward(1), backward(0), gradients(0)], {"0": ["1", "0"]}),  # one record of all calls
        ([gradients(0), backward(0)], {"0": ["0"]}),
    ],
)
def test_the_gradient_of_a_parameter_is_made_by_the_calls_up_to_its_own(records, read):
    nodes = [node for node in nodes_of(rows(*records)) if "parameters_grad" in node.operator.name]
    found = {node.operator.name[-1]: [one.pair.operator.name[-1] for one in node.inputs] for node in nodes}
    assert found == read
