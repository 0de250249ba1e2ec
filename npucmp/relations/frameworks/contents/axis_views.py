"""Two tensors in one shape: the values of one are read in the order of axes of the other, or a slice of them."""

from __future__ import annotations

from typing import Optional

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import JOIN, joined, permuted, sliced
from npucmp.dump.readers.strides import c_strides
from npucmp.model import Payload, TensorRef
from npucmp.model.dtypes import lookup, offset_of
from npucmp.model.dump import Statistics
from npucmp.model.relation import SAME_ORDER, AxisOrder, SliceRelation
from npucmp.relations.frameworks.by_name.slots import open_payload
from npucmp.relations.frameworks.contents.content import MASKED


def in_one_shape(
    target: TensorRef, golden: TensorRef, order: AxisOrder, context: ReadContext
) -> Optional[tuple[TensorRef, TensorRef]]:
    """Return both tensors in one shape, the target's elements in the golden's order of axes; None if the values of a
    tensor cannot be read in another order, or if both hold nothing but other masks."""
    if not any(one.file or one.payload for one in (target, golden)):
        found = _without_masks(target, golden)
        if found is None:
            return None
        target, golden = found
    if order.blocks:
        both = in_one_shape(target, golden, order.without_blocks, context)
        return None if both is None else _in_blocks(*both, order, context)
    if order == SAME_ORDER:
        shaped = _reshaped(target, golden.shape, context)
        return None if shaped is None else (shaped, golden)
    turned, other = (golden, target) if order.of_golden else (target, golden)
    view = _turned(turned, other.shape, order, context)
    if view is None:
        return None
    relation = order._replace(full=tuple(_full_axes(turned.shape)[axis] for axis in order.axes))
    if len(turned.shape) == len(other.shape):
        relation = relation._replace(full=_with_units(turned.shape, other.shape, relation.full))
    if order.of_golden:
        return target._replace(relation=relation), view
    return view._replace(relation=relation), golden


def _without_masks(target: TensorRef, golden: TensorRef) -> Optional[tuple[TensorRef, TensorRef]]:
    """Return two tensors of statistics alone, with their maxima alone if their minima are different masks; None if one
    holds nothing else."""
    x, y = target.statistics, golden.statistics
    if x is None or y is None or x.min == y.min or max(x.min or 0.0, y.min or 0.0) >= MASKED:
        return target, golden
    if min(x.max or 0.0, y.max or 0.0) < MASKED:
        return None
    return target._replace(statistics=Statistics(max=x.max)), golden._replace(statistics=Statistics(max=y.max))


def _in_blocks(
    target: TensorRef, golden: TensorRef, order: AxisOrder, context: ReadContext
) -> Optional[tuple[TensorRef, TensorRef]]:
    """Two tensors of one shape, the golden's blocks in the order of the target; None if they cannot be read."""
    payload = _plain(golden, context)
    if payload is None:
        return None
    axis = _full_axes(payload.shape)[order.along]
    view = joined([sliced(payload, axis, start, stop) for start, stop in order.blocks], axis)
    full = target.relation.full if isinstance(target.relation, AxisOrder) else ()
    relation = order._replace(full=full, along=axis)
    return target._replace(relation=relation), golden._replace(payload=_in_shape(view, golden.shape), checksum="")


def columns_of(
    tensor: TensorRef, start: int, width: int, shape: tuple[int, ...], context: ReadContext
) -> Optional[TensorRef]:
    """Columns of the last axis of a tensor in this shape; None if they cannot be read."""
    payload = _plain(tensor, context)
    if payload is None or not payload.shape:
        return None
    strides = payload.strides or c_strides(payload.shape)
    narrow = (*payload.shape[:-1], width)
    view = payload._replace(
        shape=narrow, strides=strides, offset=payload.offset + offset_of(payload.dtype, start * strides[-1])
    )
    found = tensor._replace(shape=shape, payload=_in_shape(view, shape), statistics=None, checksum="")
    return found._replace(relation=SliceRelation(len(payload.shape) - 1, start, start + width))


def _plain(tensor: TensorRef, context: ReadContext, joined: bool = False) -> Optional[Payload]:
    payload = open_payload(tensor, context)
    kind = payload and lookup(payload.dtype)
    is_made = payload is not None and bool(payload.parts) and not (joined and payload.made_by == JOIN)
    if payload is None or payload.device or is_made or payload.dataset or (kind and kind.bits):
        return None
    return payload


def _reshaped(tensor: TensorRef, shape: tuple[int, ...], context: ReadContext) -> Optional[TensorRef]:
    if tensor.shape == shape:
        return tensor
    if not tensor.file and tensor.payload is None:
        return tensor._replace(shape=shape)
    payload = open_payload(tensor, context)
    if payload is None or payload.device:
        return None
    return tensor._replace(shape=shape, payload=_in_shape(payload, shape))


def _in_shape(payload: Payload, shape: tuple[int, ...]) -> Payload:
    if payload.shape == shape:
        return payload
    if not (payload.strides or payload.parts or payload.dataset):
        return payload._replace(shape=shape)
    return payload._replace(shape=shape, parts=(payload,), strides=(), axis=0)


def _turned(tensor: TensorRef, shape: tuple[int, ...], order: AxisOrder, context: ReadContext) -> Optional[TensorRef]:
    if not tensor.file and tensor.payload is None:
        return tensor._replace(shape=shape, checksum="")
    payload = _plain(tensor, context, joined=True)
    if payload is None:
        return None
    axes = [_full_axes(payload.shape)[axis] for axis in order.axes]
    units = [axis for axis in range(len(payload.shape)) if axis not in axes]
    view = permuted(payload, (*units, *axes))
    return tensor._replace(shape=shape, payload=_in_shape(view, shape), checksum="")


def _full_axes(shape: tuple[int, ...]) -> list[int]:
    """The numbers of the axes that are not of length one."""
    return [axis for axis, size in enumerate(shape) if size != 1]


def _with_units(turned: tuple[int, ...], other: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The order of all axes, with those of length one where the other shape has them."""
    units = [axis for axis, size in enumerate(turned) if size == 1]
    rest = list(axes)
    return tuple(units.pop(0) if size == 1 and units else rest.pop(0) for size in other)
