"""Pairs by structure, and copies."""

from __future__ import annotations

from npucmp.relations.frameworks.contents.learned_types import LearnedTypes
from npucmp.relations.frameworks.contents.structure_match import add_copies, match_structure
from tests.relations.frameworks.contents.memory import drawn, pairs_in_memory

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


def test_types_without_partners_where_the_runs_agree_get_none():
    def without(*sides):
        def prepare(pairs, types):
            for side in sides:
                types.alone[side]["tanh"] += 1

        return prepare

    assert matched(run(TANH), run(OTHER), prepare=without(0)) == [(2, 2)]
    assert matched(run(TANH), run(OTHER), prepare=without(0, 1)) == []


def copies(*calls, golden=None, known=(0, 1), right=()):
    pairs = pairs_in_memory(run(*calls), golden or run(), known)
    pairs.right[0].update(right)
    add_copies(pairs)
    return pairs.copies
