"""Payloads of weights that are computed from stored ones, block by block.

    scaled    codes (rows, columns) times a scale (rows, blocks); `axis` is the number of columns of a block
    step      the scale alone, in the shape of the codes: the size of one step of an integer code
    product   the product of two matrices times `factor`: an update of low rank
    turned    a matrix with its axes exchanged, if no strides describe it; it is read as a whole

`made_by` of a payload names the kind. Memory: one block of rows, of a product its second matrix, of a turned payload
the whole matrix. Types: float32; NaN and infinities follow IEEE 754.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence

from npucmp.dump.readers.assembly import (
    JOIN,
    PRODUCT,
    SCALED,
    STEP,
    SUM,
    TURNED,
    Blocks,
    BlockStream,
    joined,
)
from npucmp.dump.readers.strides import c_strides
from npucmp.errors import UnsupportedError
from npucmp.model import Payload
from npucmp.model.dtypes import size_of

Slice = Callable[[Payload, int, int, int], Payload]


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
    """Return the entry of a plain payload at an index of its first axis, without that axis."""
    strides = payload.strides or c_strides(payload.shape)
    offset = payload.offset + index * strides[0] * size_of(payload.dtype, ())
    return payload._replace(shape=payload.shape[1:], offset=offset, strides=payload.strides[1:])


def scaled(codes: Payload, scale: Payload, block: tuple[int, int]) -> Payload:
    """Return codes times a scale. `scale` has the shape (row blocks, column blocks); `block` has the rows and columns
    that an entry of it belongs to."""
    rows = codes.shape[0]
    own = scale.strides or c_strides(scale.shape)
    if block[0] > 1:
        pieces, size = [], size_of(scale.dtype, ())
        for at in range(scale.shape[0]):
            count = min(block[0], rows - at * block[0])
            offset = scale.offset + at * own[0] * size
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
    """Return the rows of heads of `size` rows in the order of halves, if neighbours are pairs: rotary embedding of Meta's
    checkpoints in the order of transformers. `payload` is a plain vector or matrix; other payloads are cut into rows."""
    half, rows = size // 2, payload.shape[0]
    if payload.made_by or payload.parts or payload.dataset or payload.device:
        from npucmp.dump.readers.assembly import sliced

        order = [head + 2 * at + part for head in range(0, rows, size) for part in (0, 1) for at in range(half)]
        return joined([sliced(payload, 0, row, row + 1) for row in order], 0)
    own = payload.strides or c_strides(payload.shape)
    strides, step = (2 * own[0], *own[1:]), own[0] * size_of(payload.dtype, ())
    pieces = [
        payload._replace(
            shape=(half, *payload.shape[1:]), strides=strides, offset=payload.offset + (head + part) * step
        )
        for head in range(0, rows, size)
        for part in (0, 1)
    ]
    return joined(pieces, 0)


def sliced_weight(payload: Payload, axis: int, start: int, stop: int, cut: Slice) -> Payload:
    """Return the elements from `start` to `stop` along an axis; `cut` slices other payloads. UnsupportedError for
    columns of a scale that is cut into columns."""
    first, *rest = payload.parts
    shape = (*payload.shape[:axis], stop - start, *payload.shape[axis + 1 :])
    if payload.made_by == TURNED:
        return payload._replace(shape=shape, parts=(cut(first, 1 - axis, start, stop),))
    if payload.made_by == PRODUCT:
        parts = (cut(first, 0, start, stop), rest[0]) if axis == 0 else (first, cut(rest[0], 1, start, stop))
        return payload._replace(shape=shape, parts=parts)
    if axis == 0:
        return payload._replace(shape=shape, parts=tuple(cut(part, 0, start, stop) for part in payload.parts))
    width = payload.axis
    if rest[0].shape[1] == 1:
        return payload._replace(shape=shape, parts=(cut(first, 1, start, stop), rest[0]))
    if start % width or (stop % width and stop != payload.shape[1]):
        raise UnsupportedError("columns that are a part of a block of a scale")
    scale = cut(rest[0], 1, start // width, -(-stop // width))
    return payload._replace(shape=shape, parts=(cut(first, 1, start, stop), scale))


def weight_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    """Yield the values of a computed payload in C order, in blocks of about `elements`."""
    import numpy as np

    if payload.made_by == TURNED:
        found = [*read(payload.parts[0], elements)]
        yield np.ascontiguousarray(np.concatenate(found).reshape(payload.parts[0].shape).T).reshape(-1)
    elif payload.made_by == PRODUCT:
        yield from _product_blocks(payload, elements, read)
    else:
        yield from _scaled_blocks(payload, elements, read)


def _product_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    import numpy as np

    left, right = payload.parts
    inner, columns = left.shape[1], payload.shape[1]
    if not inner:
        yield np.zeros(payload.shape[0] * columns, np.float32)
        return
    whole = np.concatenate([*read(right, elements)]).astype(np.float64).reshape(right.shape)
    stream = BlockStream(read(left, elements))
    for count in _row_counts(payload.shape, elements):
        rows = stream.take(count * inner).astype(np.float64).reshape(count, inner)
        yield (payload.factor * (rows @ whole)).astype(np.float32).reshape(-1)


def _scaled_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    import numpy as np

    codes, scale = payload.parts
    columns, blocks = payload.shape[1], scale.shape[1]
    is_step = payload.made_by == STEP
    values = None if is_step else BlockStream(read(codes, elements))
    factors = BlockStream(read(scale, max(1, elements)))
    for count in _row_counts(payload.shape, elements):
        own = factors.take(count * blocks).astype(np.float32).reshape(count, blocks)
        if blocks > 1:
            own = np.repeat(own, payload.axis, 1)[:, :columns]
        if values is None:
            yield np.abs(np.broadcast_to(own, (count, columns))).reshape(-1)
        else:
            yield (values.take(count * columns).astype(np.float32).reshape(count, columns) * own).reshape(-1)


def _row_counts(shape: Sequence[int], elements: int) -> Iterator[int]:
    """Yield the number of rows of each block."""
    rows = max(1, elements // max(1, shape[1]))
    for start in range(0, shape[0] if shape[1] else 0, rows):
        yield min(rows, shape[0] - start)
