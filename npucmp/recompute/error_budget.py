"""Dumped values against float64, in units of the expected rounding: three figures and a verdict.

    rms_ratio   rms of the error over rms of the expected error: rounding of the result, and sigma, the noise of the
                sums and steps before it. Guilty above 3, in 16 bits above 2.
    max_ratio   the largest error of an element over u|r| + step + 6 sigma + 0.6 rms sigma. Guilty above 8, or 4.
    bias        mean error toward zero in units of u|r|: truncation, and scales below one unit. Guilty above 0.25 if
                hundreds of different values show it, and rounding of the result is the only expected error.
    rounding    results that are not the nearest number of their type, and their sides: they are one-sided if 95 % lie
                on one side of the exact result, 24 at least, and more than a quarter of the results that need
                rounding. Rounding to one side misses the nearest number in half of them, right kernels in 12 % at most

NaN and Inf at other places, and differences of integers, booleans and copies, are guilty without a limit. The limits
come from 9,465 clean outputs of CPU dumps, whose largest rms_ratio is 1.7, and 25 planted faults, whose smallest is
9.8. All arrays are float64, flat and equally long; an empty output is CLEAN.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array, distinct
from npucmp.measure.ascend_criteria import BARS, SMALL, passes_mere_mare, passes_mixed
from npucmp.measure.heat_map import Grid
from npucmp.model import GUILTY_ABOVE, DifferenceMap, ReplayedOutput, ReplayVerdict, RoundingCounts
from npucmp.model.dtypes import DTYPES, Dtype, numpy_dtype

(RMS, RMS_16), (MAX, MAX_16), (BIAS, _) = GUILTY_ABOVE.values()
Z, SPREAD = 20.0, 0.3  # of a rounding error in units of u|r|
MIN_ELEMENTS = 64  # elements: fewer do not show the expected rounding
OWN = 0.3  # of u|r|: expected rounding even if float64 needs none: a kernel may compute in another way
SHORT = "bfloat16", "float16"  # types: definition: float32 files may hold their values
FAR = 1.001  # units in the last place: definition: rounding of a result is off by less; the rest is noise of float32
SAME = 2.0  # times the error of the same call on a CPU in the same types: the operator is ill-conditioned, not faulty
LEVELS = {"L2": (2.0, 1.2, 1.2), "L1": (5.0, 1.5, 1.5), "L0": (10.0, 2.0, 2.0)}  # strictest first
WORST = 1 << 16  # elements that the box is computed from


class ErrorBudget(NamedTuple):
    """The rounding that is expected besides that of the result.

    sigma     noise of each element before its own rounding; a number if it is the same for all
    made_of   "walk", "noise", "rounding" or "exact": no difference is allowed
    only_one  the result is one correctly rounded operation: truncation of a float32 can be detected
    """

    sigma: Array | float = 0.0
    made_of: str = "rounding"
    only_one: bool = False


def evaluate_output(
    order: int,
    slot: str,
    actual: Array,
    exact: Array,
    dtype: Dtype,
    due: ErrorBudget,
    scale: float = 1.0,
    known: float = 1.0,
) -> ReplayedOutput:
    """Return the row of one output. `scale` multiplies the limits, and so does `known` if a clean run has larger
    ratios."""
    shape = actual.shape
    tally = BudgetTally(dtype, due.made_of, due.only_one, shape)
    tally.add(np.ravel(actual), np.ravel(exact), due.sigma)
    return tally.row(order, slot, max(1.0, known) * scale)


class BudgetTally:
    """The figures of one output, added up over its blocks in order. If sums of float64 values exceed 1e154, they
    overflow and mean nothing. With `shape`, the row locates the errors of a guilty output."""

    def __init__(self, dtype: Dtype, made_of: str, only_one: bool = False, shape: Sequence[int] = ()) -> None:
        self.dtype, self.made_of, self.only_one, self.shape = dtype, made_of, only_one, shape
        self.grid = Grid(shape)
        self.is_exact = dtype.kind != "f" or made_of == "exact"
        self.elements = self.used = self.odd = self.wrong = self.inside = self.different = 0
        self.error = self.own = self.noise = self.step = self.size = self.fourth = self.values = self.relative = 0.0
        self.toward = self.due_toward = 0.0
        # by the type that the results may be numbers of; float32 may hold 16-bit values
        types = [DTYPES[name] for name in SHORT] if dtype.name == "float32" else []
        is_examined = dtype.kind == "f" and not dtype.memory and (dtype.itemsize <= 2 or only_one)
        self.rounding = {row: RoundingCounts() for row in (*types, *([dtype] if is_examined else []))}
        self.beyond, self.bad = 0, []  # type: int, list[Array]
        self.largest, self.largest_at, self.mare, self.ratio, self.ulps, self.first_wrong = -1.0, -1, 0.0, 0.0, 0.0, -1

    @property
    def most(self) -> float:
        """The largest ratio that an element may have."""
        return MAX_16 if self.dtype.itemsize <= 2 else MAX

    def add(self, actual: Array, exact: Array, sigma: Array | float = 0.0, noise: Optional[float] = None) -> None:
        """Add the next elements. `noise` is the rms of sigma over the whole output, if it is known."""
        start, self.elements = self.elements, self.elements + actual.size
        if not actual.size:
            return
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.rounding:
                self._add_rounding(actual, exact)
            if self.is_exact:
                actual, exact = self._add_exact(actual, exact, start)
                sigma = 0.0
            else:
                rounded = round_to(exact, self.dtype)
                odd = np.flatnonzero(_odd(actual, exact, rounded, self.dtype))
                self.odd += odd.size
                self._note(odd, start, None)
            use = np.isfinite(actual) & np.isfinite(round_to(exact, self.dtype))
            places = None
            if not use.all():
                places, actual, exact = np.flatnonzero(use), actual[use], exact[use]
                sigma = sigma[use] if isinstance(sigma, np.ndarray) else sigma
            if actual.size and self.dtype.kind in "fiu":
                self._add(actual, exact, sigma, noise, start, places)

    def ratios(self, actual: Array, exact: Array, sigma: Array | float, noise: Optional[float] = None) -> Array:
        """Return the error of each element over its expected error."""
        size, unit = np.abs(exact), self.dtype.round_off
        step = np.where(size < self.dtype.tiny, self.dtype.tiny, 0.0)  # a device may flush smaller values to zero
        error = np.abs(actual - exact)
        allowed = unit * size + step + 6 * sigma + 0.6 * (_rms(sigma) if noise is None else noise)
        found: Array = np.divide(error, allowed, out=np.where(error != 0, np.inf, 0.0), where=allowed > 0)
        return found

    def _add_exact(self, actual: Array, exact: Array, start: int) -> tuple[Array, Array]:
        """Count elements that differ. Values below the smallest normal number may be flushed to zero."""
        wanted = round_to(exact, self.dtype) if self.dtype.kind == "f" else exact
        same = (actual == wanted) | ((actual != actual) & (wanted != wanted))
        if self.dtype.kind == "f":
            same |= (actual == 0) & (np.abs(wanted) < self.dtype.tiny)
        wrong = np.flatnonzero(~same)
        if wrong.size and not self.wrong:
            self.first_wrong = start + int(wrong[0])
        self.wrong += wrong.size
        self._note(wrong, start, None)
        return actual, wanted

    def _add_rounding(self, actual: Array, exact: Array) -> None:
        """Count the results that are not the nearest numbers, for each type of which all results are numbers."""
        use = np.isfinite(actual) & np.isfinite(exact)
        actual, exact = actual[use].astype(np.float64), exact[use].astype(np.float64)
        for dtype in [*self.rounding]:
            if dtype is not self.dtype and not np.array_equal(round_to(actual, dtype), actual):
                del self.rounding[dtype]
                continue
            size, nearest = np.abs(exact), round_to(exact, dtype)
            due = (nearest != exact) & np.isfinite(nearest) & (size >= dtype.tiny)
            missed = due & (actual != nearest)
            error, of = (actual - exact)[missed], exact[missed]
            unit = np.ldexp(dtype.round_off, np.frexp(of)[1])
            counts = int(due.sum()), error.size, int((error * of < 0).sum()), int((error > 0).sum())
            self.rounding[dtype] = self.rounding[dtype].plus(
                RoundingCounts(*counts, int((np.abs(error) >= FAR * unit).sum()))
            )

    def _note(self, bad: Array, start: int, places: Optional[Array]) -> None:
        """Record the elements that exceed their limit, up to WORST."""
        self.beyond += bad.size
        self._draw(bad, start, places)
        if bad.size and sum(noted.size for noted in self.bad) < WORST:
            self.bad.append(start + (bad if places is None else places[bad]))

    def _draw(self, bad: Array, start: int, places: Optional[Array]) -> None:
        if bad.size and self.shape:
            self.grid.add(start + (bad if places is None else places[bad]))

    def where(self) -> str:
        """Return the box of elements that exceed their limit, as a slice; "" if they are everywhere or too many."""
        shape = self.shape
        if not shape or not 0 < self.beyond <= min(WORST, self.elements // 2):
            return ""
        places = np.unravel_index(np.concatenate(self.bad), tuple(shape))
        sides = [(int(one.min()), int(one.max()) + 1) for one in places]
        if math.prod(stop - start for start, stop in sides) > self.elements // 2:
            return ""
        return "[" + ", ".join(f"{a}:{b}" if b - a > 1 else str(a) for a, b in sides) + "]"

    def _add(
        self, actual: Array, exact: Array, sigma: Array | float, noise: Optional[float], start: int,
        places: Optional[Array],
    ) -> None:  # fmt: skip
        actual, exact = actual.astype(np.float64), exact.astype(np.float64)
        unit, error, size = self.dtype.round_off, actual - exact, np.abs(exact)
        away = np.abs(error)
        self.used += away.size
        self.error += float(np.dot(error, error))
        squares = np.square(size)
        self.size += float(squares.sum())
        self.fourth += float(np.dot(squares, squares))
        self.values += float(np.dot(actual, actual))
        relative = away / (size + SMALL)
        self.relative += float(relative.sum())
        self.mare = max(self.mare, float(relative.max()))
        worst = int(away.argmax())
        if away[worst] > self.largest:
            self.largest, self.largest_at = float(away[worst]), start + int(worst if places is None else places[worst])
        if bars := BARS.get(self.dtype.name):
            self.inside += int(np.count_nonzero(away <= bars.atol + bars.rtol * size))
            self.ulps = max(self.ulps, float((away / (2 * unit * np.maximum(size, self.dtype.tiny))).max()))
        if self.is_exact:
            return
        own = np.abs(round_to(exact, self.dtype) - exact)
        if self.elements < MIN_ELEMENTS:
            own = np.maximum(own, OWN * unit * size)
        self.own += float(np.dot(own, own))
        self.noise += away.size * (_rms(sigma) if noise is None else noise) ** 2
        self.step += self.dtype.tiny**2 * int(np.count_nonzero(size < self.dtype.tiny))
        ratios = self.ratios(actual, exact, sigma, noise)
        self.ratio = max(self.ratio, float(ratios.max()))
        self._note(np.flatnonzero(ratios > self.most), start, places)
        self._draw(np.flatnonzero((ratios > 1) & (ratios <= self.most)), start, places)
        signs = np.where(size >= self.dtype.tiny, -np.sign(exact) / (unit * size), 0.0)
        self.toward += float(np.dot(error, signs))
        self.due_toward += float(np.dot(round_to(exact, self.dtype) - exact, signs))
        if abs(self.toward - self.due_toward) > BIAS * self.used:
            self.different = max(self.different, len(distinct(actual)))  # without counts, numpy loads numpy.ma

    def row(self, order: int, slot: str, limit: float = 1.0) -> ReplayedOutput:
        """Return the row. `limit` multiplies the limits."""
        row = self._row(order, slot, limit)
        rounding = next(iter(self.rounding.values()), None)
        if rounding is not None and limit <= 1.0 and rounding.is_one_sided and not self.odd:
            row = row._replace(verdict=ReplayVerdict.GUILTY, explanation=rounding.words())
        row = row._replace(rounding=rounding)
        if row.verdict is not ReplayVerdict.GUILTY or not self.shape:
            return row
        grid = self.grid
        counts = tuple(grid.counts.tolist())
        return row._replace(
            where=self.where(), picture=DifferenceMap(self.dtype.name, grid.rows, grid.columns, grid.across, counts)
        )

    def _row(self, order: int, slot: str, limit: float) -> ReplayedOutput:
        row = ReplayedOutput(
            order, slot, budget="exact" if self.is_exact else self.made_of, verdict=ReplayVerdict.CLEAN
        )
        if self.used:
            row = self._plain(row)
        if self.is_exact:
            row = row._replace(rms_ratio=0.0, max_ratio=0.0)
            if self.wrong:
                words = f"{self.wrong:,} of {self.elements:,} elements differ; none may"
                row = row._replace(
                    verdict=ReplayVerdict.GUILTY, rms_ratio=math.inf, max_ratio=math.inf, explanation=words
                )
                row = row._replace(max_abs_index=self.largest_at if self.largest > 0 else self.first_wrong)
            return row
        row = row._replace(nonfinite=self.odd if self.elements else None)
        if self.used:
            own = max(self.own, (OWN * self.dtype.round_off) ** 2 * self.size)
            budget, total = math.sqrt(own + self.noise + self.step), math.sqrt(self.error)
            ratio = total / budget if budget else (math.inf if total else 0.0)
            row = row._replace(rms_ratio=ratio, max_ratio=self.ratio, bias=self.toward / self.used)
        return row._replace(
            verdict=ReplayVerdict.GUILTY if self.odd or self._is_beyond(row, limit) else ReplayVerdict.CLEAN
        )

    def _plain(self, row: ReplayedOutput) -> ReplayedOutput:
        """Add the errors that need no budget to a row."""
        total, norm, unit = math.sqrt(self.error), math.sqrt(self.size), self.dtype.round_off
        rel_l2 = total / norm if norm else (0.0 if not total else math.inf)
        mere = self.relative / self.used
        mixed = old = None
        if bars := BARS.get(self.dtype.name):
            mixed = passes_mixed(bars, self.inside / self.used, self.largest, self.ulps)
            old = passes_mere_mare(bars, mere, self.mare)
        return row._replace(
            rel_l2=rel_l2,
            rel_l2_u=rel_l2 / unit if unit else None,
            mere=mere,
            mare=self.mare,
            rmse=total / math.sqrt(self.used),
            max_abs_err=self.largest,
            max_abs_index=self.largest_at,
            vendor_mixed=mixed,
            vendor_mere_mare=old,
        )

    def _is_beyond(self, row: ReplayedOutput, limit: float) -> bool:
        if row.rms_ratio is None or row.max_ratio is None or row.bias is None:
            return False
        low = self.dtype.itemsize <= 2
        many = self.size**2 / self.fourth if 0 < self.fourth < math.inf else float(self.used)  # that decide the rms
        few = 1 + 2 / math.sqrt(many) if many < MIN_ELEMENTS else 1.0  # the rms of few errors varies
        if row.rms_ratio > (RMS_16 if low else RMS) * limit * few or row.max_ratio > self.most * limit:
            return True
        small = math.sqrt(self.noise) < 0.1 * self.dtype.round_off * math.sqrt(self.values)
        beside = abs(self.toward - self.due_toward) / self.used  # a sum with a constant has a bias of its own
        if beside > BIAS * limit and (self.only_one or (low and small)):
            return beside * math.sqrt(self.different) / SPREAD > Z
        return False


def vendor_level(mare: Optional[float], mere: Optional[float], rmse: Optional[float]) -> str:
    """Return the strictest level of the vendor's double benchmark that these pass; "none" if they pass none, "" if one
    is unknown. Each is the target's error over that of a reference in the same type."""
    if mare is None or mere is None or rmse is None:
        return ""
    passed = (name for name, most in LEVELS.items() if mare <= most[0] and mere <= most[1] and rmse <= most[2])
    return next(passed, "none")


def round_to(values: Array, dtype: Dtype) -> Array:
    """Return values rounded to nearest in a type, as float64. A value beyond its range becomes infinite."""
    if dtype.name == "float64" or dtype.memory:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(numpy_dtype(dtype.name)).astype(np.float64)


def _odd(actual: Array, exact: Array, rounded: Array, dtype: Dtype) -> Array:
    """Return whether each element is NaN or infinite on one side only. If the result leaves the range of the type, both
    are right."""
    with np.errstate(invalid="ignore"):
        beyond = np.isfinite(exact) & (np.abs(exact) >= dtype.largest * (1 - 4 * dtype.round_off))
        nan = np.isnan(actual) != np.isnan(rounded)
        inf = (np.isinf(actual) | np.isinf(rounded)) & ~np.isnan(actual) & ~np.isnan(rounded) & (actual != rounded)
    found: Array = (nan | inf) & ~beyond
    return found


def _rms(values: Array | float) -> float:
    if isinstance(values, float):
        return abs(values)
    return math.sqrt(float(np.dot(values, values)) / values.size) if values.size else 0.0
