"""Preview of one tensor: distribution, largest and smallest elements, corners, elements by index; or all values as one
array. A preview holds only a few blocks in memory.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import UnsupportedError
from npucmp.measure.error_map import histogram, number
from npucmp.measure.pairs import READ, payload_of
from npucmp.model import Histogram, Number, Side, TensorPreview, TensorRef
from npucmp.model.dtypes import numpy_dtype

Array = npt.NDArray[Any]

PARTS = 12
MOST = 5  # largest elements, and smallest elements
EDGE = 3  # rows and columns of a corner


def preview(tensor: TensorRef, side: Side, at: Sequence[int] = (), context: ReadContext = ANYWHERE) -> TensorPreview:
    """Return a preview. `side` is the measurement of the tensor; `at` are indices in C order. Raises NpucmpError if the
    tensor cannot be read."""

    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import widen

    payload = payload_of(tensor, context=context)
    if payload is None:
        raise UnsupportedError(f"no values of {tensor.label or tensor.slot} were dumped")
    corners = [*corners_of(payload.shape)]
    wanted = np.unique(np.array([*at, *(one for _, rows in corners for row in rows for one in row if one >= 0)], int))
    known: dict[int, Number] = {}
    counts, zeros = np.zeros(PARTS, np.int64), 0
    ends = _Ends(), _Ends()
    start = 0
    for block in blocks(payload, READ, context=context):
        for place in wanted[(wanted >= start) & (wanted < start + len(block))]:
            known[int(place)] = number(block[place - start])
        with np.errstate(all="ignore"):
            wide = widen(block)
            wide = np.abs(wide) if wide.dtype.kind == "c" else wide
        places = np.flatnonzero(np.isfinite(wide))
        finite = wide[places]
        counts += histogram(finite, side.minimum, side.maximum, PARTS)
        zeros += len(finite) - int(np.count_nonzero(finite))
        for sign, extremes in zip((-1.0, 1.0), ends):
            extremes.add(sign * finite, block[places], places + start)
        start += len(block)
    return TensorPreview(
        Histogram(side.minimum, side.maximum, tuple(counts.tolist()) if counts.any() else ()),
        largest=ends[0].found,
        smallest=ends[1].found,
        zeros=zeros,
        corners=tuple(
            (title, tuple(tuple(known[one] if one >= 0 else None for one in row) for row in rows))
            for title, rows in corners
        ),
        elements=tuple((one, known[one]) for one in at),
    )


class _Ends:
    """The first elements in an order; among equal elements those with the lowest indices."""

    def __init__(self) -> None:
        self.found: tuple[tuple[int, Number], ...] = ()
        self._keys: list[float] = []

    def add(self, keys: Array, values: Array, places: Array) -> None:
        first = keys.argpartition(MOST - 1)[:MOST] if len(keys) > MOST else np.arange(len(keys))
        if len(keys) > MOST:  # among equal elements the first
            last = keys[first].max()
            below = np.flatnonzero(keys < last)
            first = np.concatenate([below, np.flatnonzero(keys == last)[: MOST - len(below)]])
        new = [(float(keys[one]), int(places[one]), number(values[one])) for one in first]
        both = sorted([*((key, *one) for key, one in zip(self._keys, self.found)), *new], key=lambda one: one[:2])
        self._keys = [key for key, *_ in both[:MOST]]
        self.found = tuple((place, value) for _, place, value in both[:MOST])


def corners_of(shape: Sequence[int]) -> Iterator[tuple[str, list[list[int]]]]:
    """The corners of the last two axes, at the first and the last index of all other axes: their titles, and indices in
    C order by row. -1 marks omitted elements."""
    if 0 in shape:
        return
    outer, inner = shape[:-2], shape[-2:]
    rows, columns = (1, 1, *inner)[-2:]
    many = math.prod(outer)
    for base in dict.fromkeys((0, many - 1)):
        lead = ["0" if not base else str(length - 1) for length in outer]
        title = f"[{', '.join([*lead, *(':' for _ in inner)])}]"
        lines = [[_at(base, row, column, rows, columns) for column in _edges(columns)] for row in _edges(rows)]
        yield title, lines


def _edges(length: int) -> list[int]:
    """The first and the last indices, with -1 between them."""
    if length <= 2 * EDGE + 1:
        return [*range(length)]
    return [*range(EDGE), -1, *range(length - EDGE, length)]


def _at(base: int, row: int, column: int, rows: int, columns: int) -> int:
    return -1 if -1 in (row, column) else (base * rows + row) * columns + column


def array_of(tensor: TensorRef, context: ReadContext = ANYWHERE) -> Array:
    """All values in the tensor's logical shape, as a new array; bfloat16 and similar types as types of ml_dtypes.
    Raises NpucmpError if they cannot be read."""

    from npucmp.dump.readers.values import blocks

    payload = payload_of(tensor, context=context)
    if payload is None:
        raise UnsupportedError(f"no values of {tensor.label or tensor.slot} were dumped", "dump with task tensor")
    found = [*blocks(payload, max(1, math.prod(payload.shape)), context=context)]
    whole = found[0] if found else np.empty(0, numpy_dtype(payload.dtype))
    return np.array(whole).reshape(payload.shape)
