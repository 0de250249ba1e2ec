"""The contents of one run, and which of them are computed from which."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.content_graph import HOPS, adds_bias_apart, operands
from npucmp.model import Operator, Statistics, TensorRef
from tests.align.contents.small_runs import Step, drawn, graph_of, number_of

A, B, C, D, E, W = (drawn(4, 6) for _ in range(6))


def chain(length):
    """A network input and operators behind each other: content n + 1 is computed from content n."""
    values = [drawn(8) for _ in range(length + 1)]
    return graph_of(*(Step("tanh", (values[at],), (values[at + 1],)) for at in range(length)))


# Contents


def test_equal_values_in_any_shape_are_one_content():
    graph = graph_of(Step("exp", (A,), (B,)), Step("reshape", (B,), (B.reshape(8, 3),)), Step("tanh", (B.T,), (C,)))
    assert [one.shape for one in graph.contents] == [(4, 6)] * 3
    assert (graph.reads, graph.writes) == ([[0], [1], [1]], [[1], [1], [2]])
    assert [(one.operator, one.tensor.slot) for one in graph.tensors_of(1)] == [
        (0, "output:0"), (1, "input:0"), (1, "output:0"), (2, "input:0"),
    ]  # fmt: skip
    assert graph.contents[1].readers == [1, 2] and graph.contents[1].makers == [0]
    assert [number_of(graph, at) for at in range(3)] == [1, 1, 2]
    assert graph.parents == [[], [0], [1]] and dict(graph.children) == {0: {1}, 1: {2}}


def test_constants_and_tensors_without_values_are_no_contents():
    graph = graph_of(Step("exp", (np.ones(9), (4, 6)), (A,)))
    assert len(graph.contents) == 1 and graph.content_of == {(0, "output:0"): 0}
    assert graph.reads == [[]] and graph.parents == [[]]


@pytest.mark.parametrize("kind, is_copy", [("bias_add", False), ("reshape", True), ("cast", True), ("dropout", True),
                                           ("all_reduce", True), ("relu_", True), ("", False)])  # fmt: skip
def test_an_operator_that_writes_what_it_reads_computes_a_content_unless_it_hands_on(kind, is_copy):
    graph = graph_of(Step("exp", (A,), (B,)), Step(kind, (B,), (B,)), Step("tanh", (B,), (C,)))
    assert graph.hands_on(1) is is_copy
    assert number_of(graph, 1) == (1 if is_copy else 2)
    assert number_of(graph, 2, "input:0") == number_of(graph, 1)  # the latest
    assert graph.parents == ([[], [0], [1]] if is_copy else [[], [0], [1], [2]])


def test_the_record_of_a_module_hands_on():
    graph = graph_of(Step("linear", (A, W), (B,)), Step("linear", (A, B), (B,), path="head"))
    assert not graph.hands_on(0) and graph.hands_on(1)
    assert len(graph.contents) == 3


def test_two_outputs_of_one_operator_with_equal_values_are_one_content():
    graph = graph_of(Step("max", (A, A), (B, B)), Step("max", (A, A), (B, B)))
    assert graph.reads == [[0], [0]] and graph.writes == [[1], [1]]
    assert graph.contents[0].readers == [0, 1] and graph.contents[1].makers == [0, 1]


def test_of_equal_statistics_the_latest_content_is_read():
    """The order of values is unknown."""
    same = Statistics(3.0, -1.0, 0.5, 8.0)
    graph = graph_of(Step("exp", (A,), (same,)), *(Step("bias_add", (same,), (same,)) for _ in range(3)))
    assert graph.reads == [[0], [1], [2], [3]] and graph.writes == [[1], [2], [3], [4]]


def test_two_tensors_of_one_shape_in_another_order_are_two_contents():
    graph = graph_of(Step("exp", (A,), (B,)), Step("flip", (A,), (B[::-1],)), Step("tanh", (B,), (C,)),
                     Step("tanh", (B[::-1],), (D,)), Step("sin", (B[::-1].reshape(-1),), (E,)))  # fmt: skip
    assert graph.reads[2:] == [[1], [2], [2]]  # the shape of the last one is new, and belongs to the latest
    assert graph.writes == [[1], [2], [3], [4], [5]]
    assert graph_of(Step("exp", (A[None],), (A[::-1],))).writes == [[1]]  # an axis of length one is no shape


def test_a_tensor_that_is_read_before_it_is_written_is_a_later_content():
    """The order of execution may be a guess."""
    graph = graph_of(Step("exp", (A,), (B,)), Step("tanh", (B[::-1],), (C,)), Step("sin", (A,), (B[::-1],)),
                     Step("cos", (B[::-1],), (D,)))  # fmt: skip
    late = number_of(graph, 2)
    assert late not in (number_of(graph, 0), number_of(graph, 1))
    assert graph.reads[1] == graph.reads[3] == [late]
    assert graph.contents[late].readers == [1, 3]
    assert graph.parents[number_of(graph, 1)] == [late]


def test_a_tensor_in_an_order_that_no_operator_writes_is_the_latest_content():
    graph = graph_of(Step("exp", (A,), (B,)), Step("flip", (A,), (B[::-1],)), Step("tanh", (B[:, ::-1],), (C,)))
    assert graph.reads[2] == [number_of(graph, 1)]
    copied = graph_of(Step("exp", (A,), (B,)), Step("reshape", (B[:, ::-1],), (B[::-1],)))
    assert copied.writes[1] == [1] and copied.contents[1].makers == [0]  # it wrote what it read


def test_a_copy_that_ran_before_its_original_is_no_maker():
    graph = graph_of(Step("exp", (A,), (B,)), Step("identity", (), (B[::-1],)), Step("sin", (A,), (B[::-1],)))
    late = number_of(graph, 2)
    assert number_of(graph, 1) == late
    assert graph.contents[late].makers == [1, 2]


# Edges that a graph or the forward pass shows


@pytest.mark.parametrize(
    "source, reads", [("a/exp:0", [1]), ("a.exp:0", [1]), ("a/exp:1", []), ("exp:0", []), ("", [])]
)
def test_a_graph_names_what_an_input_without_values_reads(source, reads):
    graph = graph_of(
        Step("exp", (A,), (B,), name="a/exp"), Step("add", ((9,), C), (D,), name="add", sources=(source, source))
    )
    assert graph.reads[1] == [2, *reads]
    assert graph.contents[1].readers == [1] * len(reads)
    assert graph.parents[3] == sorted([2, *reads])
    assert (number_of(graph, 1, "input:1"), number_of(graph, 1)) == (2, 3)  # values count more than names


def test_values_count_more_than_the_producer_that_a_graph_names():
    """The input was overwritten in place: the operator reads other values than its producer wrote."""
    graph = graph_of(Step("exp", (A,), (B,), name="e"), Step("tanh", (C,), (D,), sources=("e:0",)))
    assert graph.reads[1] == [2] and graph.contents[1].readers == [] and graph.parents[3] == [2]


def test_a_producer_that_an_operator_reads_anyway_is_read_once():
    graph = graph_of(Step("exp", (A,), (B,), name="e"), Step("add", (B, (9,)), (D,), sources=("e:0", "e:0")))
    assert graph.reads[1] == [1] and graph.contents[1].readers == [1]


def test_an_input_is_the_producer_of_nothing():
    graph = graph_of(Step("exp", (A, C), (B,), name="e"), Step("tanh", ((9,),), (D,), sources=("e:1",)))
    assert graph.reads[1] == []


@pytest.mark.parametrize("kinds, is_weight", [(["const"], True), (["ReadVariableOp"], True), (["placeholder"], True),
                                              (["exp"], False), (["const", "exp"], False), ([], True)])  # fmt: skip
def test_a_content_that_no_operator_computes_is_a_weight(kinds, is_weight):
    graph = graph_of(*(Step(kind, (), (W,)) for kind in kinds), Step("linear", (A, W), (B,)))
    assert graph.contents[number_of(graph, len(kinds), "input:1")].is_weight is is_weight


def test_a_module_computes_what_no_other_operator_computes():
    inner, module = Step("linear", (A, W), (B,)), Step("linear", (A, W), (B,), path="head")
    assert graph_of(inner, module).contents[2].makers == [0]
    both = graph_of(module, inner)
    assert both.contents[2].makers == [1] and both.maker(2) is both.operators[1]
    alone = graph_of(module)
    assert alone.contents[2].makers == [0] and not alone.contents[2].is_weight


def test_a_gradient_reads_what_the_forward_pass_of_its_call_read():
    forward = [Step("linear", (A, W), (B,), call="linear.0"), Step("linear", (C, W), (D,), call="linear.0")]
    graph = graph_of(*forward, Step("linear", (W, E), (drawn(9),), phase="backward", call="linear.0"))
    assert graph.reads[2] == [1, 5, 0]  # the first forward record, each content once
    assert graph.parents[6] == [0, 1, 5]
    assert graph.gradients == [False, False, True] and graph.has_gradients
    assert graph.is_gradient(6) and not graph.is_gradient(2) and not graph.is_gradient(0)
    for calls in (("linear.0", "linear.1"), ("", "")):
        steps = (Step("linear", (A, W), (B,), call=calls[0]), Step("linear", (E,), (D,), "backward", call=calls[1]))
        assert graph_of(*steps).reads[1] == [3]


@pytest.mark.parametrize("phases", [("forward", "forward"), ("", "backward"), ("forward", "")])
def test_only_a_backward_record_reads_what_its_forward_record_read(phases):
    steps = (Step("linear", (A, W), (B,), phases[0], call="l.0"), Step("linear", (E,), (D,), phases[1], call="l.0"))
    graph = graph_of(*steps)
    assert graph.reads == [[0, 1], [3]] and not graph.forward_of
    assert graph.has_gradients is ("backward" in phases)


def two_readers(arriving, **more):
    """B is read by two operators; autograd adds both gradients to what the backward of exp reads."""
    return graph_of(
        Step("exp", (A,), (B,), call="exp.0"),
        Step("tanh", (B,), (C,), call="tanh.0"),
        Step("sin", (B,), (D,), call="sin.0"),
        Step("sin", (drawn(4, 6),), (E,), phase="backward", call="sin.0"),
        Step("tanh", (drawn(4, 6),), (W,), phase="backward", call="tanh.0"),
        *more.get("between", ()),
        Step("exp", (arriving,), (drawn(4, 6),), phase="backward", call="exp.0"),
    )


def test_a_gradient_that_no_operator_wrote_is_the_sum_of_those_of_the_readers():
    graph = two_readers(E + W)
    terms, arrived = [number_of(graph, at) for at in (3, 4)], number_of(graph, 5, "input:0")
    assert graph.parents[arrived] == sorted(terms) and not graph.contents[arrived].is_weight
    assert {terms[0], terms[1], arrived} == {one for one, of in graph.forward_of.items() if of == number_of(graph, 0)}
    assert graph.forward_of[number_of(graph, 3, "input:0")] == number_of(graph, 2)
    assert graph.forward_of[number_of(graph, 5)] == number_of(graph, 0, "input:0")
    assert graph.contents[number_of(graph, 3, "input:0")].is_weight  # the gradient of D: no operator reads D


def test_a_gradient_that_an_operator_wrote_has_the_parents_of_that_operator():
    graph = two_readers(E + W, between=[Step("add", (E, A), (E + W,))])
    arrived = number_of(graph, 6, "input:0")
    assert graph.parents[arrived] == sorted([number_of(graph, 3), number_of(graph, 0, "input:0")])


def test_the_gradient_of_a_tensor_of_another_size_is_no_gradient():
    graph = two_readers(drawn(23))
    arrived = number_of(graph, 5, "input:0")
    assert arrived not in graph.forward_of and graph.contents[arrived].is_weight and not graph.parents[arrived]


# Questions to a graph


@pytest.fixture(scope="module")
def diamond():
    """0 input, 1 weight, 2 = linear(0, 1), 3 = tanh(2), 4 = Sigmoid(2), 5 = mul(3, 4), 6 a constant, 7 = add(5, 6)."""
    values = [drawn(9) for _ in range(8)]
    v = values.__getitem__
    return graph_of(
        Step("linear", (v(0), v(1)), (v(2),)), Step("tanh", (v(2),), (v(3),)), Step("Sigmoid", (v(2),), (v(4),)),
        Step("mul", (v(3), v(4)), (v(5),)), Step("const", (), (v(6),)), Step("Add", (v(5), v(6)), (v(7),)),
    )  # fmt: skip


def test_the_operator_that_computes_a_content_has_its_type(diamond):
    assert diamond.parents == [[], [], [0, 1], [2], [2], [3, 4], [], [5, 6]]
    assert diamond.maker(4) is diamond.operators[2] and diamond.maker(0) is None
    assert diamond.type_of(4) == "sigmoid" and diamond.type_of(0) == ""
    assert diamond.types_of(7) == {"add"} and diamond.types_of(1) == set()
    assert diamond.type_at(2) == "sigmoid"


def test_all_operators_that_compute_a_content_have_a_type():
    graph = graph_of(Step("exp", (A,), (B,)), Step("tanh", (C,), (B,)))
    assert graph.types_of(number_of(graph, 0)) == {"exp", "tanh"} and graph.type_of(number_of(graph, 0)) == "exp"
    assert graph.parents[number_of(graph, 0)] == [number_of(graph, 0, "input:0")]  # of the first of them


def test_contents_upstream_and_downstream(diamond):
    assert diamond.upstream([5]) == {0, 1, 2, 3, 4} and diamond.upstream([3, 6]) == {0, 1, 2}
    assert diamond.near_upstream(7) == {2, 3, 4, 5}  # no weights
    assert diamond.near_downstream(2) == {3, 4, 5, 7} and diamond.near_downstream(7) == set()
    assert [one.number for one in diamond.among({5, 3})] == [3, 5]
    assert len(list(diamond.among(None))) == 8 and list(diamond.among(set())) == []
    assert [one.tensor.slot for one in diamond.tensors_of(3)] == ["output:0", "input:0"]


@pytest.mark.parametrize("number, known, is_bounded", [
    (5, {2}, True), (5, {3, 4}, True), (5, {3}, False), (5, {5}, False), (7, {5}, True), (3, {0, 1}, True),
    (2, {0}, True), (1, (), True), (5, (), False),
])  # fmt: skip
def test_a_content_is_bounded_if_all_contents_upstream_have_partners_or_are_weights(number, known, is_bounded):
    """0 is an operator's output that is computed from nothing, and no weight."""
    v = [drawn(9) for _ in range(8)]
    graph = graph_of(
        Step("rand", (), (v[0],)), Step("linear", (v[0], v[1]), (v[2],)), Step("tanh", (v[2],), (v[3],)),
        Step("Sigmoid", (v[2],), (v[4],)), Step("mul", (v[3], v[4]), (v[5],)), Step("const", (), (v[6],)),
        Step("Add", (v[5], v[6]), (v[7],)),
    )  # fmt: skip
    assert graph.parents == [[], [], [0, 1], [2], [2], [3, 4], [], [5, 6]]
    assert graph.is_bounded(number, known) is is_bounded


def test_the_nearest_ancestors_with_partners(diamond):
    assert diamond.ancestors(7, {0, 1, 2, 3}) == {2, 3}  # 2 is near through 4, and not looked for behind 3
    assert diamond.ancestors(7, {0, 1}) == {0, 1}
    assert diamond.ancestors(5, {3, 4, 2}) == {3, 4}
    assert diamond.ancestors(7, {2}, hops=3) == {2} and diamond.ancestors(7, {2}, hops=2) == set()
    assert diamond.ancestors(5, {5}) == set()


def test_ancestors_and_neighbours_are_at_most_six_steps_away():
    graph = chain(8)
    assert HOPS == 6
    assert graph.ancestors(8, {2}) == {2} and graph.ancestors(8, {1}) == set()
    assert graph.near_upstream(8) == {2, 3, 4, 5, 6, 7} and graph.near_downstream(1) == {2, 3, 4, 5, 6, 7}
    assert graph.upstream([8]) == {*range(8)}


def test_the_cone_above_a_content_ends_at_weights_and_given_contents(diamond):
    assert diamond.cone(7, (), 1) == {5, 6}
    assert diamond.cone(7, (), 2) == {3, 4, 5, 6}
    assert diamond.cone(7, {5}, 9) == {5, 6}
    assert diamond.cone(7, {3}, 9) == {0, 1, 2, 3, 4, 5, 6}
    assert diamond.cone(7, {3, 4}, 9) == {3, 4, 5, 6}
    assert diamond.cone(0, (), 9) == diamond.cone(7, (), 0) == set()


def test_a_weight_that_an_operator_computes_ends_a_cone():
    graph = graph_of(Step("ReadVariableOp", (A,), (W,)), Step("linear", (B, W), (C,)), Step("tanh", (C,), (D,)))
    weight, product, last = (number_of(graph, at) for at in range(3))
    assert graph.contents[weight].is_weight and graph.parents[weight] == [number_of(graph, 0, "input:0")]
    assert graph.cone(last, (), 9) == {product, weight, number_of(graph, 1, "input:0")}
    assert graph.near_upstream(last) == {product}


# Operands


def operator(kind, *shapes, source="", outputs=((4, 4),)):
    tensors = [TensorRef(f"input:{at}", "float32", shape, source=source) for at, shape in enumerate(shapes)]
    tensors += [TensorRef(f"output:{at}", "float32", shape) for at, shape in enumerate(outputs)]
    return Operator(f"{kind}.0", kind, kind, "forward", 0, tuple(tensors))


def test_operands_have_more_than_one_element_or_a_producer():
    one = operator("add", (1, 2), (1, 1), (), (2,))
    assert [each.slot for each in operands(one)] == ["input:0", "input:3"]
    assert len(operands(operator("add", (1,), (), source="exp:0"))) == 2


@pytest.mark.parametrize("one, other, expected", [
    (operator("linear", (4, 4), (4, 4), (4,)), operator("matmul", (4, 4), (4, 4)), True),
    (operator("linear", (4, 4), (4, 4), (4,)), operator("matmul", (4, 4), (4, 4), (4,)), False),
    (operator("linear", (4, 4), (4, 4), (4,)), operator("add", (4, 4), (4, 4)), False),
    (operator("add", (4, 4), (4, 4), (4,)), operator("linear", (4, 4), (4, 4)), False),
    (operator("linear", (4, 4), (4, 4)), operator("matmul", (4, 4)), False),  # an operand is not recorded
    (operator("linear", (4, 4), (4, 4), (4,)), None, False),
])  # fmt: skip
def test_one_of_two_products_adds_a_bias(one, other, expected):
    assert adds_bias_apart(one, other) is expected and adds_bias_apart(other, one) is expected
