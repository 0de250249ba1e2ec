"""Masks whose constants the kernel does not know: scaled, added to scores, rounded, or different in each run.

A mask is a property of positions: both sides have values there that are far below all other values of the tensor. The
constant does not matter if a softmax or an exp reads the tensor, directly or after operators that move, scale, fill or
join values: exp(-100) is 4e-44. It may be -inf in one run, because float16 has no -1e9. It matters only if a row has
nothing else, and its masks are not one constant, or -inf in one run alone. In other places an operator must pass a
known mask on, or the constant must be a known one rounded to a 16-bit type; and both sides must have one constant, or
one constant added to ordinary values. A mask on one side only is data.

The extremes of a tensor show that it may have such masks. It is read once more if it is in one of these places and a
tensor of its operator differs.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.errors import NpucmpError, SystemFailure
from npucmp.measure.kernel.mask_values import (
    MASK_DISTANCE,
    all_others_in_range,
    are_rounded,
    may_hold_masks,
    unseen_bounds,
)
from npucmp.measure.pairs import READ, Closeness, measure, payload_of
from npucmp.model import Measurement, Moments, Side, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import OpType, is_gradient, op_type_of
from npucmp.model.roles import is_output

# roundings of a constant in the coarser type: definition: two on each side, its own and that of what scaled it
ROUNDINGS = 4.0
Key = tuple[object, ...]


def with_hidden_masks(found: Sequence[Measurement], closeness: Closeness, context: ReadContext) -> list[Measurement]:
    """Return the measurements of one step and rank, in graph order, without masks that the kernel does not know. Each
    content is read at most once more."""
    search = _MaskSearch(found, closeness, context)
    search.repeat_search(search.before_exponentials, search.operators[::-1])
    search.search_rounded()
    search.repeat_search(search.behind_masks, search.operators)
    return [*map(search.measurement, range(len(found)))]


class _MaskSearch:
    """Search for masks by content, because a dump without a graph has no other edges.

    keys       the content of each row that may have masks; for an input without values, that of its producer in the
               graph
    contents   one row of each content
    known      for each content examined, its measurement without masks; None if it has none
    operators  rows of forward operators with such a tensor and a difference
    """

    def __init__(self, found: Sequence[Measurement], closeness: Closeness, context: ReadContext) -> None:
        self.found, self.closeness, self.context = found, closeness, context
        self.keys = {at: _content(one.moments) for at, one in enumerate(found) if one.moments and _may_hide(one)}
        self.contents = {key: found[at] for at, key in self.keys.items()}
        self.keys.update(_by_graph(found, self.keys))
        self.known: dict[Key, Optional[Measurement]] = {}
        groups = groupby(range(len(found)), key=lambda at: found[at].pair.order) if self.keys else ()
        self.operators = [rows for _, group in groups if self._counts(rows := [*group])]

    def _counts(self, rows: list[int]) -> bool:
        if is_gradient(self.found[rows[0]].pair.operator) or not any(at in self.keys for at in rows):
            return False
        return any((moments := self.found[at].moments) is None or moments.differing for at in rows)

    def measurement(self, at: int) -> Measurement:
        """The measurement of a row without the masks found so far."""
        one, again = self.found[at], self.known.get(self.keys[at]) if at in self.keys else None
        return one if again is None or one.moments is None else one._replace(moments=again.moments)

    def repeat_search(self, look: Callable[[list[int]], None], operators: Sequence[list[int]]) -> None:
        """Repeat a search until it finds nothing new. A dump may list an operator before its producers."""
        known = -1
        while known < len(self.known):
            known = len(self.known)
            for rows in operators:
                look(rows)

    def before_exponentials(self, rows: list[int]) -> None:
        """Search the inputs of an exponential, and tensors that pass masks to it."""
        op = op_type_of(self.found[rows[0]].pair.operator)
        fills = _carries(op) and any(self.known.get(self.keys[at]) for at in rows if at in self.keys)
        golden_op = self.found[rows[0]].pair.golden_op
        fades = op.has("fades") or (golden_op is not None and op_type_of(golden_op).has("fades"))
        fades |= self._precedes_exponential(rows[-1])
        for at in rows if fills or fades else ():
            self._ask(at, _Values.are_unseen, fills)

    def _precedes_exponential(self, at: int) -> bool:
        """Whether the next operator of a dump of outputs is an exponential of this shape."""
        if at + 1 >= len(self.found):
            return False
        tensor, following = self.found[at].pair.golden, self.found[at + 1].pair
        reader, wrote = following.golden_op, following.golden
        if reader is None or reader.reads_recorded or tensor is None or wrote is None:
            return False
        return op_type_of(reader).has("fades") and tensor.shape == wrote.shape

    def search_rounded(self) -> None:
        """Search wider tensors with a known constant as a 16-bit type rounds it."""
        for at in (at for rows in self.operators for at in rows):
            moments = self.found[at].moments
            if moments is not None and are_rounded(moments.target, moments.golden):
                self._ask(at, _Values.are_alike)

    def behind_masks(self, rows: list[int]) -> None:
        """Search the outputs of operators that read masks."""
        if not _carries(op_type_of(self.found[rows[0]].pair.operator)):
            return
        inputs = [self.measurement(at).moments for at in rows if not is_output(self.found[at].pair)]
        if any(moments is not None and moments.masked for moments in inputs):
            for at in rows:
                if is_output(self.found[at].pair):
                    self._ask(at, _Values.are_alike)

    def _ask(self, at: int, accepts: Callable[[_Values], bool], fills: bool = False) -> None:
        """Measure the content of a row without masks if it has any. If `fills`, a constant tensor is all mask."""
        key = self.keys.get(at)
        if key is None or key in self.known:
            return
        one = self.contents[key]
        moments, target, golden = one.moments, one.pair.target, one.pair.golden
        assert moments is not None and target is not None and golden is not None
        self.known[key] = None
        if all_others_in_range(moments) and not moments.mismatched:
            self.known[key] = one
        elif fills and all(side.minimum == side.maximum for side in (moments.target, moments.golden)):
            self.known[key] = one._replace(moments=_all_masked(moments))
        elif accepts(_values(one, moments, self.context)):
            again = measure(one.pair, self.closeness, self.context, unseen_bounds(moments))
            self.known[key] = again if again.moments is not None else None


def _carries(op: OpType) -> bool:
    """Return whether an operator passes a mask from input to output."""
    return op.has("shifts", "masks", "views", "copies", "hands on", "bounds")


def _may_hide(one: Measurement) -> bool:
    """Return whether both sides are floats far below zero."""
    moments = one.moments
    sides = [lookup(tensor.dtype) for tensor in (one.pair.target, one.pair.golden) if tensor is not None]
    if moments is None or len(sides) < 2:
        return False
    if moments.mismatched and any(side.nan or side.posinf for side in (moments.target, moments.golden)):
        return False
    return may_hold_masks(moments) and all(row is not None and row.kind == "f" for row in sides)


def _content(moments: Moments) -> Key:
    """A key for the content of both sides."""
    sides = (
        (side.minimum, side.maximum, side.total, side.squares, side.neginf) for side in (moments.target, moments.golden)
    )
    return (moments.elements, *sides)


def _by_graph(found: Sequence[Measurement], keys: dict[int, Key]) -> Iterator[tuple[int, Key]]:
    """Yield inputs without values whose producer a graph names, with the content of the producer's output."""
    written = {}
    for at, key in keys.items():
        pair = found[at].pair
        if pair.target_op is not None and is_output(pair):
            written[f"{pair.target_op.name}:{pair.slot.partition(':')[2]}"] = key
    for at, one in enumerate(found) if written else ():
        if one.moments is None and one.pair.target is not None and one.pair.target.source in written:
            yield at, written[one.pair.target.source]


def _all_masked(moments: Moments) -> Moments:
    count = moments.elements
    return Moments(count, moments.target, moments.golden, masked=count, equal=moments.equal)


class _Values(NamedTuple):
    """Extremes of two tensors below the bounds (the masks) and above them.

    Each list has one number for target and one for golden: the ends of the masks, and those of all other finite values.
    `only_masks` is True if a row has nothing else. `round_off` is that of the coarser type.
    """

    masks: int = 0
    others: int = 0
    only_masks: bool = False
    lowest: Sequence[float] = ()
    highest: Sequence[float] = ()
    least: Sequence[float] = ()
    most: Sequence[float] = ()
    round_off: float = 0.0

    def are_unseen(self) -> bool:
        """Whether the masks of both sides do not affect an exponential."""
        if not self._are_far() or not self.only_masks:
            return self._are_far()
        return self.lowest == self.highest and math.isinf(self.lowest[0]) == math.isinf(self.lowest[1])

    def are_alike(self) -> bool:
        """Whether the masks of both sides are one constant, or one constant added to ordinary values."""
        spread = max(self.most) - min(self.least) - ROUNDINGS * self.round_off * min(self.lowest)
        return self._are_far() and max(self.highest) - min(self.lowest) <= spread

    def _are_far(self) -> bool:
        if self.masks <= 1 or not self.others:
            return False
        return all(rest - mask >= MASK_DISTANCE for rest, mask in zip(self.least, self.highest))


def _values(one: Measurement, moments: Moments, context: ReadContext) -> _Values:
    """The extremes of a pair; those of empty tensors if a side cannot be read."""
    target, golden = one.pair.target, one.pair.golden
    assert target is not None and golden is not None
    try:
        found = _read_values(target, golden, unseen_bounds(moments), context)
    except SystemFailure:
        raise
    except NpucmpError:
        return _Values()
    sides = (target, moments.target), (golden, moments.golden)
    return found._replace(round_off=max(_round_off(tensor, side) for tensor, side in sides))


def _round_off(tensor: TensorRef, side: Side) -> float:
    row = lookup(tensor.dtype)
    own = row.round_off if row is not None else 0.0
    return max(own, 2.0**-side.bits) if side.bits else own  # float32 may contain values of 16 bits


def _read_values(target: TensorRef, golden: TensorRef, bounds: tuple[float, float], context: ReadContext) -> _Values:
    width = target.shape[-1] if target.shape else 1
    masks, others, only_masks = 0, 0, False
    lowest, highest, least, most = [np.inf] * 2, [-np.inf] * 2, [np.inf] * 2, [-np.inf] * 2
    for both in _rows(target, golden, max(1, READ // max(1, width)) * width, context):
        below = [values <= bound for values, bound in zip(both, bounds)]
        mask, other = below[0] & below[1], ~(below[0] | below[1])
        masks, others = masks + int(mask.sum()), others + int(other.sum())
        if not len(mask) % width:
            only_masks |= bool(mask.reshape(-1, width).all(axis=1).any())
        for at, values in enumerate(both):
            lowest[at] = min(lowest[at], values.min(where=mask, initial=np.inf))
            highest[at] = max(highest[at], values.max(where=mask, initial=-np.inf))
            finite = other & np.isfinite(values)
            least[at] = min(least[at], values.min(where=finite, initial=np.inf))
            most[at] = max(most[at], values.max(where=finite, initial=-np.inf))
    return _Values(masks, others, only_masks, lowest, highest, least, most)


def _rows(target: TensorRef, golden: TensorRef, elements: int, context: ReadContext) -> Iterator[tuple[Any, Any]]:
    """The values of both sides in float64 and in whole rows."""
    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import widen

    payloads = [payload_of(one, context=context) for one in (target, golden)]
    sides = [blocks(one, elements, context=context) for one in payloads if one is not None]
    if len(sides) == len(payloads):
        yield from ((widen(x), widen(y)) for x, y in zip(*sides))
