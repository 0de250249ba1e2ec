"""Pairs of contents by their values: which are equal, how certain that is, and which candidates count."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.content_pairs import sample_places
from npucmp.align.contents.value_match import match_values, sketch_distances
from npucmp.model import Statistics
from npucmp.model.relation import SAME_ORDER, AxisOrder
from tests.align.contents.small_runs import Step, drawn, pairs_of, seeded

X, Y = seeded(1, 6, 8), seeded(2, 6, 8)
LARGE = seeded(3, 4096)
EQUAL, SECOND = "equal element by element", ", with a second candidate that is near"
FIGURES = "recorded statistics of no other tensor of this size are near"


def steps(*outputs):
    """An operator for each tensor, so that contents have the numbers of their operators."""
    return tuple(Step("exp", (), (one,)) for one in outputs)


def matched(target, golden, noise=1e-3):
    pairs = pairs_of(target, golden, noise)
    match_values(pairs)
    assert all(one.via == "content" for one in pairs)
    return pairs


def found(target, golden, noise=1e-3):
    """Target, golden, confidence and reason of each pair."""
    return [(one.target, one.golden, one.confidence, one.reason) for one in matched(target, golden, noise)]


def scaled(values, share):
    return (values * (1 + share)).astype(np.float32)


UNSEEN = np.setdiff1d(np.arange(LARGE.size), sample_places(LARGE.size, 256))


def with_errors(*errors):
    """The same numbers in several orders, which differ from the last one by these relative errors in places where no
    sample is taken."""
    last = LARGE.copy()
    for at, error in enumerate(errors):
        last[UNSEEN[2 * at : 2 * at + 2]] = 0.0, error * np.linalg.norm(LARGE) / np.sqrt(2)
    found = []
    for at in range(len(errors)):
        one, places = last.copy(), UNSEEN[2 * at : 2 * at + 2]
        one[places] = last[places[::-1]]
        found.append(one)
    return [*found, last]


# One candidate


def test_equal_values_are_a_certain_pair():
    (pair,) = matched(steps(X), steps(Y, X))
    assert pair[:5] == (0, 1, "content", 0.99, EQUAL) and pair.order == SAME_ORDER and pair.error == 0.0


@pytest.mark.parametrize(
    "share, reason", [(5e-6, EQUAL), (2e-4, f"{EQUAL} up to 2.0e-04"), (5e-4, f"{EQUAL} up to 5.0e-04")]
)
def test_values_within_the_noise_are_a_pair(share, reason):
    assert found(steps(scaled(X, share)), steps(X)) == [(0, 0, 0.99, reason)]


def test_values_apart_by_more_than_the_noise_are_no_pair():
    assert found(steps(scaled(X, 1.1e-3)), steps(X)) == []
    assert found(steps(scaled(X, 1.1e-3)), steps(X), 2e-3) != []
    assert found(steps(X), steps(X.reshape(-1)[:-1])) == []  # another size


@pytest.mark.parametrize("distance, error, is_pair", [
    (0.0, 3.8e-3, True), (0.0, 4.2e-3, False),  # four times the noise
    (5e-4, 1.48e-2, True), (5e-4, 1.52e-2, False),  # 30 times the distance of the sketches
])  # fmt: skip
def test_the_same_numbers_in_another_order_are_no_pair(distance, error, is_pair):
    quantiles = np.quantile(LARGE, np.linspace(0, 1, 17))
    share = distance * np.sqrt((LARGE**2).mean() / (quantiles**2).mean())
    one, other = with_errors(error)
    assert bool(found(steps(scaled(one, share)), steps(other))) is is_pair
    assert found(steps(X), steps(X[::-1])) == []


def distance(target, golden):
    """The distance of the sketches of the last contents of two runs."""
    pairs = pairs_of(target, golden)
    one, other = (graph.contents[-1] for graph in (pairs.target, pairs.golden))
    sketches = [
        each.sketch.figures if each.sketch.quantiles is None else each.sketch.quantiles for each in (one, other)
    ]
    rows = [np.array([each]) for each in sketches]
    return float(sketch_distances(*rows, np.array([one.rms]), np.array([other.rms]))[0, 0])


def test_a_sketch_that_is_apart_by_exactly_the_noise_is_near():
    for runs in ((steps(scaled(X, 1e-3)), steps(X)), (steps(figures(1e-3)), steps(figures()))):
        noise = distance(*runs)
        assert len(found(*runs, noise)) == 1 and found(*runs, np.nextafter(noise, 0.0)) == []


def test_an_error_of_exactly_four_times_the_noise_is_near():
    one, other = with_errors(3e-3)
    (pair,) = matched(steps(one), steps(other))
    assert len(found(steps(one), steps(other), pair.error / 4)) == 1
    assert found(steps(one), steps(other), np.nextafter(pair.error / 4, 0.0)) == []


def test_elements_that_are_equal_in_another_order_of_axes_are_a_pair():
    (pair,) = matched(steps(X), steps(X.T))
    assert pair.order == AxisOrder((1, 0)) and pair.error == 0.0 and pair.confidence == 0.99


@pytest.mark.parametrize("shape, is_learned", [((3, 5), False), ((2, 8), True)])
def test_pairs_of_at_least_16_elements_show_an_order_of_axes(shape, is_learned):
    values = drawn(*shape)
    pairs = matched(steps(values), steps(values.T))
    first = pairs.axes.first_try(shape, shape[::-1])[0]
    assert pairs.to_golden == {0: 0} and first == (AxisOrder((1, 0)) if is_learned else SAME_ORDER)


# Several candidates


def test_the_nearest_of_several_is_the_partner():
    assert found(steps(X), steps(scaled(X, 5e-4), X, scaled(X, -5e-4))) == [(0, 1, 0.99, EQUAL)]
    assert found(steps(scaled(X, 5e-4), X, scaled(X, -5e-4)), steps(X)) == [(1, 0, 0.99, EQUAL)]


def test_the_nearest_pair_is_found_first():
    target, golden = steps(scaled(X, 5e-4), X), steps(X, scaled(X, 9e-4))
    assert found(target, golden) == [(1, 0, 0.99, EQUAL), (0, 1, 0.99, f"{EQUAL} up to 4.0e-04")]


def lossy(*kinds, values=X):
    """Operators that each write what they read: a content for each, of equal values."""
    return (Step(kinds[0], (), (values,)), *(Step(kind, (values,), (values,)) for kind in kinds[1:]))


@pytest.mark.parametrize("kind, number", [("exp", 0), ("tanh", 1), ("sin", 2)])
def test_of_equal_candidates_the_one_of_the_same_type_is_the_partner(kind, number):
    target = (*steps(Y, Y[::-1], Y[:, ::-1]), Step(kind, (), (X,)), *steps(drawn(9)))
    assert found(target, lossy("exp", "tanh", "sin")) == [(3, number, 0.9, EQUAL + SECOND)]


@pytest.mark.parametrize(
    "before, after, number", [(0, 5, 0), (2, 3, 1), (1, 1, 1), (4, 1, 2), (7, 0, 2), (1, 5, 0), (1, 3, 1)]
)
def test_of_equal_candidates_of_one_type_the_one_at_the_same_place_of_its_run_is_the_partner(before, after, number):
    """The candidates stand at 0, 1/3 and 2/3 of the golden run."""
    others = steps(*(drawn(9 + at) for at in range(before + after)))
    target = (*others[:before], Step("exp", (), (X,)), *others[before:])
    assert found(target, lossy("exp", "exp", "exp")) == [(before, number, 0.9, EQUAL + SECOND)]


def test_of_two_target_contents_with_equal_values_one_has_the_partner():
    assert found(lossy("exp", "tanh"), steps(X)) == [(0, 0, 0.9, EQUAL + SECOND)]


def test_a_candidate_that_has_a_partner_is_no_second():
    """Both are near each other, so that the first choice is uncertain; it leaves the second none."""
    near = scaled(X, 5e-6)
    pairs = found(steps(X, near), steps(X, near))
    assert {one[:2] for one in pairs} == {(0, 0), (1, 1)}
    assert [one[2:] for one in pairs] == [(0.9, EQUAL + SECOND), (0.99, EQUAL)]


@pytest.mark.parametrize("error, confidence", [(1e-3, 0.9), (7e-3, 0.9), (9e-3, 0.99)])
def test_a_second_target_with_an_equal_sketch_counts_if_its_elements_are_near(error, confidence):
    """The first one has an error of 2e-3; four times as much is near."""
    one, second, golden = with_errors(2e-3, error)
    pairs = found(steps(one, second), steps(golden), noise=1e-2)
    assert [each[:3] for each in pairs] == [(0, 0, confidence)]
    assert found(steps(X, X[::-1]), steps(X)) == [(0, 0, 0.99, EQUAL)]


@pytest.mark.parametrize("nearer, is_pair", [(2, True), (3, False)])
def test_the_three_nearest_candidates_are_compared(nearer, is_pair):
    """The nearer ones hold their numbers in another order."""
    others = [scaled(np.roll(X, at + 1, 0), 1e-6 * at) for at in range(nearer)]
    golden = steps(*others, scaled(X, 1e-6 * nearer))
    assert [one[:2] for one in found(steps(X), golden)] == [(0, nearer)] * is_pair


def test_each_of_many_contents_has_its_own_partner():
    values = [drawn(8) for _ in range(520)]
    pairs = matched(steps(*values), steps(*values[::-1]))
    assert pairs.to_golden == {at: 519 - at for at in range(520)}


# Recorded statistics


def figures(share=0.0, **more):
    return Statistics(*(one * (1 + share) for one in (3.0, -1.0, 0.5, 8.0)))._replace(**more)


def with_figures(values):
    """Values and statistics of one tensor of 16 elements."""
    norm = float(np.linalg.norm(values))
    return Statistics(float(values.max()), float(values.min()), float(values.mean()), norm)


VALUES = seeded(4, 4, 4)


@pytest.mark.parametrize("target, golden", [
    (figures(), figures()), (figures(9e-4), figures()), (VALUES, with_figures(VALUES)), (with_figures(VALUES), VALUES),
])  # fmt: skip
def test_equal_statistics_are_an_uncertain_pair(target, golden):
    (pair,) = matched(steps(target), steps(golden))
    assert pair == (0, 0, "content", 0.9, FIGURES, SAME_ORDER, None)


def test_statistics_of_another_tensor_are_no_pair():
    """The distance of the figures is relative to the root mean square, which is 2 of 16 elements with norm 8."""
    assert found(steps(figures(max=3.1)), steps(figures())) == []
    assert found(steps(figures(max=3.0039)), steps(figures())) != []  # 0.0039 / 2 of one figure of four
    assert found(steps(figures(max=3.0041)), steps(figures())) == []
    assert found(steps(scaled(VALUES, 5e-3)), steps(with_figures(VALUES))) == []


@pytest.mark.parametrize("share, is_pair", [(0.0, False), (5e-4, False), (2e-3, True)])
@pytest.mark.parametrize("side", [0, 1])
def test_statistics_with_a_second_candidate_are_no_pair(share, is_pair, side):
    runs = steps(figures()), steps(figures(), figures(share, max=3.0 + share + 1e-9))
    pairs = [one[:3] for one in found(*(runs[::-1] if side else runs))]
    assert pairs == [(0, 0, 0.9)] * is_pair


def test_a_second_candidate_that_is_apart_by_exactly_the_noise_is_near():
    runs = steps(figures()), steps(figures(), figures(1e-3))
    noise = distance(*runs)
    assert found(*runs, noise) == [] and len(found(*runs, np.nextafter(noise, 0.0))) == 1


def test_values_beside_statistics_are_compared_by_values():
    pairs = matched(steps(VALUES), steps(figures(), VALUES))
    assert [one[:5] for one in pairs] == [(0, 1, "content", 0.99, EQUAL)]


# Distances


def test_the_distance_of_sketches_is_relative_to_the_larger_root_mean_square():
    here, there = np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 5.0], [1.0, 2.0], [0.0, 0.0]])
    found = sketch_distances(here, there, np.array([2.0, 0.0]), np.array([4.0, 0.5, 0.0]))
    expected = [
        [np.sqrt(9 / 2) / 4, 0.0, np.sqrt(5 / 2) / 2],
        [np.sqrt(26 / 2) / 4, np.sqrt(5 / 2) / 0.5, 0.0],
    ]
    np.testing.assert_allclose(found, expected)
    tiny = sketch_distances(np.array([[1e-30]]), np.array([[3e-30]]), np.zeros(1), np.zeros(1))
    np.testing.assert_allclose(tiny, [[2.0]])
