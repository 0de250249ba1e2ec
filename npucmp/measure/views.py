"""Comparison with views: a golden tensor with the target's transposed last two axes or with a slice of the target, and
the gradient of a broadcast operand with the sum of the gradient that arrived.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.strides import c_strides
from npucmp.errors import NpucmpError, if_unreadable
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import measure, payload_of
from npucmp.measure.preview import array_of
from npucmp.model import Pair, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_weight

MOST = 1 << 22  # elements of a tensor that is summed


class AxisSlice(NamedTuple):
    """The elements from `start` along `axis`, as many as the golden tensor has."""

    axis: int
    start: int


class Views:
    """Measurement of views of tensors. `context` limits the files that may be read."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context

    def rel_l2(self, pair: Pair, part: Optional[AxisSlice] = None) -> Optional[float]:
        """rel_l2 of a pair whose target tensor is a `part` of its tensor, or may have its last two axes exchanged. It
        is infinite for NaN or Inf on one side, None for a pair without comparable values. Square matrices of a weight
        file are used unchanged, because nothing shows in which orientation they are read."""
        if pair.target is None or pair.golden is None:
            return None
        turns = _is_square(pair.golden.shape) and not is_weight(pair.operator)
        views = [pair.target] if part is None and pair.target.shape == pair.golden.shape else []
        if not views or turns:
            views.append(_view_of(pair.target, pair.golden.shape, part, self._context))
        every = (measure(pair._replace(target=one), context=self._context).moments for one in views)
        errors = [math.inf if one.mismatched else rel_l2(one) for one in every if one is not None]
        return min(errors, default=None)

    @if_unreadable(None)
    def sum_error(self, tensor: TensorRef, whole: TensorRef) -> Optional[float]:
        """‖tensor - sum‖ / ‖whole‖ for the sum of `whole`, with either sign, over the axes along which `tensor` was
        broadcast to it. None for shapes that are not broadcast, complex numbers, unreadable values, and more than MOST
        elements."""
        axes = _broadcast(tensor.shape, whole.shape)
        is_complex = any(one.dtype.startswith("complex") for one in (tensor, whole))
        if not axes or is_complex or math.prod(whole.shape) > MOST:
            return None
        own, terms = (array_of(one, self._context).astype("float64") for one in (tensor, whole))
        total, norm = terms.sum(axis=axes).reshape(own.shape), float((terms**2).sum()) ** 0.5
        least = min(float(((own - total) ** 2).sum()), float(((own + total) ** 2).sum())) ** 0.5
        return least / norm if norm else None


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and shape[-1] == shape[-2]


def _broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a shape along which another one was repeated; () if there is none, or shapes do not match."""
    lead = len(to) - len(shape)
    if lead < 0 or any(own not in (1, length) for own, length in zip(shape, to[lead:])):
        return ()
    return (*range(lead), *(lead + at for at, own in enumerate(shape) if own != to[lead + at]))


def _view_of(tensor: TensorRef, shape: tuple[int, ...], part: Optional[AxisSlice], context: ReadContext) -> TensorRef:
    """A slice of a tensor in this shape, or the tensor with its last two axes exchanged; unchanged if no strides
    produce that shape."""
    try:
        payload = payload_of(tensor, context=context)
    except NpucmpError:
        return tensor
    if payload is None or payload.device or payload.parts or payload.dataset or payload.shape != tensor.shape:
        return tensor
    strides, dtype = payload.strides or c_strides(payload.shape), lookup(payload.dtype)
    if part is not None and dtype is not None and not dtype.bits:
        offset = payload.offset + part.start * strides[part.axis] * dtype.itemsize
        return tensor._replace(shape=shape, payload=payload._replace(shape=shape, strides=strides, offset=offset))
    if part is not None or len(tensor.shape) < 2 or (*tensor.shape[:-2], *tensor.shape[:-3:-1]) != shape:
        return tensor
    turned = payload._replace(shape=shape, strides=(*strides[:-2], strides[-1], strides[-2]))
    return tensor._replace(shape=shape, payload=turned)
