"""Payloads of weights that are computed from stored ones, block by block.

    scaled    codes (rows, columns) times a scale (rows, blocks); `axis` is the number of columns of a block
    step      the scale alone, in the shape of the codes: the size of one step of an integer code
    product   the product of two matrices times `factor`: an update of low rank
    turned    a matrix with its axes exchanged, if no strides describe it; it is read as a whole
    function  what `dataset` says, "NAME(arguments)", makes of a tensor, which is read as a whole: permute, or a
              function that the entry point group npucmp.views names

`made_by` of a payload names the kind. Memory: one block of rows, of a product its second matrix, of a turned payload
the whole matrix. Types: float32; NaN and infinities follow IEEE 754.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from npucmp.errors import UnsupportedError, UsageError, nearest
from npucmp.model import Payload

SCALED, STEP, PRODUCT, TURNED, FUNCTION = "scaled", "step", "product", "turned", "function"
COMPUTED = frozenset((SCALED, STEP, PRODUCT, TURNED, FUNCTION))
VIEWS = "npucmp.views"  # the group of entry points: function(array, arguments as text) → array
Slice = Callable[[Payload, int, int, int], Payload]
Join = Callable[[Sequence[Payload], int], Payload]
Blocks = Callable[[Payload, int], Iterator[Any]]  # yields the values of a payload in blocks of so many elements


class BlockStream:
    """Blocks, of which any number of elements can be taken."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks
        self._rest: Optional[Any] = None

    def take(self, count: int) -> Any:
        found: list[Any] = []
        missing = count
        while missing:
            if self._rest is None or not len(self._rest):
                self._rest = next(self._blocks)
            piece, self._rest = self._rest[:missing], self._rest[missing:]
            missing -= len(piece)
            found.append(piece if not missing and not found else np.array(piece))
        return found[0] if len(found) == 1 else np.concatenate(found)


def sliced_weight(payload: Payload, axis: int, start: int, stop: int, cut: Slice, join: Join) -> Payload:
    """Return the elements from `start` to `stop` along an axis; `cut` slices other payloads. Columns that begin within
    a block of a scale are the rest of that block and the further blocks, side by side."""
    first, *rest = payload.parts
    shape = (*payload.shape[:axis], stop - start, *payload.shape[axis + 1 :])
    if payload.made_by == FUNCTION and (axes := _permuted_axes(payload.dataset)):
        return payload._replace(shape=shape, parts=(cut(first, axes[axis], start, stop),))
    if payload.made_by == FUNCTION:
        raise UnsupportedError(f"a part of {payload.dataset}")
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
    edge = min(stop, -(-start // width) * width)
    if start < edge < stop:
        return join([cut(payload, 1, start, edge), cut(payload, 1, edge, stop)], 1)
    scale = cut(rest[0], 1, start // width, -(-stop // width))
    return payload._replace(shape=shape, parts=(cut(first, 1, start, stop), scale))


def weight_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    """Yield the values of a computed payload in C order, in blocks of about `elements`."""

    if payload.made_by == TURNED:
        found = [*read(payload.parts[0], elements)]
        yield np.ascontiguousarray(np.concatenate(found).reshape(payload.parts[0].shape).T).reshape(-1)
    elif payload.made_by == PRODUCT:
        yield from _product_blocks(payload, elements, read)
    elif payload.made_by == FUNCTION:
        whole = np.concatenate([*read(payload.parts[0], elements)]).reshape(payload.parts[0].shape)
        yield np.ascontiguousarray(called_view(payload.dataset, whole)).astype(payload.dtype, copy=False).reshape(-1)
    else:
        yield from _scaled_blocks(payload, elements, read)


def _permuted_axes(words: str) -> tuple[int, ...]:
    """The axes of "permute(1,0)"; () for another function."""
    name, _, arguments = words[:-1].partition("(")
    return tuple(map(int, arguments.split(","))) if name == "permute" else ()


def called_view(words: str, values: Any) -> Any:
    """Return what the function of "NAME(arguments)" makes of an array. Raises UsageError without such a function, and
    if it fails."""
    from npucmp.model.entry_points import call_extension, find_extensions, load_extension

    if axes := _permuted_axes(words):
        return values.transpose(axes)
    name, _, arguments = words[:-1].partition("(")
    known = find_extensions(VIEWS)
    if name not in known:
        raise UsageError(f"no view {name!r:.60}", nearest(name, known))
    return np.asarray(call_extension(known[name], load_extension(known[name]), values, arguments))


def _product_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
    left, right = payload.parts
    inner, columns = left.shape[1], payload.shape[1]
    if not inner:
        yield np.zeros(payload.shape[0] * columns, np.float32)
        return
    whole = np.concatenate([*read(right, elements)]).astype(np.float64).reshape(right.shape)
    stream = BlockStream(read(left, elements))
    for count in _row_counts(payload.shape, elements):
        rows = stream.take(count * inner).astype(np.float64).reshape(count, inner)
        with np.errstate(all="ignore"):
            found = (payload.factor * (rows @ whole)).astype(np.float32)
        yield found.reshape(-1)


def _scaled_blocks(payload: Payload, elements: int, read: Blocks) -> Iterator[Any]:
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
            with np.errstate(all="ignore"):
                found = values.take(count * columns).astype(np.float32).reshape(count, columns) * own
            yield found.reshape(-1)


def _row_counts(shape: Sequence[int], elements: int) -> Iterator[int]:
    """Yield the number of rows of each block."""
    rows = max(1, elements // max(1, shape[1]))
    for start in range(0, shape[0] if shape[1] else 0, rows):
        yield min(rows, shape[0] - start)
