"""Samples that distinguish tensors without reading them whole, and views of tensors in another shape.

A sample is a few rows and columns at both ends of the axis that is cut. No error is raised: an unreadable tensor has no
sample, and the measurement reports the reason.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

from npucmp.align.shape_match import alike
from npucmp.dump.context import ReadContext
from npucmp.dump.readers import header
from npucmp.dump.readers.strides import c_strides
from npucmp.dump.readers.values import blocks
from npucmp.errors import NpucmpError
from npucmp.model import Payload, TensorRef
from npucmp.model.dtypes import lookup

SAME = 0.9  # cosine of two samples of one tensor, even if scaled; of two tensors it is near 0
_ROWS = 8  # of a sample, and as many columns at either end


def reshaped(tensor: TensorRef, shape: tuple[int, ...], context: ReadContext) -> TensorRef:
    """Return a tensor in a shape with merged or split leading axes; unchanged if the shapes differ in any other way."""
    if tensor.shape == shape or not alike(tensor.shape, shape) or tensor.device or tensor.problem:
        return tensor
    if not tensor.file and tensor.payload is None:
        return tensor._replace(shape=shape)
    found = opened(tensor, context)
    if found is None:
        return tensor
    plain = not (found.strides or found.parts or found.dataset)
    payload = found._replace(shape=shape) if plain else found._replace(shape=shape, parts=(found,), strides=(), axis=0)
    return tensor._replace(shape=shape, payload=payload)


def opened(tensor: TensorRef, context: ReadContext) -> Optional[Payload]:
    """The payload of a tensor, whose file is opened if necessary; None if it does not match the dump. MindSpore stores
    16-bit floats in 32 bits."""
    if tensor.problem or (tensor.payload is None and not tensor.file):
        return None
    try:
        found = tensor.payload or header(tensor.encoding, tensor.file, context)
    except NpucmpError:  # the measurement reports the problem
        return None
    kinds = lookup(found.dtype), lookup(tensor.dtype)
    widened = kinds[0] and kinds[1] and kinds[0].kind == kinds[1].kind == "f" and kinds[0].itemsize > kinds[1].itemsize
    return found if found.shape == tensor.shape and (found.dtype == tensor.dtype or widened) else None


def is_near(one: TensorRef, other: TensorRef, context: ReadContext) -> Optional[bool]:
    """Return whether two tensors have one direction at both ends; None if this is unknown."""
    found = [ends_of(each, context) for each in (one, reshaped(other, one.shape, context))]
    if found[0] is None or found[1] is None:
        return None
    return all(_cosine(a, b) > SAME for a, b in zip(found[0], found[1]))


def ends_of(tensor: TensorRef, context: ReadContext) -> Optional[tuple[Any, Any]]:
    """Samples of the first and the last rows of a weight, or columns of an output."""
    import numpy as np

    payload = opened(tensor, context)
    kind = lookup(payload.dtype) if payload is not None else None
    if payload is None or kind is None or kind.bits or payload.device or payload.parts or payload.dataset:
        return None
    if kind.kind != "f" or 0 in payload.shape or not payload.shape:
        return None
    try:
        found = [np.concatenate([*blocks(view, context=context)]) for view in _corners(tensor, payload, kind.itemsize)]
    except NpucmpError:
        return None
    with np.errstate(all="ignore"):
        first, last = (np.nan_to_num(one.astype(np.float64), posinf=0, neginf=0) for one in found)
    return first, last


def _corners(tensor: TensorRef, payload: Payload, itemsize: int) -> Iterator[Payload]:
    """A few rows and columns at the beginning and at the end of the axis that is cut."""
    shape, strides = payload.shape, payload.strides or c_strides(payload.shape)
    axis = 0 if tensor.slot.startswith("param") else len(shape) - 1
    few = [min(size, _ROWS) if at in (0, len(shape) - 1) else 1 for at, size in enumerate(shape)]
    for start in (0, shape[axis] - few[axis]):
        yield payload._replace(
            shape=tuple(few), strides=strides, offset=payload.offset + start * strides[axis] * itemsize
        )


def _cosine(a: Any, b: Any) -> float:
    import numpy as np

    if len(a) != len(b):
        return 0.0
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0.0 else 0.0
