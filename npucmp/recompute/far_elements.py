"""Elements of a function of one element that two runs computed from the same bits, and that differ by more than the
rounding of the result.

A right function in 16 bits is computed in float32 and rounded once, so two of them differ by a unit in the last place.
Its steps in float32 may cancel: 1 + erf(x) far below zero, exp(x) - 1 near zero. So an element x may also be off by
2^-22 of x, and by as much of x times the result, and results below the smallest normal number may be zero.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.model.dtypes import DTYPES, SINGLE, Dtype
from npucmp.model.replayed_output import FarElements
from npucmp.recompute.error_budget import SHORT, round_to

UNITS = 2.5  # units in the last place: chosen: a function with one more rounding inside is off by 2, not measured
INSIDE = 4.0 * SINGLE  # of an operand: chosen: steps in float32 round a few times, not measured


def far_elements(target: Array, golden: Array, source: Array) -> Optional[FarElements]:
    """Return the elements of two flat outputs that are too far apart; `source` is the tensor that both runs read."""
    x, y, read = (np.ravel(widen(one)) for one in (target, golden, source))
    dtype = _type_of(target, golden, x, y)
    if dtype is None or x.size != y.size:
        return None
    with np.errstate(all="ignore"):
        operand = np.abs(read) if read.size == y.size else np.full(y.size, np.abs(read).max(initial=0.0))
        unit = np.ldexp(dtype.round_off, np.frexp(np.maximum(np.abs(y), dtype.tiny))[1])
        units = np.abs(x - y) / unit
        far = np.abs(x - y) > UNITS * unit + INSIDE * operand * (1.0 + np.abs(y)) + dtype.tiny
        far &= np.isfinite(x) & np.isfinite(y)
    return FarElements(int(far.sum()), y.size, float(units[far].max(initial=0.0)), dtype.name)


def _type_of(target: Array, golden: Array, x: Array, y: Array) -> Optional[Dtype]:
    """Return the coarser 16-bit type of either side, by its type or by its values; None if there is none."""
    for dtype in (DTYPES[name] for name in SHORT):
        if dtype.name in (target.dtype.name, golden.dtype.name):
            return dtype
        if any(np.array_equal(round_to(values, dtype), values) for values in (x, y)):
            return dtype
    return None
