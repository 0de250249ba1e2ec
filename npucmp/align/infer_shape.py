"""Shapes for tensors without a recorded shape, which are rows of elements: the partner's shape, if the counts agree.

A device layout is undone if the partner's shape has exactly this many stored elements in only one way.
"""

from __future__ import annotations

import math
from typing import Optional

from npucmp.dump.layouts import LAYOUTS, origins, stored_shape
from npucmp.errors import UnsupportedError
from npucmp.model import Device, Pair, TensorRef
from npucmp.model.dtypes import lookup

_BLOCK = 32  # bytes of the innermost axis in which devices store matrices


def shaped(pair: Pair) -> Pair:
    """Return the pair with such tensors in the shape of their partner, or with the reason why they have none."""
    target, golden = pair.target, pair.golden
    if target is None or golden is None or not (target.is_unshaped or golden.is_unshaped):
        return pair
    if target.is_unshaped and golden.is_unshaped:
        if target.layout == golden.layout:
            return pair
        words = f"in {target.layout or 'plain order'}, the other in {golden.layout or 'plain order'}, and no file gives"
        return pair._replace(target=target._replace(problem=f"{words} a shape"))
    if target.is_unshaped:
        return pair._replace(target=_shaped(target, golden))
    return pair._replace(golden=_shaped(golden, target))


def _shaped(one: TensorRef, other: TensorRef) -> TensorRef:
    if one.problem or other.problem or not other.slot or one.payload is None:
        return one
    count = one.shape[0]
    device: Optional[Device] = None
    if one.layout:
        device = _device(one, other, count)
        if device is None:
            return one._replace(problem=f"{count} elements in {one.layout}: no file gives their shape")
    elif math.prod(other.shape) != count:
        return one  # its number of elements is reported beside the partner's shape
    payload = one.payload._replace(shape=other.shape, device=device, unshaped=False)
    return one._replace(shape=other.shape, payload=payload)


def _device(one: TensorRef, other: TensorRef, count: int) -> Optional[Device]:
    """The device layout in which the partner's shape has `count` stored elements; None if none fits or several do."""
    kind = lookup(one.dtype)
    orders = origins(one.layout) if one.layout in LAYOUTS and not other.layout else ()
    found = set()
    for order in orders:
        for block in {16, _BLOCK // kind.itemsize if kind else 16}:
            try:
                stored = stored_shape(one.layout, order, other.shape, block)
            except UnsupportedError:
                continue
            if math.prod(stored) == count:
                found.add(Device(one.layout, stored, order))
    return found.pop() if len(found) == 1 else None
