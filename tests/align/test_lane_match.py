"""Operators of a lane of ranks beside those of the golden: by type, by shapes, and by the share of their values."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align import lane_match
from npucmp.align.lane_match import match_lane, may_be_part, share_of, similarity
from npucmp.model import Statistics
from tests.align.craft import Recorded
from tests.align.rank_craft import held, numbers, rank_of

X, Y, Z = (numbers(4, 6, seed=at) for at in range(3))
HALF = np.float32([0.3, 2.7]), np.float32([0.3, 9.0, 4.0, 1.7])  # a half of the first one is in the second


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


# Shapes


@pytest.mark.parametrize(
    "shape, whole, most, rows, is_part",
    [
        ((4, 6), (4, 6), 0.5, False, True),
        ((2, 6), (4, 6), 1.0, False, True),
        ((1, 6), (4, 6), 2.0, False, True),  # twice as often as there are parts
        ((1, 6), (4, 6), 1.9, False, False),
        ((2, 3), (4, 6), 2.0, False, True),
        ((2, 3), (4, 6), 1.9, False, False),
        ((6, 4), (4, 6), 2.0, False, False),
        ((8, 6), (4, 6), 2.0, False, False),
        ((3, 6), (4, 6), 2.0, False, False),  # no division
        ((3,), (4,), 2.0, False, True),  # a flat tensor may have any length
        ((0,), (4,), 9.0, False, False),
        ((0, 6), (4, 6), 9.0, False, False),
        ((4,), (4, 1), 9.0, False, False),
        ((3, 6), (4, 6), 0.5, True, True),
        ((0, 6), (4, 6), 0.5, True, True),
        ((5, 6), (4, 6), 9.0, True, False),
        ((4, 5), (4, 6), 9.0, True, False),  # columns are no rows
        ((1, 6), (9, 6), 0.5, True, True),
        ((1,), (9,), 0.5, True, True),  # a piece of a flat parameter
        ((1, 2, 2), (9, 2, 2), 0.5, True, True),  # an uneven share of a batch
    ],
)
def test_a_tensor_may_be_a_part_by_its_shape(tmp_path, shape, whole, most, rows, is_part):
    one, golden = held(tmp_path, np.zeros(shape, np.float32), np.zeros(whole, np.float32))
    assert may_be_part(one, golden, most, rows) is is_part


def test_rows_of_whole_numbers_have_any_length(tmp_path):
    one, golden, floats = held(tmp_path, np.zeros(1, int), np.zeros(9, int), np.zeros(9, np.float32))
    assert may_be_part(one, golden, 0.5, rows=True) and not may_be_part(one, golden, 0.5)
    assert not may_be_part(one, floats, 9.0, rows=True)


# Shares of values


@pytest.mark.parametrize("size, is_known", [(4, True), (5, False)])
def test_large_tensors_are_not_sorted(tmp_path, monkeypatch, size, is_known):
    monkeypatch.setattr(lane_match, "SORTED", 4)
    one, golden = held(tmp_path, numbers(2), numbers(size))
    assert (share_of(one, golden) is not None) is is_known


@pytest.mark.parametrize(
    "own, whole, share",
    [
        ([0.3, 1.7, 2.9], [2.9, 0.3, 1.7], 1.0),  # in any order
        ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 6.0], 1.0 - 2.0 / 50**0.5),  # the distance
        ([4.0, 1.0], [1.0, -4.0], 0.0),
        ([1.0, 2.0], [-1.0, -2.0], 0.0),  # no less than none
        ([0.0, 0.0], [0.0, 0.0, 0.0, 0.0], 1.0),
        ([[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]], 1.0 - 1.0 / 7**0.5),
        ([3.0, 4.0], [3e38, 1.0, 2.0, 3.0], 0.5),  # squares beyond all numbers
    ],
)
def test_the_share_of_tensors_of_fine_numbers(tmp_path, own, whole, share):
    one, golden = held(tmp_path, np.float32(own), np.float32(whole))
    assert share_of(one, golden) == pytest.approx(share)


def test_rows_in_another_order_are_found_by_their_values(tmp_path):
    one, golden = held(tmp_path, X[[2, 3, 0, 1]] * np.float32(1 + 1e-6), X)
    assert share_of(one, golden) == 1.0
    one, golden = held(tmp_path / "column", X[[2, 3, 0, 1], 0] * np.float32(1 + 1e-6), X[:, 0])
    assert share_of(one, golden) < 0.3  # a tensor of one axis has no rows


ROOT_OF_MEAN_SQUARE = 21**0.5  # of 1, 3, 5, 7


@pytest.mark.parametrize("dtype, room", [(np.float32, 1e-5), (np.float16, 3e-3)])
@pytest.mark.parametrize("part, share", [(0.5, 1.0), (-0.5, 1.0), (1.5, 0.0), (-1.5, 0.0)])
def test_rounding_is_measured_in_root_mean_squares_of_the_whole(tmp_path, dtype, room, part, share):
    moved = np.float32(np.float64([1, 5, 7]) + part * room * ROOT_OF_MEAN_SQUARE)
    one, golden = held(tmp_path, moved, np.array([5, 1, 7, 3], dtype))
    assert share_of(one, golden) == share


@pytest.mark.parametrize("values", [[-2.0, 1.0], [9.0, 1.0]])
def test_values_beyond_the_ends_are_not_found(tmp_path, values):
    one, golden = held(tmp_path, np.float32(values), np.float32([1, 3, 5, 7]))
    assert share_of(one, golden) == 0.5


@pytest.mark.parametrize("size, share", [(48, 1.0), (47, 24 / 47)])
def test_every_other_element_of_48_is_looked_up(tmp_path, size, share):
    whole = numbers(100)
    own = whole[:size] + np.float32(50 * (np.arange(size) % 2))
    one, golden = held(tmp_path, own, whole)
    assert share_of(one, golden) == pytest.approx(share)


def half_precision(*shape, seed=0):
    return numbers(*shape, seed=seed, dtype=np.float16)


@pytest.mark.parametrize(
    "cut, share",
    [
        (np.s_[:2], 1.0),  # rows
        (np.s_[:, :4], 1.0),  # columns
        (np.s_[:2, :4], None),  # both axes differ
        (np.s_[::-1], 1.0),
        (np.s_[:, ::-1], None),
    ],
)
def test_rows_of_short_numbers_are_looked_up_whole(tmp_path, cut, share):
    whole = half_precision(8, 8)
    noise = np.float16(1.001)
    one, golden = held(tmp_path, whole[cut] * noise, whole)
    found = share_of(one, golden)
    assert found == share if share is not None or one.shape != golden.shape else found < 0.5


@pytest.mark.parametrize("error, share", [(0.05, 1.0), (0.15, 0.0)])
@pytest.mark.parametrize("width, counts", [(8, True), (7, False)])
def test_rows_of_eight_elements_are_alike_within_a_tenth(tmp_path, error, share, width, counts):
    whole = half_precision(4, width)
    one, golden = held(tmp_path, numbers(2, width) * 0 + whole[:2] * np.float32(1 + error), whole)
    assert share_of(one, golden) == (share if counts else None)


@pytest.mark.parametrize("rows, share", [(48, 1.0), (47, 24 / 47)])
def test_every_other_row_of_48_is_looked_up(tmp_path, rows, share):
    whole = half_precision(50, 8)
    own = whole[:rows].copy()
    own[1::2] = -own[1::2] * 3
    one, golden = held(tmp_path, own, whole)
    assert share_of(one, golden) == pytest.approx(share)


def test_one_matrix_of_short_rows_in_another_order(tmp_path):
    """Rows of seven elements are alike by chance: each value is looked up."""
    whole = half_precision(4, 7)
    one, golden = held(tmp_path, whole[[2, 3, 0, 1]] + np.float16(0.001), whole)
    assert share_of(one, golden) == 1.0


@pytest.mark.parametrize("size, share", [(8, 0.0), (7, 1.0)])
def test_a_flat_tensor_of_short_numbers_is_looked_up_by_runs(tmp_path, size, share):
    """Another order of elements is another run."""
    whole = half_precision(20)
    order = np.random.default_rng(4).permutation(size)
    one, golden = held(tmp_path, whole[:size][order], whole)
    assert share_of(one, golden) == share
    one, golden = held(tmp_path / "run", whole[5 : 5 + size], whole)
    assert share_of(one, golden) == 1.0


def test_a_flat_tensor_of_short_numbers_longer_than_the_golden(tmp_path):
    whole = half_precision(16)
    one, golden = held(tmp_path, whole, whole[:4])
    assert share_of(one, golden) == pytest.approx(4 / 16)


def recorded(high, low, mean, norm, *shape):
    return Recorded(Statistics(high, low, mean, norm), shape or (4,))


GOLDEN = 500.0, -500.0, 0.0, 1000.0
ROOM = 0.5  # a thousandth of the mean size of both ends


@pytest.mark.parametrize(
    "own, golden, share",
    [
        (GOLDEN, GOLDEN, 1.0),
        ((500.9, -500.9, 7.0, 1001.9), GOLDEN, 1.0),
        ((501.0, -501.0, 7.0, 1002.0), GOLDEN, 1.0),
        ((501.1, -500.0, 0.0, 1000.0), GOLDEN, 0.2),
        ((500.0, -501.1, 0.0, 1000.0), GOLDEN, 0.2),
        ((500.0, -500.0, 0.0, 1002.1), GOLDEN, 0.2),
        ((1.5e-6, -2.0, -1.0, 3.0), (0.0, -2.0, -1.0, 3.0), 1.0),  # 2e-3 of a thousandth of the mean size
        ((3.0e-6, -2.0, -1.0, 3.0), (0.0, -2.0, -1.0, 3.0), 0.2),
        ((None, -2.0, -1.0, 3.0), (0.0, -2.0, -1.0, 3.0), None),
        ((0.0, -2.0, None, 3.0), (0.0, -2.0, -1.0, 3.0), None),
        ((0.0, -2.0, -1.0, 3.0), (0.0, -2.0, -1.0, None), None),
        ((0.0, None, -1.0, 3.0), (0.0, -2.0, -1.0, 3.0), None),
        ((0.0, -2.0, -1.0, 3.0), (0.0, None, -1.0, 3.0), None),
    ],
)
def test_copies_by_statistics(tmp_path, own, golden, share):
    one, other = held(tmp_path, recorded(*own), recorded(*golden))
    assert share_of(one, other) == share


@pytest.mark.parametrize(
    "own, share",
    [
        ((500.0, -400.0, 0.0, 900.0), 1.0),  # it has the largest element
        ((400.0, -500.0, 0.0, 900.0), 1.0),
        ((400.0, -400.0, 0.0, 900.0), 0.8),
        ((500.0 + ROOM, -400.0, 0.0, 900.0), 1.0),
        ((400.0, -500.0 - ROOM, 0.0, 900.0), 1.0),
        ((500.0 - ROOM, -400.0, 0.0, 900.0), 1.0),
        ((400.0, -500.0 + ROOM, 0.0, 900.0), 1.0),
        ((499.4, -499.4, 0.0, 900.0), 0.8),
        ((500.6, -400.0, 0.0, 900.0), 0.0),  # beyond the whole
        ((400.0, -500.6, 0.0, 900.0), 0.0),
        ((500.6, -500.0, 0.0, 900.0), 0.2),
        ((400.0, -400.0, 0.0, 1000.0 * 1.001), 0.8),
        ((400.0, -400.0, 0.0, 1001.5), 0.0),
        ((500.0, -400.0, 0.0, 1001.5), 0.2),
    ],
)
def test_parts_by_statistics(tmp_path, own, share):
    one, other = held(tmp_path, recorded(*own, 2), recorded(*GOLDEN, 4))
    assert share_of(one, other) == pytest.approx(share)


# Similarity of two operators

W, V = numbers(5, 6, seed=7), np.float32(40) + numbers(5, 6, seed=8)
OTHER = np.float32(40) + numbers(3, 6, seed=9)  # tokens of none


@pytest.mark.parametrize(
    "one, golden, likeness",
    [
        (call("abs", [X], [Y]), call("abs", [X], [Y]), 3.0),
        (call("abs", [X], [Y]), call("sin", [X], [Y]), 0.0),
        (call("abs", [X], [Y, Z]), call("abs", [X], [Y]), 0.0),
        (call("abs", [np.arange(4)], []), call("abs", [np.arange(4)], []), 1.0),  # no share is known
        (call("abs", [X], [HALF[0]]), call("abs", [X], [HALF[1]]), 2.5),  # the mean share
        (call("abs", [X, X], [HALF[0]]), call("abs", [X], [HALF[1]]), 2.0),  # the outputs alone
        (call("abs", [X[:, :5]], [X]), call("abs", [X], [X]), 0.0),
        (call("mix", [X[:, :5]], [X], "Module"), call("mix", [X], [X], "Module"), 0.5),  # a module has its name
        # tokens: as many rows as a router sends
        (call("abs", [X[:3]], [Y[:3]]), call("abs", [X], [Y]), 3.0),
        (call("abs", [OTHER], [OTHER]), call("abs", [X], [Y]), 0.0),
        (call("abs", [X[:0]], [Y[:0]]), call("abs", [X], [Y]), 1.0),  # an expert without tokens
        (call("abs", [X[:3]], [OTHER]), call("abs", [X], [Y]), 0.0),  # the smallest share counts
        (call("linear", [X[:3], W], [Y[:3]]), call("linear", [X, W], [Y]), 3.0),
        (call("linear", [OTHER, W], [OTHER]), call("linear", [X, W], [Y]), 1 + 2 / 3),  # it reads an equal weight
        (call("linear", [OTHER, W[:2]], [OTHER]), call("linear", [X, W], [Y]), 1 + 2 / 3),  # or a part of it
        (call("linear", [X[:3], W], [Y[:3]]), call("linear", [X, V], [Y]), 1 + 2 * 2 / 3),  # known by its tokens
        (call("linear", [OTHER, W], [OTHER]), call("linear", [X, V], [Y]), 0.0),
        (call("abs", [OTHER, W], [OTHER]), call("abs", [X, W], [Y]), 0.0),  # no weight
        # pieces of tokens: all of them count
        (call("cat", [X[:3], Y], [Z]), call("cat", [X, Y], [Z]), 3.0),
        (call("cat", [X[:3], W], [Z]), call("cat", [X, V], [Z]), 0.0),
        (call("abs", [W], [X[:3]]), call("abs", [V], [X]), 2.0),  # one input is no piece
    ],
)
def test_the_similarity_of_two_operators(tmp_path, one, golden, likeness):
    (own,), (other,) = operators(tmp_path / "lane", one), operators(tmp_path / "golden", golden)
    found = similarity(own, other, 1.0)
    assert found == pytest.approx(likeness)


@pytest.mark.parametrize("found, likeness", [(2, 0.0), (3, 1.6)])
def test_tokens_of_which_three_tenths_are_found(tmp_path, found, likeness):
    part = np.float32(50) + numbers(10, 1, seed=3)
    part[:found] = numbers(13, 1)[:found]
    (own,) = operators(tmp_path / "lane", call("abs", [part]))
    (other,) = operators(tmp_path / "golden", call("abs", [numbers(13, 1)]))
    assert similarity(own, other, 0.5) == pytest.approx(likeness)


# Common sequences


def test_operators_that_stand_alike_are_matched_as_they_stand(tmp_path):
    """All of them, whatever they hold; if one does not fit, the others are matched by content."""
    assert matched(tmp_path, abs_of(X, Y, Z), abs_of(Y, Z, X)) == [(0, 0), (1, 1), (2, 2)]
    assert matched(tmp_path, abs_of(X, Y, Z), abs_of(Y, Z)) == [(1, 0), (2, 1)]
    assert matched(tmp_path, abs_of(X, Y), [*abs_of(Y), call("sin", [X])]) == [(1, 0)]
    assert matched(tmp_path, abs_of(X, Y), [call("sin", [X]), *abs_of(X)]) == [(0, 1)]
    assert matched(tmp_path, [], abs_of(X)) == matched(tmp_path, abs_of(X), []) == matched(tmp_path, [], []) == []


AS_THEY_STAND, BY_CONTENT = [(0, 0), (1, 1), (2, 2)], [(1, 0), (2, 2)]


@pytest.mark.parametrize(
    "one, golden, pairs",
    [
        (call("sin", [X]), call("sin", [Y]), AS_THEY_STAND),
        (call("sin", [X]), call("cos", [X]), BY_CONTENT[:1]),
        (call("sin", [X, X], [X]), call("sin", [X], [X]), BY_CONTENT),
        (call("sin", [X], [X]), call("sin", [X, X]), BY_CONTENT[:1]),  # as many tensors, but other ones
        (call("sin", [X[:3]]), call("sin", [X]), BY_CONTENT),
        (call("sin", [X[:2]]), call("sin", [X]), AS_THEY_STAND),
        (call("linear", [X, W]), call("linear", [X, V]), BY_CONTENT),  # another expert's weight
        (call("linear", [X, W[:, :3]]), call("linear", [X, W]), AS_THEY_STAND),
        (call("linear", [X, np.arange(9)]), call("linear", [X, np.arange(9)]), AS_THEY_STAND),
    ],
)
def test_what_stands_alike(tmp_path, one, golden, pairs):
    """The first two of both are of one shape, of which the second of the lane is the first of the golden."""
    assert matched(tmp_path, [*abs_of(X, Y), one], [*abs_of(Y, Z), golden]) == pairs


@pytest.mark.parametrize("found, pairs", [(3, BY_CONTENT), (4, AS_THEY_STAND)])
def test_a_weight_of_which_more_than_three_tenths_are_found_stands_alike(tmp_path, found, pairs):
    part = np.float32(50) + numbers(10, seed=3)
    part[:found] = numbers(20)[:found]
    lane, golden = call("linear", [X, part]), call("linear", [X, numbers(20)])
    assert matched(tmp_path, [*abs_of(X, Y), lane], [*abs_of(Y, Z), golden]) == pairs


@pytest.mark.parametrize(
    "ends, others, are_long",
    [
        (20, 0, False),
        (21, 0, True),  # more than 20
        (21, 5, True),
        (21, 6, False),
        (24, 6, True),  # 0.8 of the shorter side
        (24, 7, False),
    ],
)
def test_long_ends_are_matched_as_they_stand(tmp_path, ends, others, are_long):
    """The golden has one operator more than the lane before the ends, so that contents at the ends are shifted. The
    eight operators of the ends that are nearest to the middle are matched by content."""
    values = [numbers(2, seed=30 + at) for at in range(ends + 1)]
    own = [call("sin", [numbers(2, seed=90 + at)]) for at in range(others)]
    theirs = [call("cos", [numbers(2, seed=90 + at)]) for at in range(others)]
    pairs = matched(tmp_path, own + abs_of(*values[:ends]), theirs + abs_of(*values))
    last = ends - 8 if are_long else 0
    by_content = [(others + at, others + at) for at in range(ends - last)]
    assert pairs == by_content + [(others + at, others + at + 1) for at in range(ends - last, ends)]


@pytest.mark.parametrize(
    "lane, golden, pairs",
    [
        ("a", "bab", [(0, 1)]),
        ("ab", "bab", [(0, 1), (1, 2)]),
        ("ab", "aab", [(0, 1), (1, 2)]),  # pairs that follow each other
        ("ab", "abb", [(0, 0), (1, 1)]),
        ("aab", "ab", [(1, 0), (2, 1)]),
        ("abb", "ab", [(0, 0), (1, 1)]),
        ("a", "aa", [(0, 0)]),  # the first of equal ones
        ("aa", "a", [(0, 0)]),
        ("abc", "cab", [(0, 1), (1, 2)]),  # the common sequence of the largest similarity
        ("cab", "abc", [(1, 0), (2, 1)]),
        ("abcabc", "bcabca", [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]),
        ("ab", "acb", [(0, 0), (1, 2)]),
    ],
)
def test_the_common_sequence(tmp_path, lane, golden, pairs):
    """Equal letters have equal contents. An operator of another type at the end leaves none that stands alike."""
    values = dict(zip("abc", (X, Y, Z)))
    own, theirs = ([call("abs", [values[one]], [values[one]]) for one in some] for some in (lane, golden))
    assert matched(tmp_path, [*own, call("sin", [X])], [*theirs, call("cos", [X])]) == pairs


# Experts

TOKENS = {at: numbers(4, 6, seed=50 + at) for at in range(3)}


def linear(tokens, weight):
    return call("linear", [tokens, weight], [])


@pytest.mark.parametrize(
    "lane, is_partner",
    [
        (linear(TOKENS[2], V), True),  # a layer that the lane applies twice
        (linear(TOKENS[0], V), True),  # it has the first one's tokens
        (linear(TOKENS[0][:1], V), True),  # or one of them
        (linear(TOKENS[2], W), True),
        (linear(TOKENS[2], numbers(5, 6, seed=60)), True),  # a weight of none
        (linear(TOKENS[2], V[:, 0]), True),  # no matrix
        (linear(np.arange(24).reshape(4, 6), V), True),  # the share is not known
        (call("linear", [TOKENS[0].reshape(2, 2, 6), V]), False),  # another number of axes
    ],
)
def test_an_operator_of_another_expert_is_no_partner(tmp_path, lane, is_partner):
    """An operator of the lane before the second expert's may be the first one's, unless it is another one's."""
    first = linear(np.arange(24).reshape(4, 6) if lane[1][0].dtype == int else TOKENS[0],
                   W[:, 0] if lane[1][1].ndim == 1 else W)  # fmt: skip
    if lane[1][0].ndim == 3:
        first = call("linear", [TOKENS[0].reshape(4, 6, 1), W])
    golden = [first, linear(TOKENS[1], V), call("sin", [X])]
    pairs = matched(tmp_path, [lane, linear(TOKENS[1], V), call("cos", [X])], golden, most=4.0)
    assert pairs == ([(0, 0), (1, 1)] if is_partner else [(1, 1)])


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


@pytest.mark.parametrize(
    "rows, first, is_partner",
    [
        (3, numbers(7, 6, seed=73)[:3], True),  # three of seven images, whose activations are wrong
        (2, numbers(7, 6, seed=73)[:3], False),  # fewer rows than the batch: tokens of an expert
        (3, numbers(3, 6, seed=74), False),  # other data
        (3, np.arange(18).reshape(3, 6), True),  # which no value shows
    ],
)
def test_rows_of_an_uneven_batch_are_no_tokens_of_an_expert(tmp_path, rows, first, is_partner):
    data = numbers(7, 6, seed=73) if first.dtype != int else np.arange(42).reshape(7, 6)
    golden = [call("neg", [data]), call("relu", [numbers(7, 5, seed=75)])]
    lane = [call("neg", [first]), call("relu", [numbers(rows, 5, seed=76)])]
    pairs = matched(tmp_path, [*lane, call("sin", [X])], [*golden, call("cos", [X])])
    assert ((1, 1) in pairs) is is_partner


# Updates


def test_operators_that_read_one_parameter_are_partners(tmp_path):
    """A parameter counts more than the contents of one operator, and less than those of two."""
    lane, golden = abs_of(X, Y), abs_of(Y, Z)
    assert matched(tmp_path, lane, golden, known={}) == [(1, 0)]
    assert matched(tmp_path, lane, golden, known={(0, 1): True, (1, 0): None}) == [(0, 1)]
    assert matched(tmp_path, abs_of(X, Y, Z), abs_of(Y, Z, X + 9), known={(0, 2): True}) == [(1, 0), (2, 1)]
    assert matched(tmp_path, lane, golden, known={(1, 0): False}) == [(0, 0), (1, 1)]
    assert matched(tmp_path, abs_of(X), abs_of(X), known={(0, 0): False}) == []


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


FLAT = numbers(20, seed=70)


def flat_part(size, found):
    """A flat tensor of which so many elements are in FLAT."""
    part = np.float32(50) + numbers(size, seed=71)
    part[:found] = FLAT[:found]
    return part


@pytest.mark.parametrize(
    "own, whole, known, is_partner",
    [
        (flat_part(10, 10), FLAT, None, True),
        (flat_part(10, 3), FLAT, None, True),  # three tenths
        (flat_part(10, 2), FLAT, None, False),
        (flat_part(10, 2), FLAT, True, True),
        (flat_part(7, 7), FLAT, None, True),  # a third, rounded up
        (flat_part(6, 6), FLAT, None, True),  # and down
        (flat_part(8, 8), FLAT, None, True),  # a rank's share ends within the parameter
        (flat_part(16, 16), FLAT, None, True),
        (flat_part(20, 0), FLAT, None, True),  # one shape
        (FLAT[:10].reshape(2, 5), FLAT.reshape(4, 5), None, True),
        (flat_part(10, 0).reshape(2, 5), FLAT.reshape(4, 5), None, True),  # not flat
        (np.arange(10), np.arange(5, 25), None, True),  # no share is known
        (np.zeros(0, np.float32), FLAT, None, False),
    ],
)
def test_a_flat_buffer_of_an_update(tmp_path, own, whole, known, is_partner):
    pairs = matched(tmp_path, [call("abs", [own], [X])], [call("abs", [whole], [X])], 2.0, {(0, 0): known})
    assert pairs == ([(0, 0)] if is_partner else [])


def test_buffers_count_for_updates_alone(tmp_path):
    lane = [call("abs", [flat_part(10, 0)], [X]), call("sin", [X])]
    assert matched(tmp_path, lane, [call("abs", [FLAT], [X]), call("cos", [X])]) == [(0, 0)]
