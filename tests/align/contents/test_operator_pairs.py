"""Pairs of tensors from pairs of contents: the golden operator of each operator, and the rows of its tensors."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.content_alignment import ContentAlignment
from npucmp.align.contents.operator_pairs import OperatorPairs
from npucmp.align.contents.slices import ContentSlice
from npucmp.dump.limits import ANYWHERE
from npucmp.model import TensorRef
from npucmp.model.finding import UNBOUNDED
from npucmp.model.relation import SAME_ORDER, AxisOrder, SliceRelation
from tests.align.contents.memory import NOISE, by_value, drawn, pairs_in_memory, recorded

X, A, B, C, S, W = (drawn(seed, 4, 6) for seed in range(6))
TURN, PERMUTED = AxisOrder((1, 0)), "permute(1,0)"
ONE = np.float32(1)
NONE, OTHER = "the golden run has no such tensor", "the target computes with other tensors"
RELU = ("relu", [X], [A])


def paired(target, golden, known=(), slices=(), copies=(), **more):
    """The matches of two runs. A known pair is a number, two numbers, or a ContentPair."""
    pairs = pairs_in_memory(target, golden, **more)
    for one in known:
        pair = one if hasattr(one, "via") else by_value(*(one if isinstance(one, tuple) else (one, one)))
        assert pairs.add(pair)
    pairs.copies.update(copies)
    return OperatorPairs(ContentAlignment(pairs, slices, ()), ANYWHERE)


def partners(found):
    return {one.target.name: one.golden.name for one in found.matches}


def rows(found, order):
    """The slot, the golden tensor, and why it has none, of each row of an operator."""
    return [(one.slot, f"{one.golden_op.name} {one.golden.slot}" if one.golden else "", one.note)
            for one in found.rows[order]]  # fmt: skip


def golden_of(found, order, slot="output:0"):
    """The golden tensor of a tensor."""
    [one] = [f"{one.golden_op.name} {one.golden.slot}" for one in found.rows[order] if one.slot == slot and one.golden]
    return one


def test_an_operator_has_the_golden_tensors_of_its_contents():
    found = paired([RELU], [("Clip", [X], [A])], [0, 1])
    assert [(one.via, one.confidence, one.settled) for one in found.matches] == [("content", 0.99, True)]
    assert rows(found, 0) == [("input:0", "Clip.0 input:0", ""), ("output:0", "Clip.0 output:0", "")]
    [first, _] = found.rows[0]
    assert (first.target.slot, first.target.relation, first.via, first.confidence) == ("input:0", None, "content", 0.99)


def test_an_operator_without_a_partner_of_an_output_is_no_match():
    assert not paired([RELU], [RELU], []).matches
    assert not paired([RELU], [RELU], []).rows
    assert not paired([("print", [X], [])], [RELU], [0]).matches


def test_the_golden_operator_has_the_arguments_of_the_target():
    target, golden = (("relu", [X], [A], {"arguments": {"input:1": value}}) for value in (1, 2))
    found = paired([target], [golden], [0, 1])
    assert found.matches[0].golden.arguments == {"input:1": 1}
    assert all(row.golden_op is found.matches[0].golden for row in found.rows[0])


def test_the_pair_of_the_first_output_names_the_stage():
    both = [("split", [X], [A, B])]
    late = by_value(2, 2, via="weights", confidence=0.7, reason="why")
    found = paired(both, both, [0, 1, late])
    assert (found.matches[0].via, found.matches[0].confidence) == ("content", 0.99)
    assert [(row.via, row.confidence, row.note) for row in found.rows[0]][2] == ("weights", 0.7, "why")
    found = paired(both, both, [0, late])
    assert (found.matches[0].via, found.matches[0].confidence) == ("weights", 0.7)


def test_a_copy_is_compared_with_what_it_should_hand_on():
    found = paired([RELU, ("reshape", [A], [B])], [RELU, ("reshape", [A], [A.reshape(24)])], [0, 1], copies={2: 1})
    assert partners(found) == {"relu.0": "relu.0", "reshape.1": "relu.0"}
    row = found.rows[1][0]
    assert (row.slot, row.via, row.note) == (
        "output:0",
        "copy",
        "the operator hands on what it reads, but wrote other values",
    )


@pytest.mark.parametrize(
    "target, golden, partner",
    [
        ([RELU], [("Block", [X], [A], {"path": "m"}), RELU], "relu.1"),  # no module
        ([("Block", [X], [A], {"path": "m"})], [RELU, ("Block", [X], [A], {"path": "m"})], "Block.1"),
        ([("sin", [X], [A])], [("sin", [X], [A.reshape(24)]), ("cos", [X], [A])], "cos.1"),  # of one shape
        ([("sin", [X], [A])], [("cos", [X], [A]), ("sin", [X], [A])], "sin.1"),  # of one type
        ([("sin", [X], [A[:, None]])], [("cos", [X], [A]), ("sin", [X], [A])], "sin.1"),
        ([("sin", [X], [A])], [("cos", [X], [A]), ("tan", [X], [A])], "cos.0"),
        ([("sin", [X], [A])], [("reshape", [A], [A]), ("cos", [X], [A])], "cos.1"),  # what computes it
        ([("sin", [X], [A])], [("cos", [X], [A.reshape(24)]), ("reshape", [A.reshape(24)], [A])], "cos.0"),
    ],
)  # fmt: skip
def test_the_golden_operator_is_the_most_alike_that_writes_the_content(target, golden, partner):
    pairs = pairs_in_memory(target, golden)
    numbers = [graph.content_of[place, "output:0"] for graph, place in ((pairs.target, 0), (pairs.golden, 1))]
    assert partners(paired(target, golden, [tuple(numbers)])) == {target[0][0] + ".0": partner}


def test_a_view_is_the_partner_of_a_view():
    view = ("reshape", [A], [A.reshape(24)])
    found = paired([RELU, view], [RELU, view], [0, 1])
    assert partners(found) == {"relu.0": "relu.0", "reshape.1": "reshape.1"}
    found = paired([RELU, ("sin", [X], [B]), ("clone", [A], [A])], [RELU, ("clone", [A], [A])], [0, 1])
    assert partners(found)["clone.2"] == "clone.1"


def test_each_golden_output_is_taken_once_if_there_are_as_many():
    both = [RELU, RELU]
    assert partners(paired(both, both, [0, 1])) == {"relu.0": "relu.0", "relu.1": "relu.1"}
    assert partners(paired(both, [RELU], [0, 1])) == {"relu.0": "relu.0", "relu.1": "relu.0"}


def test_an_output_may_be_compared_with_what_the_golden_reads():
    found = paired([RELU], [("exp", [A], [B])], [(1, 0)])
    assert partners(found) == {"relu.0": "exp.0"} and golden_of(found, 0) == "exp.0 input:0"


@pytest.mark.parametrize(
    "read, golden, tensor",
    [
        ([X], [("sin", [X], [B]), ("relu", [X], [A])], "relu.1 input:0"),  # of the partner itself
        ([X], [("sin", [X], [B]), ("relu", [X.reshape(24)], [A])], "relu.1 input:0"),
        ([X], [("relu", [X.reshape(24), X], [A])], "relu.0 input:1"),  # of one shape
        ([X[:, None]], [("relu", [X.reshape(24), X], [A])], "relu.0 input:1"),
    ],
)
def test_an_input_is_compared_with_what_the_partner_reads(read, golden, tensor):
    pairs = pairs_in_memory([("relu", read, [A])], golden)
    number = pairs.golden.content_of[len(golden) - 1, "output:0"]
    assert golden_of(paired([("relu", read, [A])], golden, [0, (1, number)]), 0, "input:0") == tensor


def test_an_input_that_the_partner_does_not_read_is_compared_with_what_was_written():
    golden = [("exp", [B], [C]), ("relu", [A], [B]), ("sin", [X], [S])]
    found = paired([("relu", [A], [B]), ("sin", [B], [S])], golden, [(1, 0), (0, 2), (2, 4)])
    assert partners(found)["sin.1"] == "sin.2" and golden_of(found, 1, "input:0") == "relu.1 output:0"


def test_each_input_of_the_partner_is_taken_once():
    both = [("mul", [X, X], [A])]
    found = paired(both, both, [0, 1])
    assert [golden_of(found, 0, f"input:{at}") for at in range(2)] == ["mul.0 input:0", "mul.0 input:1"]


# Operators of which no output is a content


LOSS = ("mean", [A], [ONE])


def test_an_operator_without_contents_is_paired_by_what_it_reads():
    found = paired([RELU, LOSS], [RELU, ("sin", [B], []), LOSS], [0, 1])
    assert [(one.target.name, one.golden.name, one.via, one.confidence) for one in found.matches] == [
        ("relu.0", "relu.0", "content", 0.99), ("mean.1", "mean.2", "structure", 0.8)
    ]  # fmt: skip
    assert rows(found, 1) == [("input:0", "mean.2 input:0", ""), ("output:0", "mean.2 output:0", "equal values")]


@pytest.mark.parametrize(
    "target, golden",
    [
        ([LOSS], [("sum", [A], [ONE])]),  # another type
        ([LOSS, LOSS], [LOSS]),
        ([LOSS], [LOSS, LOSS]),
        ([("mean", [A, X], [ONE])], [LOSS]),  # other partners
        ([("mean", [B], [ONE])], [LOSS]),
        ([("mean", [A, B], [ONE])], [LOSS]),
        ([LOSS], [("mean", [A], [C])]),  # which computes a content
        ([("mean", [A], [B])], [LOSS]),
        ([("mean", [np.arange(3)], [ONE])], [("mean", [np.arange(3)], [ONE])]),  # nothing that pairs them
    ],
)
def test_other_operators_without_contents_are_not_paired_by_what_they_read(target, golden):
    found = paired([RELU, *target], [RELU, *golden], [0, 1])
    assert "structure" not in {one.via for one in found.matches}


def test_an_operator_without_contents_may_read_a_copy():
    target = [RELU, ("reshape", [A], [B]), ("mean", [B], [ONE])]
    found = paired(target, [RELU, LOSS], [0, 1], copies={2: 1})
    assert found.matches[-1][:4] == (*found.matches[-1][:2], "structure", 0.8)
    assert partners(found)["mean.2"] == "mean.1"


# Operators inside a golden operator


def test_an_operator_inside_a_golden_one_is_compared_by_its_inputs():
    found = paired([RELU, ("sin", [A, W], [B])], [RELU, ("attention", [A], [C])], [0, 1])
    assert [(one.target.name, one.golden.name, one.via, one.confidence) for one in found.matches][1:] == [
        ("sin.1", "attention.1", "content", 0.8)
    ]
    assert rows(found, 1) == [
        ("input:0", "attention.1 input:0", ""), ("input:1", "", NONE), ("output:0", "", NONE),
        ("output:0 of the golden", "attention.1 output:0", OTHER),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "golden, partner",
    [
        ([("tanh", [A], [C]), ("mul", [A, X], [S])], "mul.2"),  # which reads most of them
        ([("tanh", [A], [C]), ("exp", [A], [S])], "relu.0"),  # of two the first
        ([("reshape", [A], [C]), ("cast", [X, A], [S])], "relu.0"),  # not one that hands on
        ([("reshape", [A, X], [C], {"path": "m"})], "reshape.1"),  # a module computes
    ],
)
def test_an_inner_operator_belongs_to_the_golden_one_that_reads_most_of_its_inputs(golden, partner):
    target = [RELU, ("sin", [A, X], [B])]
    assert partners(paired(target, [RELU, *golden], [0, 1]))["sin.1"] == partner


def test_an_operator_without_outputs_or_without_partners_above_is_not_inside():
    golden = [RELU, ("tanh", [A], [C])]
    assert "sin.1" not in partners(paired([RELU, ("sin", [A], [])], golden, [0, 1]))
    assert "sin.1" not in partners(paired([RELU, ("sin", [W], [B])], golden, [0, 1]))
    assert "sin.1" not in partners(paired([RELU, ("sin", [A], [B])], [("relu", [X], [A])], [(1, 1)]))


def test_operators_stand_in_the_order_of_the_target():
    target = [("sin", [X], [B]), RELU, LOSS, ("cos", [A], [C])]
    found = paired(target, [RELU, LOSS, ("tan", [A], [S])], [0, (2, 1)])
    assert [one.target.order for one in found.matches] == [0, 1, 2, 3]
    assert {*found.rows} == {0, 1, 2, 3}


# Inputs upstream


def test_the_nearest_inputs_upstream_are_compared():
    target = [RELU, ("sin", [A, W], [S]), ("exp", [S], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (4, 2)])
    assert rows(found, 2) == [
        ("input:0", "", NONE), ("output:0", "fused.1 output:0", ""), ("input:0 of sin.1", "fused.1 input:0", "")
    ]  # fmt: skip
    upstream = found.rows[2][2]
    assert (upstream.target.slot, upstream.target.own_slot) == ("input:0 of sin.1", "input:0")


def test_an_input_upstream_is_named_once():
    target = [RELU, ("sin", [A], [S]), ("cos", [A], [C]), ("mul", [S, C], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (4, 2)])
    assert [one[0] for one in rows(found, 3)] == ["input:0", "input:1", "output:0", "input:0 of cos.2"]
    direct = [RELU, ("sin", [A], [S]), ("mul", [S, A], [B])]
    found = paired(direct, [RELU, ("fused", [A], [B])], [0, 1, (3, 2)])
    assert [one[0] for one in rows(found, 2)] == ["input:0", "input:1", "output:0"]


def test_an_input_upstream_is_that_of_the_last_reader_before_the_operator():
    target = [RELU, ("sin", [X, A], [S]), ("exp", [S], [B]), ("tan", [A], [C])]
    found = paired(target, [RELU, ("fused", [A], [B])], [1, (3, 2)])
    assert rows(found, 2)[-1][:2] == ("input:1 of sin.1", "fused.1 input:0")
    found = paired(target[::-1], [RELU, ("fused", [A], [B])], [(0, 1), (3, 2)])  # the order of execution is a guess
    assert [one[0] for one in rows(found, 1)][-1] == "input:0 of tan.0"
    found = paired([target[2], target[1], RELU], [RELU, ("fused", [A], [B])], [(3, 1), (1, 2)])
    assert [one[0] for one in rows(found, 0)][-1] == "input:1 of sin.1"


@pytest.mark.parametrize("steps, is_near", [(24, True), (25, False)])
def test_inputs_upstream_are_within_twenty_four_steps(steps, is_near):
    chain = [A, *(drawn(200 + at, 8) for at in range(steps))]
    target = [RELU, *(("sin", [one], [other]) for one, other in zip(chain, chain[1:])), ("exp", [chain[-1]], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (steps + 2, 2)])
    assert ("input:0 of sin.1" in [one[0] for one in rows(found, steps + 1)]) is is_near


def test_a_graph_names_what_an_operator_reads_without_a_record():
    """The sine reads the output of the relu by the graph. The golden tensor that is compared with it is not left."""
    read = TensorRef("", "float32", (), source="relu.0:0")
    target = [RELU, ("sin", [read], [S]), ("exp", [S], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (3, 2)])
    assert rows(found, 2)[-1][:2] == ("input:0 of relu.0", "fused.1 input:0")
    target = [RELU, ("sin", [A], [S]), ("exp", [S, read], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (3, 2)])
    assert ("input:0 of sin.1", "fused.1 input:0", "") in rows(found, 2)


def test_what_a_generator_makes_bounds_no_input():
    target = [RELU, ("rand", [], [S]), ("mul", [A, S], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (3, 2)])
    assert ("input:1", "", UNBOUNDED) in rows(found, 2)
    found = paired(target, [RELU, ("fused", [A], [C])], [0, 1, by_value(3, 2, error=None)])
    assert ("input:1", "", UNBOUNDED) in rows(found, 2)


# Golden tensors that are left


def test_golden_tensors_that_are_left_stand_behind_the_first_operator():
    target = [("mul", [X], [A]), ("reshape", [A], [A.reshape(24)])]
    found = paired(target, [("mul", [X, W], [A])], [0, (1, 2)])
    assert rows(found, 0) == [
        ("input:0", "mul.0 input:0", ""), ("output:0", "mul.0 output:0", ""), ("input:1", "mul.0 input:1", OTHER)
    ]  # fmt: skip
    assert [one[0] for one in rows(found, 1)] == ["input:0", "output:0"]
    assert (found.rows[0][2].target, found.rows[0][2].via) == (None, "")


def test_a_golden_slot_that_the_target_has_too_is_named_so():
    found = paired([("mul", [X, S], [A])], [("mul", [X, W], [A])], [0, 2])
    assert rows(found, 0) == [
        ("input:0", "mul.0 input:0", ""), ("input:1", "", NONE), ("output:0", "mul.0 output:0", ""),
        ("input:1 of the golden", "mul.0 input:1", OTHER),
    ]  # fmt: skip


def test_tensors_that_are_no_contents_are_paired_where_they_are_equal():
    axes, other = np.array([0, 2, 1]), np.array([1, 5])
    found = paired([("mul", [X, axes], [A])], [("sin", [X, other, axes], [A])], [0, 1])
    assert rows(found, 0) == [
        ("input:0", "sin.0 input:0", ""), ("input:1", "sin.0 input:2", "equal values"),
        ("output:0", "sin.0 output:0", ""), ("input:1 of the golden", "sin.0 input:1", OTHER),
    ]  # fmt: skip
    [_, equal, *_] = found.rows[0]
    assert (equal.via, equal.confidence, equal.target.slot) == ("content", 0.99, "input:1")
    mask = np.arange(12).reshape(3, 4) % 3
    found = paired([("mul", [X, mask], [A])], [("mul", [X, mask.T.copy()], [A])], [0, 1])
    assert found.rows[0][1].target.relation.words == "permute(1,0)"


def test_tensors_of_the_partner_come_first():
    """The target reads in one operator what the golden reads in two."""
    golden = [("sin", [W], [S]), ("mul", [X, S], [A])]
    found = paired([("fused", [W, X], [A])], golden, [(0, 0), (1, 2), (2, 3)])
    assert [one[1] for one in rows(found, 0)] == ["mul.1 input:0", "mul.1 output:0", "mul.1 input:1", "sin.0 input:0"]


# Orders of axes


SQUARE = [drawn(40 + at, 6, 6) for at in range(5)]


def turned(one):
    return np.ascontiguousarray(one.T)


def by_turn(number, **more):
    return by_value(number, number, order=TURN, **more)


def relations(found, order=0):
    both = [one for one in found.rows[order] if one.target is not None and one.golden is not None]
    return {one.slot: one.target.relation.words if one.target.relation else "" for one in both}


@pytest.mark.parametrize("count, is_learned", [(2, False), (3, True), (4, True)])
def test_an_order_that_two_other_pairs_show_is_learned(count, is_learned):
    target = [("tanh", [], [one]) for one in SQUARE[:count]]
    golden = [("tanh", [], [turned(one)]) for one in SQUARE[:count]]
    found = paired(target, golden, [by_turn(number) for number in range(count)])
    assert relations(found) == {"output:0": PERMUTED if is_learned else ""}


def test_an_order_of_pairs_that_values_do_not_show_is_not_learned():
    target = [("tanh", [], [one]) for one in SQUARE[:3]]
    golden = [("tanh", [], [turned(one)]) for one in SQUARE[:3]]
    found = paired(target, golden, [by_turn(0), by_turn(1), by_turn(2, error=None, via="weights")])
    assert relations(found) == {"output:0": ""}


def test_a_pair_without_an_error_has_the_order_of_two_others():
    """It does not witness its own order."""
    target = [("tanh", [], [one]) for one in SQUARE[:3]]
    golden = [("tanh", [], [turned(one)]) for one in (*SQUARE[:2], drawn(50, 6, 6))]
    known = [by_turn(0), by_turn(1), by_value(2, 2, error=None, via="similar")]
    assert relations(paired(target, golden, known), 2) == {"output:0": PERMUTED}
    known[2] = by_value(2, 2, error=None)  # of recorded statistics
    assert relations(paired(target, golden, known), 2) == {"output:0": ""}


@pytest.mark.parametrize("shape, order", [((3, 5), ""), ((2, 8), PERMUTED)])
def test_fewer_than_sixteen_elements_show_no_order(shape, order):
    """Pairs of two axes show an order for others of two axes."""
    values = [drawn(60 + at, *shape) for at in range(3)]
    target = [*(("tanh", [], [one]) for one in values), ("exp", [], [SQUARE[0]])]
    golden = [*(("tanh", [], [turned(one)]) for one in values), ("exp", [], [turned(SQUARE[0] + np.float32(0.1))])]
    known = [by_turn(0), by_turn(1), by_turn(2), by_value(3, 3, error=None, via="similar")]
    assert relations(paired(target, golden, known), 3) == {"output:0": order}


def test_a_weight_has_the_order_in_which_its_values_agree():
    target, golden = [("matmul", [X, W], [A])], [("linear", [X, turned(W)], [A])]
    found = paired(target, golden, [0, by_turn(1), 2])
    assert relations(found) == {"input:0": "", "input:1": PERMUTED, "output:0": ""}
    [square] = [SQUARE[0]]
    found = paired([("matmul", [X, square], [A])], [("linear", [X, turned(square)], [A])], [0, by_turn(1), 2])
    assert relations(found)["input:1"] == PERMUTED
    found = paired([("matmul", [X, square], [A])], [("linear", [X, square], [A])], [0, 1, 2])
    assert relations(found)["input:1"] == ""


def test_a_weight_of_one_run_alone_has_an_order_that_other_pairs_show():
    square, golden_square = SQUARE[0], turned(SQUARE[0])
    golden = [("sin", [], [golden_square]), ("linear", [X, golden_square], [A])]
    found = paired([("matmul", [X, square], [A])], golden, [(0, 1), by_value(1, 0, order=TURN), 2])
    assert "input:1" not in relations(found)
    found = paired(golden, [("matmul", [X, square], [A])], [(1, 0), by_value(0, 1, order=TURN), 2])
    assert "input:1" not in relations(found, 1)


def test_the_only_order_is_taken_where_values_are_no_numbers():
    damaged = X.copy()
    damaged[0, 0] = np.nan
    found = paired([("tanh", [], [X])], [("tanh", [], [damaged])], [by_value(0, 0, error=None, via="similar")])
    assert relations(found) == {"output:0": ""}


def test_the_gradient_of_a_weight_has_its_order():
    weight, gradient, other = SQUARE[:3]
    target = [("matmul", [X, weight], [A]), ("tanh", [], [gradient])]
    golden = [("linear", [X, turned(weight)], [A]), ("tanh", [], [other])]
    known = [0, by_turn(1), 2, by_value(3, 3, error=None, via="similar")]
    assert relations(paired(target, golden, known), 1) == {"output:0": PERMUTED}
    target[0], golden[0] = (("tanh", [], [one, A]) for one in (weight, turned(weight)))
    known = [by_turn(0), 1, by_value(2, 2, error=None, via="similar")]
    assert relations(paired(target, golden, known), 1) == {"output:0": ""}  # no weight


def test_vectors_have_one_order():
    x, y = drawn(1, 24), drawn(2, 24)
    found = paired([("tanh", [], [x])], [("tanh", [], [y])], [by_value(0, 0, error=None, via="similar")])
    assert relations(found) == {"output:0": ""} and golden_of(found, 0) == "tanh.0 output:0"


def test_shapes_without_a_learned_order_are_not_compared():
    x = drawn(1, 2, 12)
    found = paired(
        [("tanh", [], [x])], [("tanh", [], [drawn(2, 4, 2, 3)])], [by_value(0, 0, via="similar", error=None)]
    )
    assert rows(found, 0) == [("output:0", "", NONE)]


def test_recorded_statistics_are_compared_in_one_order():
    found = paired([("tanh", [], [recorded(X)])], [("tanh", [], [recorded(turned(X))])], [by_value(0, 0, error=None)])
    assert golden_of(found, 0) == "tanh.0 output:0" and found.rows[0][0].target.shape == (6, 4)


def test_an_order_of_other_shapes_of_the_contents_is_learned():
    """The golden writes a view of each content too, which shows an order for these shapes."""
    values = [drawn(60 + at, 4, 6) for at in range(3)]
    target = [("tanh", [], [one]) for one in values]
    golden = [("tanh", [], [one, one.reshape(2, 2, 6).transpose(2, 0, 1).copy()]) for one in values]
    target.append(("exp", [], [drawn(64, 4, 6)]))
    golden.append(("exp", [], [drawn(65, 6, 2, 2)]))
    similar = by_value(3, 3, via="similar", error=None)
    assert relations(paired(target, golden, [0, 1, 2, similar]), 3) == {"output:0": "permute(1,2,0) of the golden"}
    assert relations(paired(target, golden, [0, similar]), 3) == {}


# Arrangements that no order of axes expresses


def groups(one):
    """Another arrangement of the elements of a square."""
    return np.ascontiguousarray(one[::-1])


PRODUCT = ("linear", [SQUARE[0], W], [B])
GROUPED = ("linear", [groups(SQUARE[0]), W], [B])


def arranged(then=PRODUCT, golden=GROUPED, known=(1, 2), first=(), ordered=True, noise=NOISE, **more):
    """The row of a tensor in two arrangements: of content 0, from which the others are computed."""
    pair = by_value(0, 0, **more)
    target, golden = [("tanh", [], [SQUARE[0]]), then], [("tanh", [], [groups(SQUARE[0])]), golden]
    found = paired([*target, *first], [*golden, *first], [pair, *known], ordered=ordered, noise=noise)
    return rows(found, 0)[0]


COMPARED, LEFT = ("output:0", "tanh.0 output:0", ""), ("output:0", "", NONE)


def test_an_arrangement_is_no_difference_if_a_product_of_it_is_right():
    assert arranged() == LEFT
    assert arranged(error=4 * NOISE) == LEFT
    assert arranged(error=4.1 * NOISE) == COMPARED  # the contents differ
    assert arranged(error=None, via="similar") == COMPARED
    assert arranged(order=SAME_ORDER) == COMPARED  # the contents agree in that order


@pytest.mark.parametrize(
    "then, golden, known",
    [
        (PRODUCT, GROUPED, [1]),  # it has no partner
        (PRODUCT, GROUPED, [1, by_value(2, 2, error=4.1 * NOISE)]),
        (PRODUCT, GROUPED, [1, by_value(2, 2, error=None)]),
        (PRODUCT, GROUPED, [1, by_value(2, 2, order=TURN)]),  # in an order that no other pair shows
        (("sin", [SQUARE[0], W], [B]), ("sin", [groups(SQUARE[0]), W], [B]), [1, 2]),  # no product
        (("linear", [W], [B]), ("linear", [W], [B]), [1, 2]),  # not of it
    ],
)
def test_an_arrangement_is_compared_if_no_product_of_it_is_right(then, golden, known):
    assert arranged(then, golden, known) == COMPARED


@pytest.mark.parametrize("count, row", [(1, COMPARED), (2, LEFT)])
def test_a_product_confirms_in_an_order_that_two_other_pairs_show(count, row):
    product, *others = (drawn(100 + at, 5, 5) for at in range(count + 1))
    target = [("tanh", [], [SQUARE[0]]), ("linear", [SQUARE[0], W], [product])]
    golden = [("tanh", [], [groups(SQUARE[0])]), ("linear", [groups(SQUARE[0]), W], [turned(product)])]
    target += [("tanh", [], [one]) for one in others]
    golden += [("tanh", [], [turned(one)]) for one in others]
    found = paired(target, golden, [0, 1, by_turn(2), *(by_turn(3 + at) for at in range(count))])
    assert rows(found, 0)[0] == row


def test_contents_that_agree_in_their_own_shapes_are_compared():
    """Each pair names the order in which its contents agree."""
    flat = ("tanh", [], [groups(SQUARE[0]).reshape(36)]), ("linear", [groups(SQUARE[0]).reshape(36), W], [B])
    for both in (([("tanh", [], [SQUARE[0]]), PRODUCT], flat), (flat, [("tanh", [], [SQUARE[0]]), PRODUCT])):
        found = paired(*both, [by_value(0, 0, order=SAME_ORDER), 1, 2])
        assert rows(found, 0)[0] == COMPARED
        assert rows(paired(*both, [0, 1, 2]), 0)[0] == LEFT


def test_a_tensor_that_agrees_in_another_order_is_compared():
    target = [("tanh", [], [X]), ("linear", [X, W], [B])]
    golden = [("tanh", [], [turned(X)]), ("linear", [turned(X), W], [B])]
    assert relations(paired(target, golden, [0, 1, 2])) == {"output:0": PERMUTED}


@pytest.mark.parametrize("then, more", [("layer_norm", {}), ("Block", {"path": "m"}), ("linear", {})])
def test_a_norm_or_a_module_confirms_an_arrangement_too(then, more):
    both = ((then, [one, W], [B], more) for one in (SQUARE[0], groups(SQUARE[0])))
    assert arranged(*both) == LEFT
    both = ((then, [one, W], [B], more) for one in (SQUARE[0], groups(SQUARE[0])))
    assert arranged(*both, known=[1, by_value(2, 2, error=4 * NOISE)]) == LEFT


def test_a_product_far_below_confirms_an_arrangement():
    chain = [drawn(90 + at, 6, 6) for at in range(3)]
    target = [("tanh", [], [SQUARE[0]]), ("sin", [SQUARE[0]], [chain[0]]), ("cos", [chain[0]], [chain[1]]),
              ("linear", [chain[1], W], [B])]  # fmt: skip
    golden = [("tanh", [], [groups(SQUARE[0])]), ("linear", [chain[2], W], [B])]
    assert rows(paired(target, golden, [0, (3, 2), (4, 3)]), 0)[0] == LEFT
    assert rows(paired(target, golden, [0, (3, 2)]), 0)[0] == COMPARED


def test_a_tensor_that_agrees_is_in_no_other_arrangement():
    target = [("tanh", [], [SQUARE[0]]), PRODUCT]
    found = paired(target, target, [0, 1, 2])
    assert rows(found, 0) == [COMPARED]


def test_an_arrangement_that_is_read_is_no_difference_either():
    target = [("tanh", [], [SQUARE[0]]), PRODUCT]
    golden = [("tanh", [], [groups(SQUARE[0])]), GROUPED]
    for before in (0, 3):
        found = paired(target, [("noop", [], [])] * before + golden, [0, 1, 2])
        assert rows(found, 1)[0][:2] == ("input:0", "")


def test_a_product_before_the_tensor_confirms_nothing():
    """The tensor is a view of what a product in front of it read."""
    view = SQUARE[0].reshape(36)
    target = [("tanh", [], [SQUARE[0]]), PRODUCT, ("reshape", [SQUARE[0]], [view])]
    golden = [("tanh", [], [SQUARE[0]]), PRODUCT, ("reshape", [SQUARE[0]], [view[::-1].copy()])]
    found = paired(target, golden, [0, 1, 2])
    assert [one[1] for one in rows(found, 2) if one[0] == "output:0"] == ["reshape.2 output:0"]
    for order in (None, SAME_ORDER):
        found = paired(target, golden, [by_value(0, 0, order=order), 1, 2], ordered=False)
        assert [one[1] for one in rows(found, 2) if one[0] == "output:0"] == [""]


def test_an_operator_confirms_no_arrangement_of_its_own_output():
    """A module hands on what it reads, and computes a content from it."""
    both = [
        [("tanh", [], [SQUARE[0]]), ("Block", [SQUARE[0]], [one, B], {"path": "m"})]
        for one in (SQUARE[0].reshape(36), groups(SQUARE[0]).reshape(36))
    ]
    assert golden_of(paired(*both, [0, 1]), 1) == "Block.1 output:0"


@pytest.mark.parametrize("ordered, row", [(True, COMPARED), (False, LEFT)])
def test_without_an_order_of_execution_the_first_operator_may_confirm(ordered, row):
    target = [PRODUCT, ("tanh", [], [SQUARE[0]])]
    golden = [GROUPED, ("tanh", [], [groups(SQUARE[0])])]
    found = paired(target, golden, [0, 1, 2], ordered=ordered)
    assert rows(found, 1)[0][:2] == (row[0], row[1] and "tanh.1 output:0")


# Parts


WHOLE = drawn(30, 5, 12)
PIECES = [np.ascontiguousarray(WHOLE[:, start : start + 4]) for start in (0, 4, 8)]
FUSED = [RELU, ("matmul", [A, W], [WHOLE])]  # contents 0, 1, 2 and 3
APART = [RELU, *(("matmul", [A, drawn(31 + at, 6, 4)], [one]) for at, one in enumerate(PIECES))]  # parts 3, 5 and 7


def test_an_operator_is_compared_with_its_parts():
    slices = [ContentSlice(3, 5, 4, 4, False), ContentSlice(3, 3, 0, 4, False)]
    found = paired(FUSED, APART, [0, 1], slices)
    match = found.matches[1]
    assert (match.target.name, match.golden.name, match.via, match.confidence) == ("matmul.1", "matmul.2", "parts", 0.9)
    parts = {one.slot: one for one in found.rows[1] if one.via == "parts"}
    assert [*parts] == ["output:0.4", "output:0.0"]  # that of the partner first
    first, second = parts["output:0.0"], parts["output:0.4"]
    assert first[4:] == ("parts", 0.9, "columns 0 to 3 are equal")
    assert second[4:] == ("parts", 0.9, "columns 4 to 7 are equal")
    assert (first.golden_op.name, second.golden_op.name) == ("matmul.1", "matmul.2")
    assert (first.target.relation, second.target.relation) == (SliceRelation(1, 0, 4), SliceRelation(1, 4, 8))
    assert second.target.payload.offset == 4 * 4 and second.target.shape == (5, 4)
    assert [one for one in rows(found, 1) if one[2] == OTHER] == [("input:1 of the golden", "matmul.2 input:1", OTHER)]


def test_a_part_is_compared_with_columns_of_the_golden():
    slices = [ContentSlice(3, 5, 4, 4, True)]
    found = paired(APART, FUSED, [0, 1], slices)
    assert {*partners(found).items()} == {("relu.0", "relu.0"), *((f"matmul.{at}", "matmul.1") for at in (1, 2, 3))}
    [row] = [one for one in found.rows[2] if one.slot == "output:0"]
    assert row[4:] == ("parts", 0.9, "columns 4 to 7 are equal")
    assert row.target.relation == SliceRelation(1, 4, 8, of_golden=True) and row.golden.relation is None
    assert row.golden.shape == (5, 4) and row.golden.payload.offset == 4 * 4
    assert (row.golden_op.name, row.golden.slot) == ("matmul.1", "output:0")
    [other] = [one for one in found.rows[1] if one.slot == "output:0"]
    assert other.golden is None and other.note == NONE
    every = [one for order in found.rows for one in rows(found, order)]
    assert ("matmul.1 output:0", OTHER) not in [one[1:] for one in every]


def test_columns_that_differ_are_no_difference_if_a_product_of_the_part_is_right():
    """The part stands in another arrangement."""
    rows_turned = PIECES[1][::-1].copy()
    then = ("linear", [rows_turned, drawn(33, 4, 6)], [S])
    target = [RELU, ("matmul", [A, drawn(31, 6, 4)], [rows_turned]), then]
    golden = [*FUSED, ("linear", [C, drawn(33, 4, 6)], [S])]
    slices = [ContentSlice(3, 3, 4, 4, True)]
    known = [0, 1, (4, 5), (5, 6)]
    [row] = [one for one in paired(target, golden, known, slices).rows[1] if one.slot == "output:0"]
    assert row.golden is None
    [row] = [one for one in paired(target, golden, known[:3], slices).rows[1] if one.slot == "output:0"]
    assert row.golden is not None


def test_an_operator_of_parts_alone_has_the_maker_of_the_first_as_partner():
    slices = [ContentSlice(3, 7, 8, 4, False)]
    assert partners(paired(FUSED, APART, [0, 1], slices))["matmul.1"] == "matmul.3"
