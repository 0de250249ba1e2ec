"""Whether the float values of a tensor are multiples of one step, as integers of 8 bits times a scale are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import blocks
from npucmp.errors import if_unreadable
from npucmp.measure.pairs import payload_of
from npucmp.model import TensorRef
from npucmp.model.dtypes import SINGLE

LEVELS = 255  # steps: definition: the distance of the least and the greatest integer of 8 bits
READ = 1 << 16  # elements of a tensor that are read: work
FEWEST = 8  # distinct values: chosen: fewer lie on a grid of 255 steps by chance, not measured
ROUNDING = 4.0 * SINGLE  # relative: definition: a scale, an integer and their product, each rounded to float32
PARTS = 4  # steps: chosen: the least gap of values is a few at most, if there are FEWEST values, not measured
CHANNELS = 1 << 12  # slices of a tensor: work

Array = npt.NDArray[Any]


@if_unreadable(False)
def are_equal_steps(tensor: TensorRef, context: ReadContext) -> bool:
    """Return whether the first values of a tensor are multiples of one step, or whether each slice of its first, second
    or last axis has a step of its own. False if the values cannot be read again."""
    payload = payload_of(tensor, context=context)
    values = next(iter(blocks(payload, READ, context=context)), None) if payload is not None else None
    if payload is None or values is None or not len(values):
        return False
    flat = values.astype(np.float64)
    if _is_grid(flat):
        return True
    shape = payload.shape
    if len(flat) < math.prod(shape) or len(shape) < 2:
        return False
    whole = flat.reshape(shape)
    return any(_are_grids(whole, axis) for axis in sorted({0, 1, len(shape) - 1}))


def _are_grids(values: Array, axis: int) -> bool:
    """Return whether each slice of an axis is a grid, and enough of them show it."""
    slices = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)[:CHANNELS]
    return slices.shape[1] >= 2 * FEWEST and all(map(_is_grid, slices))


def _is_grid(values: Array) -> bool:
    """Return whether at least FEWEST distinct values are all multiples of a step, of which LEVELS reach from one end to
    the other."""
    sizes = np.unique(np.abs(values[np.isfinite(values)]))
    sizes = sizes[sizes > 0.0]
    if not FEWEST <= len(sizes) <= LEVELS:
        return False
    gaps = np.diff(sizes, prepend=0.0)
    least = float(gaps[gaps > 2.0 * ROUNDING * sizes[-1]].min(initial=math.inf))
    return any(_fits(sizes, least / part) for part in range(1, PARTS + 1))


def _fits(sizes: Array, step: float) -> bool:
    for _ in range(2):  # the gap of two values has their rounding; the quotients give the step without it
        counts = np.round(sizes / step)
        if counts[0] < 1.0 or counts[-1] > LEVELS:
            return False
        step = float(np.dot(sizes, counts) / np.dot(counts, counts))
    return bool(np.all(np.abs(sizes - counts * step) <= ROUNDING * sizes[-1]))
