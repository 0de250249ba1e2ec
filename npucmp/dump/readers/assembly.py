"""Payloads that are made of others: joined along an axis, summed, scaled, reshaped, computed (computed_weights.py).
They are read block by block.

A slice of a joined payload is joined of slices, and a slice of a sum is a sum of slices, so that all that is sliced is
a plain payload, whose slice is a strided view of its file. Memory is one block of each part.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Sequence

import numpy as np

from npucmp.dump.readers.computed_weights import COMPUTED, FUNCTION, Blocks, BlockStream, sliced_weight, weight_blocks
from npucmp.dump.readers.strides import c_strides, compact
from npucmp.errors import UnsupportedError
from npucmp.model import Payload
from npucmp.model.dtypes import offset_of

JOIN, SUM, MAX, NORM, RESHAPE = "join", "sum", "max", "norm", "reshape"
_WIDE = {"float64", "int64", "uint64"}


def joined(parts: Sequence[Payload], axis: int) -> Payload:
    """Parts side by side along an axis."""
    flat = [
        piece
        for part in parts
        for piece in (part.parts if part.made_by == JOIN and part.axis == axis else (part,))
        if 0 not in piece.shape
    ]
    if len(flat) == 1:
        return flat[0]
    first = flat[0] if flat else parts[0]
    size = sum(part.shape[axis] for part in flat or parts)
    shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
    return Payload("", first.dtype, shape, 0, parts=tuple(flat), axis=axis, made_by=JOIN)


def total(parts: Sequence[Payload], how: str = SUM, factor: float = 1.0) -> Payload:
    """The sum of parts times a factor, their largest elements, or the root of the sum of their squares. A sum of 16-bit
    numbers is kept in float32."""
    first = parts[0]
    if len(parts) == 1 and factor == 1.0:
        return first
    dtype = first.dtype if first.dtype in _WIDE else "float32"
    return Payload("", dtype, first.shape, 0, parts=tuple(parts), made_by=how, factor=factor)


def reshaped(payload: Payload, shape: tuple[int, ...]) -> Payload:
    """The values of a flat payload in another shape, in C order."""
    return (
        payload._replace(shape=shape, parts=(payload,), axis=0, made_by=RESHAPE) if payload.shape != shape else payload
    )


def permuted(payload: Payload, axes: tuple[int, ...]) -> Payload:
    """The values of a payload with its axes in another order. A payload without strides is read as a whole."""
    shape = tuple(payload.shape[axis] for axis in axes)
    if payload.made_by == JOIN:
        return joined([permuted(part, axes) for part in payload.parts], axes.index(payload.axis))
    if not (payload.device or payload.parts or payload.dataset or payload.made_by):
        strides = payload.strides or c_strides(payload.shape)
        return payload._replace(shape=shape, strides=compact(shape, tuple(strides[axis] for axis in axes)))
    words = f"permute({','.join(map(str, axes))})"
    return Payload("", payload.dtype, shape, 0, parts=(payload,), made_by=FUNCTION, dataset=words)


def sliced(payload: Payload, axis: int, start: int, stop: int) -> Payload:
    """The elements from `start` to `stop` along an axis. Raises UnsupportedError for a payload that is not plain."""
    if (start, stop) == (0, payload.shape[axis]):
        return payload
    if payload.made_by == JOIN and payload.axis == axis:
        found, at = [], 0
        for part in payload.parts:
            low, high = max(start - at, 0), min(stop - at, part.shape[axis])
            if low < high:
                found.append(sliced(part, axis, low, high))
            at += part.shape[axis]
        return joined(found, axis)
    shape = (*payload.shape[:axis], stop - start, *payload.shape[axis + 1 :])
    if payload.made_by in COMPUTED:
        return sliced_weight(payload, axis, start, stop, sliced, joined)
    if payload.made_by == RESHAPE:
        inner, length = math.prod(payload.shape[axis + 1 :]), payload.shape[axis]
        rows = range(math.prod(payload.shape[:axis]))
        ranges = [((row * length + start) * inner, (row * length + stop) * inner) for row in rows]
        return reshaped(joined([sliced(payload.parts[0], 0, *one) for one in ranges], 0), shape)
    if payload.made_by:
        return payload._replace(shape=shape, parts=tuple(sliced(part, axis, start, stop) for part in payload.parts))
    if payload.device or payload.parts or payload.dataset:
        raise UnsupportedError("a part of a tensor in a device's layout or an HDF5 dataset")
    strides = payload.strides or c_strides(payload.shape)
    offset = payload.offset + offset_of(payload.dtype, start * strides[axis])
    plain = axis == 0 and not payload.strides
    return payload._replace(shape=shape, offset=offset, strides=() if plain else tuple(strides))


def assembled_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    """Yield the values of a payload made of others in C order, in blocks of about `elements`; `read` yields those of a
    part."""
    if payload.made_by == RESHAPE:
        yield from read(payload.parts[0], elements)
        return
    if payload.made_by in COMPUTED:
        yield from weight_blocks(payload, elements, read)
        return
    if payload.made_by == JOIN:
        yield from _joined_blocks(payload, elements, read)
        return

    own = np.float64 if payload.dtype not in ("int64", "uint64") else np.int64
    streams = [BlockStream(read(part, elements)) for part in payload.parts]
    left = math.prod(payload.shape)
    kind = np.dtype(payload.dtype)
    combine = np.maximum if payload.made_by == MAX else np.hypot if payload.made_by == NORM else np.add
    while left:
        count = min(elements, left)
        found = streams[0].take(count).astype(own)
        for stream in streams[1:]:
            more = stream.take(count)
            with np.errstate(all="ignore"):
                found = combine(found, more)
        with np.errstate(all="ignore"):
            found = (found * payload.factor if payload.factor != 1.0 else found).astype(kind)
        yield found
        left -= count


def _joined_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    axis, shape = payload.axis, payload.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    widths = [part.shape[axis] * inner for part in payload.parts]
    rows = max(1, elements // max(1, sum(widths)))
    streams = [BlockStream(read(part, min(elements, rows * width))) for part, width in zip(payload.parts, widths)]
    for start in range(0, outer, rows):
        count = min(rows, outer - start)
        pieces = [stream.take(count * width).reshape(count, width) for stream, width in zip(streams, widths)]
        yield np.concatenate(pieces, 1).reshape(-1)


def is_sequence(payload: Payload) -> bool:
    """Return whether the values of a payload are those of its parts one behind the other."""
    return payload.made_by == JOIN and math.prod(payload.shape[: payload.axis]) == 1
