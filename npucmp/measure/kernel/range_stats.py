"""Extremes of a tensor at the limits of its type: NaN, infinities, the largest and the smallest finite value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.model import Extremes
from npucmp.model.dtypes import Dtype

Array = npt.NDArray[Any]


def extremes_of(x: Array, dtype: Dtype, start: int = 0) -> Extremes:
    """The extremes of one block: a flat array whose first element has index `start` in its tensor. Complex numbers
    count by magnitude, without a limit of the type; integers have only minimum and maximum."""
    with np.errstate(all="ignore"):  # signalling NaN, and magnitudes beyond the type
        wide = widen(x)
        if dtype.kind == "c":
            wide = np.abs(wide)
    finite = np.isfinite(wide)
    good = wide if finite.all() else wide[finite]
    low, high = (float(good.min()), float(good.max())) if len(good) else (float("nan"), float("nan"))
    made = Extremes(elements=len(x), zeros=len(good) - int(np.count_nonzero(good)), minimum=low, maximum=high)
    if len(good) < len(wide):
        nan = np.isnan(wide)
        made = made._replace(
            nan=int(np.count_nonzero(nan)),
            posinf=int(np.count_nonzero(wide == np.inf)),
            neginf=int(np.count_nonzero(wide == -np.inf)),
            first_nan=_first(nan, start),
            first_inf=_first(~finite & ~nan, start),
        )
    if dtype.kind == "f" and (high == dtype.largest or low == -dtype.largest):
        made = made._replace(
            high=int(np.count_nonzero(wide == dtype.largest)),
            low=int(np.count_nonzero(wide == -dtype.largest)),
            first_limit=_first(np.abs(wide) == dtype.largest, start),
        )
    return made


def _first(where: npt.NDArray[np.bool_], start: int) -> int:
    at = int(where.argmax())
    return start + at if where[at] else -1


def merge_extremes(a: Extremes, b: Extremes) -> Extremes:
    """Merge the extremes of two neighbouring blocks, a before b."""
    counts = (x + y for x, y in zip(a[:7], b[:7]))
    firsts = (x if x >= 0 else y for x, y in zip(a[7:10], b[7:10]))
    limits = float(np.fmin(a.minimum, b.minimum)), float(np.fmax(a.maximum, b.maximum))
    return Extremes._make((*counts, *firsts, *limits))
