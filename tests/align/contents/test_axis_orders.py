"""Orders of axes: which ones shapes permit, where elements correspond, and which ones pairs show."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.contents.axis_orders import (
    AxisOrders,
    in_order,
    places_in,
    possible_orders,
    reaches,
    without_units,
)
from npucmp.model.relation import SAME_ORDER, AxisOrder

TURN, BACK = AxisOrder((1, 0)), AxisOrder((1, 0), True)
FORWARD, BACKWARD = AxisOrder((1, 2, 0)), AxisOrder((2, 0, 1))  # an axis of three to the end, and to the front


def test_axes_of_length_one_are_no_axes():
    assert without_units((1, 2, 1, 3, 0)) == (2, 3, 0)


@pytest.mark.parametrize(
    "order, target, golden, does",
    [
        (SAME_ORDER, (4, 6), (4, 6), True),
        (SAME_ORDER, (4, 6), (4, 2, 3), True),  # one side splits an axis
        (SAME_ORDER, (4, 2, 3), (4, 6), True),
        (SAME_ORDER, (4, 6), (6, 4), False),
        (SAME_ORDER, (2, 12), (8, 3), False),
        (TURN, (4, 6), (6, 4), True),
        (TURN, (4, 6), (4, 6), False),
        (TURN, (4, 6), (24,), True),  # and merges them
        (TURN, (4, 6), (3, 2, 4), False),  # the side that is turned has the most axes
        (TURN, (4, 6, 1), (6, 4), False),  # an order of as many axes
        (BACK, (4, 6), (6, 4), True),
        (BACK, (24,), (6, 4), True),
        (BACK, (6, 4), (24,), False),
        (FORWARD, (2, 3, 5), (3, 5, 2), True),
        (FORWARD, (2, 3, 5), (15, 2), True),
        (FORWARD, (2, 3, 5), (3, 10), True),
        (FORWARD, (2, 3, 5), (2, 15), False),
    ],
)
def test_an_order_reaches_shapes_with_its_borders_between_axes(order, target, golden, does):
    assert reaches(order, target, golden) is does


def test_possible_orders_begin_with_the_same_one():
    assert possible_orders((2, 3), (3, 2)) == [SAME_ORDER, TURN]
    assert possible_orders((2, 2), (2, 2)) == [SAME_ORDER, TURN]
    assert possible_orders((6,), (6,)) == [SAME_ORDER]
    assert possible_orders((2, 3), (2, 3)) == [SAME_ORDER]


def test_the_side_with_more_axes_is_turned():
    assert possible_orders((2, 3), (6,)) == [SAME_ORDER, TURN]
    assert possible_orders((6,), (2, 3)) == [SAME_ORDER, BACK]
    assert {one.axes for one in possible_orders((6, 5), (2, 3, 5)) if one.of_golden} == {(1, 0, 2)}


def test_orders_of_more_than_five_axes_are_not_tried():
    assert len(possible_orders((2,) * 5, (2,) * 5)) == 120
    assert possible_orders((2,) * 6, (2,) * 6) == [SAME_ORDER]
    assert all(not one.of_golden for one in possible_orders((2,) * 5, (2,) * 6))


@pytest.mark.parametrize("order, target, golden", [
    (TURN, (2, 3), (3, 2)),
    (FORWARD, (2, 3, 4), (3, 4, 2)),
    (FORWARD, (2, 3, 4), (12, 2)),
    (AxisOrder((0, 3, 1, 2)), (2, 3, 4, 5), (2, 5, 3, 4)),
    (AxisOrder((0, 2, 1), True), (8, 3), (2, 3, 4)),
])  # fmt: skip
def test_elements_correspond_at_the_places_in_an_order(order, target, golden):
    size = int(np.prod(target))
    turned = np.arange(size).reshape(golden if order.of_golden else target).transpose(order.axes).reshape(-1)
    x, y = (np.arange(size), turned) if order.of_golden else (turned, np.arange(size))
    places = np.arange(size)
    here, there = places_in(order, target, golden, places)
    assert (here.tolist(), there.tolist()) == (x.tolist(), y.tolist())
    some = places[1::3]
    assert [one.tolist() for one in places_in(order, target, golden, some)] == [x[some].tolist(), y[some].tolist()]
    for flat, shape, of_golden in ((here, target, False), (there, golden, True)):
        met = in_order(np.arange(size), order, shape, of_golden)
        assert met.tolist() == flat.tolist()


def test_the_same_order_moves_nothing():
    places = np.arange(6)
    here, there = places_in(SAME_ORDER, (2, 3), (3, 2), places)
    assert here is there is places
    assert in_order(places, SAME_ORDER, (2, 3), False) is places
    assert in_order(places, SAME_ORDER, (2, 3), True) is places


def learned_from(*pairs) -> AxisOrders:
    orders = AxisOrders()
    for pair in pairs:
        orders.learn(*pair)
    return orders


def test_orders_of_these_shapes_are_tried_first_then_of_these_ranks_then_all():
    shape = (2, 2, 2)
    seen, other = AxisOrder((2, 1, 0)), AxisOrder((0, 2, 1))
    orders = learned_from((shape, shape, seen), ((3, 5, 5), (3, 5, 5), other, 5))
    first = orders.first_try(shape, shape)
    assert first[:3] == [seen, other, SAME_ORDER]
    assert len(first) == len({*first}) == 6
    assert other not in orders.first_try((2, 3, 4), (2, 3, 4))  # which it does not reach
    assert AxisOrders().first_try(shape, shape) == possible_orders(shape, shape)
    assert AxisOrders().first_try((2, 3), (6,)) == possible_orders((2, 3), (6,))


def test_the_most_frequent_order_of_these_shapes_is_tried_first():
    shape = (2, 2, 2)
    orders = learned_from((shape, shape, SAME_ORDER), (shape, shape, FORWARD, 2))
    assert orders.first_try(shape, shape)[:2] == [FORWARD, SAME_ORDER]


def test_two_pairs_of_these_shapes_show_an_order():
    shape = (3, 3)
    once = learned_from((shape, shape, TURN))
    assert TURN not in once.learned(shape, shape)
    twice = learned_from((shape, shape, TURN), (shape, shape, TURN))
    assert twice.learned(shape, shape) == [TURN]
    assert TURN not in twice.learned(shape, shape, own=1)  # the pair itself is no witness
    assert learned_from((shape, shape, TURN, 3)).learned(shape, shape, own=1) == [TURN]
    assert learned_from((shape, shape, TURN, 2)).learned(shape, shape) == [TURN]


def test_learned_orders_are_those_of_the_shapes_alone_most_frequent_first():
    shape = (3, 3, 3)
    orders = learned_from(
        (shape, shape, FORWARD, 2), (shape, shape, BACKWARD, 3), ((5, 5, 5), (5, 5, 5), SAME_ORDER, 9)
    )
    assert orders.learned(shape, shape) == [BACKWARD, FORWARD]


def test_without_pairs_of_these_shapes_those_of_the_ranks_count_and_the_same_order():
    orders = learned_from(((5, 5), (5, 5), TURN), ((7, 7), (7, 7), TURN))
    assert orders.learned((3, 3), (3, 3)) == [TURN, SAME_ORDER]
    assert orders.learned((3, 3), (3, 3), own=1) == [SAME_ORDER]
    assert orders.learned((3, 4), (4, 3)) == [TURN]
    assert orders.learned((4, 6), (4, 6)) == [SAME_ORDER]  # which the order does not reach
    assert learned_from(((5, 5), (5, 5), TURN)).learned((3, 3), (3, 3)) == [SAME_ORDER]


def test_shapes_of_other_ranks_have_the_same_order_if_their_borders_agree():
    assert AxisOrders().learned((4, 6), (24,)) == [SAME_ORDER]
    assert AxisOrders().learned((2, 12), (4, 2, 3)) == []


def test_shapes_of_one_rank_show_the_move_of_one_axis():
    orders = AxisOrders()
    assert orders.learned((2, 3, 5), (3, 5, 2)) == [FORWARD]
    assert orders.learned((2, 3, 5, 7), (2, 7, 3, 5)) == [AxisOrder((0, 3, 1, 2))]
    assert orders.learned((2, 3, 5, 7), (3, 2, 7, 5)) == []  # two axes are moved
    assert orders.learned((2, 3, 3), (3, 3, 2)) == [FORWARD]  # the other order keeps no two axes
    assert orders.learned((2, 2, 3), (2, 3, 2)) == []  # either of two axes may be moved
    assert orders.learned((2, 3), (4, 3)) == [] == orders.learned((3,), (4,))
    assert orders.learned((2, 2), (2, 2)) == [SAME_ORDER]
    assert orders.learned((4, 6), (3, 8)) == []


def test_a_side_that_merges_axes_has_the_order_of_pairs_that_do_not():
    turn = AxisOrder((0, 2, 1))
    orders = learned_from(((2, 3, 5), (2, 5, 3), turn, 2), ((2, 3, 5), (2, 3, 5), SAME_ORDER, 4))
    assert orders.learned((4, 3, 5), (20, 3)) == [turn]
    assert orders.learned((20, 3), (4, 3, 5)) == [AxisOrder((0, 2, 1), True)]
    assert orders.learned((4, 3, 5), (60,)) == [turn, SAME_ORDER]
    assert orders.learned((60,), (4, 3, 5)) == [AxisOrder((0, 2, 1), True), SAME_ORDER]
    once = learned_from(((2, 3, 5), (2, 5, 3), turn))
    assert once.learned((4, 3, 5), (20, 3)) == []


def test_the_order_of_a_golden_with_more_axes_is_the_inverse_one():
    """The golden of a pair that does not merge is the target with its last axis in front."""
    orders = learned_from(((2, 3, 5), (3, 5, 2), FORWARD, 2))
    [found] = [one for one in orders.learned((6, 5), (3, 5, 2)) if one != SAME_ORDER]
    assert found == AxisOrder((2, 0, 1), True)
    assert tuple((3, 5, 2)[axis] for axis in found.axes) == (2, 3, 5)


def test_pairs_of_other_ranks_show_orders_for_these_ranks_too():
    merged = AxisOrder((1, 0, 2))
    orders = learned_from(((2, 3, 4), (3, 8), merged, 2))
    assert orders.learned((5, 7, 2), (7, 10)) == [merged]
    assert orders.learned((5, 7, 2), (70,)) == [SAME_ORDER]


@pytest.mark.parametrize(
    "pairs, words",
    [
        ([], ""),
        ([((2, 3, 4, 5), (2, 5, 3, 4), AxisOrder((0, 3, 1, 2)), 2)], "NHWC → NCHW"),
        ([((2, 3, 4, 5), (2, 4, 5, 3), AxisOrder((0, 2, 3, 1)), 2)], "NCHW → NHWC"),
        ([((2, 3, 4, 5), (2, 5, 3, 4), AxisOrder((0, 3, 1, 2)), 1)], ""),  # one pair shows nothing
        ([((2, 3, 4, 5), (3, 2, 4, 5), AxisOrder((1, 0, 2, 3)), 2)], "permute(1,0,2,3)"),
        ([((2, 3, 4), (3, 2, 4), AxisOrder((1, 0, 2)), 2)], "permute(1,0,2)"),
        ([((2, 3, 4), (3, 2, 4), AxisOrder((1, 0, 2)), 2), ((2, 3, 4, 5), (2, 3, 4, 5), SAME_ORDER, 3)],
         "permute(1,0,2)"),
        ([((2, 3, 4), (3, 2, 4), AxisOrder((1, 0, 2)), 2), ((2, 3, 4, 5), (2, 5, 3, 4), AxisOrder((0, 3, 1, 2)), 2)],
         "NHWC → NCHW"),
        ([((2, 3, 4), (3, 2, 4), AxisOrder((1, 0, 2)), 2), ((2, 3, 4), (2, 3, 4), SAME_ORDER, 3)], ""),
        ([((2, 3), (3, 2), TURN, 2)], ""),
        ([((2, 2, 2, 2, 2), (2, 2, 2, 2, 2), AxisOrder((1, 0, 2, 3, 4)), 2)], ""),
    ],
)  # fmt: skip
def test_the_most_frequent_order_of_four_axes_or_else_three_has_words(pairs, words):
    assert learned_from(*pairs).words() == words
