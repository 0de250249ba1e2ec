"""Rows of parameters, read to choose a free number and to say what a wrong tensor is; never to judge one."""

from __future__ import annotations

import math
from typing import Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.assembly import sliced
from npucmp.dump.readers.values import blocks
from npucmp.errors import if_unreadable
from npucmp.model import Payload, TensorRef
from npucmp.relations.weights.limits import WeightLimit

Array = NDArray[np.float64]
ROWS = 16  # rows of a part that are read: work: so many rows do not agree by chance
STRIDE = 5  # rows: chosen: each row that is read is moved by so many more, so that none have a period
ELEMENTS = 1 << 18  # of a block: work
PART = 0.95  # share of elements: chosen: a part with a fault in a few rows still shows its layout
EIGHT_BITS = 0.07  # of the value: definition: 2^-4, one rounding to float8_e4m3fn, and that of its scale
QUANTISED = 0.02  # share of the largest value of a row: chosen: five steps of int8, 1 of 127


def row_numbers(count: int, most: int = ROWS) -> list[int]:
    """Return at most `most` numbers of rows, spread over all without a period."""
    if count <= most:
        return [*range(count)]
    return sorted({(2 * at + 1) * count // (2 * most) - (at * STRIDE) % max(1, count // most) for at in range(most)})


def whole_values(payload: Payload, context: ReadContext) -> Array:
    """Return all values in float64, in the shape of the payload."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        found = [one.astype(np.float64) for one in blocks(payload, ELEMENTS, context=context)]
    return np.concatenate(found).reshape(payload.shape) if found else np.zeros(payload.shape)


def rows_of(payload: Payload, numbers: Sequence[int], context: ReadContext) -> Array:
    """Return some rows in float64: an array (rows, elements of a row)."""
    found = [whole_values(sliced(payload, 0, at, at + 1), context).reshape(1, -1) for at in numbers]
    return np.concatenate(found) if found else np.zeros((0, 0))


@if_unreadable(None)
def sampled_rows(payload: Payload, numbers: Sequence[int], context: ReadContext) -> Optional[Array]:
    """Return some rows as `rows_of`; None if they cannot be read."""
    return rows_of(payload, numbers, context)


def agrees(x: Array, y: Array, limit: WeightLimit) -> bool:
    """Return whether most elements of two samples of one shape agree; False for samples without a value."""
    return share_agreeing(x, y, limit) >= PART


def share_agreeing(x: Array, y: Array, limit: WeightLimit) -> float:
    """Return the share of elements of two samples of one shape that agree; 0 for samples without a value."""
    if x.shape != y.shape or not x.size or not y.any():
        return 0.0
    with np.errstate(all="ignore"):
        slack = limit.rtol * np.abs(y) + limit.atol
        if limit.is_quantised:
            slack = slack + EIGHT_BITS * np.abs(y) + QUANTISED * np.abs(y).max(1, keepdims=True)
        return float((np.abs(x - y) <= slack).mean())


@if_unreadable(False)
def part_agrees(x: Payload, y: Payload, limit: WeightLimit, context: ReadContext) -> bool:
    """Return whether a sample of the rows of two payloads agrees; False for other shapes, or if it cannot be read."""
    if x.shape != y.shape or not x.shape:
        return False
    numbers = row_numbers(x.shape[0])
    return agrees(rows_of(x, numbers, context), rows_of(y, numbers, context), limit)


@if_unreadable(None)
def only_value(ref: TensorRef, context: ReadContext) -> Optional[float]:
    """Return the value of a tensor of one element; None for others, or if it cannot be read."""
    if ref.payload is None or math.prod(ref.shape) != 1:
        return None
    return float(next(iter(blocks(ref.payload, 1, context=context)))[0])
