"""Operators of a lane of ranks beside those of the golden: by type, by shapes, and by the share of their values."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.relations.ranks.lane_match import match_lane
from tests.align.rank_craft import numbers, rank_of

X, Y, Z = (numbers(4, 6, seed=at) for at in range(3))


def call(kind, inputs, outputs=(), prefix="Torch"):
    return f"{prefix}.{kind}.0.forward", inputs, outputs


def operators(folder, *calls):
    numbered = [(f"{name.rsplit('.', 2)[0]}.{at}.forward", *rest) for at, (name, *rest) in enumerate(calls)]
    return rank_of(folder, numbered).operators


def matched(folder, lane, golden, most=1.0, known=None):
    """The places of the pairs in the lane and in the golden."""
    own, other = operators(folder / "lane", *lane), operators(folder / "golden", *golden)
    facts = None if known is None else (lambda one, two: known.get((own.index(one), other.index(two))))
    return [(own.index(one), other.index(two)) for one, two in match_lane(own, other, most, facts)]


def abs_of(*tensors):
    return [call("abs", [one]) for one in tensors]


# Common sequences


def test_operators_that_stand_alike_are_matched_as_they_stand(tmp_path):
    """All of them, whatever they hold; if one does not fit, the others are matched by content."""
    assert matched(tmp_path, abs_of(X, Y, Z), abs_of(Y, Z, X)) == [(0, 0), (1, 1), (2, 2)]
    assert matched(tmp_path, abs_of(X, Y, Z), abs_of(Y, Z)) == [(1, 0), (2, 1)]
    assert matched(tmp_path, abs_of(X, Y), [*abs_of(Y), call("sin", [X])]) == [(1, 0)]
    assert matched(tmp_path, abs_of(X, Y), [call("sin", [X]), *abs_of(X)]) == [(0, 1)]
    assert matched(tmp_path, [], abs_of(X)) == matched(tmp_path, abs_of(X), []) == matched(tmp_path, [], []) == []


# Experts


def linear(tokens, weight):
    return call("linear", [tokens, weight], [])


# Batches and images in parts


def convolution(data, out, *weight):
    return call("conv2d", [numbers(*data, seed=70), numbers(*(weight or (3, 2, 3, 3)), seed=71)],
                [numbers(*out, seed=72)])  # fmt: skip


@pytest.mark.parametrize(
    "lane, is_partner",
    [
        (convolution((4, 2, 6, 8), (4, 3, 4, 8)), True),  # four rows and one of each neighbour
        (convolution((3, 2, 6, 8), (2, 3, 4, 8)), True),
        (convolution((5, 2, 6, 8), (4, 3, 4, 8)), False),  # more images
        (convolution((4, 3, 6, 8), (4, 3, 4, 8)), False),  # more channels
        (convolution((4, 2, 6, 8), (4, 3, 5, 8)), False),  # its output is no part
        (convolution((4, 2, 6, 8), (4, 3, 4, 8), 3, 2, 3, 4), False),  # nor its weight
        (convolution((4, 2, 6), (4, 3, 4, 8)), False),
        (call("linear", [numbers(4, 2, 6, 8), numbers(3, 8)], [numbers(4, 3, 4, 8)]), False),
    ],
)
def test_a_convolution_of_a_part_of_an_image_reads_rows_of_its_neighbours(tmp_path, lane, is_partner):
    golden = convolution((4, 2, 8, 8), (4, 3, 8, 8))
    if "linear" in lane[0]:
        golden = call("linear", [numbers(4, 2, 8, 8), numbers(3, 8)], [numbers(4, 3, 8, 8)])
    pairs = matched(tmp_path, [lane, call("sin", [X])], [golden, call("cos", [X])], most=2.0)
    assert pairs == [(0, 0)] * is_partner


# Updates


ONES = [np.float32(0.31), np.float32(0.77), np.float32(1.93)]


def sums_of_one(*values):
    return [call("sum", [one]) for one in values]


@pytest.mark.parametrize(
    "lane, golden, known, pairs",
    [
        (sums_of_one(*ONES[:2]), sums_of_one(*ONES[:2]), {}, [(0, 0), (1, 1)]),
        (sums_of_one(*ONES), sums_of_one(*ONES[:2]), {}, []),  # unequally many
        (sums_of_one(*ONES[:1]), sums_of_one(*ONES[:2]), {}, []),
        (sums_of_one(*ONES[:2]), sums_of_one(ONES[2], ONES[2], ONES[2]), {}, [(0, 0), (1, 1)]),  # counters of steps
        (sums_of_one(*ONES), sums_of_one(*ONES[:2]), {(2, 1): True}, [(2, 1)]),
        ([*sums_of_one(*ONES[:2]), call("sum", [X])], sums_of_one(*ONES, X), {}, [(2, 3)]),  # X is no number
        ([*sums_of_one(*ONES[:2]), call("max", [ONES[0]])], [*sums_of_one(*ONES), call("max", [ONES[1]])], {},
         [(2, 3)]),
    ],
)  # fmt: skip
def test_operators_on_single_numbers_of_which_there_are_unequally_many(tmp_path, lane, golden, known, pairs):
    assert matched(tmp_path, lane, golden, known=known) == pairs
