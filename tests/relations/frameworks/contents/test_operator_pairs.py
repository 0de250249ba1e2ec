"""Pairs of tensors from pairs of contents: the golden operator of each operator, and the rows of its tensors."""

from __future__ import annotations

import numpy as np

from npucmp.dump.limits import ANYWHERE
from npucmp.model import TensorRef
from npucmp.model.relation import AxisOrder
from npucmp.relations.frameworks.contents.content_alignment import ContentAlignment
from npucmp.relations.frameworks.contents.operator_pairs import OperatorPairs
from npucmp.relations.frameworks.contents.slices import ContentSlice
from tests.relations.frameworks.contents.memory import by_value, drawn, pairs_in_memory

X, A, B, C, S, W = (drawn(seed, 4, 6) for seed in range(6))
TURN, PERMUTED = AxisOrder((1, 0)), "permute(1,0)"
RELU = ("relu", [X], [A])


def paired(target, golden, known=(), slices=(), copies=(), **more):
    """The matches of two runs. A known pair is a number, two numbers, or a ContentPair."""
    pairs = pairs_in_memory(target, golden, **more)
    for one in known:
        pair = one if hasattr(one, "via") else by_value(*(one if isinstance(one, tuple) else (one, one)))
        assert pairs.add(pair)
    pairs.copies.update(copies)
    return OperatorPairs(ContentAlignment(pairs, slices, ()), ANYWHERE)


def rows(found, order):
    """The slot, the golden tensor, and why it has none, of each row of an operator."""
    return [(one.slot, f"{one.golden_op.name} {one.golden.slot}" if one.golden else "", one.note)
            for one in found.rows[order]]  # fmt: skip


# Inputs upstream


def test_a_graph_names_what_an_operator_reads_without_a_record():
    """The sine reads the output of the relu by the graph. The golden tensor that is compared with it is not left."""
    read = TensorRef("", "float32", (), source="relu.0:0")
    target = [RELU, ("sin", [read], [S]), ("exp", [S], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (3, 2)])
    assert rows(found, 2)[-1][:2] == ("input:0 of relu.0", "fused.1 input:0")
    target = [RELU, ("sin", [A], [S]), ("exp", [S, read], [B])]
    found = paired(target, [RELU, ("fused", [A], [B])], [0, 1, (3, 2)])
    assert ("input:0 of sin.1", "fused.1 input:0", "") in rows(found, 2)


# Orders of axes


SQUARE = [drawn(40 + at, 6, 6) for at in range(5)]


def turned(one):
    return np.ascontiguousarray(one.T)


def relations(found, order=0):
    both = [one for one in found.rows[order] if one.target is not None and one.golden is not None]
    return {one.slot: one.target.relation.words if one.target.relation else "" for one in both}


def test_a_weight_of_one_run_alone_has_an_order_that_other_pairs_show():
    square, golden_square = SQUARE[0], turned(SQUARE[0])
    golden = [("sin", [], [golden_square]), ("linear", [X, golden_square], [A])]
    found = paired([("matmul", [X, square], [A])], golden, [(0, 1), by_value(1, 0, order=TURN), 2])
    assert "input:1" not in relations(found)
    found = paired(golden, [("matmul", [X, square], [A])], [(1, 0), by_value(0, 1, order=TURN), 2])
    assert "input:1" not in relations(found, 1)


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


# Parts


WHOLE = drawn(30, 5, 12)
PIECES = [np.ascontiguousarray(WHOLE[:, start : start + 4]) for start in (0, 4, 8)]
FUSED = [RELU, ("matmul", [A, W], [WHOLE])]  # contents 0, 1, 2 and 3


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
