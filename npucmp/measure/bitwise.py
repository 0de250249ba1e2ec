"""Bitwise comparison of two tensors, and the places where they differ. Equal bytes need no look at their values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.errors import NpucmpError
from npucmp.measure.heat_map import Grid
from npucmp.measure.pairs import READ, measure, payload_of
from npucmp.model import DifferenceMap, Measurement, Pair, Payload, TensorRef
from npucmp.model.dtypes import lookup

Places = npt.NDArray[np.int64]

CHUNK = 1 << 18  # bytes compared at once: malloc reuses this much without a system call
PLACES = 1 << 22  # differing elements: work: their places are kept, and their bits are looked at


def measure_bits(pair: Pair, context: ReadContext = ANYWHERE) -> Measurement:
    """Measure a pair: `same` alone for equal bytes, else the result of `measure`. Never raises for the content of a
    dump."""
    if pair.target is None or pair.golden is None:
        return Measurement(pair)
    read = same_bytes(pair.target, pair.golden, context)
    return measure(pair, context=context) if read is None else Measurement(pair, same=True, bytes_read=read)


def same_bytes(one: TensorRef, other: TensorRef, context: ReadContext = ANYWHERE) -> Optional[int]:
    """The number of bytes read if two contiguous payloads are equal; None if they differ or are not contiguous."""
    try:
        x, y = payload_of(one, context=context), payload_of(other, context=context)
        if x is None or y is None or not (in_one_piece(x) and in_one_piece(y)):
            return None
        if (x.dtype, x.shape, x.byteorder, x.device) != (y.dtype, y.shape, y.byteorder, y.device):
            return None
        return _equal_bytes(x, y, context)
    except NpucmpError:
        return None  # measure reports the reason


def in_one_piece(payload: Payload) -> bool:
    """Return whether the values lie in C order without gaps."""
    return not (payload.strides or payload.parts or payload.dataset)


def _equal_bytes(x: Payload, y: Payload, context: ReadContext) -> Optional[int]:
    row = lookup(x.dtype)
    if row is None:
        return None
    size = row.stored(math.prod(x.device.shape if x.device else x.shape))
    with open_regular(x.path, context) as left, open_regular(y.path, context) as right:
        for at in range(0, size, CHUNK):
            length = min(CHUNK, size - at)
            if left.read(x.offset + at, length) != right.read(y.offset + at, length):
                return None
    return 2 * size


class BitDifferences(NamedTuple):
    """The number of differing elements, the first one, and the `end` after the last, in C order.

    `places` are the indices of all of them, None if there are too many. `picture` maps their positions.
    """

    number: int
    first: int
    end: int
    places: Optional[Places]
    picture: Optional[DifferenceMap] = None


def differences(one: TensorRef, other: TensorRef, context: ReadContext = ANYWHERE) -> BitDifferences:
    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import difference, widen

    x, y = payload_of(one, context=context), payload_of(other, context=context)
    found, count, start = [], 0, 0
    picture = _Picture(x, y) if x is not None and y is not None else None
    read = [blocks(payload, READ, context=context) for payload in (x, y) if payload is not None]
    for a, b in zip(*read) if len(read) == 2 else ():
        with np.errstate(all="ignore"):
            wide_a, wide_b = widen(a), widen(b)
            alike = ((wide_a == wide_b) & ~np.isfinite(wide_a)) | ((wide_a != wide_a) & (wide_b != wide_b))
            differs = np.flatnonzero((difference(a, b, wide_a, wide_b)[2] != 0) & ~alike)
        if picture is not None and len(differs):
            picture.add(differs + start, a[differs], b[differs])
        if len(differs) and count <= PLACES:
            found.append(differs + start)
        elif len(differs):
            found[-1] = differs + start  # keeps the last index
        count += len(differs)
        start += len(a)
    if not count or picture is None:
        return BitDifferences(0, 0, 0, None)
    places = np.concatenate(found) if count <= PLACES else None
    return BitDifferences(count, int(found[0][0]), int(found[-1][-1]) + 1, places, picture.draw())


class _Picture:
    """The places of differing elements, and the bits that differ."""

    def __init__(self, x: Payload, y: Payload) -> None:
        self.grid = Grid(y.shape)
        row = lookup(y.dtype)
        self.dtype = y.dtype
        self.size = row.itemsize if row and x.dtype == y.dtype and not row.memory and row.kind != "c" else 0
        self.bytes = np.zeros((self.size, 256), np.int64)  # counts of XOR values by byte, from the lowest

    def add(self, places: Places, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
        """Add differing elements: their indices and both values."""

        self.grid.add(places)
        if self.size and self.grid.counts.sum() <= PLACES:
            unsigned = f"u{self.size}"
            changed = (a.view(unsigned) ^ b.view(unsigned)).astype(f"<{unsigned}", copy=False)
            for number, byte in enumerate(changed.view(np.uint8).reshape(-1, self.size).T):
                self.bytes[number] += np.bincount(byte, minlength=256)

    def draw(self) -> DifferenceMap:
        set_in = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # bits of each byte, from the highest
        bits = (self.bytes[::-1] @ set_in).reshape(-1).tolist()
        grid = self.grid
        return DifferenceMap(self.dtype, grid.rows, grid.columns, grid.across, tuple(grid.counts.tolist()), tuple(bits))
