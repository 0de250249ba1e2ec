"""Orders of axes: which ones shapes permit, where elements correspond, and which ones pairs show."""

from __future__ import annotations

from npucmp.model.relation import SAME_ORDER, AxisOrder
from npucmp.relations.frameworks.contents.axis_orders import AxisOrders


def learned_from(*pairs) -> AxisOrders:
    orders = AxisOrders()
    for pair in pairs:
        orders.learn(*pair)
    return orders


def test_a_side_that_merges_axes_has_the_order_of_pairs_that_do_not():
    turn = AxisOrder((0, 2, 1))
    orders = learned_from(((2, 3, 5), (2, 5, 3), turn, 2), ((2, 3, 5), (2, 3, 5), SAME_ORDER, 4))
    assert orders.learned((4, 3, 5), (20, 3)) == [turn]
    assert orders.learned((20, 3), (4, 3, 5)) == [AxisOrder((0, 2, 1), True)]
    assert orders.learned((4, 3, 5), (60,)) == [turn, SAME_ORDER]
    assert orders.learned((60,), (4, 3, 5)) == [AxisOrder((0, 2, 1), True), SAME_ORDER]
    once = learned_from(((2, 3, 5), (2, 5, 3), turn))
    assert once.learned((4, 3, 5), (20, 3)) == []
