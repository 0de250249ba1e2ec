"""Details of a tensor that diverged: the worst elements, the position of the error, the distributions of values and
error.

The measurement has already found the ranges, so one pass is sufficient; only a few blocks are in memory.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.measure.ascend_criteria import figures_of
from npucmp.measure.heat_map import Grid
from npucmp.measure.pairs import READ, Closeness, allclose_bars, payload_of, recorded_type
from npucmp.model import DifferenceMap, Finding, Histogram, Moments, Number, TensorDetail, WorstElement

if TYPE_CHECKING:
    from npucmp.measure.kernel.numpy_kernel import CountLimits

    Array = npt.NDArray[Any]
    Floats = npt.NDArray[np.float64]

WORST = 10  # elements that are kept
PARTS = 32  # bins of a value range; errors have one more, so that zero is in the middle of a bin
SMALL = 1e-200  # a smaller range of values is scaled up before it is divided into bins,
UP = 2.0**600  # by a power of two, which is exact


def tensor_detail(finding: Finding, context: ReadContext = ANYWHERE, vendor: bool = False) -> Optional[TensorDetail]:
    """Return the details; None if the values are not available or have another shape now. Raises NpucmpError if
    they cannot be read again. If `vendor`, the same pass computes the statistics of the vendor's rules."""
    pair, moments = finding.pair, finding.measurement.moments
    if pair.target is None or pair.golden is None or moments is None:
        return None
    x, y = payload_of(pair.target, context=context), payload_of(pair.golden, context=context)
    if x is None or y is None or math.prod(x.shape) != moments.elements:
        return None
    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import bars_for

    names = recorded_type(pair.target, x), recorded_type(pair.golden, y)
    bars = bars_for(*names, *allclose_bars(*names, Closeness()))._replace(masking=moments.masked > 0)
    found = _Looker(y.shape, moments, bars, bar_of(moments))
    figures = figures_of(pair, x, y) if vendor else None
    for a, b in zip_longest(*(blocks(payload, READ, context=context) for payload in (x, y))):
        if a is None or b is None or len(a) != len(b):
            return None
        found.add(a, b)
        if figures is not None:
            figures.add(a, b)
    return found.look(finding, y.dtype)._replace(vendor=figures.result() if figures is not None else None)


def bar_of(moments: Moments) -> float:
    """The root mean square of the error, reduced by what the summation may have lost. Elements above it make up the
    error: a corner, a few elements, or (if all errors are equal) all of them."""
    return 0.999 * math.sqrt(moments.sum_dd / moments.compared) if moments.compared else 0.0


class _Candidates(NamedTuple):
    """The worst elements so far: their errors, indices and values, as arrays of one length."""

    errors: Floats
    places: npt.NDArray[np.int64]
    target: Array
    golden: Array


class _Looker:
    def __init__(self, shape: tuple[int, ...], moments: Moments, bars: CountLimits, bar: float) -> None:
        sides = moments.target, moments.golden
        lows, highs = ([getattr(side, name) for side in sides] for name in ("minimum", "maximum"))
        finite = [[one for one in limits if one == one] for limits in (lows, highs)]
        self.low, self.high = min(finite[0], default=math.nan), max(finite[1], default=math.nan)
        self.complex = bars.golden.kind == "c"
        self.most = moments.max_abs
        self.least = 0.0 if self.complex else -self.most
        self.values = [np.zeros(PARTS, np.int64), np.zeros(PARTS, np.int64)]
        self.errors = np.zeros(PARTS + 1, np.int64)
        self.bars, self.bar = bars, bar
        self.grid = Grid(shape)
        self.worst: Optional[_Candidates] = None
        self.start = 0

    def add(self, x: Array, y: Array) -> None:
        """Add one block of both sides."""

        from npucmp.measure.kernel.numpy_kernel import difference, widen

        with np.errstate(all="ignore"):  # signalling NaN, and differences beyond float64
            wide_x, wide_y = widen(x), widen(y)
            finite = np.isfinite(wide_x) & np.isfinite(wide_y)
            _, delta, size = difference(x, y, wide_x, wide_y)
            if not finite.all():
                alike = (np.isnan(wide_x) & np.isnan(wide_y)) | (wide_x == wide_y)
                size = np.where(finite, size, np.where(alike, 0.0, np.inf))
            if self.bars.masking:  # never of complex numbers
                beyond = size > self.most  # only masks of unequal constants, which the measurement excluded
                masks = (self.bars.masks.where_equal(wide_x, wide_y) | beyond) & finite
                size, finite = np.where(masks, 0.0, size), finite & ~masks
            all_finite = bool(finite.all())
            for counts, wide in zip(self.values, (wide_x, wide_y)):
                shown = np.abs(wide) if self.complex else wide
                counts += histogram(shown if all_finite else shown[np.isfinite(shown)], self.low, self.high, PARTS)
            signed = size if self.complex else np.copysign(size, delta)
            self.errors += histogram(signed if all_finite else signed[finite], self.least, self.most, PARTS + 1)
        self.grid.add(np.flatnonzero(size > self.bar) + self.start)
        self._keep(size, x, y)
        self.start += len(x)

    def _keep(self, size: Floats, x: Array, y: Array) -> None:
        """Merge the worst elements of a block with the earlier ones."""

        before = self.worst
        least = before.errors[-1] if before is not None and len(before.errors) == WORST else 0.0
        places = np.flatnonzero(size > least)
        if len(places) > WORST:
            kth = np.partition(size[places], len(places) - WORST)[len(places) - WORST]
            above = places[size[places] > kth]
            places = np.sort(np.concatenate([above, places[size[places] == kth][: WORST - len(above)]]))
        if not len(places):
            return
        new = _Candidates(size[places], places + self.start, x[places], y[places])
        if before is not None:
            both: list[Array] = [np.concatenate(one) for one in zip(before, new)]
            new = _Candidates(*both)
        order = np.argsort(-new.errors, kind="stable")[:WORST]  # earlier elements and lower indices come first
        first: list[Array] = [column[order] for column in new]
        self.worst = _Candidates(*first)

    def look(self, finding: Finding, dtype: str) -> TensorDetail:
        grid = self.grid
        target, golden, errors = (tuple(counts.tolist()) for counts in (*self.values, self.errors))
        return TensorDetail(
            pair=finding.pair,
            worst=tuple(self._worst()),
            bar=self.bar,
            picture=DifferenceMap(dtype, grid.rows, grid.columns, grid.across, tuple(grid.counts.tolist())),
            values=(Histogram(self.low, self.high, target), Histogram(self.low, self.high, golden)),
            errors=Histogram(self.least, self.most, errors),
        )

    def _worst(self) -> list[WorstElement]:
        if self.worst is None:
            return []
        from npucmp.measure.kernel.numpy_kernel import widen

        found = []
        wide = [abs(one) for one in widen(self.worst.golden).tolist()]
        for error, place, x, y, divisor in zip(self.worst.errors.tolist(), *self.worst[1:], wide):
            relative = error / max(divisor, self.bars.floor) if math.isfinite(error) else error
            found.append(WorstElement(int(place), number(x), number(y), error, relative))
        return found


def number(value: Any) -> Number:
    """An element of an array as a Python number, without loss."""
    kind: Any = {"b": bool, "i": int, "u": int, "c": complex}.get(value.dtype.kind, float)
    found: Number = kind(value)
    return found


def histogram(values: Array, low: float, high: float, parts: int) -> npt.NDArray[np.int64]:
    """Counts of values in equal parts of a range; all are in the middle part if the length of the range is 0 or
    overflows."""

    if 0 < max(abs(low), abs(high)) < SMALL:  # parts of this range have no length in float64
        values, low, high = values * UP, low * UP, high * UP
    half = high / 2 - low / 2
    if not 0 < half < math.inf:
        places = np.full(len(values), parts // 2)
    else:
        wide = values * (0.5 * parts / half) if half < 1e300 else values / half * (0.5 * parts)
        wide -= 0.5 * parts * (low / half)
        places = np.clip(wide, 0, parts - 1, out=wide).astype(np.int64)
    return np.bincount(places, minlength=parts)
