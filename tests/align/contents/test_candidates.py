"""The words about contents without a partner, and those of --explain."""

from __future__ import annotations

import pytest

from npucmp.align.contents.candidates import Candidates
from npucmp.align.contents.content_alignment import ContentAlignment
from npucmp.align.contents.similarity import Likeness
from npucmp.model import Match
from tests.align.contents.memory import by_value, drawn, pairs_in_memory

X, A, B, C, D = (drawn(seed, 4, 6) for seed in range(5))
RUN = [("relu", [X], [A]), ("tanh", [A], [B]), ("exp", [A], [C]), ("sin", [A], [D])]
WITHOUT = "no partner (a score above 1.1 and a lead of 0.12 are required): "


def likeness(score, target, golden, distance=0.5, kin=0.25):
    return Likeness(score, target, golden, distance, kin)


def candidates(*likenesses, target=RUN, golden=RUN, known=(0,), matched=(), prepare=lambda pairs: None):
    pairs = pairs_in_memory(target, golden, known)
    prepare(pairs)
    operators = pairs.target.operators, pairs.golden.operators
    matches = [Match(operators[0][one], operators[1][other], "content", 0.9) for one, other in matched]
    return Candidates(ContentAlignment(pairs, [], likenesses), matches)


def words(*likenesses, at=("target", 1), **more):
    return candidates(*likenesses, **more).open_words()[at]


def test_only_operators_without_a_partner_are_open():
    found = candidates(matched=[(0, 1), (2, 3)]).open_words()
    assert {*found} == {("target", 1), ("target", 3), ("golden", 0), ("golden", 2)}


@pytest.mark.parametrize("side, other", [("target", "golden"), ("golden", "target")])
def test_an_operator_that_writes_no_content_has_no_candidates(side, other):
    run = [("print", [X], [])]
    found = words(at=(side, 0), target=run, golden=run)
    assert found == f"the {other} run has no such operator, and values cannot name one"


def test_an_operator_may_hold_values_that_are_compared_elsewhere():
    same = "holds values that another operator wrote; these are compared there"
    assert words(known=[(2, 3)], at=("target", 1)) == same
    assert words(known=[(2, 3)], at=("golden", 2)) == same
    assert words(known=[(2, 3)], at=("golden", 1)) != same
    assert words(prepare=lambda pairs: pairs.copies.update({2: 1})) == same
    assert words(prepare=lambda pairs: pairs.copies.update({2: 1}), at=("golden", 1)) != same


@pytest.mark.parametrize("side, other", [("target", "golden"), ("golden", "target")])
def test_a_content_above_an_agreement_is_not_computed_by_the_other_run(side, other):
    found = words(prepare=lambda pairs: pairs.right[side == "golden"].add(2), at=(side, 1))
    assert found == f"the {other} run computes no such tensor: what is computed from it agrees"


@pytest.mark.parametrize("side, other", [("target", "golden"), ("golden", "target")])
def test_without_candidates_nothing_is_near(side, other):
    found = words(at=(side, 1))
    assert found == f"no tensor of the {other} run is near; it may lie inside an operator of that run"


def test_one_candidate_is_not_enough():
    found = "one candidate, {} (score 1.20), but nothing else speaks for it"
    assert words(likeness(1.2, 2, 3)) == found.format("exp.2")
    assert words(likeness(1.2, 3, 2), at=("golden", 1)) == found.format("exp.2")


def test_the_two_best_candidates_are_named():
    found = words(likeness(1.0, 2, 2), likeness(1.25, 2, 4), likeness(1.125, 2, 3))
    assert found == (
        "two candidates are near: sin.3 (score 1.25) and exp.2 (score 1.12); name the right one with --mapping"
    )


def test_an_input_is_named_after_its_first_reader():
    run = [("relu", [A, X], [B])]
    found = words(likeness(1.2, 2, 1), at=("target", 0), target=run, golden=run, known=())
    assert found == "one candidate, relu.0 input:1 (score 1.20), but nothing else speaks for it"


def explained(pattern, *likenesses, **more):
    return [*candidates(*likenesses, **more).explain(pattern)]


def test_an_explanation_names_the_partner_and_how_it_was_found():
    known = {"known": [0, 1], "prepare": lambda pairs: pairs.add(by_value(2, 3, via="similar", confidence=0.75,
                                                                          reason="nearest"))}  # fmt: skip
    assert explained("tanh.1", **known)[0] == "target tanh.1: partner exp.2, by similar (0.75): nearest"
    assert explained("exp.2", **known)[1] == "golden exp.2: partner tanh.1, by similar (0.75): nearest"


def test_an_explanation_names_what_a_copy_hands_on():
    def copy(pairs):
        pairs.copies[2] = 4

    assert explained("tanh.1", prepare=copy)[0] == "target tanh.1: partner sin.3, by copy: it hands on what it reads"
    assert "copy" not in explained("tanh.1", prepare=copy)[1]


def test_an_explanation_of_both_runs_covers_all_names_that_match():
    found = explained("*n*")
    assert [one.partition(":")[0] for one in found] == [
        "target tanh.1", "target sin.3", "golden tanh.1", "golden sin.3"
    ]  # fmt: skip
    nothing = "no candidate; no tensor of the golden run is near; it may lie inside an operator of that run"
    assert found[0] == f"target tanh.1: {nothing}"
    assert explained("cos*") == []


def test_an_explanation_lists_the_candidates_from_the_best_on():
    found = explained("tanh.1", likeness(1.0, 2, 2), likeness(1.25, 2, 3, 0.123, 1.0), likeness(1.5, 3, 2, 0.75, 0.5))
    assert found == [
        f"target tanh.1: {WITHOUT}exp.2 (score 1.25), values 0.12 apart, 100% of relatives common; "
        "tanh.1 (score 1.00), values 0.5 apart, 25% of relatives common",
        f"golden tanh.1: {WITHOUT}exp.2 (score 1.50), values 0.75 apart, 50% of relatives common; "
        "tanh.1 (score 1.00), values 0.5 apart, 25% of relatives common",
    ]


def test_at_most_eight_candidates_are_listed():
    many = [(kind, [A], [drawn(10 + at, 4, 6)]) for at, kind in enumerate(["cos"] * 9)]
    found = explained("tanh.1", *(likeness(1 - at / 10, 2, 2 + at) for at in range(9)), golden=[RUN[0], *many])
    assert found[0].count("apart") == 8 and "cos.8" in found[0] and "cos.9" not in found[0]


def test_each_output_of_an_operator_is_explained():
    run = [("relu", [X], [A]), ("split", [A], [B, C]), ("exp", [D], [drawn(5, 8)])]
    assert [one.partition(":")[0] for one in explained("split.1", target=run, golden=RUN)] == ["target split.1"] * 2


def test_a_content_that_another_operator_computes_is_explained_by_that():
    """The view writes the content of the tanh."""
    run = [*RUN, ("reshape", [B], [B.reshape(24)])]
    right = explained("reshape.4", target=run, prepare=lambda pairs: pairs.right[0].add(2))
    assert right == [
        "target reshape.4: no candidate; the golden run computes no such tensor: what is computed from it agrees"
    ]


def test_a_content_that_no_operator_computes_is_explained_by_its_first_tensor():
    run = [("reshape", [X], [X.reshape(24)])]
    for side, at in (("target", 0), ("golden", 1)):
        found = explained("reshape.0", target=run, golden=run, known=())
        assert found[at].startswith(f"{side} reshape.0: no candidate; no tensor of the")
