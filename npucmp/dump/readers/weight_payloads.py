"""Make payloads of weights: transposed, times a scale, an expert of a stack, a product, rows in another order."""

from __future__ import annotations

from typing import Iterator, Optional

from npucmp.dump.readers.assembly import JOIN, SUM, joined, sliced
from npucmp.dump.readers.computed_weights import PRODUCT, SCALED, STEP, TURNED
from npucmp.dump.readers.strides import c_strides
from npucmp.errors import UnsupportedError
from npucmp.model import Payload
from npucmp.model.dtypes import offset_of

ENTRIES = 1 << 14  # layers or experts of a stack: work


def transposed(payload: Payload) -> Payload:
    """Return a matrix with its axes exchanged; other payloads are returned unchanged."""
    if len(payload.shape) != 2:
        return payload
    shape = payload.shape[::-1]
    if payload.made_by == JOIN:
        return joined([transposed(part) for part in payload.parts], 1 - payload.axis)
    if payload.made_by == SUM:
        return payload._replace(shape=shape, parts=tuple(map(transposed, payload.parts)))
    if payload.made_by == TURNED:
        return payload.parts[0]
    if payload.made_by or payload.device or payload.parts or payload.dataset:
        return Payload("", payload.dtype, shape, 0, parts=(payload,), made_by=TURNED)
    strides = payload.strides or c_strides(payload.shape)
    return payload._replace(shape=shape, strides=(strides[1], strides[0]))


def selected(payload: Payload, index: int) -> Payload:
    """Return the entry of a plain or joined payload at an index of its first axis, without that axis."""
    if payload.made_by == JOIN and payload.axis:
        return joined([selected(part, index) for part in payload.parts], payload.axis - 1)
    if payload.made_by == JOIN:
        for part in payload.parts:
            if index < part.shape[0]:
                return selected(part, index)
            index -= part.shape[0]
    strides = payload.strides or c_strides(payload.shape)
    offset = payload.offset + offset_of(payload.dtype, index * strides[0])
    return payload._replace(shape=payload.shape[1:], offset=offset, strides=payload.strides[1:])


def stack_entries(payload: Payload) -> Iterator[Payload]:
    """Yield the entries of a stack along the first axis. Raises UnsupportedError for a scalar, and for more entries
    than a stack has."""
    if not payload.shape or payload.shape[0] > ENTRIES or 0 in payload.shape:
        raise UnsupportedError(f"a stack of shape {[*payload.shape]}")
    yield from (selected(payload, at) for at in range(payload.shape[0]))


def scaled(codes: Payload, scale: Payload, block: tuple[int, int]) -> Payload:
    """Return codes times a scale. `scale` has the shape (row blocks, column blocks); `block` has the rows and columns
    that an entry of it belongs to."""
    rows = codes.shape[0]
    own = scale.strides or c_strides(scale.shape)
    if block[0] > 1:
        pieces = []
        for at in range(scale.shape[0]):
            count = min(block[0], rows - at * block[0])
            offset = scale.offset + offset_of(scale.dtype, at * own[0])
            pieces.append(scale._replace(shape=(count, scale.shape[1]), strides=(0, own[1]), offset=offset))
        scale = joined(pieces, 0)
    return Payload("", "float32", codes.shape, 0, parts=(codes, scale), axis=block[1], made_by=SCALED)


def steps_of(payload: Payload) -> Optional[Payload]:
    """Return the size of a step of each element; None if any part of the payload has no scale."""
    if payload.made_by == SCALED:
        return payload._replace(made_by=STEP)
    if payload.made_by in (JOIN, TURNED):
        parts = [steps_of(part) for part in payload.parts]
        known = tuple(part for part in parts if part is not None)
        return payload._replace(parts=known, dtype="float32") if len(known) == len(parts) else None
    return None


def product(left: Payload, right: Payload, factor: float) -> Payload:
    """Return the product of two matrices times a factor."""
    shape = left.shape[0], right.shape[1]
    return Payload("", "float32", shape, 0, parts=(left, right), made_by=PRODUCT, factor=factor)


def paired_rows(payload: Payload, size: int) -> Payload:
    """Return the rows of heads of `size` rows in the order of halves, if neighbours are pairs: rotary embedding of
    Meta's checkpoints in the order of transformers. `payload` is a plain vector or matrix; other payloads are cut into
    rows."""
    half, rows = size // 2, payload.shape[0]
    if payload.made_by or payload.parts or payload.dataset or payload.device:
        order = [head + 2 * at + part for head in range(0, rows, size) for part in (0, 1) for at in range(half)]
        return joined([sliced(payload, 0, row, row + 1) for row in order], 0)
    own = payload.strides or c_strides(payload.shape)
    strides = (2 * own[0], *own[1:])
    pieces = [
        payload._replace(
            shape=(half, *payload.shape[1:]),
            strides=strides,
            offset=payload.offset + offset_of(payload.dtype, (head + part) * own[0]),
        )
        for head in range(0, rows, size)
        for part in (0, 1)
    ]
    return joined(pieces, 0)
