"""Orders of axes: NHWC and NCHW, (S,B,H) and (B,S,H), HWIO and OIHW, a transposed weight.

Two contents of one size agree in an order of axes if the elements of one, with its axes in that order, are the elements
of the other one by one. Axes of length one and the borders between axes do not matter, so heads may be split or merged.
An order counts as learned if at least two pairs of contents show it; an error is measured in learned orders only, so
that no order of its own explains a difference away.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import accumulate, permutations
from operator import mul
from typing import Any, Optional, Sequence

import numpy as np

from npucmp.model.relation import SAME_ORDER, AxisOrder

LEARNED = 2  # pairs: chosen: one pair more than the pair itself, so that no order is its own witness
_LONGEST = 5  # axes: work: the orders of 6 axes are 720
Shape = tuple[int, ...]


def without_units(shape: Sequence[int]) -> Shape:
    """A shape without axes of length one."""
    return tuple(size for size in shape if size != 1)


def reaches(order: AxisOrder, target: Shape, golden: Shape) -> bool:
    """Return whether a target shape in this order of axes can be a golden shape, both without units."""
    if order.blocks:
        fits = len(golden) >= -order.along and golden[order.along] == len(_places_of(order))
        return fits and reaches(order.without_blocks, target, golden)
    if order == SAME_ORDER:
        borders = _borders(target), _borders(golden)
        return borders[0] | borders[1] in borders
    turned, other = (golden, target) if order.of_golden else (target, golden)
    if len(turned) != len(order.axes):
        return False
    return _borders(tuple(turned[axis] for axis in order.axes)) >= _borders(other)


def of_other_side(order: AxisOrder) -> AxisOrder:
    """Return the same order by the axes of the other side; blocks are always those of the golden."""
    if order.blocks:
        return order
    axes = tuple(sorted(range(len(order.axes)), key=order.axes.__getitem__))
    return AxisOrder(axes, bool(axes) and not order.of_golden)


def _borders(shape: Shape) -> set[int]:
    return {*accumulate(shape, mul)}


def possible_orders(target: Shape, golden: Shape) -> list[AxisOrder]:
    """All orders of axes in which a target shape can be a golden shape, both without units; the same order first."""
    found = [SAME_ORDER]
    for of_golden, turned, other in ((False, target, golden), (True, golden, target)):
        if not 1 < len(turned) <= _LONGEST or (of_golden and len(turned) <= len(other)):
            continue
        for axes in permutations(range(len(turned))):
            order = AxisOrder(axes, of_golden)
            if axes != tuple(range(len(turned))) and reaches(order, target, golden):
                found.append(order)
    return found


def _moves(target: Shape, golden: Shape) -> list[AxisOrder]:
    """The order of axes that shapes alone show: the only one in which one axis is moved and the others keep theirs."""
    if len(target) != len(golden):
        return []
    axes = range(len(target))
    moved = {tuple(order.axes) for order in possible_orders(target, golden) if any(
        [one for one in order.axes if one != axis] == [one for one in axes if one != axis] for axis in axes
    ) and order.axes}  # fmt: skip
    return [AxisOrder(moved.pop())] if len(moved) == 1 and target != golden else []


def places_in(order: AxisOrder, target: Shape, golden: Shape, places: Any) -> tuple[Any, Any]:
    """The places of elements that correspond, in the C orders of target and golden. `places` are places in the C order
    of the side whose axes are not turned."""

    if order.blocks:
        here, _ = places_in(order.without_blocks, target, golden, places)
        return here, _in_blocks(order, golden, places)
    if order == SAME_ORDER:
        return places, places
    turned = golden if order.of_golden else target
    strides = [math.prod(turned[axis + 1 :]) for axis in range(len(turned))]
    shape = tuple(turned[axis] for axis in order.axes)
    found = np.zeros_like(places)
    for axis, at in zip(order.axes, np.unravel_index(places, shape)):
        found += at * strides[axis]
    return (places, found) if order.of_golden else (found, places)


def in_order(flat: Any, order: AxisOrder, shape: Shape, of_golden: bool) -> Any:
    """The values of one side, whose shape has no units, in the order in which they meet those of the other side."""
    if order.blocks and of_golden:
        return flat[_in_blocks(order, shape, np.arange(flat.size))]
    if not order.axes or order.of_golden != of_golden:
        return flat
    return flat.reshape(shape).transpose(order.axes).reshape(-1)


def _places_of(order: AxisOrder) -> Any:
    """The place along the golden axis of each place of the target's blocks."""
    return np.concatenate([np.arange(start, stop) for start, stop in order.blocks])


def _in_blocks(order: AxisOrder, golden: Shape, places: Any) -> Any:
    """The places of the golden that have the blocks of these places of the target, in the C order of the golden."""
    along = _places_of(order)
    inner = math.prod(golden[order.along :][1:])
    at = places // inner % len(along)
    return places + (along[at] - at) * inner


class AxisOrders:
    """The orders of axes that pairs of contents show."""

    def __init__(self) -> None:
        self._by_shapes: dict[tuple[Shape, Shape], Counter[AxisOrder]] = defaultdict(Counter)
        self._by_rank: dict[tuple[int, int], Counter[AxisOrder]] = defaultdict(Counter)

    def learn(self, target: Shape, golden: Shape, order: AxisOrder, count: int = 1) -> None:
        """Count a pair of contents of these shapes that agrees in an order, or as many as `count`."""
        self._by_shapes[target, golden][order] += count
        self._by_rank[len(target), len(golden)][order] += count

    def first_try(self, target: Shape, golden: Shape) -> list[AxisOrder]:
        """The orders that any pair of these shapes or ranks shows, then all others."""
        seen = [order for order, _ in self._by_shapes[target, golden].most_common()]
        seen += [
            order
            for order, _ in self._by_rank[len(target), len(golden)].most_common()
            if reaches(order, target, golden)
        ]
        return [*dict.fromkeys([*seen, *possible_orders(target, golden)])]

    def learned(self, target: Shape, golden: Shape, own: Optional[AxisOrder] = None) -> list[AxisOrder]:
        """The orders that at least two pairs of these shapes show, most frequent first; without any, those that two
        pairs in the whole run show, and the same order; without any, the move of one axis that the shapes show. `own`
        is the order in which the pair itself was counted."""
        found = [o for o, count in self._by_shapes[target, golden].most_common() if count >= LEARNED + (o == own)]
        if not found:
            counted = self._by_rank[len(target), len(golden)].most_common()
            found = [o for o, count in counted if count >= LEARNED + (o == own) and reaches(o, target, golden)]
            if len(target) != len(golden):
                found += self._with_other_borders(target, golden)
            found += [SAME_ORDER] if reaches(SAME_ORDER, target, golden) and (target == golden or found) else []
        if not found and len(target) != len(golden) and reaches(SAME_ORDER, target, golden):
            found = [SAME_ORDER]
        return [*dict.fromkeys(found or _moves(target, golden))]

    def _with_other_borders(self, target: Shape, golden: Shape) -> list[AxisOrder]:
        """Orders that pairs with as many axes as the side with more axes show, for a pair in which the other side has
        merged some."""
        rank = max(len(target), len(golden))
        found = []
        for order, count in self._by_rank[rank, rank].most_common():
            if count < LEARNED or order == SAME_ORDER:
                continue
            if len(target) < rank:
                order = of_other_side(order)
            if reaches(order, target, golden):
                found.append(order)
        return found

    def words(self) -> str:
        """The most frequent order of four axes, or else of three: "NHWC → NCHW"; "" for the same order."""
        for rank in (4, 3):
            counted = [each for each in self._by_rank[rank, rank].most_common() if not each[0].blocks]
            if counted and counted[0][0] != SAME_ORDER and counted[0][1] >= LEARNED:
                return _NAMED.get(counted[0][0].axes) or counted[0][0].words
        return ""


_NAMED: dict[tuple[int, ...], str] = {(0, 3, 1, 2): "NHWC → NCHW", (0, 2, 3, 1): "NCHW → NHWC"}
