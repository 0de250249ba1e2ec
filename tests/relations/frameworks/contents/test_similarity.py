"""Candidates behind a fault: which contents are compared, their distance, their place and their score."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.relations.frameworks.contents import similarity
from npucmp.relations.frameworks.contents.similarity import golden_place, lacks_bias, match_similar, value_distances
from tests.relations.frameworks.contents.memory import MemoryValues, drawn, pairs_in_memory

FIT = 0.25
X, A, B = drawn(0, 4, 6), drawn(1, 4, 6), drawn(2, 4, 6)
NEAR = B + np.float32(0.3) * drawn(3, 4, 6)
EMPTY = ("noop", [], [])


def types_that(are_inner=False, fit=FIT):
    return SimpleNamespace(fit=lambda *_: fit, are_inner=lambda *_: are_inner)


def candidates(pairs, are_inner=False):
    """The candidates by their contents."""
    _, found = match_similar(pairs, types_that(are_inner))
    assert len({(one.target, one.golden) for one in found}) == len(found)
    return {(one.target, one.golden): one for one in found}


P, S, G = drawn(11, 4, 6), drawn(12, 4, 6), drawn(13, 4, 6)
W, BIAS = drawn(14, 4, 6), drawn(15, 4, 6)


def test_products_of_unequal_numbers_of_operands_lack_a_bias():
    linear = [("linear", [X, W, BIAS], [G])]
    assert lacks_bias(pairs_in_memory([("matmul", [X, W], [P])], linear), 2, 3)
    assert lacks_bias(pairs_in_memory(linear, [("matmul", [X, W], [P])]), 3, 2)
    assert not lacks_bias(pairs_in_memory(linear, linear), 3, 3)
    pairs = pairs_in_memory([("relu", [P], [X]), ("matmul", [X, W], [B])],
                            [("relu", [P], [X]), ("linear", [X, W, BIAS], [NEAR])], [0, 1, 2])  # fmt: skip
    assert not candidates(pairs)


def star(places, values, operators=100):
    """A run in which each of these values is computed from the input, at these places."""
    calls = [EMPTY] * operators
    for place, one in zip(places, values):
        calls[place] = ("tanh", [X], [one])
    return calls


def scattered(count, seed):
    return [B + np.float32(0.3) * drawn(seed + at, 4, 6) for at in range(count)]


@pytest.mark.parametrize(
    "targets, goldens, near",
    [
        ((0, 1, 2, 4), (6, 44, 45, 99), {6, 44, 45, 99}),  # not too many
        ((0, 1, 2, 3, 4), (6, 44, 45, 99), {6, 44}),
        ((99, 98, 97, 96, 95), (2, 54, 55, 60), {55, 60}),
        ((0, 1, 2, 3, 4), (60, 61, 62, 63), set()),
    ],
)
def test_of_very_many_contents_those_near_in_the_order_of_execution_are_compared(monkeypatch, targets, goldens, near):
    """Within eight times a width of 5 places."""
    monkeypatch.setattr(similarity, "MANY", 4)
    pairs = pairs_in_memory(star(targets, scattered(len(targets), 20)), star(goldens, scattered(4, 40)), [0])
    found = {pairs.golden.contents[golden].first for _, golden in candidates(pairs)}
    assert found == near


@pytest.mark.parametrize("side", [0, 1])
def test_values_that_can_no_longer_be_read_are_near_by_their_sketch(side):
    values = MemoryValues()
    pairs = pairs_in_memory([("relu", [B], [])], [("relu", [B], [])], values=values)
    del values.arrays[f"memory {side}"]
    assert value_distances(pairs, pairs.target.contents, pairs.golden.contents)[0, 0] == 0.1


def places(partners, operators=(8, 8)):
    """The golden places of all target places if the contents that are first computed at these places are partners."""
    runs = [[EMPTY] * count for count in operators]
    numbers = []
    for side, run in enumerate(runs):
        for place in {both[side] for both in partners}:
            run[place] = ("exp", [], [drawn(100 + at, 8) for at, both in enumerate(partners) if both[side] == place])
        numbers.append(sorted(range(len(partners)), key=lambda at, side=side: (partners[at][side], at)))
    known = [tuple(side.index(at) for side in numbers) for at in range(len(partners))]
    place = golden_place(pairs_in_memory(*runs, known))
    return [place(at) for at in range(operators[0])]
