"""What was dumped against float64, in units of the rounding that is due: three figures, and a verdict.

    rms_ratio   rms of the error over rms of what is due: rounding of the result, and sigma, the noise of the sums and
                steps before it. Guilty above 3, in 16 bits above 2.
    max_ratio   the largest error of an element over u|r| + step + 6 sigma + 0.6 rms sigma. Guilty above 8, or 4.
    bias        mean error toward zero in units of u|r|: truncation, and scales below one unit. Guilty above 0.25 where
                hundreds of different values say so, and rounding of the result is all that is due.

NaN and Inf at other places, integers and truth values that differ, copies that do: guilty outright. Limits are those of
9,465 clean outputs of CPU dumps, whose largest rms_ratio is 1.7, and 25 planted faults, whose smallest is 9.8.
All arrays are float64, flat and equally long; an empty output is CLEAN.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.model import Judged, Replayed
from npucmp.model.dtypes import Dtype, numpy_dtype

Array = NDArray[Any]

RMS, RMS_16 = 3.0, 2.0
MAX, MAX_16 = 8.0, 4.0
BIAS, Z, SPREAD = 0.25, 20.0, 0.3  # of a rounding error in units of u|r|
FEW = 64  # elements whose own rounding says little of what is due
SAME = 2.0  # times the error of the same call on a CPU in the same types: the operator is ill-conditioned, not faulty
VENDOR = {  # rtol, atol, largest error, threshold of the mean relative error
    "float16": (2.0**-9, 2.0**-9, 1e-1, 2.0**-10),
    "bfloat16": (2.0**-6, 2.0**-6, 1.0, 2.0**-7),
    "float32": (2.0**-10, 2.0**-16, 1e-2, 2.0**-13),
}
SMALL = 1e-7  # what the vendor adds to the size of an element
WORST = 64 << 10  # elements of which the box is told


class Due(NamedTuple):
    """The rounding that is due beside that of the result.

    sigma     noise of each element before its own rounding; a number if it is the same for all
    made_of   "walk", "noise", "rounding" or "exact": nothing may differ at all
    only_one  the result is one correctly rounded operation: truncation of a float32 can be told
    """

    sigma: "Array | float" = 0.0
    made_of: str = "rounding"
    only_one: bool = False


def judged(
    order: int, slot: str, actual: Array, exact: Array, dtype: Dtype, due: Due, scale: float = 1.0, known: float = 1.0
) -> Replayed:
    """The row of one output; limits times `scale`, and times `known` where a clean run has larger ratios."""
    actual, exact = np.ravel(actual), np.ravel(exact)
    if dtype.kind != "f" or due.made_of == "exact":
        return _exact(order, slot, actual, exact, dtype)
    row = Replayed(order, slot, budget=due.made_of)
    if not actual.size:
        return row._replace(verdict=Judged.CLEAN)
    rounded = round_to(exact, dtype)
    odd = _odd(actual, exact, rounded, dtype)
    use = np.isfinite(actual) & np.isfinite(exact) & np.isfinite(rounded)
    if not use.all():
        actual, exact, rounded = actual[use], exact[use], rounded[use]
        due = due._replace(sigma=due.sigma[use]) if isinstance(due.sigma, np.ndarray) else due
    places = np.flatnonzero(use) if not use.all() else None
    row = row._replace(nonfinite=int(odd))
    if actual.size:
        row = _figures(row, actual, exact, rounded, dtype, due, places)
    limit = max(1.0, known) * scale
    return row._replace(verdict=_verdict(row, dtype, odd, limit, actual, due))


def round_to(values: Array, dtype: Dtype) -> Array:
    """Rounded to nearest in a type, as float64; what is too large is infinite."""
    if dtype.name == "float64" or dtype.memory:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(numpy_dtype(dtype.name)).astype(np.float64)


def _odd(actual: Array, exact: Array, rounded: Array, dtype: Dtype) -> int:
    """Elements that are NaN or infinite on one side only; where the result leaves the type's range, both are right."""
    with np.errstate(invalid="ignore"):
        beyond = np.isfinite(exact) & (np.abs(exact) >= dtype.largest * (1 - 4 * dtype.round_off))
        nan = np.isnan(actual) != np.isnan(rounded)
        inf = (np.isinf(actual) | np.isinf(rounded)) & ~np.isnan(actual) & ~np.isnan(rounded) & (actual != rounded)
    return int(np.count_nonzero((nan | inf) & ~beyond))


def _exact(order: int, slot: str, actual: Array, exact: Array, dtype: Dtype) -> Replayed:
    """Equal or not. Values below the smallest normal number may be flushed to zero."""
    wanted = round_to(exact, dtype) if dtype.kind == "f" else exact
    same = (actual == wanted) | ((actual != actual) & (wanted != wanted))
    if dtype.kind == "f":
        same |= (actual == 0) & (np.abs(wanted) < dtype.tiny)
    wrong = int(same.size - np.count_nonzero(same))
    row = Replayed(order, slot, verdict=Judged.CLEAN, budget="exact", rms_ratio=0.0, max_ratio=0.0)
    if not wrong:
        return row
    worst = int(np.flatnonzero(~same)[0])
    words = f"{wrong:,} of {same.size:,} elements differ, and none may"
    row = row._replace(verdict=Judged.GUILTY, rms_ratio=math.inf, max_ratio=math.inf, explanation=words,
                       max_abs_index=worst)  # fmt: skip
    if dtype.kind in "fiu":
        use = np.isfinite(actual) & np.isfinite(wanted)
        return _plain(row, actual[use], wanted[use], dtype, np.flatnonzero(use)) if use.any() else row
    return row


def _plain(row: Replayed, actual: Array, exact: Array, dtype: Dtype, places: Optional[Array]) -> Replayed:
    """The error without any budget."""
    error = np.abs(actual.astype(np.float64) - exact)
    size = np.abs(exact).astype(np.float64)
    norm, total = _norm(size), _norm(error)
    rel_l2 = total / norm if norm else (0.0 if not total else math.inf)
    relative = error / (size + SMALL)
    worst = int(error.argmax())
    mere, mare, largest = float(relative.mean()), float(relative.max()), float(error[worst])
    unit = dtype.round_off
    mixed = old = None
    if dtype.name in VENDOR:
        rtol, atol, most, threshold = VENDOR[dtype.name]
        ulps = float((error / (2 * unit * np.maximum(size, dtype.tiny))).max())
        inside = np.count_nonzero(error <= atol + rtol * size) / error.size
        mixed = bool(inside >= 0.99 and (largest <= most or ulps <= 32))
        old = mere < threshold and mare < 10 * threshold
    return row._replace(
        rel_l2=rel_l2,
        rel_l2_u=rel_l2 / unit if unit else None,
        mere=mere,
        mare=mare,
        rmse=total / math.sqrt(error.size),
        max_abs_err=largest,
        max_abs_index=worst if places is None else int(places[worst]),
        vendor_mixed=mixed,
        vendor_mere_mare=old,
    )


def _figures(
    row: Replayed, actual: Array, exact: Array, rounded: Array, dtype: Dtype, due: Due, places: Optional[Array]
) -> Replayed:
    row = _plain(row, actual, exact, dtype, places)
    error, size, unit = actual - exact, np.abs(exact), dtype.round_off
    step = np.where(size < dtype.tiny, dtype.tiny, 0.0)  # a device may flush what is smaller to zero
    own = np.abs(rounded - exact)
    if own.size < FEW:
        own = np.maximum(own, 0.3 * unit * size)
    noise = _rms(due.sigma)
    budget = math.sqrt(_rms(own) ** 2 + noise**2 + _rms(step) ** 2)
    allowed = unit * size + step + 6 * due.sigma + 0.6 * noise
    ratios = np.divide(np.abs(error), allowed, out=np.where(error != 0, np.inf, 0.0), where=allowed > 0)
    total = _rms(error)
    signed = -error * np.sign(exact)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = np.where(size >= dtype.tiny, signed / (unit * size), 0.0)
    return row._replace(
        rms_ratio=total / budget if budget else (math.inf if total else 0.0),
        max_ratio=float(ratios.max()),
        bias=float(units.mean()),
    )


def _verdict(row: Replayed, dtype: Dtype, odd: int, limit: float, actual: Array, due: Due) -> Judged:
    if odd:
        return Judged.GUILTY
    if row.rms_ratio is None or row.max_ratio is None or row.bias is None:
        return Judged.CLEAN
    low = dtype.itemsize <= 2
    if row.rms_ratio > (RMS_16 if low else RMS) * limit or row.max_ratio > (MAX_16 if low else MAX) * limit:
        return Judged.GUILTY
    rounding_is_all = due.only_one or (low and _rms(due.sigma) < 0.1 * dtype.round_off * _rms(actual))
    if abs(row.bias) > BIAS * limit and rounding_is_all:
        different = np.unique(actual).size
        if abs(row.bias) * math.sqrt(different) / SPREAD > Z:
            return Judged.GUILTY
    return Judged.CLEAN


def _rms(values: "Array | float") -> float:
    if isinstance(values, float):
        return abs(values)
    return _norm(values) / math.sqrt(values.size) if values.size else 0.0


def _norm(values: Array) -> float:
    """The L2 norm, of any size of values."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if not largest or not math.isfinite(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(float(np.dot(scaled, scaled)))
