"""Masks of attention that are not the same constant in both runs, or that were scaled or added to scores.

A softmax writes nothing of a value that is 100 below the others of its row: exp(-100) is 4e-44. Which constant stands
there is a matter of coding. Tensors that reach a softmax or an exp, and in which both sides hold values that far below
all others, are read once more: where both sides hold one, the position is a mask. A mask on one side alone is data. So
is everything where a row has nothing else and its masks are not one constant, for a softmax sees these.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Iterator, Optional, Sequence

from npucmp.dump.context import ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.pairs import READ, Closeness, measure, payload_of
from npucmp.model import Measurement, Moments, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_gradient, op_type_of

FAR = 100.0  # distance: definition: exp(-100) is 0 beside 1 in float32
# of the lowest value: chosen: -1e9, and what a second mask or scores added to it, is below this part, not measured
PART = 4.0
FEWEST = 2  # positions: chosen: a single one is data, not measured
Key = tuple[object, ...]


def with_hidden_masks(found: Sequence[Measurement], closeness: Closeness, context: ReadContext) -> list[Measurement]:
    """The measurements of one step and rank, in graph order: masks that no exponential sees are left out of those that
    reach one. The same content is read once more at most."""
    candidates = {at: _key(moments) for at, one in enumerate(found) if (moments := _may_hide(one)) is not None}
    if not candidates:
        return [*found]
    groups = [[*group] for _, group in groupby(range(len(found)), key=lambda at: found[at].pair.order)]
    waiting = [group for group in groups if any(at in candidates for at in group)]
    read: dict[Key, Optional[Measurement]] = {}  # what reaches an exponential; None of what holds no masks
    known = -1
    while known < len(read):  # a dump may tell an operator before those that it reads from
        known = len(read)
        for group in reversed(waiting):
            pair = found[group[0]].pair
            op, own = op_type_of(pair.operator), [at for at in group if at in candidates]
            keeps_masks = op.has("shifts", "masks", "views", "copies", "hands on", "bounds")
            fills = keeps_masks and any(read.get(candidates[at]) for at in own)
            if is_gradient(pair.operator) or not (fills or op.has("fades")):
                continue
            for at in own:
                if candidates[at] not in read:
                    read[candidates[at]] = _masked(found[at], fills, closeness, context)
    accepted = {at: one for at, key in candidates.items() if (one := read.get(key)) is not None}
    return [one if at not in accepted else one._replace(moments=accepted[at].moments) for at, one in enumerate(found)]


def _may_hide(one: Measurement) -> Optional[Moments]:
    """The moments of floats that differ, and lie far below zero on both sides."""
    moments = one.moments
    sides = [lookup(tensor.dtype) for tensor in (one.pair.target, one.pair.golden) if tensor is not None]
    if moments is None or moments.mismatched or not moments.differing or len(sides) < 2:
        return None
    if not all(row is not None and row.kind == "f" for row in sides):
        return None
    lowest = max(moments.target.minimum, moments.golden.minimum)
    return moments if lowest <= -FAR * PART else None


def _key(moments: Moments) -> Key:
    """The content of a tensor on both sides."""
    sides = ((side.minimum, side.maximum, side.total, side.squares) for side in (moments.target, moments.golden))
    return (moments.elements, *sides)


def _masked(one: Measurement, fills: bool, closeness: Closeness, context: ReadContext) -> Optional[Measurement]:
    """The measurement without the masks that nothing sees; None if there are none. A constant that an operator fills
    in is all mask."""
    moments, target, golden = one.moments, one.pair.target, one.pair.golden
    assert moments is not None and target is not None and golden is not None
    sides = moments.target, moments.golden
    if fills and all(side.minimum == side.maximum for side in sides):
        return one._replace(moments=Moments(moments.elements, *sides, masked=moments.elements, equal=moments.equal))
    bounds = moments.target.minimum / PART, moments.golden.minimum / PART
    try:
        if not _are_hidden(target, golden, bounds, context):
            return None
    except NpucmpError:
        return None
    again = measure(one.pair, closeness, context, bounds)
    return again if again.moments is not None else None


def _are_hidden(target: TensorRef, golden: TensorRef, bounds: tuple[float, float], context: ReadContext) -> bool:
    """Whether what is below the bounds on both sides is so far below the rest of each side that nobody sees it."""
    import numpy as np

    width = target.shape[-1] if target.shape else 1
    masks, others, only_masks = 0, 0, False
    lowest, highest, least = [np.inf] * 2, [-np.inf] * 2, [np.inf] * 2
    for both in _rows(target, golden, max(1, READ // width) * width, context):
        below = [values <= bound for values, bound in zip(both, bounds)]
        mask, other = below[0] & below[1], ~(below[0] | below[1])
        masks, others = masks + int(mask.sum()), others + int(other.sum())
        if not len(mask) % width:
            only_masks |= bool(mask.reshape(-1, width).all(axis=1).any())
        for at, values in enumerate(both):
            lowest[at] = min(lowest[at], values.min(where=mask, initial=np.inf))
            highest[at] = max(highest[at], values.max(where=mask, initial=-np.inf))
            least[at] = min(least[at], values.min(where=other & np.isfinite(values), initial=np.inf))
    if masks < FEWEST or not others or (only_masks and lowest != highest):
        return False
    return all(rest - mask >= FAR for rest, mask in zip(least, highest))


def _rows(target: TensorRef, golden: TensorRef, elements: int, context: ReadContext) -> Iterator[tuple[Any, Any]]:
    """The values of both sides, in float64 and in whole rows."""
    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import widen

    payloads = [payload_of(one, context=context) for one in (target, golden)]
    sides = [blocks(one, elements, context=context) for one in payloads if one is not None]
    if len(sides) == len(payloads):
        yield from ((widen(x), widen(y)) for x, y in zip(*sides))
