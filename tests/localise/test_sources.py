"""The operators that may have written an input whose producer was not recorded or compared."""

import numpy as np
import pytest

from npucmp.localise.sources import (
    LEFT_OUT,
    UNREADABLE,
    UncomparedOutputs,
    UnpairedOperators,
    UnrecordedOutputs,
    Writer,
)
from npucmp.model import Measurement, Operator, Pair, TensorRef, Verdict
from npucmp.model.finding import Finding
from tests.localise.rules.craft import case

X = np.ones((4, 4))


def node(name, phase="forward"):
    return case("linear", [(X, X)], (X, X), name=name, phase=phase).node


def read(error=0.0, phase="forward", dtype="float32", source=""):
    found = case("add", [], (X * (1 + error), X, dtype), slot="input:0", phase=phase).finding
    pair = found.pair._replace(target=found.pair.target._replace(source=source))
    return found._replace(measurement=found.measurement._replace(pair=pair))


def writers(outputs, finding):
    return [one.operator.name for one, _ in outputs.writers(finding)]


@pytest.mark.parametrize(
    "came, asked, left",
    [
        (0.0, read(), ["a"]),
        (0.0, read(1e-3), ["a"]),
        (1e-3, read(1e-3), ["a"]),
        (1e-3, read(), ["a", "b"]),  # an operator that read an error does not write equal bits
        (0.0, read(1e-3, dtype="int32"), ["a", "b"]),
    ],
)
def test_an_operator_of_which_inputs_alone_were_recorded_wrote_one_tensor(came, asked, left):
    outputs = UnrecordedOutputs()
    outputs.claim(asked)
    assert not outputs
    for name, error in (("a", 0.0), ("b", came)):
        outputs.learn(node(name), error)
    outputs.claim(asked)
    assert outputs and writers(outputs, read()) == left


def test_the_latest_operators_of_the_same_pass_may_have_written_an_input():
    outputs = UnrecordedOutputs()
    for name, phase in (("a", "forward"), ("b", "forward"), ("c", "backward"), ("d", "forward")):
        outputs.learn(node(name, phase), 0.5)
    assert outputs.writers(read()) == [(node, 0.5) for node, _ in outputs.writers(read())]
    assert writers(outputs, read()) == ["b", "d"]
    assert writers(outputs, read(phase="backward")) == ["c"]
    assert writers(outputs, read(source="a:0")) == ["a"]  # the graph names it, however far away it is
    assert writers(outputs, read(source="c:0")) == ["c"]
    assert writers(outputs, read(source="unknown:0")) == []


def uncompared(order, name, **golden):
    tensor = TensorRef("output:0", "float32", (4, 4))._replace(**golden)
    operator = Operator(name, name, name, "forward", order, (tensor,))
    return Finding(Measurement(Pair(order, "output:0", operator, operator, tensor, tensor)), Verdict.UNREADABLE, "")


class Node:
    def __init__(self, *outputs):
        self.outputs = outputs


def test_an_output_that_could_not_be_compared_may_be_an_input():
    outputs = UncomparedOutputs([uncompared(0, "excluded").pair])
    for found in (uncompared(1, "first"), uncompared(2, "other", shape=(3,)), uncompared(9, "later")):
        outputs.remember(Node(found))
    outputs.remember(Node(uncompared(3, "no_shape", shape=(), problem="cannot be read")))
    outputs.remember(Node(read()._replace(verdict=Verdict.UNREADABLE)))  # an input is no output

    def at(order, **more):
        found = read(**more)
        return found._replace(measurement=found.measurement._replace(pair=found.pair._replace(order=order)))

    assert outputs.writer(at(5)) == Writer("first output:0", UNREADABLE)
    assert outputs.writer(at(10)) == Writer("later output:0", UNREADABLE)
    assert outputs.writer(at(1)) == Writer("excluded output:0", LEFT_OUT)
    assert outputs.writer(at(0)) is None
    assert outputs.writer(at(5, source="no_shape:0")) == Writer("no_shape output:0", UNREADABLE)
    assert outputs.writer(at(5, source="unknown:0")) is None


def test_operators_of_one_run_that_may_have_written_an_input():
    def alone(order, shape=(4, 4), shape_read=(4, 4)):
        tensors = TensorRef("input:0", "float32", shape_read), TensorRef("output:0", "float32", shape)
        operator = Operator(f"op{order}", "op", "op", "forward", order, tensors)
        return Pair(order, "", operator, None, None, None)

    def names(pairs, start, is_origin, order=10):
        found = read()
        found = found._replace(measurement=found.measurement._replace(pair=found.pair._replace(order=order)))
        return [one.order for one in UnpairedOperators(pairs).writers(found, start, is_origin)]

    other = (alone(2), alone(5, (3,)), alone(6, (3,)))
    assert names(other, 1, False) == [2]
    assert names(other, 4, False) == [5, 6]  # none writes such a tensor
    assert names(other, 7, False) == [2]  # the latest before
    assert names(other, 7, True) == []
    inplace = (alone(2, (3,), (3,)), alone(4, (3,)), alone(5, (3,), (3,)), alone(7, (3,), (3,)))
    assert names(inplace, 8, False) == [4, 5]  # the one that reads as many elements, and those behind it
    assert names(inplace[:1], 8, False) == [] and UnpairedOperators(inplace).at(4) == inplace[1]
