"""Pairs of contents: which ones stand beside each other, and how far two contents are apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npucmp.align.contents.content_pairs import COMPARED, ContentPair, relative_error, sample_places
from npucmp.model.relation import SAME_ORDER, AxisOrder
from tests.align.contents.memory import NOISE, by_value, drawn, pairs_in_memory, recorded

TURN = AxisOrder((1, 0))
X = drawn(0, 4, 6)
CHAIN = [("relu", [X], [drawn(1, 4, 6)]), ("tanh", [drawn(1, 4, 6)], [drawn(2, 4, 6)]),
         ("exp", [drawn(2, 4, 6)], [drawn(3, 4, 6)])]  # fmt: skip


def chains(*known):
    """Two runs of three operators. Content 0 is the input, and contents 1 to 3 are computed one from another."""
    return pairs_in_memory(CHAIN, CHAIN, known)


def guessed(target, golden, via="structure"):
    return ContentPair(target, golden, via, 0.8, "")


def test_a_pair_is_known_from_both_sides_until_it_is_removed():
    pairs = chains()
    pair = by_value(1, 2)
    assert pairs.add(pair) is True
    assert (pairs.to_golden, pairs.to_target, pairs.found, [*pairs]) == ({1: 2}, {2: 1}, {1: pair}, [pair])
    pairs.remove(pair)
    assert (pairs.to_golden, pairs.to_target, pairs.found, [*pairs]) == ({}, {}, {}, [])


def test_a_content_is_in_one_pair_alone():
    pairs = chains((1, 2))
    assert pairs.add(by_value(1, 3)) is False
    assert pairs.add(by_value(3, 2)) is False
    assert pairs.to_golden == {1: 2}
    assert pairs.add(by_value(3, 3))


def test_a_content_with_a_partner_is_no_copy():
    pairs = chains()
    pairs.copies.update({1: 0, 2: 0})
    pairs.add(by_value(1, 1))
    assert pairs.copies == {2: 0}
    assert pairs.with_copies == {1: 1, 2: 0}
    del pairs.copies[2]
    assert pairs.with_copies == {1: 1}


@pytest.mark.parametrize("known", [(1, 3), (3, 1)])
def test_a_pair_that_values_do_not_show_crosses_no_other_pair(known):
    assert chains(known).add(guessed(2, 2)) is False
    assert chains(known).add(guessed(2, 2, "content")) is True
    assert chains(known).add(guessed(2, 2, "mapping")) is True


@pytest.mark.parametrize("known", [[(1, 1)], [(3, 3)], [(1, 1), (3, 3)], []])
def test_pairs_in_one_order_do_not_cross(known):
    assert chains(*known).add(guessed(2, 2)) is True


def test_contents_near_new_pairs_are_reported_once():
    pairs = chains()
    pairs.add(by_value(2, 3))
    assert pairs.take_recent() == ({1, 3}, {1, 2})
    assert pairs.take_recent() == (set(), set())
    pairs.add(by_value(1, 1))
    pairs.add(by_value(3, 2))
    assert pairs.take_recent() == ({1, 2, 3}, {1, 2, 3})


def test_a_content_is_open_without_a_partner_a_copy_and_an_agreement_below():
    pairs = chains((1, 2))
    pairs.copies[3] = 0
    pairs.right[0].add(2)
    pairs.right[1].add(3)
    assert [pairs.is_open(0, number) for number in range(4)] == [True, False, False, False]
    assert [pairs.is_open(1, number) for number in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(
    "fields, is_by_value",
    [
        ({}, True),
        ({"confidence": 0.98}, False),  # a second candidate is near
        ({"error": None}, False),  # of statistics
        ({"error": 0.1}, True),
    ],
)
def test_a_certain_pair_with_an_error_is_one_by_value(fields, is_by_value):
    pairs = chains()
    pairs.add(by_value(1, 2, **fields))
    assert [pairs.is_by_value(0, number) for number in (1, 2, 3)] == [is_by_value, False, False]
    assert [pairs.is_by_value(1, number) for number in (1, 2, 3)] == [False, is_by_value, False]


TRAINED = [
    ("tanh", [X], [drawn(1, 4, 6)], {"call": "a"}),
    ("tanh", [drawn(2, 4, 6)], [drawn(3, 4, 6)], {"call": "a", "phase": "backward"}),
    ("mul", [drawn(3, 4, 6)], [drawn(4, 4, 6)], {"phase": "backward"}),
]


@pytest.mark.parametrize(
    "known, copies, target, golden, same",
    [
        ([], {}, 0, 1, True),  # both of the forward pass
        ([], {}, 3, 1, False),
        ([], {}, 1, 3, False),
        ([], {}, 3, 3, False),  # gradients of contents that are no partners
        ([0], {}, 3, 3, True),
        ([(0, 1)], {}, 3, 3, False),
        ([], {0: 0}, 3, 3, True),
        ([], {}, 4, 3, True),  # of a call without a record of the forward pass
        ([], {}, 3, 4, True),
    ],
)
def test_gradients_are_partners_of_gradients_of_partners(known, copies, target, golden, same):
    pairs = pairs_in_memory(TRAINED, TRAINED, known)
    pairs.copies.update(copies)
    assert pairs.same_pass(target, golden) is same


def test_a_run_without_a_backward_pass_does_not_know_the_pass_of_a_content():
    assert pairs_in_memory(TRAINED, CHAIN).same_pass(3, 1) is True
    assert pairs_in_memory(CHAIN, TRAINED).same_pass(1, 3) is True


def test_shapes_have_no_axes_of_length_one():
    pairs = pairs_in_memory([("relu", [X.reshape(1, 4, 6)], [X[:2]])], [("relu", [X.T], [X[:, :2, None]])])
    assert pairs.shapes(0, 1) == ((4, 6), (4, 2))
    assert pairs.shapes(1, 0) == ((2, 6), (6, 4))


def of_two(x, y, noise=NOISE):
    """Pairs of two runs with one content each."""
    return pairs_in_memory([("relu", [x], [])], [("relu", [y], [])], noise=noise)


def far(x, y):
    """The distance of two arrays relative to the second, by its definition."""
    return math.sqrt(((x.astype(float) - y) ** 2).sum() / (y.astype(float) ** 2).sum())


def test_the_error_is_relative_to_the_golden():
    x, y = X, 2 * X + drawn(7, 4, 6)
    assert of_two(x, y).error(0, 0) == pytest.approx(far(x, y), rel=1e-6)
    assert of_two(x, y.T).error(0, 0, TURN) == pytest.approx(far(x, y), rel=1e-6)
    assert of_two(x, y.T).error(0, 0) > 1


def test_the_golden_may_be_the_side_that_is_turned():
    x, y = drawn(1, 8, 3), drawn(2, 8, 3)
    golden = np.ascontiguousarray(y.reshape(2, 4, 3).transpose(1, 0, 2))
    assert of_two(x, golden).error(0, 0, AxisOrder((1, 0, 2), True)) == pytest.approx(far(x, y), rel=1e-6)


def test_errors_are_kept_by_contents_and_order():
    pairs = pairs_in_memory(CHAIN, CHAIN)
    found = [pairs.error(1, 2), pairs.error(2, 1), pairs.error(1, 1), pairs.error(1, 1, TURN)]
    assert found[2] == 0.0 < found[3] and found[0] != found[1]
    assert found == [pairs.error(1, 2), pairs.error(2, 1), pairs.error(1, 1), pairs.error(1, 1, TURN)]


def test_recorded_statistics_have_no_error():
    assert of_two(recorded(X), X).error(0, 0) is None
    assert of_two(X, recorded(X)).error(0, 0) is None
    assert of_two(recorded(X), X.T).error(0, 0, TURN) is None
    assert of_two(X[0:4, 0:6].reshape(24), recorded(X)).error(0, 0, AxisOrder((1, 0), True)) is None


@pytest.mark.parametrize("size", [24, COMPARED + 2])
def test_the_error_is_that_of_the_contents_with_these_numbers(size):
    x, other = drawn(1, size // 2, 2), drawn(2, size)
    pairs = pairs_in_memory([("relu", [x, other], [])], [("relu", [other, np.ascontiguousarray(x.T)], [])])
    assert pairs.error(0, 1, TURN) == 0.0 == pairs.error(1, 0)
    assert pairs.best_order(0, 1, 1e-5) == (0.0, TURN)


def test_a_large_content_is_compared_at_places_of_its_size():
    x = drawn(1, COMPARED + 2)
    places = sample_places(x.size, COMPARED)
    y = x.copy()
    y[places[100]] += 3
    assert of_two(x, y).error(0, 0) == pytest.approx(far(x[places], y[places]), rel=1e-5)
    y = x.copy()
    y[np.setdiff1d(np.arange(x.size), places)] += 1
    assert of_two(x, y).error(0, 0) == 0.0
    matrix = x.reshape(-1, 2)
    assert of_two(matrix, np.ascontiguousarray(matrix.T)).error(0, 0, TURN) == 0.0


def test_a_content_of_as_many_elements_as_are_compared_is_compared_whole():
    x = drawn(1, COMPARED)
    y = x.copy()
    y[[0, -1]] += 3
    assert of_two(x, y).error(0, 0) == pytest.approx(far(x, y), rel=1e-5)


def test_values_at_places_are_those_of_the_side():
    pairs = of_two(X, X + 1)
    assert pairs.picked_values(0, 0, np.array([3, 8])).tolist() == X.reshape(-1)[[3, 8]].tolist()
    assert pairs.picked_values(1, 0, np.array([3, 8])).tolist() == (X + 1).reshape(-1)[[3, 8]].tolist()
    assert of_two(X, recorded(X)).picked_values(1, 0, np.array([3])) is None


def test_the_best_order_of_axes_has_the_smallest_error():
    y = np.ascontiguousarray(X.T)
    assert of_two(X, y).best_order(0, 0, 1e-5) == (0.0, TURN)
    near = (y * np.float32(1 + 1e-3)).astype(np.float32)
    error, order = of_two(X, near).best_order(0, 0, 1e-3)
    assert error == pytest.approx(far(X.T, near), rel=1e-5) and order == TURN
    assert of_two(X, y + 1).best_order(0, 0, 1e-5) == (None, SAME_ORDER)
    assert of_two(recorded(X), X).best_order(0, 0, 1e-5) == (None, SAME_ORDER)
    assert of_two(X, recorded(X)).best_order(0, 0, 1e-5) == (None, SAME_ORDER)


def test_the_first_order_that_is_good_enough_is_taken():
    """A matrix that is its own transpose up to a small error."""
    x = drawn(5, 6, 6)
    x = x + x.T
    y = x.copy()
    y[0, 1] += 0.01
    assert of_two(x, y.T.copy()).best_order(0, 0, 1.0)[1] == SAME_ORDER
    skew = x.copy()
    skew[0, 1] += 0.01
    assert of_two(skew, y.T.copy()).best_order(0, 0, 1e-5) == (0.0, TURN)
    error, order = of_two(skew, (y.T * np.float32(1.0001)).astype(np.float32)).best_order(0, 0, 5e-3)
    assert order == SAME_ORDER and error < 5e-3


def test_the_best_of_several_orders_that_are_not_good_enough_is_found():
    x = drawn(5, 6, 6)
    x = x + x.T
    golden = x.copy()
    golden[0, 1] += 0.01
    target = x * np.float32(1.001)
    target[1, 0] += 0.01
    pairs = of_two(target, golden)
    assert pairs.error(0, 0, TURN) < pairs.error(0, 0)
    assert pairs.best_order(0, 0, 5e-4) == (pairs.error(0, 0, TURN), TURN)
    target[0, 1] += 0.01
    target[1, 0] -= 0.01
    pairs = of_two(target, golden)
    assert pairs.best_order(0, 0, 5e-4) == (pairs.error(0, 0), SAME_ORDER)


def test_of_two_orders_that_are_equally_good_the_first_is_taken():
    x = drawn(5, 6, 6)
    x = x + x.T
    pairs = of_two(x * np.float32(1.002), x)
    error = pairs.error(0, 0)
    assert error == pairs.error(0, 0, TURN)
    assert pairs.best_order(0, 0, 1e-3) == (error, SAME_ORDER)
    assert pairs.tensor_order(*tensors_of(pairs), pairs.shapes(0, 0), [TURN, SAME_ORDER]) == TURN
    for order, count in ((TURN, 3), (SAME_ORDER, 2)):
        pairs.axes.learn((6, 6), (6, 6), order, count)
    assert pairs.learned_error(0, 0) == (error, TURN)


def uneven():
    """A matrix whose transpose is exactly as far from it as zero is."""
    y = np.diag([1.0, 2.0, 3.0, 4.0])
    y[0, 1:], y[1, 2] = (-1.0, -2.0, -3.0), -4.0
    return y


def test_an_error_of_exactly_what_is_enough_is_enough():
    pairs = of_two(uneven().T, uneven())
    assert pairs.error(0, 0) == 1.0 and pairs.error(0, 0, TURN) == 0.0
    assert pairs.best_order(0, 0, 1.0) == (1.0, SAME_ORDER)
    assert pairs.best_order(0, 0, 0.99) == (0.0, TURN)
    tried = (1 - 1e-6) / 4
    assert 4 * tried + 1e-6 == 1.0
    assert of_two(2 * uneven(), uneven()).best_order(0, 0, tried) == (1.0, SAME_ORDER)
    assert of_two(2 * uneven(), uneven()).best_order(0, 0, tried - 1e-7) == (None, SAME_ORDER)


def test_tensors_agree_at_exactly_four_times_the_noise():
    assert tensor_order(uneven().T, uneven(), [SAME_ORDER], noise=0.25) == SAME_ORDER
    assert tensor_order(uneven().T, uneven(), [SAME_ORDER], noise=0.249) is None
    assert tensor_order(uneven().T, uneven(), noise=10.0) == TURN  # the same order is a tenth of the noise off
    assert tensor_order(uneven().T, uneven(), noise=10.1) == SAME_ORDER


@pytest.mark.parametrize("factor, is_tried", [(1 + 3.9e-3, True), (1 + 4.1e-3, False)])
def test_an_order_is_tried_if_a_sample_is_within_four_times_what_is_enough(factor, is_tried):
    x = X.astype(np.float64)
    found = of_two(x * factor, x).best_order(0, 0, 1e-3)
    assert found == ((pytest.approx(factor - 1), SAME_ORDER) if is_tried else (None, SAME_ORDER))


def tensors_of(pairs):
    return pairs.target.contents[0].tensor, pairs.golden.contents[0].tensor


def tensor_order(x, y, orders=(), strict=True, noise=NOISE):
    pairs = of_two(x, y, noise)
    return pairs.tensor_order(*tensors_of(pairs), pairs.shapes(0, 0), orders, strict)


def test_two_tensors_are_in_the_order_in_which_they_agree():
    assert tensor_order(X, X) == SAME_ORDER
    assert tensor_order(X, X.T) == TURN
    assert tensor_order(X, drawn(9, 4, 6)) is None
    assert tensor_order(X, X.T, [SAME_ORDER]) is None
    assert tensor_order(X, X.T, [SAME_ORDER, TURN]) == TURN


def test_an_order_that_need_not_agree_is_the_best_of_those_given():
    y = X.T + 0.3 * drawn(9, 6, 4)
    assert tensor_order(X, y) is None
    assert tensor_order(X, y, [SAME_ORDER, TURN], strict=False) == TURN
    assert tensor_order(X, y, [TURN, SAME_ORDER], strict=False) == TURN


def test_tensors_without_values_have_the_first_order_if_they_need_not_agree():
    for x, y in ((recorded(X), X), (X, recorded(X))):
        assert tensor_order(x, y, [TURN, SAME_ORDER]) is None
        assert tensor_order(x, y, [TURN, SAME_ORDER], strict=False) == TURN
        assert tensor_order(x, y, strict=False) == SAME_ORDER


def test_tensors_agree_within_four_times_the_noise():
    x = X.astype(np.float64)
    assert tensor_order(x * 1.0039, x) == SAME_ORDER
    assert tensor_order(x * 1.0041, x) is None
    assert tensor_order(2 * x, x, noise=0.2) is None  # relative to the golden


def test_an_order_within_a_tenth_of_the_noise_is_taken_at_once():
    x = drawn(5, 6, 6).astype(np.float64)
    x = x + x.T
    both = [SAME_ORDER, TURN]
    assert tensor_order(x * (1 + 0.9e-4), np.triu(x) + np.triu(x, 1).T, both) == SAME_ORDER
    y = x.copy()
    y[0, 1] *= 1 + 1e-4
    assert tensor_order(y.T * (1 + 0.5e-4), y, both) == SAME_ORDER
    assert tensor_order(y.T * (1 + 1.5e-4), y, [TURN, SAME_ORDER]) == TURN
    y[0, 1] += 0.01
    assert tensor_order(y.T * (1 + 1.5e-4), y, both) == TURN


@pytest.mark.parametrize(
    "x, y, are",
    [
        (X, X, True),
        (X, X * np.float32(1.001), True),
        (X, X * np.float32(1.02), False),
        (np.where(X > 1, np.nan, X), np.where(X > 1, np.nan, X), True),
        (np.where(X > 1, -1e9, X), np.where(X > 1, -1e4, X), False),  # masks of other numbers
        (X, recorded(X), False),
        (recorded(X), X, False),
        (recorded(X), recorded(X), False),
    ],
)
def test_tensors_are_equal_up_to_a_limit_of_each_element(x, y, are):
    pairs = of_two(x, y)
    assert pairs.are_equal(*tensors_of(pairs), 0.01) is are


def test_the_limit_is_relative_to_the_golden_element():
    pairs = of_two(np.full(8, 1.1) * np.arange(1, 9), np.arange(1.0, 9))
    assert pairs.are_equal(*tensors_of(pairs), 0.1001) and not pairs.are_equal(*tensors_of(pairs), 0.095)
    near_zero = of_two(np.arange(8.0) + 1e-9, np.arange(8.0))
    assert not near_zero.are_equal(*tensors_of(near_zero), 0.1)


def test_tensors_may_be_equal_in_an_order_of_axes():
    pairs = of_two(X[:, None], X.T[None])
    assert pairs.are_equal(*tensors_of(pairs), 0.0, TURN) and not pairs.are_equal(*tensors_of(pairs), 0.0)
    golden = X.reshape(2, 2, 6).transpose(1, 0, 2)
    pairs = of_two(X, golden)
    assert pairs.are_equal(*tensors_of(pairs), 0.0, AxisOrder((1, 0, 2), True))


def test_the_error_in_learned_orders_is_the_smallest_of_them():
    x = drawn(1, 6, 6)
    pairs = of_two(x, x.T + np.float32(0.01))
    assert pairs.learned_error(0, 0) == (pairs.error(0, 0), SAME_ORDER)
    for order in (SAME_ORDER, TURN):
        pairs.axes.learn((6, 6), (6, 6), order, 2)
    assert pairs.learned_error(0, 0) == (pairs.error(0, 0, TURN), TURN)
    same = of_two(x, x + np.float32(0.01))
    for order in (SAME_ORDER, TURN):
        same.axes.learn((6, 6), (6, 6), order, 2)
    assert same.learned_error(0, 0) == (same.error(0, 0), SAME_ORDER)


def test_contents_without_values_or_without_a_learned_order_have_no_error():
    assert of_two(X, recorded(X)).learned_error(0, 0) == (None, SAME_ORDER)
    assert of_two(drawn(1, 2, 12), drawn(1, 4, 2, 3)).learned_error(0, 0) == (None, None)


def test_relative_errors_leave_masks_out():
    y = np.array([3.0, 4.0, -1e9, -2e4])
    assert relative_error(np.array([3.0, 9.0, -1e4, -1e9]), y) == 1.0
    assert relative_error(np.array([3.0, 4.0, 5.0, -1e9]), y[[0, 1, 2, 3]]) > 1  # masked on one side alone
    assert relative_error(np.array([3.0, 4.0, -1e9]), np.array([3.0, 4.0, 12.0])) > 1
    assert relative_error(np.array([-5e3, 5.0]), np.array([-5e3, 4.0])) == 0.25  # the largest mask


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_error_of_no_number_is_infinite(value):
    assert relative_error(np.array([1.0, value]), np.array([1.0, 2.0])) == math.inf


def test_the_error_of_zeros_is_finite():
    assert relative_error(np.zeros(4), np.zeros(4)) == 0.0
    assert 1e29 < relative_error(np.ones(4), np.zeros(4)) < math.inf


def test_places_are_all_of_a_few_elements_or_as_many_in_order():
    assert sample_places(8, 8).tolist() == [*range(8)]
    assert sample_places(9, 8).size == 8
    places = sample_places(10_000, 256)
    assert places.size == 256 and (np.diff(places) >= 0).all() and 0 <= places[0] < places[-1] < 10_000
    assert places[-1] > 9_000 and places[0] < 1_000
    assert (places == sample_places(10_000, 256)).all()
    few = [(size, sample_places(size, 8)) for size in range(9, 60)]
    assert min(found[0] for _, found in few) == 0 and max(found[-1] - size for size, found in few) == -1
