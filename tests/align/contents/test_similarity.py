"""Candidates behind a fault: which contents are compared, their distance, their place and their score."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.align.contents import similarity
from npucmp.align.contents.similarity import golden_place, lacks_bias, match_similar, value_distances
from npucmp.model.relation import SAME_ORDER, AxisOrder
from tests.align.contents.memory import MemoryValues, drawn, pairs_in_memory, recorded

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


def far(x, y):
    """The distance of two arrays relative to the larger."""
    return np.linalg.norm(x.astype(float) - y) / max(np.linalg.norm(x), np.linalg.norm(y))


def score(distance, kin, below=False, apart=0.0, operators=2):
    return 1 - distance + 0.6 * kin + 0.3 * below + FIT + 0.3 * math.exp(-apart / (4 + 0.01 * operators))


def faulty(b, *more):
    """A run in which content 2 is computed from content 1."""
    return [("relu", [X], [A]), ("tanh", [A], [b]), *more]


def test_two_contents_of_one_size_are_near_by_values_and_relatives():
    [one] = candidates(pairs_in_memory(faulty(B), faulty(NEAR), [0, 1])).values()
    assert (one.target, one.golden, one.kin) == (2, 2, 1.0)
    assert one.distance == pytest.approx(far(B, NEAR), rel=1e-5)
    assert one.score == pytest.approx(score(one.distance, 1.0), rel=1e-6)


@pytest.mark.parametrize("fit", [0.25, -0.25])
def test_the_nearest_is_added(fit):
    pairs = pairs_in_memory(faulty(B), faulty(NEAR), [0, 1])
    count, found = match_similar(pairs, types_that(fit=fit))
    assert count == 1 and pairs.to_golden[2] == 2 and len(found) == 1
    assert (pairs.found[2].via, pairs.found[2].confidence) == ("similar", 0.85)
    assert pairs.found[2].reason == (
        f"nearest of all (distance {found[0].distance:.2g}); the second candidate is 0.50 behind"
    )


def test_the_confidence_is_the_lead_over_the_second_candidate():
    second = ("tanh", [A], [B + np.float32(0.7) * drawn(30, 4, 6)])
    pairs = pairs_in_memory(faulty(B), faulty(NEAR, second), [0, 1])
    _, found = match_similar(pairs, types_that())
    lead = abs(found[0].score - found[1].score)
    assert 0.12 < lead < 0.35 and pairs.to_golden[2] == 2
    assert pairs.found[2].confidence == round(0.5 + lead, 2) != round(0.5 + lead, 3)


def test_a_copy_has_the_relatives_of_its_source():
    pairs = pairs_in_memory(faulty(B), faulty(NEAR), [0])
    assert candidates(pairs)[2, 2].kin == 1.0
    pairs = pairs_in_memory(faulty(B), faulty(NEAR))
    pairs.copies[1] = 1
    assert not candidates(pairs)


def test_contents_without_a_common_relative_are_no_candidates():
    assert not candidates(pairs_in_memory(faulty(B), faulty(NEAR)))
    apart = [("relu", [X], [drawn(8, 4, 6)]), ("tanh", [drawn(9, 4, 6)], [NEAR])]
    assert (2, 3) not in candidates(pairs_in_memory(faulty(B), apart, [0]))


def test_the_share_of_common_relatives_counts():
    """Of the relatives of both, one of three is common."""
    w, v = drawn(4, 3, 3, 3), drawn(5, 3, 3, 3)
    target = [("relu", [X], [A]), ("mul", [A, w], [B]), ("sum", [v], [])]
    golden = [("relu", [X], [A]), ("mul", [A, v], [NEAR]), ("sum", [w], [])]
    found = candidates(pairs_in_memory(target, golden, [0, 1, (2, 4), (4, 2)]))[3, 3]
    assert found.kin == pytest.approx(1 / 3)
    assert found.score == pytest.approx(score(found.distance, 1 / 3, operators=3), rel=1e-6)


def test_contents_from_which_partners_are_computed_are_relatives():
    """Below the fault, the runs agree again."""
    below = ("exp", [B], [drawn(6, 4, 6)]), ("exp", [NEAR], [drawn(6, 4, 6)])
    target, golden = (faulty(b, more) for b, more in zip((B, NEAR), below))
    one = candidates(pairs_in_memory(target, golden, [3]))[2, 2]
    assert one.kin == 0.0 and one.score == pytest.approx(score(one.distance, 0.0, True, operators=3), rel=1e-6)
    assert (2, 2) not in candidates(pairs_in_memory(target, golden))


def test_the_score_falls_with_the_distance_in_the_order_of_execution():
    target = [("relu", [X], [A]), EMPTY, EMPTY, ("tanh", [A], [B])]
    one = candidates(pairs_in_memory(target, faulty(NEAR), [0, 1]))[2, 2]
    assert one.score == pytest.approx(score(one.distance, 1.0, apart=0.5), rel=1e-6)  # place 3 of 4 is 1.5 of 2
    one = candidates(pairs_in_memory(faulty(NEAR), target, [0, 1]))[2, 2]
    assert one.score == pytest.approx(score(one.distance, 1.0, apart=1.0, operators=4), rel=1e-6)


def test_contents_of_other_sizes_or_with_a_partner_are_no_candidates():
    assert not candidates(pairs_in_memory(faulty(B), faulty(NEAR[:2]), [0, 1]))
    for side in (0, 1):
        pairs = pairs_in_memory(faulty(B), faulty(NEAR), [0, 1])
        pairs.right[side].add(2)
        assert not candidates(pairs)


def test_types_without_partners_and_contents_of_two_passes_are_no_candidates():
    assert not candidates(pairs_in_memory(faulty(B), faulty(NEAR), [0, 1]), are_inner=True)
    backward = [("relu", [X], [A]), ("tanh", [A], [NEAR], {"phase": "backward"})]
    other = ("exp", [drawn(7, 8)], [drawn(8, 8)], {"phase": "backward"})
    assert (2, 2) not in candidates(pairs_in_memory(faulty(B, other), backward, [0, 1]))
    assert (2, 2) in candidates(pairs_in_memory(faulty(B), backward, [0, 1]))
    late = [("exp", [drawn(7, 8)], [drawn(8, 8)], {"phase": "backward"}), *backward]
    assert (2, 4) in candidates(pairs_in_memory([*faulty(B)[:1], backward[1]], late, [(0, 2), (1, 3)]))


def test_types_are_asked_for_the_content_of_the_target_first():
    golden = [("relu", [X], [A]), ("exp", [drawn(7, 8)], []), ("tanh", [A], [NEAR])]
    types = SimpleNamespace(fit=lambda *both: {(2, 3): 0.0}[both], are_inner=lambda *both: {(2, 3): False}[both])
    count, _ = match_similar(pairs_in_memory(faulty(B), golden, [0, 1]), types)
    assert count == 1


def test_a_constant_that_an_operator_writes_is_no_candidate():
    constant = [("relu", [X], [A]), ("const", [], [NEAR]), ("add", [A, NEAR], [drawn(6, 8)])]
    known = [0, 1]
    assert (2, 2) not in candidates(pairs_in_memory(faulty(B), constant, known))
    assert (2, 2) not in candidates(pairs_in_memory(constant, faulty(B), known))


WIDE = drawn(4, 2, 3, 4)
READ = WIDE + np.float32(0.2) * drawn(5, 2, 3, 4)


def bare(shape, at=0, operators=8):
    """A run in which only the first of its contents is read, at a place."""
    calls = [EMPTY] * operators
    calls[at] = ("exp", [WIDE.reshape(shape)], [drawn(6, 8)])
    return calls


def computed(at, values=READ, operators=8):
    """A run in which a content of these values is computed from another one."""
    calls = [EMPTY] * operators
    calls[at] = ("tanh", [drawn(7, 9)], [values])
    return calls


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize(
    "shape, at, place, kin",
    [
        ((2, 3, 4), 2, 2, 0.7),
        ((2, 3, 4), 2, 5, 0.7),
        ((2, 3, 4), 5, 2, 0.7),
        ((2, 3, 4), 2, 6, None),  # too far in the order of execution
        ((6, 4), 2, 2, None),  # a weight
    ],
)
def test_an_input_of_one_run_may_be_computed_by_the_other(is_swapped, shape, at, place, kin):
    both = bare(shape, at), computed(place)
    numbers = (1, 0) if is_swapped else (0, 1)
    found = candidates(pairs_in_memory(*(both[::-1] if is_swapped else both)))
    assert found.keys() == ({numbers} if kin else set())
    if kin:
        one = found[numbers]
        assert one.kin == kin
        assert one.score == pytest.approx(score(one.distance, kin, apart=abs(at - place), operators=8), rel=1e-5)


def test_inputs_of_both_runs_are_no_candidates():
    assert not candidates(pairs_in_memory(bare((2, 3, 4)), [("exp", [READ], [drawn(9, 8)])] + [EMPTY] * 7))


def test_an_input_whose_values_are_not_near_has_no_relatives():
    one = candidates(pairs_in_memory(bare((2, 3, 4)), computed(0, WIDE * np.float32(3))))[0, 1]
    assert one.distance == pytest.approx(2 / 3) and one.kin == 0.0
    assert one.score == pytest.approx(score(2 / 3, 0.0, operators=8), rel=1e-5)
    near = candidates(pairs_in_memory(bare((2, 3, 4)), computed(0, WIDE * np.float32(2.5))))[0, 1]
    assert near.distance == pytest.approx(0.6) and near.kin == 0.7


def test_an_input_far_in_the_order_of_execution_is_a_candidate_if_partners_read_it():
    target = bare((2, 3, 4))
    golden = computed(6)
    golden[7] = ("exp", [READ], [drawn(6, 8)])
    one = candidates(pairs_in_memory(target, golden, [(1, 2)]))[0, 1]
    assert one.kin == 0.7
    values = WIDE * np.float32(3)
    golden = computed(6, values)
    golden[7] = ("exp", [values], [drawn(6, 8)])
    assert candidates(pairs_in_memory(target, golden, [(1, 2)]))[0, 1].kin == 0.0


P, S, G = drawn(11, 4, 6), drawn(12, 4, 6), drawn(13, 4, 6)
W, BIAS = drawn(14, 4, 6), drawn(15, 4, 6)
APART = [("mul", [X, W], [P]), ("add", [P, BIAS], [S])]  # contents 0, 1, 2 and 3, 4
INSIDE = [("addcmul", [X, W, BIAS], [G])]  # contents 0, 1, 2 and 3


@pytest.mark.parametrize(
    "apart, inside, known, numbers, lacks",
    [
        (APART, INSIDE, [0, 1, (3, 2)], (2, 3), True),
        (APART, INSIDE, [0, 1, (3, 2)], (4, 3), False),  # the sum
        (APART, INSIDE, [0, 1], (2, 3), False),  # the bias is not known
        (APART, [("sin", [X], [BIAS]), *INSIDE], [0, (1, 2), (3, 1)], (2, 3), False),  # no weight
        (APART[:1], INSIDE, [0, 1], (2, 3), False),
        ([APART[0], ("add", [P, BIAS], [S[:2]])], INSIDE, [0, 1, (3, 2)], (2, 3), False),  # of another size
        ([("addcmul", [X, W, BIAS], [P]), APART[1]], INSIDE, [0, 1, 2], (3, 3), False),  # inside of both
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_product_lacks_a_bias_that_is_added_below(apart, inside, known, numbers, lacks, is_swapped):
    known = [one if isinstance(one, tuple) else (one, one) for one in known]
    if is_swapped:
        apart, inside, known, numbers = inside, apart, [one[::-1] for one in known], numbers[::-1]
    assert lacks_bias(pairs_in_memory(apart, inside, known), *numbers) is lacks


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


def test_the_four_nearest_of_each_content_are_candidates():
    mine, theirs = scattered(7, 20), scattered(7, 40)
    pairs = pairs_in_memory(star(range(7), mine), star(range(7), theirs), [0])
    distances = value_distances(pairs, pairs.target.contents[1:], pairs.golden.contents[1:])
    rows, columns = distances.argsort(1)[:, :4], distances.argsort(0)[:4]
    expected = {(row + 1, column + 1) for row in range(7) for column in rows[row]}
    expected |= {(row + 1, column + 1) for column in range(7) for row in columns[:, column]}
    assert candidates(pairs).keys() == expected and len(expected) < 49


@pytest.mark.parametrize("factor, is_near", [(8, True), (12, False)])
def test_contents_that_are_nine_tenths_apart_are_no_candidates(factor, is_near):
    assert bool(candidates(pairs_in_memory(faulty(B), faulty(B * np.float32(factor)), [0, 1]))) is is_near


def distance(x, y, orders=()):
    pairs = pairs_in_memory([("relu", [x], [])], [("relu", [y], [])])
    for order in orders:
        pairs.axes.learn(*pairs.shapes(0, 0), order, 2)
    return float(value_distances(pairs, pairs.target.contents, pairs.golden.contents)[0, 0])


def apart(x, y):
    """The root mean square of the distances of two descriptions of values."""
    return float(np.sqrt(np.mean((np.array(x, float) - y) ** 2)))


def rms(x):
    return math.sqrt(np.mean(x.astype(float) ** 2))


def quantiles(x):
    return np.quantile(x, np.linspace(0, 1, 17))


def test_the_distance_of_values_is_measured_in_a_learned_order():
    assert distance(B, NEAR) == pytest.approx(far(B, NEAR), rel=1e-5)
    assert distance(NEAR, B) == pytest.approx(far(B, NEAR), rel=1e-5)
    assert distance(B, 2 * B) == pytest.approx(0.5, rel=1e-5)
    assert distance(B, B) == 0.0
    assert distance(B, NEAR.T.copy(), [AxisOrder((1, 0))]) == pytest.approx(far(B, NEAR), rel=1e-5)
    square = drawn(6, 6, 6)
    close = square + np.float32(0.1)
    for golden in (close, close.T.copy()):
        found = distance(square, golden, [SAME_ORDER, AxisOrder((1, 0))])
        assert found == pytest.approx(far(square, close), rel=1e-5)


def test_masks_count_as_zero_and_what_is_no_number_as_a_thousand():
    x, y = B.copy(), B.copy()
    x[0, :4] = -1e9, np.nan, np.inf, -np.inf
    y[0, :4] = 0.0, 1000.0, 1000.0, 0.0
    assert distance(x, y) == pytest.approx(0.0, abs=1e-6)
    x[0, 0], y[0, 0] = 5.0, -5e3  # the largest mask
    assert distance(x, y) > 0.9


def test_other_arrangements_are_near_by_their_sketch():
    x, y = drawn(1, 3, 8), drawn(2, 8, 3) + np.float32(0.2)
    sketch = apart(quantiles(x), quantiles(y)) / max(rms(x), rms(y))
    assert distance(x.reshape(2, 12), y.reshape(4, 2, 3)) == pytest.approx(0.45 + 2 * sketch, rel=1e-4)


def test_the_same_numbers_in_another_arrangement_are_a_tenth_apart():
    x = drawn(1, 2, 12)
    assert distance(x, np.random.default_rng(0).permutation(x.reshape(-1)).reshape(4, 2, 3)) == 0.1


def test_recorded_statistics_are_near_by_their_figures():
    x, y = drawn(1, 3, 8), drawn(2, 3, 8) + np.float32(0.2)
    figures = [(one.max(), one.min(), one.mean(), rms(one)) for one in (x, y)]
    expected = 0.45 + 2 * apart(*figures) / max(rms(x), rms(y))
    assert distance(recorded(x), recorded(y)) == pytest.approx(expected, rel=1e-4)
    assert distance(x, recorded(y)) == pytest.approx(expected, rel=1e-4)
    assert distance(recorded(x), y) == pytest.approx(expected, rel=1e-4)


def test_each_content_is_compared_with_each_of_any_shape():
    mine = [drawn(1, 4, 6), drawn(2, 2, 12), drawn(3, 4, 6)]
    theirs = [drawn(4, 6, 4), drawn(5, 4, 6), mine[2], mine[1] * np.float32(2)]
    pairs = pairs_in_memory([("relu", mine, [])], [("relu", theirs, [])])
    found = value_distances(pairs, pairs.target.contents, pairs.golden.contents)
    assert found.shape == (3, 4)
    assert found[2, 2] < 1e-6 and found[1, 3] == pytest.approx(0.5, rel=1e-5)
    assert found[0, 1] > 0.4 and found[1, 2] > 0.4 and found[2, 3] > 0.4
    turned = pairs_in_memory([("relu", mine, [])], [("relu", theirs, [])])
    turned.axes.learn((4, 6), (6, 4), AxisOrder((1, 0)), 2)
    assert value_distances(turned, turned.target.contents, turned.golden.contents)[2, 2] < 1e-6


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


def test_places_correspond_in_proportion_between_pairs():
    assert places([], (4, 9)) == pytest.approx([1, 3, 5, 7])  # from -1 to 4, and from -1 to 9
    assert places([(3, 1)], (8, 8)) == pytest.approx([-0.5, 0, 0.5, 1, 2.4, 3.8, 5.2, 6.6])
    assert places([(0, 0), (4, 2)], (8, 8)) == pytest.approx([0, 0.5, 1, 1.5, 2, 3.5, 5, 6.5])


def test_pairs_in_another_order_than_most_do_not_count():
    found = places([(0, 5), (1, 1), (2, 2), (3, 3)])
    assert found[1:4] == [1, 2, 3] and found[0] == 0
    assert places([(0, 0), (1, 6), (2, 5), (3, 3), (4, 4)])[:5] == pytest.approx([0, 1, 2, 3, 4])
    assert places([(0, 0), (1, 1), (2, 7), (5, 3)])[2] == pytest.approx(1.5)


def test_contents_of_one_operator_do_not_fall():
    assert places([(0, 1), (1, 1)])[:2] == [1, 1]
    assert places([(1, 1), (1, 3), (2, 3)])[2] == 3


def test_inputs_have_no_place():
    read = [EMPTY, EMPTY, EMPTY, ("relu", [X], [A])]
    early = [("relu", [X], [A]), EMPTY, EMPTY, EMPTY]
    place = golden_place(pairs_in_memory(read, early, [0]))
    assert [place(at) for at in range(4)] == [0, 1, 2, 3]
    place = golden_place(pairs_in_memory(read, early, [0, 1]))
    assert place(3) == 0
