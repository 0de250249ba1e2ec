"""Pairs of contents whose blocks along an axis stand in another order: the gates of a recurrent layer, and q, k and v
of a fused weight.

Weights show the order of their blocks by their values. An operator that reads such a weight writes its blocks in the
same order. No other order of blocks is tried, so that an operator that exchanges blocks differs. A content downstream
must agree in the same order of blocks, so that exchanged blocks of a weight differ.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterator, Optional, Sequence

import numpy as np

from npucmp.model.relation import AxisOrder
from npucmp.relations.frameworks.contents.axis_orders import (
    LEARNED,
    Shape,
    in_order,
    possible_orders,
    reaches,
)
from npucmp.relations.frameworks.contents.content import Content
from npucmp.relations.frameworks.contents.content_pairs import AGREES, CERTAIN, ContentPair, ContentPairs
from npucmp.relations.frameworks.contents.value_match import VIA, sketch_distances

NARROWEST = 4  # elements: chosen: mean length of the blocks of an axis; single exchanged elements are no blocks
LONGEST = 3  # axes: work: weights of more axes are not looked at


def match_blocks(pairs: ContentPairs) -> None:
    """Add the pairs of weights with blocks in another order, and then of what is computed with them."""
    by_size: dict[int, tuple[list[Content], list[Content]]] = defaultdict(lambda: ([], []))
    for side, graph in enumerate((pairs.target, pairs.golden)):
        for content in graph.contents:
            if content.is_weight and content.sketch.quantiles is not None and pairs.is_open(side, content.number):
                by_size[content.size][side].append(content)
    found: list[ContentPair] = []
    for targets, goldens in by_size.values():
        for row, column in np.argwhere(_are_equal_unsorted(pairs, targets, goldens)) if targets and goldens else ():
            order = _order_of_weights(pairs, targets[row], goldens[column])
            found += [] if order is None else _add(pairs, targets[row], goldens[column], order)
    for content in pairs.target.contents if found else ():
        if content.makers and pairs.is_open(0, content.number):
            found += _match_computed(pairs, content)
    shown = {pair.order.blocks for pair in found if pair.order is not None and _is_proven(pairs, pair)}
    for pair in found:
        if pair.order is not None and pair.order.blocks in shown:
            pairs.axes.learn(*pairs.shapes(pair.target, pair.golden), pair.order, LEARNED)
        else:
            pairs.remove(pair)


def _is_proven(pairs: ContentPairs, pair: ContentPair) -> bool:
    """Whether something that is computed from a content with blocks in another order agrees in the same order."""
    if pairs.target.contents[pair.target].is_weight:
        return False
    below = (pairs.found.get(one) for one in pairs.target.near_downstream(pair.target))
    return any(one is not None and one.order is not None and not one.order.blocks for one in below)


def _are_equal_unsorted(pairs: ContentPairs, targets: Sequence[Content], goldens: Sequence[Content]) -> Any:
    """Whether each two contents have the same values by their sketches."""
    sketches = (np.array([one.sketch.quantiles for one in side]) for side in (targets, goldens))
    scales = (np.array([one.rms for one in side]) for side in (targets, goldens))
    return sketch_distances(*sketches, *scales) <= pairs.noise


def _order_of_weights(pairs: ContentPairs, target: Content, golden: Content) -> Optional[AxisOrder]:
    """The order of axes and of blocks along one of them in which two weights are equal; None without one."""
    own, other = pairs.values(0, target.number), pairs.values(1, golden.number)
    shapes = pairs.shapes(target.number, golden.number)
    if own is None or other is None or len(shapes[0]) != len(shapes[1]) or len(shapes[0]) > LONGEST:
        return None
    for axes in possible_orders(*shapes):
        x, y = in_order(own, axes, shapes[0], False).reshape(shapes[1]), other.reshape(shapes[1])
        for axis in range(y.ndim):
            blocks = _blocks_along(np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0))
            order = axes._replace(blocks=blocks, along=axis - y.ndim)
            if len(blocks) > 1 and _is_equal(pairs, target, golden, order):
                return order
    return None


def _blocks_along(x: Any, y: Any) -> tuple[tuple[int, int], ...]:
    """The blocks of the first axis of y in the order of x, by the places of their rows when these are sorted by their
    values; () if they are too short."""
    weights = np.random.default_rng(len(x)).standard_normal(x.size // len(x))
    here, there = (np.argsort(one.reshape(len(x), -1).astype(np.float64) @ weights) for one in (x, y))
    places = np.empty(len(x), np.int64)
    places[here] = there
    ends = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(x)]
    if (len(ends) - 1) * NARROWEST > len(x):
        return ()
    return tuple((int(places[start]), int(places[stop - 1]) + 1) for start, stop in zip(ends, ends[1:]))


def _match_computed(pairs: ContentPairs, content: Content) -> list[ContentPair]:
    """Add the pair of a content that is computed from one with blocks in another order, if it has them too."""
    for parent in pairs.target.parents[content.number]:
        pair = pairs.found.get(parent)
        if pair is None or pair.order is None or not pair.order.blocks:
            continue
        for number in sorted(pairs.golden.children[pair.golden]):
            golden = pairs.golden.contents[number]
            if not pairs.is_open(1, number) or content.size != golden.size or golden.sketch.quantiles is None:
                continue
            shapes = pairs.shapes(content.number, number)
            for order in _orders_with(pair.order, pairs, shapes):
                if _is_equal(pairs, content, golden, order):
                    return _add(pairs, content, golden, order)
    return []


def _orders_with(shown: AxisOrder, pairs: ContentPairs, shapes: tuple[Shape, Shape]) -> Iterator[AxisOrder]:
    """Yield the orders of axes of two shapes with these blocks along the last axis."""
    for axes in pairs.axes.first_try(*shapes):
        order = axes._replace(blocks=shown.blocks, along=-1)
        if not axes.of_golden and not axes.blocks and reaches(order, *shapes):
            yield order


def _is_equal(pairs: ContentPairs, target: Content, golden: Content, order: AxisOrder) -> bool:
    error = pairs.error(target.number, golden.number, order)
    return error is not None and error <= AGREES * pairs.noise


def _add(pairs: ContentPairs, target: Content, golden: Content, order: AxisOrder) -> list[ContentPair]:
    error = pairs.error(target.number, golden.number, order)
    reason = "equal element by element, with blocks of an axis in another order"
    pair = ContentPair(target.number, golden.number, VIA, CERTAIN, reason, order, error)
    return [pair] if pairs.add(pair) else []
