"""Types of operators: partners, and those without one, as pairs by value show them."""

from __future__ import annotations

import pytest

from npucmp.align.contents.content_pairs import ContentPair
from npucmp.align.contents.learned_types import ROUNDING, LearnedTypes
from tests.align.contents.memory import NOISE, by_value, drawn, pairs_in_memory

X, A, B, C, D = (drawn(seed, 4, 6) for seed in range(5))
TARGET = [("relu", [X], [A]), ("tanh", [A], [B]), ("exp", [B], [C])]
GOLDEN = [("relu", [X], [A]), ("sigmoid", [A], [D]), ("exp", [D], [C])]


def learned(known, target=TARGET, golden=GOLDEN):
    """The pairs, and the types that they show."""
    pairs = pairs_in_memory(target, golden)
    for one in known:
        assert pairs.add(one if isinstance(one, ContentPair) else by_value(one, one))
    return pairs, LearnedTypes(pairs)


def test_types_of_pairs_by_value_are_partners():
    _, types = learned([0, 1, 3])
    assert types.together == {("relu", "relu"): 1, ("exp", "exp"): 1}
    assert types.seen == ({"relu": 1, "exp": 1}, {"relu": 1, "exp": 1})


def test_pairs_that_values_do_not_show_teach_no_types():
    _, types = learned([0, ContentPair(1, 1, "weights", 0.9, "")])
    assert not types.together and types.seen == ({}, {})


def test_a_content_above_an_agreement_is_right_and_its_type_has_no_partner():
    pairs, types = learned([0, 1, 3])
    assert pairs.right == ({2}, {2})
    assert types.alone == ({"tanh": 1}, {"sigmoid": 1})


def test_a_content_with_a_partner_is_not_alone():
    pairs, types = learned([0, 1, by_value(2, 2, error=1.0), 3])
    assert pairs.right == (set(), set()) and types.alone == ({}, {})


@pytest.mark.parametrize("error, is_right", [(NOISE * ROUNDING, False), (NOISE * ROUNDING * 0.99, True)])
def test_runs_agree_where_an_error_is_rounding_alone(error, is_right):
    pairs, types = learned([0, 1, by_value(3, 3, error=error)])
    assert pairs.right == (({2}, {2}) if is_right else (set(), set()))
    assert types.alone == (({"tanh": 1}, {"sigmoid": 1}) if is_right else ({}, {}))


def test_all_contents_above_an_agreement_are_right():
    pairs, types = learned([3])
    assert pairs.right == ({0, 1, 2}, {0, 1, 2})
    assert types.alone == ({"relu": 1, "tanh": 1}, {"relu": 1, "sigmoid": 1})  # an input has no type


def test_nothing_above_a_weight_is_right():
    stored = [("read_variable", [X], [A]), ("exp", [A], [B])]
    pairs, _ = learned([1], stored, stored)
    assert pairs.right == (set(), set())


def figures(number, via="content"):
    return by_value(number, number, error=None, via=via)


def test_the_parents_of_what_agrees_by_recorded_statistics_are_right():
    pairs, types = learned([figures(3)])
    assert pairs.right == ({2}, {2}) and types.alone == ({}, {})
    pairs, _ = learned([figures(3, "structure")])
    assert pairs.right == (set(), set())
    pairs, _ = learned([figures(2), figures(3)])
    assert pairs.right == ({1}, {1})


def test_a_parent_of_more_than_what_agrees_is_not_right():
    more = ("sin", [B], [drawn(9, 4, 6)])
    pairs, _ = learned([figures(3)], [*TARGET, more], GOLDEN)
    assert pairs.right == (set(), {2})
    pairs, _ = learned([figures(3)], TARGET, [*GOLDEN, ("sin", [D], [drawn(9, 4, 6)])])
    assert pairs.right == ({2}, set())


def test_a_content_that_one_run_computes_is_a_weight_of_none():
    pairs, _ = learned([by_value(1, 0)], TARGET, [("exp", [A], [B])])
    assert not pairs.target.contents[1].is_weight and not pairs.golden.contents[0].is_weight
    pairs, _ = learned([by_value(0, 1)], [("exp", [A], [B])], TARGET)
    assert not pairs.target.contents[0].is_weight and not pairs.golden.contents[1].is_weight
    pairs, _ = learned([0])
    assert pairs.target.contents[0].is_weight and pairs.golden.contents[0].is_weight


def test_types_are_alike_if_two_pairs_show_it():
    _, types = learned([0])
    assert types.alike(1, 1) and not types.alike(2, 2)
    types.together["tanh", "sigmoid"] = 1
    assert not types.alike(2, 2)
    types.together["tanh", "sigmoid"] = 2
    assert types.alike(2, 2) and not types.alike(2, 1)


def test_contents_are_alike_if_any_of_their_makers_are():
    """The same values are computed twice, by operators of two types."""
    both = [("relu", [X], [A]), ("tanh", [X], [A])]
    _, types = learned([], [("tanh", [X], [A])], both)
    assert types.alike(1, 1)


@pytest.mark.parametrize(
    "alone, seen, are",
    [
        ((1, 1), (0, 0), True),
        ((0, 1), (0, 0), False),
        ((1, 0), (0, 0), False),
        ((1, 1), (1, 0), False),  # a type that has a partner elsewhere
        ((1, 1), (0, 1), False),
    ],
)
def test_contents_are_inner_if_neither_type_ever_had_a_partner(alone, seen, are):
    _, types = learned([0])
    for side, name in enumerate(("tanh", "sigmoid")):
        types.alone[side][name], types.seen[side][name] = alone[side], seen[side]
    assert types.are_inner(2, 2) is are


@pytest.mark.parametrize(
    "together, seen, alone, fit",
    [
        (4, (4, 4), (0, 0), 0.4),
        (4, (8, 4), (0, 0), 0.25),
        (4, (4, 8), (0, 0), 0.25),
        (1, (4, 2), (0, 0), 0.175),
        (4, (4, 4), (8, 8), 0.4),  # twice as often without a partner
        (4, (4, 4), (9, 8), 0.2),
        (4, (4, 4), (8, 9), 0.2),
        (4, (4, 4), (9, 9), 0.0),
        (0, (0, 0), (0, 0), 0.0),
        (0, (0, 0), (1, 0), -0.3),  # a type that never has a partner
        (0, (0, 0), (0, 1), -0.3),
        (0, (0, 0), (1, 2), -0.6),
        (0, (1, 0), (0, 0), 0.0),  # one that has another partner once
        (0, (2, 0), (0, 0), -0.3),
        (0, (1, 0), (1, 0), -0.3),
        (0, (1, 2), (0, 0), -0.3),
        (0, (3, 2), (0, 0), -0.6),
    ],
)
def test_types_speak_for_a_pair_by_how_often_they_are_partners(together, seen, alone, fit):
    _, types = learned([0])
    if together:
        types.together["tanh", "sigmoid"] = together
    for side, name in enumerate(("tanh", "sigmoid")):
        types.seen[side][name], types.alone[side][name] = seen[side], alone[side]
    assert types.fit(2, 2) == pytest.approx(fit)


def test_one_type_speaks_for_a_pair():
    _, types = learned([], TARGET, TARGET)
    assert types.fit(2, 2) == pytest.approx(0.25)
    types.alone[0]["tanh"] = 1
    assert types.fit(2, 2) == pytest.approx(-0.05)
    assert types.fit(2, 1) == pytest.approx(-0.3)
