"""Pairs by structure, and copies."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.learned_types import LearnedTypes
from npucmp.align.contents.structure_match import add_copies, match_structure
from tests.align.contents.memory import by_value, drawn, pairs_in_memory

X, A, B, C, H = (drawn(seed, 4, 6) for seed in range(5))
START = ("relu", [X], [A])


def run(*calls):
    """A run that computes content 1 from content 0, and then what these calls do."""
    return [START, *calls]


def matched(target, golden, known=(0, 1), near=None, prepare=lambda pairs, types: None):
    """The pairs by structure."""
    pairs = pairs_in_memory(target, golden, known)
    types = LearnedTypes(pairs)
    prepare(pairs, types)
    count = match_structure(pairs, types, near)
    found = [(one.target, one.golden) for one in pairs if one.via == "structure"]
    assert count == len(found)
    return found


TANH, OTHER = ("tanh", [A], [B]), ("tanh", [A], [C])


def test_operators_of_one_type_that_read_the_same_partners_are_partners():
    pairs = pairs_in_memory(run(TANH), run(OTHER), [0, 1])
    assert match_structure(pairs, LearnedTypes(pairs)) == 1
    reason = "1 of 1 inputs are partners, same type, the only one of this size"
    assert pairs.found[2][:5] == (2, 2, "structure", 0.8, reason)


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    "one, other",
    [
        ([TANH], [("exp", [A], [C])]),  # another type
        ([TANH], [("tanh", [A], [C[:2]])]),  # another size
        ([TANH], [OTHER, ("tanh", [A], [H])]),  # two candidates
        ([TANH], [("tanh", [X], [C])]),  # other partners
        ([TANH], [("tanh", [A, X], [C])]),  # more partners
        ([("mul", [A, A], [B])], [("mul", [A], [C])]),  # a square is no multiple
        ([("linear", [A, X], [B])], [("linear", [A, X, np.ones(4, np.float32)], [C])]),  # one has a bias
        ([("linear", [A, X], [B])], [("linear", [A, X, A], [C])]),
    ],
)
def test_other_contents_are_no_partners(one, other, is_swapped):
    both = run(*one), [("noop", [], []), *run(*other)]
    assert matched(*(both[::-1] if is_swapped else both)) == []


@pytest.mark.parametrize(
    "one, other",
    [
        (("mul", [A, A], [B]), ("mul", [A, A], [C])),
        (("mul", [X, A, A], [B]), ("mul", [A, X], [C])),  # several contents are not counted
        (("mul", [A, np.ones(3, np.float32)], [B]), ("mul", [A], [C])),  # a constant is not counted
        (("add", [A, X, np.ones(4, np.float32)], [B]), ("add", [A, X], [C])),  # not of an operator that is no product
        (("linear", [A, X, np.ones(1, np.float32)], [B]), ("linear", [A, X], [C])),  # single elements are no operands
    ],
)
def test_partners_may_read_other_tensors(one, other):
    assert matched(run(one), run(other)) == [(2, 2)] == matched(run(other), run(one))


def test_all_inputs_need_partners():
    target, golden = run(("mul", [A, X], [B])), run(("mul", [X, A], [C]))
    assert matched(target, golden, [0, 1]) == [(2, 2)]
    assert matched(target, golden, [1]) == []
    assert matched(target, golden, [0]) == [(1, 1)]


def test_partners_of_inputs_are_compared_and_not_numbers():
    target = [("relu", [X], [A]), ("sin", [X], [H]), ("tanh", [H], [B])]
    golden = [("sin", [X], [H]), ("relu", [X], [A]), ("tanh", [H], [C])]
    assert matched(target, golden, [0, (1, 2), (2, 1)]) == [(3, 3)]
    golden[2] = ("tanh", [A], [C])
    assert matched(target, golden, [0, (1, 2), (2, 1)]) == []


def test_a_content_that_reads_nothing_has_no_partner():
    assert matched(run(("rand", [], [B])), run(("rand", [], [C]))) == []
    assert matched(run(("tanh", [B], [])), run(("tanh", [C], []))) == []


def test_two_of_each_side_decide_by_their_types():
    target = run(TANH, ("exp", [A], [H]))
    golden = run(("exp", [A], [drawn(8, 4, 6)]), OTHER)
    assert matched(target, golden) == [(2, 3), (3, 2)]


def test_contents_away_from_new_pairs_are_not_tried():
    target, golden = run(TANH), run(OTHER)
    assert matched(target, golden, near=({2}, {2})) == [(2, 2)]
    assert matched(target, golden, near=(set(), {2})) == []
    assert matched(target, golden, near=({2}, set())) == []


def test_a_copy_is_an_input_with_a_partner_of_the_target_alone():
    def copy(pairs, types):
        pairs.copies[1] = 1

    assert matched(run(TANH), run(OTHER), [0], prepare=copy) == []
    both = [*run(TANH), ("sin", [drawn(8, 8)], [])], run(OTHER)
    pairs = pairs_in_memory(*both, [0])
    pairs.to_target[1] = 9  # of another content
    pairs.copies[1] = 1
    assert match_structure(pairs, LearnedTypes(pairs)) == 1


def test_types_that_were_partners_are_alike():
    def learn(count):
        return lambda pairs, types: types.together.update({("tanh", "exp"): count})

    target, golden = run(TANH), run(("exp", [A], [C]))
    assert matched(target, golden, prepare=learn(2)) == [(2, 2)]
    assert matched(target, golden, prepare=learn(1)) == []


def test_one_product_is_enough_to_count_operands():
    def learn(pairs, types):
        types.together["linear", "add"] = types.together["add", "linear"] = 2

    product, bias = run(("linear", [A, X], [B])), np.ones(4, np.float32)
    assert matched(product, run(("add", [A, X], [C])), prepare=learn) == [(2, 2)]
    assert matched(product, run(("add", [A, X, bias], [C])), prepare=learn) == []
    assert matched(run(("add", [A, X, bias], [C])), product, prepare=learn) == []


def test_types_without_partners_where_the_runs_agree_get_none():
    def without(*sides):
        def prepare(pairs, types):
            for side in sides:
                types.alone[side]["tanh"] += 1

        return prepare

    assert matched(run(TANH), run(OTHER), prepare=without(0)) == [(2, 2)]
    assert matched(run(TANH), run(OTHER), prepare=without(0, 1)) == []


def hide(*sides):
    """The contents 2 of these sides stand above an agreement."""

    def prepare(pairs, types):
        for side in sides:
            pairs.right[side].add(2)

    return prepare


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_a_content_above_an_agreement_needs_two_inputs_that_agree(sides):
    target, golden = run(("mul", [A, X], [B])), run(("mul", [A, X], [C]))
    assert matched(target, golden, prepare=hide(*sides)) == [(2, 2)]
    assert matched(run(TANH), run(OTHER), prepare=hide(*sides)) == []  # one input

    def doubt(pairs, types):
        hide(*sides)(pairs, types)
        pairs.found[1] = pairs.found[1]._replace(confidence=0.9)

    assert matched(target, golden, prepare=doubt) == []


@pytest.mark.parametrize("sides", [(0,), (1,)])
def test_a_content_above_an_agreement_needs_its_own_type(sides):
    target, golden = run(("mul", [A, X], [B])), run(("add", [A, X], [C]))

    def learn(pairs, types):
        types.together["mul", "add"] = 2

    def both(pairs, types):
        learn(pairs, types)
        hide(*sides)(pairs, types)

    assert matched(target, golden, prepare=learn) == [(2, 2)]
    assert matched(target, golden, prepare=both) == []


def test_a_content_with_a_partner_gets_no_other():
    target, golden = run(TANH), run(OTHER, ("exp", [drawn(8, 8)], [H]))
    assert matched(target, golden, [0, 1, (2, 4)]) == []
    assert matched(golden, target, [0, 1, (4, 2)]) == []
    assert matched(run(TANH), run(OTHER), prepare=lambda pairs, types: pairs.copies.update({2: 1})) == []
    twice = run(("mul", [A, X], [B]))
    more = run(("mul", [A, X], [C]), ("exp", [drawn(8, 8)], [H]))
    assert matched(twice, more, [0, 1, (2, 4)]) == [] == matched(more, twice, [0, 1, (4, 2)])


def test_a_content_above_an_agreement_with_a_partner_is_no_rival():
    one = run(("mul", [A, X], [B]))
    two = run(("mul", [A, X], [C]), ("mul", [A, X], [H]))
    other = ("exp", [drawn(8, 8)], [drawn(9, 4, 6)])
    late = [*one, other]  # contents 3 and 4

    def prepare(side):
        def add(pairs, types):
            pairs.add(by_value(4, 2) if side else by_value(2, 4))
            pairs.right[side].add(2)

        return add

    assert matched(late, two, prepare=prepare(1)) == [(2, 3)]
    assert matched(two, late, prepare=prepare(0)) == [(3, 2)]
    assert matched(one, run(("mul", [A, X], [C])), prepare=lambda pairs, types: pairs.copies.update({2: 1})) == []


def test_contents_of_two_passes_are_no_partners():
    backward = ("tanh", [A], [B], {"phase": "backward"})
    late = ("exp", [drawn(7, 8)], [drawn(8, 8)], {"phase": "backward"})
    assert matched(run(backward), run(OTHER)) == [(2, 2)]
    shifted = [(0, 2), (1, 3)]
    assert matched(run(backward), [late, *run(OTHER)], shifted) == []
    assert matched(run(backward), [late, *run(("tanh", [A], [C], {"phase": "backward"}))], shifted) == [(2, 4)]


def test_a_pair_that_crosses_another_does_not_count():
    target = run(TANH, ("exp", [B], [H]))
    golden = [("sin", [drawn(9, 4, 6)], [H]), ("exp", [H], [X]), START, OTHER]
    known = [(0, 2), (1, 3)]
    assert matched(target, golden, known) == [(2, 4)]
    assert matched(target, golden, known, prepare=lambda pairs, types: pairs.add(by_value(3, 1))) == []


def copies(*calls, golden=None, known=(0, 1), right=()):
    pairs = pairs_in_memory(run(*calls), golden or run(), known)
    pairs.right[0].update(right)
    add_copies(pairs)
    return pairs.copies


@pytest.mark.parametrize("kind", ["reshape", "transpose", "clone", "cast", "expand"])
def test_an_operator_that_hands_on_what_it_reads_made_a_copy(kind):
    assert copies((kind, [A], [B])) == {2: 1}


@pytest.mark.parametrize(
    "call",
    [
        ("tanh", [A], [B]),  # computes
        ("slice", [A], [B]),  # picks values
        ("reshape", [A], [B], {"path": "Module.a"}),  # a module
        ("reshape", [A], [B[:2]]),  # of another size
        ("cast", [A, X], [B]),  # of two contents
        ("reshape", [H], [B]),  # of a content without a partner
    ],
)
def test_other_operators_make_no_copies(call):
    assert copies(call) == {}


def test_a_tensor_of_another_size_does_not_matter_to_a_copy():
    assert copies(("cast", [A, drawn(9, 8)], [B])) == {3: 1}


def test_a_copy_is_that_of_the_partner_of_what_is_read():
    golden = [("exp", [H], [X]), START]
    assert copies(("reshape", [A], [B]), golden=golden, known=[(0, 1), (1, 2)]) == {2: 2}


def test_only_open_contents_are_copies():
    assert copies(("reshape", [A], [B]), golden=run(("tanh", [A], [C])), known=[0, 1, 2]) == {}
    assert copies(("reshape", [A], [B]), right=[2]) == {}
    assert copies(("reshape", [A], [])) == {}
