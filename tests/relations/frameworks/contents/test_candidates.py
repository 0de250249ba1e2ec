"""The words about contents without a partner, and those of --explain."""

from __future__ import annotations

from npucmp.model import Match
from npucmp.relations.frameworks.contents.content_alignment import ContentAlignment
from npucmp.relations.frameworks.contents.matches import Candidates
from npucmp.relations.frameworks.contents.similarity import Likeness
from tests.relations.frameworks.contents.memory import by_value, drawn, pairs_in_memory

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


def test_the_two_best_candidates_are_named():
    found = words(likeness(1.0, 2, 2), likeness(1.25, 2, 4), likeness(1.125, 2, 3))
    assert found == (
        "two candidates are near: sin.3 (score 1.25) and exp.2 (score 1.12); name the right one with --mapping"
    )


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


def test_an_explanation_lists_the_candidates_from_the_best_on():
    found = explained("tanh.1", likeness(1.0, 2, 2), likeness(1.25, 2, 3, 0.123, 1.0), likeness(1.5, 3, 2, 0.75, 0.5))
    assert found == [
        f"target tanh.1: {WITHOUT}exp.2 (score 1.25), values 0.12 apart, 100% of relatives common; "
        "tanh.1 (score 1.00), values 0.5 apart, 25% of relatives common",
        f"golden tanh.1: {WITHOUT}exp.2 (score 1.50), values 0.75 apart, 50% of relatives common; "
        "tanh.1 (score 1.00), values 0.5 apart, 25% of relatives common",
    ]
