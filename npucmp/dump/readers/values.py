"""Read the values of a payload, block by block, in logical C order; memory use does not grow with the tensor.

    C-contiguous, up to 1 MiB    one pread, cut into blocks; none if the file was read whole at opening
    C-contiguous, larger         one pread per block, into the same memory if the caller gives a Room
    strided, span up to 64 MiB   the span is read once and copied out in logical order
    strided, larger              tiles of up to 64 MiB in logical order, each gathered from the file: parts that are
                                 small or without large gaps are read at once, others split along their largest stride
    a device's layout, slices    the whole tensor is read and put in logical order: twice its size in memory
    an HDF5 dataset in chunks    hdf5.py, slab by slab

The file is never mapped: mapped pages count as memory, and a file that shrinks would end the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.decode import NATIVE, decode, native
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.dump.readers.strides import c_strides, merge_dimensions, reach
from npucmp.errors import DumpError, UnsupportedError
from npucmp.model import Payload
from npucmp.model.dtypes import DTYPES, numpy_dtype

Array = NDArray[Any]

_WHOLE = 1 << 20  # a payload up to this size is read at once
_AHEAD = 8 << 20  # read-ahead of the disk
_SPAN = 64 << 20
_TILE = 64 << 20
_WINDOW = 8 << 20  # of one read while a tile is gathered
_GAP = 16 << 10  # reading so many bytes is cheaper than skipping them with one more pread
_PIECE = 1 << 18  # copied out of a view at once: both sides of a transposition fit the cache


class ReadBuffer:
    """Memory that is reused for blocks, for one tensor at a time."""

    def __init__(self) -> None:
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)

    def of(self, size: int) -> NDArray[np.uint8]:
        """Return `size` bytes, aligned for any type; their former content is lost."""
        if len(self._bytes) < size:
            self._bytes = np.empty(size, np.uint8)
        return self._bytes[:size]


def blocks(
    payload: Payload,
    elements: int = 32768,
    file: Optional[RegularFile] = None,
    room: Optional[ReadBuffer] = None,
    context: ReadContext = ANYWHERE,
) -> Iterator[Array]:
    """Yield the values as 1-D arrays of exactly `elements` elements, the last one shorter, in native byte order.

    The arrays may be read-only. With `room`, each array is overwritten when the next is requested; without, no memory
    is reused. `file` is the payload's own file, if it is open. Strides are never negative. Raises DumpError if the file
    is shorter than the payload needs, or changed meanwhile; the latter is raised at the end, so exhaust the iterator.
    """
    if 0 in payload.shape:
        return
    if payload.made_by:
        from npucmp.dump.readers.assembly import assembled_blocks, is_sequence

        if is_sequence(payload):
            found = _one_by_one(payload.parts, elements, context)
        else:
            found = assembled_blocks(payload, elements, lambda part, count: blocks(part, count, context=context))
        yield from _equal(found, elements)
        return
    if payload.dataset:
        from npucmp.dump.readers import hdf5

        yield from _equal(hdf5.pieces(payload, elements, context), elements)
        return
    if payload.device or payload.parts:
        yield from _equal(_flat(_logical(payload, context)), elements)
        return
    source = _Source(payload)
    with nullcontext(file) if file else open_regular(payload.path, context) as opened:
        source.require(opened)
        if payload.strides:
            views = source.views(opened)
            yield from _equal((piece for view in views for piece in _flat(view)), elements)
        elif room is not None and source.is_plain:
            yield from source.run_in(opened, elements, room)
        else:
            yield from source.run(opened, elements)
        if file:
            file.require_unchanged()  # leaving the `with` does this for a file that was opened here


def _one_by_one(parts: Sequence[Payload], elements: int, context: ReadContext) -> Iterator[Array]:
    """Yield the values of parts one behind the other. Neighbours in one file are read from one open file."""

    def path_of(part: Payload) -> str:
        return "" if part.made_by or part.dataset or part.parts or part.device else part.path

    for path, own in groupby(parts, path_of):
        with open_regular(path, context) if path else nullcontext() as file:
            for part in own:
                yield from blocks(part, elements, file, context=context)


class ValueBytes(NamedTuple):
    """The values of a tensor, `elements` of them in the form of memory, in bytes that begin before them."""

    dtype: np.dtype[Any]
    data: bytes
    start: int
    elements: int

    def array(self) -> Array:
        return np.frombuffer(self.data, self.dtype, self.elements, self.start)


def values_in_memory(payload: Payload, file: RegularFile) -> Optional[ValueBytes]:
    """Return the values if `file` was read whole and they need no conversion; else None."""
    dtype = _as_stored(payload.dtype, payload.byteorder)
    if dtype is None or payload.strides or payload.device or payload.parts or payload.dataset or not file.is_held:
        return None
    count = math.prod(payload.shape)
    return ValueBytes(dtype, *file.view(payload.offset, count * dtype.itemsize), count)


@cache
def _as_stored(name: str, byteorder: str) -> Optional[np.dtype[Any]]:
    """Return the numpy type if values have the same form in the file and in memory; else None."""
    row = DTYPES[name]
    if row.memory or name == "bool" or (byteorder != NATIVE and row.itemsize > 1):
        return None
    return numpy_dtype(name, NATIVE)


def _logical(payload: Payload, context: ReadContext) -> Array:
    """Return a whole tensor in logical order: slices joined, the device layout converted."""
    device = payload.device
    if payload.parts:
        stored = np.concatenate([stored_values(part, context) for part in payload.parts], axis=payload.axis)
    else:
        stored = stored_values(payload, context)
    if device is None:
        return stored.reshape(payload.shape)
    from npucmp.dump.layouts import to_logical

    return to_logical(stored, device.layout, device.origin, payload.shape, device.groups)


def distinct(values: Array) -> Array:
    """Return the distinct values in order. np.unique without counts imports numpy.ma, which takes 15 ms."""
    return np.unique(values, return_counts=True)[0]


def stored_values(payload: Payload, context: ReadContext = ANYWHERE) -> Array:
    """Return all values in the order of the file, in the stored shape."""
    shape = payload.device.shape if payload.device else payload.shape
    plain = payload._replace(shape=shape, device=None)
    found = [*blocks(plain, max(1, math.prod(shape)), context=context)] or [np.empty(0, numpy_dtype(payload.dtype))]
    return found[0].reshape(shape)


def picked_rows(payload: Payload, width: int, numbers: Sequence[int], context: ReadContext) -> Array:
    """Return some rows of `width` values in logical order, by their numbers. The others are not read if the file holds
    them as memory does, unless so many reads take longer than one of all."""
    size = math.prod(payload.shape) * numpy_dtype(payload.dtype).itemsize
    if payload != Payload(*payload[:4]) or size <= len(numbers) * _GAP:
        return np.concatenate([*blocks(payload, context=context)]).reshape(-1, width)[numbers]
    with open_regular(payload.path, context) as file:
        source = _Source(payload)
        source.require(file)
        return np.stack([source.array(file, payload.offset, width, number * width) for number in numbers])


class _Source:
    """The bytes of one payload as arrays; `offset` is in bytes, shape and strides in elements."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.dtype = numpy_dtype(payload.dtype, NATIVE)
        self.row = DTYPES[payload.dtype]
        self.itemsize = self.row.itemsize  # in the file
        if self.row.bits and payload.strides:
            raise UnsupportedError(f"a strided view of {payload.dtype}")
        self.is_plain = _as_stored(payload.dtype, payload.byteorder) is not None

    def require(self, file: RegularFile) -> None:
        """Raise DumpError if the file is shorter than the header promises."""
        shape, strides = self.payload.shape, self.payload.strides
        elements = reach(shape, strides) if strides else math.prod(shape)
        needed = self.payload.offset + self.row.stored(elements)
        if needed > file.size:
            raise DumpError(self.payload.path, f"ended early: {file.size} bytes, its header promises {needed}")

    def array(self, file: RegularFile, offset: int, count: int, first: int = 0) -> Array:
        """Return `count` elements; `first` is counted in elements from byte `offset`."""
        if self.row.memory:
            return self.decoded(file, offset, count, first)
        data = file.read(offset + first * self.itemsize, count * self.itemsize)
        return native(data, self.payload.dtype, self.payload.byteorder)

    def decoded(self, file: RegularFile, offset: int, count: int, first: int) -> Array:
        """Return the elements of a type that numpy lacks."""
        skip = first % (8 // self.row.bits) if self.row.bits else 0
        start = self.row.stored(first - skip)
        data = file.read(offset + start, self.row.stored(skip + count))
        if self.payload.byteorder != NATIVE and self.itemsize > 1:
            data = np.frombuffer(data, "u2").byteswap().tobytes()
        return decode(self.payload.dtype, data, skip, count)

    def run(self, file: RegularFile, elements: int) -> Iterator[Array]:
        total = math.prod(self.payload.shape)
        step = total if total * self.itemsize <= _WHOLE else elements
        for start in range(0, total, step):
            part = self.array(file, self.payload.offset, min(step, total - start), start)
            for at in range(0, len(part), elements):
                yield part[at : at + elements]

    def run_in(self, file: RegularFile, elements: int, room: ReadBuffer) -> Iterator[Array]:
        """Yield blocks in the same memory; the disk reads the next bytes while the caller works on the current ones."""
        total = math.prod(self.payload.shape)
        ahead = max(_AHEAD // self.itemsize // elements, 1) * elements
        for start in range(0, total, elements):
            if start % ahead == 0 and total > ahead:
                known = 0 if start == 0 else start + ahead
                until = min(start + 2 * ahead, total)
                file.expect(self.payload.offset + known * self.itemsize, (until - known) * self.itemsize)
            size = min(elements, total - start) * self.itemsize
            into = room.of(size)
            file.read_into(self.payload.offset + start * self.itemsize, into.data)
            yield into.view(self.dtype)

    def views(self, file: RegularFile) -> Iterator[Array]:
        """Yield arrays whose elements, concatenated in C order, are those of the tensor."""
        shape, strides = merge_dimensions(self.payload.shape, self.payload.strides)
        if not shape:
            shape, strides = (1,), (1,)
        if len(shape) > 32:  # the maximum of numpy 1.x; a dense tensor of rank 33 has 2**33 elements
            raise DumpError(self.payload.path, "unsupported: a strided view of more than 32 dimensions")
        if reach(shape, strides) * self.itemsize <= _SPAN:
            yield self.view(file, self.payload.offset, shape, strides)
            return
        for index, part in _boxes(shape, _TILE // self.itemsize):
            axis = len(index)
            box = (part.stop - part.start, *shape[axis + 1 :])
            first = sum(i * stride for i, stride in zip((*index, part.start), strides))
            tile = _empty(box, strides[axis:], self.dtype)
            self.gather(file, tile, self.payload.offset + first * self.itemsize, strides[axis:])
            yield tile

    def view(self, file: RegularFile, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Return a strided array over one read of all bytes that it spans."""
        data = self.array(file, offset, reach(shape, strides)).view(np.uint8)
        steps = [stride * self.dtype.itemsize for stride in strides]
        found: Array = np.ndarray(shape, self.dtype, data, 0, steps)  # unlike as_strided, it checks bounds
        return found

    def gather(self, file: RegularFile, into: Array, offset: int, strides: tuple[int, ...]) -> None:
        """Fill `into` from the file. Recurses once per dimension at most."""
        if reach(into.shape, strides) * self.itemsize <= _WHOLE:
            into[...] = self.view(file, offset, into.shape, strides)
            return
        axis = max(range(into.ndim), key=lambda dim: strides[dim])
        step, inner = strides[axis], strides[:axis] + strides[axis + 1 :]
        rows = np.moveaxis(into, axis, 0)
        inner_span = reach(rows.shape[1:], inner)
        fit = (_WINDOW // self.itemsize - inner_span) // step + 1  # indices that one window holds
        if fit > 1 and (step - inner_span) * self.itemsize <= _GAP:
            for start in range(0, len(rows), fit):
                part = rows[start : start + fit]
                part[...] = self.view(file, offset + start * step * self.itemsize, part.shape, (step, *inner))
            return
        for index in range(len(rows)):
            part = rows[index, ...]  # the ellipsis keeps a single element a view
            self.gather(file, part, offset + index * step * self.itemsize, inner)


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array with the memory order of the file, so that gathering writes runs, not single elements."""
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    made: Array = np.empty([shape[axis] for axis in order], dtype).transpose(np.argsort(order))
    return made


def _boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], slice]]:
    """Cut a C-ordered shape into parts of at most `most` elements: leading indices and a range of the next index."""
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= most:
        inner *= shape[axis]
        axis -= 1
    step = max(1, most // inner)
    turns = c_strides(shape[:axis])
    for outer in range(math.prod(shape[:axis])):
        index = tuple(outer // turn % dim for turn, dim in zip(turns, shape))
        for start in range(0, shape[axis], step):
            yield index, slice(start, min(start + step, shape[axis]))


def _flat(view: Array) -> Iterator[Array]:
    """Yield the elements of an array in C order, in 1-D pieces of up to _PIECE bytes."""
    for index, part in _boxes(view.shape, max(1, _PIECE // view.itemsize)):
        box: tuple[Any, ...] = (*index, part)
        yield view[box].reshape(-1)


def _equal(pieces: Iterator[Array], elements: int) -> Iterator[Array]:
    """Yield the same elements in arrays of exactly `elements`, so that tensors of different layouts line up."""
    rest: list[Array] = []
    held = 0
    for piece in pieces:
        at = 0
        while held + len(piece) - at >= elements:
            rest.append(piece[at : at + elements - held])
            at += elements - held
            yield rest[0] if len(rest) == 1 else np.concatenate(rest)
            rest, held = [], 0
        if at < len(piece):
            rest.append(piece[at:])
            held += len(piece) - at
    if rest:
        yield rest[0] if len(rest) == 1 else np.concatenate(rest)
