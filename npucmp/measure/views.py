"""The distance of a golden tensor from a view of a target tensor: the tensor itself, with its last two axes exchanged,
or a slice of it."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from npucmp.dump.context import ReadContext
from npucmp.dump.readers.strides import c_strides
from npucmp.errors import NpucmpError
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import measure, payload_of
from npucmp.model import Pair, TensorRef
from npucmp.model.dtypes import lookup


class Slice(NamedTuple):
    """The elements from `start` on along `axis`, as many as the golden tensor has."""

    axis: int
    start: int


def rel_l2_of(context: ReadContext, pair: Pair, part: Optional[Slice] = None) -> Optional[float]:
    """rel_l2 of the values of a pair, of which the target is a `part` of its tensor, or may hold the last two axes the
    other way round; infinity for NaN or Inf on one side, None for a pair without comparable values."""
    if pair.target is not None and pair.golden is not None and pair.target.shape != pair.golden.shape:
        pair = pair._replace(target=_viewed(pair.target, pair.golden.shape, part, context))
    moments = measure(pair, context=context).moments
    if moments is None:
        return None
    return math.inf if moments.mismatched else rel_l2(moments)


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
