"""Runs of equal names that keep their tensors in other axes: NHWC against NCHW, HWIO against OIHW.

Shapes propose an order of axes, values prove it: at least two tensors of one rank hold the golden's elements in that
order, or one if all tensors of this rank have the shapes. Then it holds for all tensors of this rank. An input of the
network may be the only such tensor, if what reads it computes the golden's values: a converter of models adds a
Transpose behind it. A tensor that merges these axes, as a flattened image does, is reordered if it agrees in that order
alone. The run must keep these axes from its first tensor on. If a tensor of this rank agrees in the recorded order, and
a later operator writes other axes, that operator is at fault.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.strides import c_strides
from npucmp.model import Pair, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import op_type_of
from npucmp.model.relation import AxisOrder
from npucmp.model.roles import is_parameter
from npucmp.relations.frameworks.contents.axis_orders import without_units
from npucmp.relations.frameworks.contents.axis_views import in_one_shape
from npucmp.relations.held_values import Values

Axes = tuple[int, ...]

AGREES = 0.05  # rel_l2: chosen: a tensor of 16 bits or with a small fault still shows its order, not measured
CLEAR = 4.0  # times: chosen: the next order is as much further away, not measured
SMALL = 1e-3  # rel_l2: chosen: smaller errors count as this one, else any order is clear of equal values, not measured
WITNESSES = 2  # tensors: chosen: one tensor is no convention of a run
READER = 0.01  # rel_l2: chosen: a convolution in TF32 or HF32 stays below, one of another image does not, not measured
RANKS = 3, 4, 5  # axes of activations: definition: with channels and places; matrices are transposed by an operator
MOST = 64  # tensors of a family that are read for its order: work


class TurnedRun(NamedTuple):
    """The pairs, of which targets in other axes are read in those of the golden, and a note on them."""

    pairs: Sequence[Pair]
    notes: tuple[str, ...] = ()


class Family(NamedTuple):
    """Tensors that share one convention of axes."""

    rank: int
    parameters: bool


def in_golden_axes(pairs: Sequence[Pair], context: ReadContext, ordered: bool = True) -> TurnedRun:
    """Return the pairs in the axes of the golden, if the whole target or its input keeps other ones. `ordered`: the
    order of both runs is known."""
    turned: dict[Family, list[int]] = {}
    for at, pair in enumerate(pairs):
        target, golden = pair.target, pair.golden
        if target is not None and golden is not None and target.shape != golden.shape and _may_turn(target, golden):
            turned.setdefault(_family(pair), []).append(at)
    if not any(family.rank in RANKS and not family.parameters for family in turned):
        return TurnedRun(pairs)
    values = Values(context)
    orders: dict[Family, Axes] = {}
    for family, places in sorted(turned.items(), key=lambda item: item[0].parameters):
        if family.parameters and not orders:
            break
        order = _order_of(family, [pairs[at] for at in places[:MOST]], values)
        if order is None:
            continue
        if not family.parameters and (inputs := _inputs_alone(pairs, places, ordered, values)):
            fits = all(_is_read_alike(pairs, at, ordered, values) for at in inputs)
        else:
            fits = len(places) >= WITNESSES and not _turns_within(family, order, pairs, places, values)
        if fits or family.parameters:
            orders[family] = order
    if not any(not family.parameters for family in orders):
        return TurnedRun(pairs)
    return _turned_run(pairs, orders, values, context)


def _turned_run(pairs: Sequence[Pair], orders: dict[Family, Axes], values: Values, context: ReadContext) -> TurnedRun:
    found: list[Pair] = []
    counts: Counter[Axes] = Counter()
    merged: dict[int, tuple[tuple[int, ...], Axes]] = {}  # elements of a sample → the shape and the order of its axes
    for pair in pairs:
        view, order = None, None
        if pair.target is not None and pair.golden is not None:
            order = orders.get(_family(pair))
            if order is not None and not is_parameter(pair):
                merged[math.prod(pair.target.shape[1:])] = pair.target.shape, order
            if order is not None and _turned_shape(pair.target.shape, order) == pair.golden.shape:
                if pair.target.shape != pair.golden.shape or _is_nearer(pair.target, pair.golden, order, values):
                    view = in_one_shape(pair.target, pair.golden, _without_units(pair.target.shape, order), context)
            elif pair.target.shape == pair.golden.shape and len(pair.target.shape) < 3:
                view, order = _split_view(pair, merged, values, context)
        if view is not None and order is not None:
            counts[order] += 1
            pair = pair._replace(target=view[0], golden=view[1])
        found.append(pair)
    notes = (
        f"{count} tensors of the target are in other axes and are compared as permute({','.join(map(str, order))})"
        if count > 1
        else f"1 tensor of the target is in other axes and is compared as permute({','.join(map(str, order))})"
        for order, count in counts.items()
    )
    return TurnedRun(found, tuple(notes))


def _may_turn(target: TensorRef, golden: TensorRef) -> bool:
    known = not any(one.problem or one.is_unshaped or one.device or one.relation for one in (target, golden))
    return known and len(target.shape) > 1 and sorted(target.shape) == sorted(golden.shape)


def _family(pair: Pair) -> Family:
    assert pair.golden is not None
    return Family(len(pair.golden.shape), is_parameter(pair))


def _turned_shape(shape: tuple[int, ...], order: Axes) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in order) if len(shape) == len(order) else ()


def _without_units(shape: tuple[int, ...], order: Axes) -> AxisOrder:
    """The order of the axes that are not of length one, numbered among themselves."""
    numbers = {axis: number for number, axis in enumerate(axis for axis, size in enumerate(shape) if size != 1)}
    axes = tuple(numbers[axis] for axis in order if axis in numbers)
    return AxisOrder(axes) if axes != tuple(range(len(axes))) else AxisOrder()


def _order_of(family: Family, pairs: Sequence[Pair], values: Values) -> Optional[Axes]:
    """The order of axes that most pairs show; None if too few show one. If all have the shapes that an order makes,
    the values of one show it: behind a fault of the first operator, only the input agrees."""
    shown = [orders for orders in (_shown_orders(pair, values) for pair in pairs) if orders]
    votes = Counter(order for orders in shown for order in orders)
    likely = [
        order
        for order, count in votes.items()
        if count >= min(WITNESSES, len(pairs)) or family.parameters or _are_in(order, pairs)
    ]
    if not family.parameters:  # an image with rows for columns is turned, not kept in other axes
        likely = [order for order in likely if order[1] != 1]
    if not likely:
        return None
    order = max(likely, key=lambda order: (votes[order], _is_move(order)))
    return order if 2 * votes[order] > len(shown) else None


def _are_in(order: Axes, pairs: Sequence[Pair]) -> bool:
    """Whether all targets have the shapes that an order of axes makes of those of the golden."""
    both = ((pair.target, pair.golden) for pair in pairs)
    return all(one and other and _turned_shape(one.shape, order) == other.shape for one, other in both)


def _shown_orders(pair: Pair, values: Values) -> list[Axes]:
    """The orders in which the target's elements are those of the golden, which differ in axes of length one alone; none
    if several others fit."""
    assert pair.target is not None and pair.golden is not None
    if len(without_units(pair.golden.shape)) < 2:
        return []  # any order is the same
    shape, wanted = pair.target.shape, pair.golden.shape
    orders = [order for order in permutations(range(len(shape))) if _turned_shape(shape, order) == wanted]
    if pair.target.statistics is not None and not (pair.target.file or pair.target.payload):
        are_equal = pair.target.statistics == pair.golden.statistics
        return [order for order in orders if _is_move(order)] if are_equal else []
    x, y = values.array(pair.target), values.array(pair.golden)
    if x is None or y is None:
        return []
    same: dict[AxisOrder, list[Axes]] = {}
    for order in orders:
        same.setdefault(_without_units(shape, order), []).append(order)
    errors = sorted((_error(x.transpose(equal[0]), y), equal) for equal in same.values())
    if not errors or errors[0][0] > AGREES or any(error < CLEAR * max(errors[0][0], SMALL) for error, _ in errors[1:]):
        return []
    return errors[0][1]


def _is_move(order: Axes) -> bool:
    """Whether one group of neighbouring axes is moved behind the others: NCHW and NHWC, OIHW and HWIO reversed."""
    axes = [*range(len(order))]
    for start in axes:
        for stop in range(start + 1, len(axes)):
            block, rest = axes[start:stop], axes[:start] + axes[stop:]
            if any([*rest[:at], *block, *rest[at:]] == [*order] for at in range(len(rest) + 1) if at != start):
                return True
    return False


def _inputs_alone(pairs: Sequence[Pair], turned: Sequence[int], ordered: bool, values: Values) -> list[int]:
    """The places of the turned tensors if no operator of the dump made one of them, and each holds all of the golden's
    values within the rounding of its type; else none."""
    made = [pair for pair in pairs if _is_made(pair)]
    for at in turned:
        pair = pairs[at]
        target, golden = pair.target, pair.golden
        assert target is not None and golden is not None
        x, y = values.array(target), values.array(golden)
        if target.is_output:
            is_first = pair.order == pairs[0].order if ordered else _is_same(pair, pairs[turned[0]], values)
            if _is_made(pair) or not is_first:
                return []
        elif any(other.order < pair.order and _is_same(other, pair, values) for other in made):
            return []
        units = [row.round_off for row in map(lookup, (target.dtype, golden.dtype)) if row is not None]
        bound = 2 * max(units, default=0.0)
        if x is not None and y is not None:
            turns = (order for order in permutations(range(x.ndim)) if _turned_shape(x.shape, order) == y.shape)
            if min((_error(x.transpose(order), y) for order in turns), default=math.inf) > bound:
                return []
    return [*turned]


def _is_made(pair: Pair) -> bool:
    """Whether an operator of the dump computes this tensor: the dump records what it reads."""
    operators = [operator for operator in (pair.target_op, pair.golden_op) if operator is not None]
    tensor = pair.golden
    return (
        tensor is not None
        and tensor.is_output
        and any(not other.is_output for operator in operators for other in operator.tensors)
    )


def _is_same(pair: Pair, other: Pair, values: Values) -> bool:
    """Whether the golden's tensors of both pairs are the same values."""

    if pair is other or pair.golden is None or other.golden is None or pair.golden.shape != other.golden.shape:
        return pair is other
    x, y = values.array(pair.golden), values.array(other.golden)
    if x is not None and y is not None:
        return np.array_equal(x, y, equal_nan=True)
    return pair.golden.statistics is not None and pair.golden.statistics == other.golden.statistics


def _is_read_alike(pairs: Sequence[Pair], at: int, ordered: bool, values: Values) -> bool:
    """Whether what reads an input computes the golden's values, which the input in a wrong order would change."""
    image = pairs[at]
    assert image.golden is not None and image.target is not None
    x, y = values.array(image.target), values.array(image.golden)
    limit = READER if x is None or y is None else min(READER, _error(x.reshape(y.shape), y) / CLEAR**2)
    inputs = [pair for pair in pairs if pair.golden and not pair.golden.is_output]
    readers = {pair.order for pair in inputs if _is_same(pair, image, values)}
    outputs = [pair for pair in pairs if pair.golden and pair.target and pair.golden.is_output and pair is not image]
    if readers:
        return any(_agrees(pair, limit, values) for pair in outputs if pair.order in readers)
    if ordered:
        later = [pair for pair in outputs if pair.order > image.order]
        return any(_agrees(pair, limit, values) for pair in later if pair.order == later[0].order)
    return 2 * sum(_agrees(pair, limit, values) for pair in outputs) > len(outputs)


def _agrees(pair: Pair, limit: float, values: Values) -> bool:
    target, golden = pair.target, pair.golden
    if target is None or golden is None or target.shape != golden.shape or not math.prod(golden.shape):
        return False
    x, y = values.array(target), values.array(golden)
    if x is not None and y is not None:
        return _error(x, y) <= limit and bool(y.min() < y.max())
    return target.statistics is not None and target.statistics == golden.statistics


def _turns_within(family: Family, order: Axes, pairs: Sequence[Pair], turned: Sequence[int], values: Values) -> bool:
    """Whether an operator of the run turned the axes: an earlier tensor agrees in the recorded order."""
    first = pairs[turned[0]]
    for pair in _as_they_are(family, pairs[: turned[0]], values):
        is_input = not any(one.target_op is not None and one.target_op.reads_recorded for one in pairs[: turned[0]])
        is_first = pair.order == pairs[0].order and len(turned) > WITNESSES
        if not (
            is_input and is_first and first.target_op is not None and not op_type_of(first.target_op).has("moves axes")
        ):
            return True
    return False


def _as_they_are(family: Family, pairs: Sequence[Pair], values: Values) -> Iterator[Pair]:
    """Yield the pairs of a family that agree in the recorded order of axes and in no other."""
    for pair in pairs:
        if pair.target is None or pair.golden is None or _family(pair) != family:
            continue
        if pair.target.shape != pair.golden.shape or len(without_units(pair.golden.shape)) < 2:
            continue
        x, y = values.array(pair.target), values.array(pair.golden)
        if x is not None and y is not None and _error(x, y) <= AGREES and y.min() < y.max():
            yield pair


def _is_nearer(target: TensorRef, golden: TensorRef, order: Axes, values: Values) -> bool:
    """Whether a tensor whose shape is the same in both orders is nearer to the golden in another order of axes."""
    x, y = values.array(target), values.array(golden)
    return x is not None and y is not None and _error(x.transpose(order), y) < _error(x, y)


def _split_view(
    pair: Pair, merged: dict[int, tuple[tuple[int, ...], Axes]], values: Values, context: ReadContext
) -> tuple[Optional[tuple[TensorRef, TensorRef]], Optional[Axes]]:
    """The view of a tensor with an axis that merges those of an earlier tensor, and the order of the axes; None unless
    it agrees in this order alone."""
    assert pair.target is not None and pair.golden is not None
    shape = pair.target.shape
    for axis, size in enumerate(shape):
        if size not in merged or not _may_turn_in(pair.target):
            continue
        own, order = merged[size]
        x, y = values.array(pair.target), values.array(pair.golden)
        if x is None or y is None or _error(x, y) <= AGREES:
            return None, None
        split = (*shape[:axis], *own[1:], *shape[axis + 1 :])
        inner = tuple(at - 1 + axis for at in order if at)  # the batch keeps its place
        whole = (*range(axis), *inner, *range(axis + len(inner), len(split)))
        if order[0] == 0 and _error(x.reshape(split).transpose(whole).reshape(shape), y) <= AGREES:
            payload = values.payload(pair.target)
            if payload is None or payload.parts or payload.dataset or payload.device:
                return None, None
            if strides := payload.strides:
                inside = [strides[axis] * count for count in c_strides(own[1:])]
                strides = (*strides[:axis], *inside, *strides[axis + 1 :])
            tensor = pair.target._replace(shape=split, payload=payload._replace(shape=split, strides=strides))
            return in_one_shape(tensor, pair.golden, _without_units(split, whole), context), whole
    return None, None


def _may_turn_in(tensor: TensorRef) -> bool:
    return not (tensor.problem or tensor.is_unshaped or tensor.device or tensor.relation)


def _error(x: Any, y: Any) -> float:
    """rel_l2 over the elements that are finite on both sides."""

    with np.errstate(all="ignore"):
        finite = np.isfinite(x) & np.isfinite(y)
        size = float(np.square(y[finite], dtype=np.float64).sum())
        return math.sqrt(float(np.square(x[finite] - y[finite], dtype=np.float64).sum()) / size) if size else math.inf
