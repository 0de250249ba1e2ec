"""Tensors of two partners that are no contents: equal ones, and the only ones left."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.leftover_tensors import pair_leftovers
from npucmp.align.contents.operator_draft import OperatorDraft, TensorPartner
from npucmp.model import TensorRef
from npucmp.model.relation import SAME_ORDER, AxisOrder
from tests.align.contents.memory import by_value, drawn, pairs_in_memory, recorded

X = drawn(0, 4, 6)
EQUAL, LAST = "equal values", "the only tensor left of this size in both operators"
IDS = np.array([3, 1, 2])


def leftovers(target, golden, kind="gather", other=None, partners=(), used=()):
    """The golden slot, the reason and the order of each slot of the target that is paired, and the slots in use."""
    pairs = pairs_in_memory([(kind, *target)], [("noop", [], []), (other or kind, *golden)])
    draft = OperatorDraft(0, pairs.target.operators[0], 1)
    draft.partners.update({slot: TensorPartner(None, by_value(0, 0)) for slot in partners})
    taken = {(1, slot) for slot in used}
    pair_leftovers(draft, pairs.target, pairs.golden, taken, pairs)
    found = {slot: (other.slot, reason, order) for slot, (other, reason, order) in draft.exact.items()}
    assert taken == {(1, one[0]) for one in found.values()} | {(1, slot) for slot in used}
    return found


def test_tensors_with_equal_values_are_paired():
    assert leftovers(([IDS, IDS + 5], []), ([IDS + 5, IDS], [])) == {
        "input:0": ("input:1", EQUAL, SAME_ORDER),
        "input:1": ("input:0", EQUAL, SAME_ORDER),
    }
    assert leftovers(([IDS], []), ([IDS.astype(np.float32)], []), other="sin")["input:0"][1] == EQUAL


def test_each_tensor_is_taken_once():
    assert leftovers(([IDS, IDS], []), ([IDS], []), other="sin") == {"input:0": ("input:0", EQUAL, SAME_ORDER)}
    assert leftovers(([IDS, IDS], []), ([IDS, IDS], [])) == {
        "input:0": ("input:0", EQUAL, SAME_ORDER),
        "input:1": ("input:1", EQUAL, SAME_ORDER),
    }


def test_inputs_are_paired_with_inputs():
    assert leftovers(([IDS], []), ([], [IDS])) == {}
    assert leftovers(([], [IDS]), ([IDS], [IDS])) == {"output:0": ("output:0", EQUAL, SAME_ORDER)}
    assert leftovers(([], [IDS]), ([], [IDS + 1])) == {"output:0": ("output:0", LAST, SAME_ORDER)}


@pytest.mark.parametrize("factor, reason", [(1 + 9e-7, EQUAL), (1 + 1.5e-6, LAST)])
def test_equal_values_differ_by_the_round_off_of_a_constant(factor, reason):
    x = np.array([1.0, 2.0, 3.0])
    assert leftovers(([x * factor], []), ([x], [])) == {"input:0": ("input:0", reason, SAME_ORDER)}


def test_eight_elements_may_be_equal_in_another_order_of_axes():
    mask = np.array([[1, 0, 1, 1], [0, 0, 1, 0]])
    turned = {"input:0": ("input:0", EQUAL, AxisOrder((1, 0)))}
    assert leftovers(([mask], []), ([mask.T.copy()], [])) == turned
    assert leftovers(([mask[:, None]], []), ([mask.T[:, :, None].copy()], []))["input:0"][2] == AxisOrder((1, 0))
    assert leftovers(([mask], []), ([mask.reshape(8)], [])) == {"input:0": ("input:0", EQUAL, SAME_ORDER)}
    steps = np.arange(24).reshape(2, 3, 4) % 7
    moved = leftovers(([steps], []), ([steps.transpose(1, 2, 0).copy()], []))
    assert moved == {"input:0": ("input:0", EQUAL, AxisOrder((1, 2, 0)))}
    few = mask[:, :3]
    assert leftovers(([few], []), ([few.T.copy()], []), other="sin") == {}


def test_tensors_of_another_number_of_elements_are_not_equal():
    ones = np.ones(3, np.int64)
    assert leftovers(([ones], []), ([ones[:1]], [])) == {}


@pytest.mark.parametrize(
    "mine, theirs, is_pair",
    [
        ([IDS], [IDS + 1], True),
        ([IDS], [IDS.astype(np.uint8) + 1], True),
        ([IDS], [IDS + 1.5], False),  # numbers of another kind
        ([IDS + 1.5], [(IDS + 1).astype(np.float16)], True),
        ([IDS], [IDS[:2]], False),
        ([IDS], [IDS + 1, IDS + 2], False),
        ([IDS, IDS + 3], [IDS + 1], False),
        ([IDS, IDS[:2] + 3], [IDS + 1], True),
        ([IDS > 1], [IDS > 2], True),
        ([IDS > 1], [IDS + 1], False),
    ],
)
def test_the_only_tensors_left_of_a_size_and_kind_are_paired(mine, theirs, is_pair):
    found = {"input:0": ("input:0", LAST, SAME_ORDER)} if is_pair else {}
    assert leftovers((mine, []), (theirs, [])) == found
    assert leftovers((mine, []), (theirs, []), other="sin") == {}  # of operators of one type


def test_tensors_of_unknown_types_are_of_one_kind():
    odd, other = TensorRef("", "complex7", (3,)), TensorRef("", "strange", (3,))
    assert leftovers(([odd], []), ([other], [])) == {"input:0": ("input:0", LAST, SAME_ORDER)}
    assert leftovers(([odd], []), ([IDS], [])) == {}


def test_what_is_left_after_equal_tensors_is_paired():
    found = leftovers(([IDS, IDS + 1], []), ([IDS + 2, IDS], []))
    assert found == {"input:0": ("input:1", EQUAL, SAME_ORDER), "input:1": ("input:0", LAST, SAME_ORDER)}


@pytest.mark.parametrize("is_target", [True, False])
@pytest.mark.parametrize("one", [X, np.zeros((0, 3)), recorded(X)])
def test_contents_and_empty_tensors_are_not_left_over(one, is_target):
    other = np.zeros((0, 3)) if 0 in one.shape else TensorRef("", "float32", (4, 6))
    mine, theirs = (one, other) if is_target else (other, one)
    assert leftovers(([mine], []), ([theirs], [])) == {}


@pytest.mark.parametrize("is_target", [True, False])
def test_a_tensor_without_a_slot_is_not_left_over(is_target):
    pairs = pairs_in_memory([("gather", [], [IDS])], [("gather", [], [IDS])])
    graph = pairs.target if is_target else pairs.golden
    [operator] = graph.operators
    graph.operators = (operator._replace(tensors=(operator.tensors[0]._replace(slot=""),)),)
    draft = OperatorDraft(0, pairs.target.operators[0], 0)
    pair_leftovers(draft, pairs.target, pairs.golden, set(), pairs)
    assert not draft.exact


def test_tensors_with_a_partner_are_not_left_over():
    assert leftovers(([IDS], []), ([IDS], []), partners=["input:0"]) == {}
    assert leftovers(([IDS], []), ([IDS], []), used=["input:0"]) == {}
    assert leftovers(([IDS], []), ([IDS, IDS], []), used=["input:0"]) == {"input:0": ("input:1", EQUAL, SAME_ORDER)}


DIFFERS = "the same output of operators that read the same"


@pytest.mark.parametrize(
    "output, more, reason",
    [
        (drawn(3, 4, 6), {}, DIFFERS),
        (drawn(3, 4, 6), {"other": "sin"}, ""),  # operators of unlike types compute other values
        (drawn(3, 4, 6), {"partners": ()}, ""),  # what they read is not known to be equal
        (drawn(3, 4, 6), {"used": ["output:0"]}, ""),
        (drawn(3, 6, 4), {}, ""),
    ],
)
def test_the_same_output_of_operators_that_read_the_same_is_paired(output, more, reason):
    """Its values differ, so that its content has no partner; the golden's may be that of a tensor read later."""
    found = leftovers(([X], [output]), ([X], [drawn(5, 4, 6)]), **{"partners": ["input:0"], **more})
    assert found == ({"output:0": ("output:0", reason, SAME_ORDER)} if reason else {})
