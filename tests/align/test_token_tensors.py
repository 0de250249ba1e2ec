"""Tensors of two runs that hold the same tokens in other layouts."""

from dataclasses import replace

import numpy as np
import pytest

from npucmp.align.token_axes import TokenShape
from npucmp.align.token_tensors import TensorPair, tensor_pairs, tensors_of
from npucmp.dump.limits import ANYWHERE
from tests.align.craft import run_with_values
from tests.align.token_craft import bare_side, side, sides, step

PACKED, BATCH = np.arange(12), np.arange(12).reshape(3, 4)
EMBEDDING, LINEAR = "Functional.embedding.0.forward", "Functional.linear.0.forward"


def key(name, slot, number=0):
    return name, number, slot


def test_a_side_has_the_tokens_of_all_steps(tmp_path):
    both = side(step(tmp_path / "a", BATCH), step(tmp_path / "b", [[1], [2], [3]]))
    assert both.shapes == (TokenShape((3, 4)), TokenShape((3, 1))) and both.size == 15
    assert both.turned().shapes == (TokenShape((3, 4), True), TokenShape((3, 1)))
    empty = run_with_values(tmp_path / "c", [("Functional.eq.0.forward", [np.arange(4)], [])])
    assert side(step(tmp_path / "d", BATCH), empty) is None and side(empty) is None


def test_tensors_by_operator_number_and_slot(tmp_path):
    again = run_with_values(tmp_path, [(LINEAR, [PACKED], [PACKED]), (EMBEDDING, [], [PACKED]), (LINEAR, [PACKED], [])])
    found = [(operator.order, one, tensor.slot) for operator, one, tensor in tensors_of(again)]
    assert found == [
        (0, key(LINEAR, "input:0"), "input:0"),
        (0, key(LINEAR, "output:0"), "output:0"),
        (1, key(EMBEDDING, "output:0"), "output:0"),
        (2, key(LINEAR, "input:0", 1), "input:0"),
    ]
    assert bare_side((3, 4)).tensors() == [{}]


def test_a_tensor_of_all_steps(tmp_path):
    both = side(step(tmp_path / "a", BATCH), step(tmp_path / "b", [[1], [2], [3]], ids=False))
    tensors = both.tensors()
    found = both.steps_of(tensors, key(EMBEDDING, "output:0"))
    assert [(one.axes.lanes, one.axes.places, one.axes.width) for one in found.values()] == [(3, 4, 8), (1, 3, 8)]
    assert both.steps_of(tensors, key(EMBEDDING, "input:0")) is None  # in the first step alone


def test_a_tensor_without_tokens_has_no_steps(tmp_path):
    both = side(step(tmp_path, BATCH, more=[("Functional.rope.0.forward", [np.ones((5, 2))], [])]))
    assert both.steps_of(both.tensors(), key("Functional.rope.0.forward", "input:0")) is None


def test_pairs_in_the_order_of_the_golden(tmp_path):
    scores = ("Functional.scores.0.forward", [np.ones((5, 2))], [np.ones((3, 4), bool)])
    flat = (scores[0], [np.ones((5, 2))], [np.ones(12, bool)])
    target = side(step(tmp_path / "target", PACKED, more=[flat]))
    found = tensor_pairs(target, side(step(tmp_path / "golden", BATCH, more=[scores])), None, ANYWHERE)
    expected = [(EMBEDDING, "input:0", False, 1), (EMBEDDING, "output:0", True, 8), (LINEAR, "input:0", True, 8)]
    expected += [(LINEAR, "output:0", True, 6), ("Functional.gelu.0.forward", "input:0", True, 6)]
    expected += [
        ("Functional.gelu.0.forward", "output:0", True, 6),
        ("Functional.output.0.forward", "input:0", True, 6),
    ]
    expected += [("Functional.output.0.forward", "output:0", True, 4), (scores[0], "output:0", False, 1)]
    assert found == [
        TensorPair(key(name, slot), key(name, slot), is_float, slot == "output:0", width)
        for name, slot, is_float, width in expected
    ]


def test_pairs_follow_the_golden_if_the_target_has_another_order(tmp_path):
    calls = [(f"Functional.{name}.0.forward", [], [np.ones((12, width))]) for name, width in (("a", 3), ("b", 4))]
    target = side(run_with_values(tmp_path / "target", calls[::-1]))
    golden = side(run_with_values(tmp_path / "golden", calls))
    found = tensor_pairs(target, golden, None, ANYWHERE)
    assert [one.golden[0] for one in found] == [calls[0][0], calls[1][0]]


def test_tensors_of_other_widths_are_no_pairs(tmp_path):
    name = "Functional.head.0.forward"
    target = side(step(tmp_path / "target", PACKED, more=[(name, [np.ones((12, 3))], [np.ones((12, 5))])]))
    golden = side(step(tmp_path / "golden", PACKED, more=[(name, [np.ones((12, 3))], [np.ones((12, 6))])]))
    found = tensor_pairs(target, golden, None, ANYWHERE)
    assert [one.golden for one in found if one.golden[0] == name] == [key(name, "input:0")]


def test_parameters_and_tensors_of_one_side_are_no_pairs(tmp_path):
    """The weight has as many rows as there are tokens."""
    both = []
    for name, extra in (("target", "abs"), ("golden", "neg")):
        more = [(f"Functional.{extra}.0.forward", [np.ones((12, 3))], [np.ones((12, 3))])]
        run = step(tmp_path / name, PACKED, more=more)
        first, *others = run.operators
        weight = first.tensors[1]._replace(slot="param:weight")
        first = first._replace(tensors=(*first.tensors, weight))
        both.append(side(replace(run, operators=(first, *others))))
    found = {one.golden for one in tensor_pairs(*both, None, ANYWHERE)}
    assert len(found) == 8 and key(EMBEDDING, "param:weight") not in found


@pytest.mark.parametrize("golden", [BATCH[:1, :1], BATCH])
def test_runs_of_other_networks_have_no_pairs(tmp_path, golden):
    calls = [(f"Functional.other{at}.0.forward", [np.ones((12, 3))], [np.ones((12, 5))]) for at in range(5)]
    target = side(run_with_values(tmp_path / "target", calls))
    assert tensor_pairs(target, side(step(tmp_path / "golden", golden)), None, ANYWHERE) is None


def test_one_token_of_the_golden_is_enough(tmp_path):
    target, golden = sides(tmp_path, [[0, 1, 2]], [0])
    assert len(tensor_pairs(target, golden, None, ANYWHERE)) == 8


def test_names_that_a_user_gave(tmp_path):
    both = (side(run_with_values(tmp_path / name, [(f"Functional.{name}.0.forward", [], [np.ones((12, 3))])]))
            for name in ("a", "b"))  # fmt: skip
    names = {"Functional.a.0.forward": "Functional.b.0.forward"}
    assert [one[:2] for one in tensor_pairs(*both, names, ANYWHERE)] == [
        (key("Functional.a.0.forward", "output:0"), key("Functional.b.0.forward", "output:0"))
    ]
