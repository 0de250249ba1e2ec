"""Operators with what they read, and the cache of results of rows."""

import math
import pickle

import pytest

from npucmp.flow.operators import RowCache, nodes_of, number_findings, of_row
from npucmp.model import Statistics, TensorRef
from tests.flow.craft import operator, rows

LINEAR = "Module.rnn.Linear"


def forward(name, **more):
    return operator(f"{name}.forward", "input:0", "output:0", call=name, **more)


def backward(name, **more):
    return operator(f"{name}.backward", "input:0", "output:0", phase="backward", call=name, **more)


def node_of(*operators, at=-1):
    return nodes_of(rows(*operators))[at]


def names(findings):
    return [(one.pair.operator.name, one.pair.slot) for one in findings]


def test_tensors_of_a_node_are_inputs_and_outputs_but_no_arguments():
    one = operator("norm.0", "input:0", "input:1", "output:0", "output:1", arguments={"input:1": 1e-5, "output:1": 2})
    first, last = nodes_of(rows(operator("relu.0", "input:0", "output:0"), one))
    assert names(last.inputs) == [("norm.0", "input:0")]
    assert names(last.outputs) == [("norm.0", "output:0"), ("norm.0", "output:1")]
    assert (first.row, last.row) == (0, 2)
    one_sided = node_of((one, one._replace(arguments={})))
    assert names(one_sided.inputs) == [("norm.0", "input:0"), ("norm.0", "input:1")]


@pytest.mark.parametrize("side", [0, 1])
def test_an_operator_of_one_run_is_no_node(side):
    alone = [None, None]
    alone[side] = operator("extra.0", "input:0", "output:0")
    both = operator("relu.0", "input:0", "output:0")
    assert [one.operator.name for one in nodes_of(rows(both, tuple(alone), both))] == ["relu.0", "relu.0"]
    assert nodes_of([]) == []


@pytest.mark.parametrize(
    "op_type, phase, saved, reads_operands",
    [
        ("linear", "backward", False, True),
        ("linear", "backward", True, False),
        ("linear", "forward", False, False),
        ("relu", "backward", False, False),
    ],
)
def test_a_gradient_of_products_without_saved_tensors_reads_its_operands(op_type, phase, saved, reads_operands):
    before = [forward("linear.0")] if saved else []
    node = node_of(*before, operator("linear.0.backward", "input:0", op_type=op_type, phase=phase, call="linear.0"))
    assert (node.reads_operands, node.is_gradient) == (reads_operands, phase == "backward")


@pytest.mark.parametrize(
    "op_type, phase, call, reads_saved",
    [
        ("linear", "backward", "linear.0", True),
        ("linear", "forward", "linear.0", False),
        ("linear", "", "linear.0", False),
        ("linear", "backward", "", False),
        ("linear", "backward", "one", False),  # the operator is its own call, as in graphs
        ("add", "backward", "add.0", False),  # saves nothing
        ("reshape", "backward", "reshape.0", False),  # views
        ("clone", "backward", "clone.0", False),  # hands on
        ("getitem", "backward", "getitem.0", True),  # views and picks
        ("gather", "backward", "gather.0", True),
    ],
)
def test_a_backward_with_a_call_reads_what_its_forward_saved(op_type, phase, call, reads_saved):
    assert node_of(operator("one", "input:0", op_type=op_type, phase=phase, call=call)).reads_saved is reads_saved


@pytest.mark.parametrize(
    "op_type, slot, writes",
    [
        ("__setitem__", "input:0", True),
        ("copy_", "input:0", True),
        ("__setitem__", "input:1", False),
        ("add_", "input:0", False),  # reads the memory too
        ("clone", "input:0", False),
        ("recv", "input:0", False),
    ],
)
def test_an_operator_in_place_that_overwrites_writes_to_its_first_input(op_type, slot, writes):
    node = node_of(operator("one", slot, op_type=op_type))
    assert node.writes_to(node.inputs[0]) is writes


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("golden", [True, False])
def test_inputs_are_recorded_if_either_run_records_them(target, golden):
    sides = tuple(operator("one", "input:0", reads_recorded=one) for one in (target, golden))
    assert node_of(sides).reads_recorded is (target or golden)


@pytest.mark.parametrize("slots, recorded", [(["output:0"], True), (["input:0", "output:0"], False)])
def test_data_of_other_ranks_are_the_inputs_of_an_operator_that_recorded_none(slots, recorded):
    node = node_of(operator("one", *slots, reads_recorded=False))
    assert not node.reads_recorded
    node.has_remote_inputs = True
    assert node.reads_recorded is recorded


def test_an_operator_without_inputs_is_assumed_to_read_the_outputs_before_it_in_its_pass():
    found = nodes_of(
        rows(
            operator("a", "output:0"),
            operator("b", "output:0", "output:1"),
            operator("barrier", "input:0"),
            operator("g", "output:0", phase="backward"),
            operator("c", "output:0"),
            operator("h", "output:0", phase="backward"),
            operator("d", "input:0", "output:0"),
        )
    )
    assert [names(one.assumed_inputs) for one in found] == [
        [],
        [("a", "output:0")],
        [],
        [],
        [("b", "output:0"), ("b", "output:1")],
        [("g", "output:0")],
        [],
    ]


def test_a_backward_also_reads_the_tensors_of_the_forward_of_its_call():
    own, other, unnamed = forward("linear.0"), forward("linear.1"), (forward(""), backward(""))
    passes = backward("linear.1"), backward("linear.0"), backward("linear.2")
    found = nodes_of(rows(own, other, *passes, *unnamed))
    read = {one.operator.name: [name for name, _ in names(one.extra_inputs)] for one in found}
    assert read == {
        "linear.0.forward": [],
        "linear.1.forward": [],
        "linear.1.backward": ["linear.1.forward"] * 2,
        "linear.0.backward": ["linear.0.forward"] * 2,
        "linear.2.backward": [],
        ".forward": [],
        ".backward": [],
    }
    assert names(found[3].extra_inputs) == [("linear.0.forward", "input:0"), ("linear.0.forward", "output:0")]


@pytest.mark.parametrize("calls", [("f.0", "x"), ("x", "f.0"), ("f.1", "f.0"), ("f.0", "f.1")])
def test_either_run_identifies_the_forward_of_a_backward(calls):
    """The golden's call comes first where the calls of both sides have a forward."""
    found = node_of(forward("f.0"), forward("f.1"), tuple(backward(one) for one in calls))
    expected = f"{calls[1] if calls[1] != 'x' else calls[0]}.forward"
    assert [name for name, _ in names(found.extra_inputs)] == [expected] * 2


def with_figures(mean, **more):
    return TensorRef("output:0", "float32", (4, 4), statistics=Statistics(1.0, -1.0, mean, 2.0), **more)


@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize(
    "first, again, phase, recomputed",
    [
        (with_figures(0.5), with_figures(0.25), "forward", True),
        (with_figures(0.5), with_figures(0.5), "forward", False),
        (with_figures(math.nan), with_figures(math.nan), "forward", False),
        (with_figures(0.5, checksum="1f"), with_figures(0.5, checksum="2f"), "forward", True),
        (with_figures(0.5), with_figures(0.5)._replace(shape=(2, 8)), "forward", True),
        (with_figures(0.5), with_figures(0.5)._replace(file="other.npy"), "forward", False),
        (with_figures(0.5), with_figures(0.25), "backward", False),
    ],
)
def test_a_forward_that_ran_again_on_one_side_with_other_values_is_what_a_backward_reads(
    side, first, again, phase, recomputed
):
    """Then nothing is known of the first execution."""
    before = operator("f.0.forward", "input:0", first, call="f.0")
    second = operator("f.1.forward", "input:0", again, call="f.1", phase=phase)
    calls = ["f.0", "f.0"]
    calls[side == "golden"] = "f.1"
    alone = (second, None) if side == "target" else (None, second)
    node = node_of(before, alone, tuple(backward(one) for one in calls))
    assert node.recomputed == ("f.1.forward" if recomputed else "")
    assert len(node.extra_inputs) == (0 if recomputed else 2)


def test_a_forward_of_the_other_side_or_of_no_call_did_not_run_again():
    other, unnamed = (operator(name, with_figures(0.25), call=call) for name, call in (("f.1", "f.1"), ("f.2", "")))
    before = operator("f.0.forward", with_figures(0.5), call="f.0")
    node = node_of(before, (other, None), (None, unnamed), (backward("f.0"), backward("f.1")))
    assert (node.recomputed, len(node.extra_inputs)) == ("", 1)


def gradients(number, linear=LINEAR):
    return operator(f"{linear}.parameters_grad.{number}", "output:weight", phase="backward", call=linear)


def module_backward(number, linear=LINEAR):
    return operator(f"{linear}.backward.{number}", "input:0", "output:0", phase="backward", call=f"{linear}.{number}")


OTHER = "Module.cnn.Linear"


@pytest.mark.parametrize(
    "records, read",
    [
        (
            [gradients(1), module_backward(1), gradients(0), module_backward(0)],
            {"1": ["1"], "0": ["1", "0"]},
        ),
        ([module_backward(1), module_backward(0), gradients(0)], {"0": ["1", "0"]}),  # one record of all calls
        ([gradients(0), module_backward(0)], {"0": ["0"]}),
        ([module_backward(1, OTHER), gradients(0), module_backward(0)], {"0": ["0"]}),
        ([gradients(0)], {"0": []}),
        ([module_backward(0), gradients(0)._replace(phase="forward")], {"0": []}),
    ],
)
def test_the_gradient_of_a_parameter_is_made_by_the_calls_up_to_its_own(records, read):
    nodes = [node for node in nodes_of(rows(*records)) if "parameters_grad" in node.operator.name]
    found = {node.operator.name[-1]: [one.pair.operator.name[-1] for one in node.inputs] for node in nodes}
    assert found == read


def test_rows_are_numbered_from_the_first_and_share_a_cache():
    found = number_findings(rows(operator("a", "input:0", "output:0"), operator("b", "input:0")), 7)
    assert [one.row for one in found] == [7, 8, 9]
    assert found[0].cache is found[2].cache and found[0].cache == RowCache(7, 3)
    assert [one.row for one in number_findings(rows(operator("a", "input:0")))] == [0]


def test_a_function_of_a_row_is_called_once_for_each_row_of_a_cache():
    seen = []

    @of_row
    def slot(finding):
        """The slot."""
        seen.append(finding.row)
        return None if finding.pair.slot == "output:0" else finding.pair.slot

    @of_row
    def name(finding):
        return finding.pair.operator.name

    found = number_findings(rows(operator("a", "input:0", "output:0"), operator("b", "input:1")), 5)
    assert [*map(slot, [*found, *found])] == ["input:0", None, "input:1"] * 2
    assert [*map(name, found)] == ["a", "a", "b"] and seen == [5, 6, 7]
    other = number_findings(found, 5)[2]
    assert slot(other) == "input:1" and seen == [5, 6, 7, 7]  # a cache of its own
    alone = found[0]._replace(cache=None)
    assert slot(alone) == slot(alone) == "input:0" and seen == [5, 6, 7, 7, 5, 5]
    assert (slot.__name__, slot.__doc__) == ("slot", "The slot.")


def test_caches_of_the_same_rows_are_equal_and_lose_their_results_when_pickled():
    one = RowCache(2, 3)
    one.results("f")[1] = "known"
    other = pickle.loads(pickle.dumps(one))
    assert one == other and hash(one) == hash(other)
    assert one.results("f")[1] == "known" != other.results("f")[1] and len(other.results("f")) == 3
    assert len({one, other, RowCache(2, 4), RowCache(3, 3)}) == 3 and one != (2, 3)
    assert repr(one) == "<cache of 3 rows>"
