"""The operators that may have written an input whose producer was not recorded or compared."""

import math
from types import MappingProxyType

import numpy as np
import pytest

from npucmp.localise.sources import (
    LEFT_OUT,
    NOT_DUMPED,
    UNREADABLE,
    UncomparedOutputs,
    UnpairedOperators,
    UnrecordedOutputs,
    Writer,
)
from npucmp.model import Measurement, Operator, Pair, Statistics, TensorRef, Verdict
from npucmp.model.dump import ELSEWHERE
from npucmp.model.finding import Finding
from tests.localise.networks import paired, with_golden
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


@pytest.mark.parametrize(
    "target, golden, found",
    [
        ("", "a:0", ["a"]),
        ("a:0", "b:0", ["a"]),
        ("", "", ["b", "c", "m:0"]),
        ("m:0:1", "", ["m:0"]),  # a name with a colon
        ("a", "", ["b", "c", "m:0"]),  # no output of an operator
        ("unknown:0", "", []),
        ("g:0", "", ["g"]),  # a graph may name an operator of the other pass
    ],
)
def test_a_graph_names_the_operator_that_wrote_an_input(target, golden, found):
    outputs = UnrecordedOutputs()
    for name, phase in (("g", "backward"), ("a", "forward"), ("b", "forward"), ("c", "forward"), ("m:0", "forward")):
        outputs.learn(node(name, phase), 0.0)
    assert writers(outputs, with_golden(read(source=target), source=golden)) == found


def test_an_operator_that_ran_again_counts_with_its_latest_error():
    outputs = UnrecordedOutputs()
    for error in (0.25, 0.5):
        outputs.learn(node("a"), error)
    assert [error for _, error in outputs.writers(read(source="a:0"))] == [0.5]


def output(order, name="op", golden=MappingProxyType({}), slot="output:0", **tensor):
    """The output of an operator that could not be compared."""
    one = TensorRef(slot, "float32", (4, 4))._replace(**tensor)
    operator = Operator(f"{name}.{order}", name, name, "forward", order, (one,), call=f"{name}.{order}")
    pair = Pair(order, slot, operator, operator._replace(name=f"{name}.golden"), one, one._replace(**golden))
    return Finding(Measurement(pair), Verdict.UNREADABLE, "")


def visited(*outputs, left_out=()):
    found = UncomparedOutputs([one.pair for one in left_out])
    found.remember(Node(*outputs))
    return found


class Node:
    def __init__(self, *outputs):
        self.outputs = outputs


def at(order, op="add", slot="input:0", target=MappingProxyType({}), **golden):
    """An input of an operator at a place."""
    found = case(op, [], (X, X), slot=slot).finding
    return with_golden(paired(found, order=order, target=found.pair.target._replace(**target)), **golden)


def test_the_latest_output_of_the_size_and_type_may_be_an_input():
    outputs = visited(output(1), output(2, shape=(3,)), output(9), left_out=[output(0)])
    outputs.remember(Node(output(3, golden={"dtype": "float16"}), output(4, golden={"shape": (2, 8)})))
    found = [outputs.writer(at(order)) for order in (0, 1, 2, 4, 5, 9, 10)]
    assert [one and one.name for one in found] == [
        None, "op.0 output:0", *["op.1 output:0"] * 2, *["op.4 output:0"] * 2, "op.9 output:0"
    ]  # fmt: skip
    assert [one.why for one in found[1:]] == [LEFT_OUT, *[UNREADABLE] * 5] and all(one.is_dumped for one in found[1:])
    assert outputs.writer(at(5, dtype="float16")).name == "op.3 output:0"
    assert outputs.writer(at(5, shape=(3,))).name == "op.2 output:0"
    assert outputs.writer(at(5, shape=(5,))) is None


def test_the_latest_output_counts_in_whatever_order_operators_are_visited():
    assert visited(output(2), output(3), output(1)).writer(at(5)).name == "op.3 output:0"


@pytest.mark.parametrize(
    "one",
    [
        output(1)._replace(error=0.0),
        output(1)._replace(verdict=Verdict.UNKNOWN),
        output(1)._replace(verdict=Verdict.MISSING),
        output(1, slot="input:0"),
        output(1, "empty"),  # memory that no operator wrote
        output(1, golden={"shape": (), "problem": "cannot be read"}),
        paired(output(1), golden=None),
    ],
)
def test_no_other_output_may_be_an_input(one):
    asked = at(5, shape=one.pair.golden.shape if one.pair.golden else (4, 4))
    assert visited(one).writer(asked) is None
    assert visited(output(1)).writer(at(5)) == Writer("op.1 output:0", UNREADABLE)


@pytest.mark.parametrize("golden", [{"shape": ()}, {"problem": "cannot be read"}])
def test_the_golden_shape_of_an_output_is_known(golden):
    asked = at(5, shape=golden.get("shape", (4, 4)))
    assert visited(output(1, golden=golden)).writer(asked).name == "op.1 output:0"


@pytest.mark.parametrize("op, slot, is_found", [("linear", "input:0", True), ("linear", "input:1", False),
                                                ("add", "param:weight", False)])  # fmt: skip
def test_no_operator_wrote_a_parameter(op, slot, is_found):
    assert bool(visited(output(1)).writer(at(5, op, slot))) is is_found


EXTREMES = {"max": 2.0, "min": -1.0}


@pytest.mark.parametrize(
    "own, other, is_same",
    [
        ({}, {}, True),
        ({}, {"max": 3.0}, False),
        ({}, {"min": 0.0}, False),
        ({"max": math.nan}, {"max": math.nan}, True),
        ({"max": math.nan}, {}, False),
        ({"max": None}, {"max": 3.0}, True),
        ({"min": None}, {"max": 3.0}, True),
        ({"max": 3.0}, {"max": None}, True),
        ({"max": 3.0}, {"min": None}, True),
        (None, {}, True),
        ({}, None, True),
        ({"mean": 1.0}, {"mean": 2.0}, True),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_recorded_extremes_distinguish_outputs(own, other, is_same, shared):
    """The statistics of an input that ranks share are in its measurement."""
    own, other = (None if one is None else Statistics(**{**EXTREMES, **one}) for one in (own, other))
    asked = at(5, statistics=ELSEWHERE if shared else other)
    asked = asked._replace(measurement=asked.measurement._replace(statistics=(None, other if shared else None)))
    assert (visited(output(1, statistics=own)).writer(asked) is not None) is is_same


@pytest.mark.parametrize(
    "target, golden, found",
    [
        ("op.1:0", "", "op.1 output:0"),
        ("", "op.golden:0", "op.1 output:0"),
        ("op.golden:0", "", None),  # the name of the other run
        ("", "op.1:0", None),
        ("op.1:1", "", None),
        ("unknown:0", "op.golden:0", None),  # the target decides
        ("", "unknown:0", None),
        ("op.7:2", "", "op.7 output:2"),  # however late, and of another shape
    ],
)
def test_a_graph_names_the_output_that_an_input_holds(target, golden, found):
    outputs = visited(output(1), left_out=[output(7, golden={"shape": (3,)}, slot="output:2")])
    writer = outputs.writer(at(5, "linear", "input:1", {"source": target}, source=golden))
    assert (writer and writer.name) == found


def test_an_output_of_one_run_has_a_name_in_its_graph():
    one = paired(output(1), golden=None, golden_op=None)
    assert visited(one).writer(at(5, target={"source": "op.1:0"})).name == "op.1 output:0"
    asked = paired(at(5, target={"source": "op.1:0"}), golden=None)
    assert (
        visited(one).writer(asked).name == "op.1 output:0" and visited(one).writer(paired(asked, target=None)) is None
    )
    assert visited(paired(output(1), target_op=None)).writer(at(5, source="op.golden:0")).name == "op.golden output:0"


@pytest.mark.parametrize(
    "verdict, why, is_dumped", [(Verdict.MISSING, NOT_DUMPED, False), (Verdict.UNREADABLE, UNREADABLE, True)]
)
def test_an_output_that_has_a_row_without_an_error(verdict, why, is_dumped):
    writer = UncomparedOutputs.unmeasured_writer(output(1)._replace(verdict=verdict))
    assert writer == Writer("op.1 output:0", why) and writer.is_dumped is is_dumped
    assert not Writer("op.1 output:0").is_dumped


def test_operators_that_the_user_excluded():
    excluded = [output(order, f"op{order}").pair for order in (1, 3, 5, 7)]
    outputs = UncomparedOutputs(excluded)
    outputs.remember(Node(output(4)))  # it was not excluded
    found = {(start, end): [one.order for one in outputs.excluded_operators(start, end)] for start, end in
             ((0, 8), (1, 7), (2, 6), (3, 5), (0, 1))}  # fmt: skip
    assert found == {(0, 8): [7, 5, 3, 1], (1, 7): [5, 3], (2, 6): [5, 3], (3, 5): [], (0, 1): []}


@pytest.mark.parametrize("phase, call, name", [("forward", "linear.0", "op"), ("backward", "linear.0", ""),
                                               ("forward", "linear.1", "")])  # fmt: skip
def test_the_forward_of_a_gradient_that_the_user_excluded(phase, call, name):
    operators = [Operator("other", "add", "add", "forward", 0, (), call="add.0"),
                 Operator("op", "linear", "linear", phase, 1, (), call=call)]  # fmt: skip
    left_out = [output(order).pair._replace(target_op=one) for order, one in enumerate(operators)]
    gradient = node("linear.0.backward", "backward")
    gradient.operator = gradient.operator._replace(call="linear.0")
    assert UncomparedOutputs(left_out).forward_of(gradient) == name
    assert UncomparedOutputs().forward_of(gradient) == ""


def alone(order, wrote=(4, 4), reads=(4, 4), golden=False):
    """An operator of one run; no shape for a tensor that it does not have."""
    slots = [("input:0", reads), ("output:0", wrote)]
    tensors = tuple(TensorRef(slot, "float32", shape) for slot, shape in slots if shape is not None)
    operator = Operator(f"op{order}", "op", "op", "forward", order, tensors)
    return Pair(order, "", None if golden else operator, operator if golden else None, None, None)


def orders(pairs, start, is_origin, asked):
    return [one.order for one in UnpairedOperators(pairs).writers(asked, start, is_origin)]


OTHER = alone(2), alone(5, (3,)), alone(6, (3,))
IN_PLACE = alone(2, (3,), (3,)), alone(4, (3,)), alone(5, (3,), (3,)), alone(7, (3,), (3,))


@pytest.mark.parametrize(
    "pairs, start, is_origin, found",
    [
        (OTHER, 1, False, [2]),
        (OTHER, 2, False, [5, 6]),  # none behind the start writes such a tensor
        (OTHER, 5, False, [6]),
        (OTHER, 6, False, [2]),  # the latest before
        (OTHER, 6, True, []),
        (OTHER, 1, True, [2]),
        ((alone(2), alone(3), alone(5, (3,)), alone(11)), 8, False, [3, 2]),
        ((alone(2), alone(3), alone(5, (3,)), alone(11)), 1, False, [2, 3]),
        ((alone(2, (2, 8)), alone(3, None)), 8, False, [3, 2]),  # as many elements, or no recorded output
        (IN_PLACE, 8, False, [4, 5]),  # the one that reads as many elements, and those behind it
        ((*IN_PLACE, alone(8, (3,)), alone(9, (3,)), alone(10, (3,))), 9, False, [9]),  # the end is excluded
        ((alone(4, (3,)), alone(5, (3,))), 8, False, [5]),  # the latest that reads as many elements
        (IN_PLACE[:1], 8, False, []),
        ((alone(0, (3,), (3,)),), 8, False, []),
        ((alone(11),), 8, False, []),
        ((), 8, False, []),
    ],
)
def test_operators_of_one_run_that_may_have_written_an_input(pairs, start, is_origin, found):
    assert orders(pairs, start, is_origin, at(10)) == found


def test_operators_of_one_run_write_tensors_of_their_own_run():
    asked = at(10, target={"shape": (5,)})
    assert orders([alone(8), alone(9, golden=True)], 7, True, asked) == [9]
    assert orders([alone(8, (5,)), alone(9, (5,), golden=True)], 7, True, asked) == [8]
    assert orders([alone(8, None), alone(9, None, golden=True)], 7, True, paired(asked, golden=None)) == [8]
    assert orders([alone(8, None), alone(9, None, golden=True)], 7, True, paired(asked, target=None)) == [9]
    assert orders([alone(8, None)], 7, True, paired(asked, target=None)) == [8]  # all between, if none may have


@pytest.mark.parametrize("shape, found", [((1,), []), ((), []), ((0,), []), ((2,), [4])])
def test_an_operator_that_overwrites_a_tensor_in_place_reads_more_than_one_element(shape, found):
    assert orders([alone(4, (3,), shape)], 8, False, at(10, target={"shape": shape})) == found


def test_an_operator_writes_an_empty_tensor():
    assert orders([alone(8, (0, 3)), alone(9)], 7, True, at(10, target={"shape": (0,)})) == [8]


def test_operators_of_both_runs_are_paired():
    both = output(3).pair
    unpaired = UnpairedOperators([alone(2), both, alone(4, golden=True)])
    assert [unpaired.at(order) for order in (2, 3, 4, 5)] == [alone(2), None, alone(4, golden=True), None]
