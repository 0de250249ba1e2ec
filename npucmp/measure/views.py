"""Tensors held against views of others: a golden tensor against one of the target with its last two axes exchanged, or
against a slice of it; the gradient of a broadcast operand against the sum of the gradient that arrived."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from npucmp.dump.context import ReadContext
from npucmp.dump.readers.strides import c_strides
from npucmp.errors import NpucmpError
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import measure, payload_of
from npucmp.measure.peek import array_of
from npucmp.model import Pair, TensorRef
from npucmp.model.dtypes import lookup

MOST = 1 << 24  # elements of a tensor that is summed


class Slice(NamedTuple):
    """The elements from `start` on along `axis`, as many as the golden tensor has."""

    axis: int
    start: int


class Views:
    """Measures views of tensors; `context` is what may be read."""

    def __init__(self, context: ReadContext) -> None:
        self._context = context

    def rel_l2(self, pair: Pair, part: Optional[Slice] = None) -> Optional[float]:
        """rel_l2 of the values of a pair, of which the target is a `part` of its tensor, or may hold the last two axes
        the other way round; infinity for NaN or Inf on one side, None for a pair without comparable values."""
        if pair.target is not None and pair.golden is not None and pair.target.shape != pair.golden.shape:
            pair = pair._replace(target=_viewed(pair.target, pair.golden.shape, part, self._context))
        moments = measure(pair, context=self._context).moments
        if moments is None:
            return None
        return math.inf if moments.mismatched else rel_l2(moments)

    def sum_error(self, tensor: TensorRef, whole: TensorRef) -> Optional[float]:
        """‖tensor - sum‖ / ‖whole‖ for the sum of `whole` over the axes along which `tensor` was broadcast to it, of
        either sign; None for shapes that are not broadcast, values that cannot be read, and more than MOST elements."""
        axes = _broadcast(tensor.shape, whole.shape)
        if not axes or math.prod(whole.shape) > MOST:
            return None
        try:
            own, terms = (array_of(one, self._context).astype("float64") for one in (tensor, whole))
        except NpucmpError:
            return None
        total, norm = terms.sum(axis=axes).reshape(own.shape), float((terms**2).sum()) ** 0.5
        least = min(float(((own - total) ** 2).sum()), float(((own + total) ** 2).sum())) ** 0.5
        return least / norm if norm else None


def _broadcast(shape: "tuple[int, ...]", to: "tuple[int, ...]") -> "tuple[int, ...]":
    """The axes of a shape along which another one was repeated; () if none, or if it cannot be."""
    lead = len(to) - len(shape)
    if lead < 0 or any(own not in (1, length) for own, length in zip(shape, to[lead:])):
        return ()
    return (*range(lead), *(lead + at for at, own in enumerate(shape) if own != to[lead + at]))


def _viewed(tensor: TensorRef, shape: "tuple[int, ...]", part: Optional[Slice], context: ReadContext) -> TensorRef:
    """A view of a tensor in this shape; the tensor as it is where no stride gives that shape."""
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
    if part is not None or len(shape) < 2 or (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]) != shape:
        return tensor
    turned = payload._replace(shape=shape, strides=(*strides[:-2], strides[-1], strides[-2]))
    return tensor._replace(shape=shape, payload=turned)
