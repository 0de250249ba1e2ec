"""The shift of a tensor's recorded statistics, in units of the shift that rounding of its elements explains.

Roundings of n elements are independent of each other: in a norm they average out to u · rms, in a mean to u · rms / √n,
while a maximum or a minimum shifts with its single element. So a factor of 1.002 on a million elements of bfloat16,
within rounding element by element, shifts their norm by 500 of these units.

The units are u · rms for the norm, u · rms / √n for the mean, and u times their own size for extremes; for the norm and
mean of a tensor of zeros and one other value (a mask), u times themselves. The resolution of a figure is that of its
record: 2^-23 of itself in float32, u if it was rounded to 16 bits, 2^-25 of the rms for a mean that was summed in
float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

import numpy as np
import numpy.typing as npt

from npucmp.flow.operators import of_row
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.localise.conditioning import scale_of
from npucmp.localise.golden_rows import MASKS
from npucmp.model import Finding, Pair, Statistics
from npucmp.model.dtypes import MOST
from npucmp.model.finding import OTHER_NODE

Floats = npt.NDArray[np.float64]

FIGURES = "max", "min", "mean", "norm"
# of the mean square: chosen: mean times extreme may lack as much if a tensor holds zeros and one value alone, not
# measured
ONE_VALUE = 0.01
NORM = FIGURES.index("norm")
SUMS = slice(2, None)  # slice of the figures
# times sqrt(n) round-offs of a norm: evidence: 1.5 in norms of broadcast gradients, which sum equal squares; parts of
# another shape are summed in another order
PARTS_ROUNDING = 2.0
MASKED_TIMES = 100.0  # times the largest value: chosen: a number so far below is a mask, not measured
_NO_SHIFT = (0.0,) * len(FIGURES)


class Level(NamedTuple):
    """The shift of extremes and sums (norm, mean), relative to the tensor's size as if elements shifted
    independently."""

    extremes: float = 0.0
    sums: float = 0.0

    def most(self, other: Level) -> Level:
        return Level(max(self.extremes, other.extremes), max(self.sums, other.sums))

    def times(self, factor: float) -> Level:
        return Level(self.extremes * factor, self.sums * factor)


class StatShift(NamedTuple):
    """The shift of one tensor. `size` is the largest of `each` figure's shift, in roundings of its elements; inf if
    only one side is NaN or Inf. `resolution` is that of the figures, in roundings. `elements` is the tensor's
    number of elements, `unit` the round-off of the coarser of its two types."""

    size: float
    each: tuple[float, ...]
    resolution: tuple[float, ...]
    elements: int
    unit: float

    @property
    def is_still(self) -> bool:
        """Whether all figures agree to the last digit."""
        return not any(self.each)


def movement(finding: Finding) -> Optional[StatShift]:
    """The shift of a tensor; None without a figure of floats that both sides have, or if they belong to two tensors.
    The unit is at least that of float32, in which figures are written.

    If values went through coarser types upstream, the shifts of the inputs show it, not this one.
    """
    return None if finding.rule == OTHER_NODE else _movement(finding)


@of_row
def _movement(finding: Finding) -> Optional[StatShift]:
    measurement, pair = finding.measurement, finding.pair
    x, y = measurement.statistics
    if measurement.moments is not None or x is None or y is None or pair.target is None or pair.golden is None:
        return None
    own, count = round_off_of(pair), pair.elements
    if not own or not 0 < count < MOST or measurement.shapes_differ or y.norm is None:
        return None
    unit = max(SINGLE, own)
    if not any(a is not None and b is not None for a, b in zip(x, y)):
        return None
    if x == y:
        return StatShift(0.0, _NO_SHIFT, _NO_SHIFT, count, unit)
    units = _units(y, y.norm, count, unit)
    rounding = pair.target.rounding + pair.golden.rounding
    resolutions = [max(rounding, *(_resolution(figure, own) for figure in both)) for both in zip(x[2:], y[2:])]
    of_norm = rounding + PARTS_ROUNDING * SINGLE * math.sqrt(count) * y.norm if is_split(pair) else rounding
    each = tuple(_figure_shift(*both, of_norm if at == NORM else rounding) for at, both in enumerate(zip(x, y, units)))
    fine = (0.0, 0.0, *(size / one if one else 0.0 for size, one in zip(resolutions, units[2:])))
    return StatShift(max(each), each, fine, count, unit)


def is_split(pair: Pair) -> bool:
    """Whether the figures of the target are those of parts on several ranks."""
    relation = pair.target.relation if pair.target is not None else None
    return any(placement.is_split for placement in getattr(relation, "placements", ()))


def _units(y: Statistics, norm: float, count: int, unit: float) -> tuple[float, ...]:
    """The shift of the figures for one rounding of each element; a mean has at most the resolution of float32. Masks of
    minus infinity leave neither mean nor norm; if a tensor holds only zeros and copies of one value, as a mask does,
    all roundings are equal."""
    root = math.sqrt(count)
    rms = norm / root if math.isfinite(norm) else 0.0
    high, low = (max(abs(one or 0.0), rms) if math.isfinite(one or 0.0) else rms for one in (y.max, y.min))
    if rms and any(abs((y.mean or 0.0) / rms * ((one or 0.0) / rms) - 1.0) < ONE_VALUE for one in y[:2]):
        return unit * high, unit * low, unit * abs(y.mean or 0.0), unit * norm
    return unit * high, unit * low, max(unit / root, SINGLE) * rms, unit * rms


def _resolution(figure: Optional[float], own: float) -> float:
    """The resolution of a mean or a norm. For 16-bit tensors it may have been rounded to that type itself, and then has
    only the digits of the type. Figures are summed and written in float32 at best, whose numbers are two round-offs
    apart."""
    if not figure or not math.isfinite(figure):
        return 0.0
    digits = math.frexp(figure)[0] / (own / 2.0)
    return (own if digits.is_integer() else 2.0 * SINGLE) * abs(figure)


def _figure_shift(a: Optional[float], b: Optional[float], unit: float, rounding: float) -> float:
    """The shift of one figure in these units, less the rounding of the figures in the dumps."""
    if a is None or b is None or a == b or (a != a and b != b):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    apart = max(0.0, abs(a - b) - rounding)
    return apart / unit if unit else math.inf if apart else 0.0


def likely_error(finding: Finding) -> Optional[float]:
    """The rel_l2 that the figures of a tensor make likely if its elements' errors are independent; at most 1. None
    without records."""
    return None if finding.rule == OTHER_NODE else likely_of_row(finding)


@of_row
def likely_of_row(finding: Finding) -> Optional[float]:
    moved = _movement(finding)
    return None if moved is None else min(1.0, max(moved.each[2:]) * moved.unit)


def level(finding: Finding) -> Level:
    """The shift that a tensor passes to its consumers: one element that is off affects sums little."""
    return Level() if finding.rule == OTHER_NODE else _level(finding)


@of_row
def _level(finding: Finding) -> Level:
    moved, scale = movement(finding), scale_of(finding)
    if moved is None:
        return Level()
    ratio = scale.largest / scale.rms if scale.rms else math.inf
    share = min(1.0, ratio * ratio / math.sqrt(moved.elements))
    extremes = max(moved.each[:2])
    extremes = extremes if math.isfinite(extremes) else 0.0
    sums = max((one for one in moved.each[SUMS] if math.isfinite(one)), default=0.0)
    return Level(extremes, max(sums, share * extremes)).times(moved.unit)


def is_hidden(finding: Finding) -> bool:
    """Whether a mask hides the values of the golden tensor from its figures: minus infinity, or a number so far below
    the largest value that its exponential is 0 and that it dominates the norm."""
    recorded = finding.measurement.recorded(1) if finding.measurement.moments is None else None
    if recorded is None or recorded.max is None or recorded.min is None or not math.isfinite(recorded.max):
        return False
    return recorded.min <= MASKS and abs(recorded.max) * MASKED_TIMES <= -recorded.min


class StatShifts(NamedTuple):
    """The shifts of many tensors, as columns. `extremes` and `sums` are those of `level`, 0 if nothing is known; `unit`
    is 0 without figures of floats on both sides; `size` is the largest shift of any figure, in roundings; `likely` is
    that of `likely_error`, 0 if nothing is known."""

    extremes: Floats
    sums: Floats
    unit: Floats
    size: Floats
    likely: Floats


def movements(findings: Sequence[Finding]) -> StatShifts:
    """The shifts of rows, bit for bit those of `movement` and `level`."""
    count = len(findings)
    found = StatShifts(*(np.zeros(count) for _ in StatShifts._fields))
    plain = [at for at, one in enumerate(findings) if _is_plain(one)]
    if plain:
        rows = [findings[at] for at in plain]
        x, y = (np.array([one.measurement.statistics[side] for one in rows], dtype=np.float64) for side in range(2))
        own = np.array([round_off_of(one.pair) for one in rows])
        elements = np.array([one.pair.elements for one in rows], dtype=np.float64)
        rounding = np.array([sum(one.rounding for one in row.pair[4:6] if one is not None) for row in rows])
        for column, values in zip(found, shifts_of(x, y, own, elements, rounding)):
            column[plain] = values
    for at in {*range(count)}.difference(plain):
        moved = movement(findings[at])
        if moved is not None:
            found.unit[at], found.size[at] = moved.unit, moved.size
            found.extremes[at], found.sums[at] = level(findings[at])
            found.likely[at] = likely_error(findings[at])
    return found


def _is_plain(finding: Finding) -> bool:
    """Whether all four figures of a float tensor are finite numbers on both sides, as for nearly all tensors."""
    measurement, pair = finding.measurement, finding.pair
    x, y = measurement.statistics
    if measurement.moments is not None or x is None or y is None or pair.target is None or pair.golden is None:
        return False
    if is_split(pair) or measurement.shapes_differ or None in x or None in y or not math.isfinite(sum(x) + sum(y)):  # type: ignore[arg-type]
        return False
    return finding.rule != OTHER_NODE and y[3] != 0.0 and 0 < pair.elements < MOST


def shifts_of(x: Floats, y: Floats, own: Floats, count: Floats, rounding: Floats) -> StatShifts:
    """The shifts of tensors with all figures (tensors, 4), finite, of golden tensors that are not zero."""
    unit, root, norm = np.where(own > 0.0, np.maximum(SINGLE, own), 0.0), np.sqrt(count), y[:, 3]
    rms, most, least = norm / root, np.abs(y[:, 0]), np.abs(y[:, 1])
    with np.errstate(all="ignore"):
        alone = (np.abs((y[:, 2] / rms)[:, None] * (y[:, :2] / rms[:, None]) - 1.0) < ONE_VALUE).any(axis=1)
        mean = np.where(alone, unit * np.abs(y[:, 2]), np.maximum(unit / root, SINGLE) * rms)
        steps = (unit * np.maximum(most, rms), unit * np.maximum(least, rms), mean, unit * np.where(alone, norm, rms))
        apart = np.maximum(0.0, np.abs(x - y) - rounding[:, None])
        each = apart / np.stack(steps, axis=1)
        largest = np.maximum(np.maximum(most, least), rms) / rms
        share = np.minimum(1.0, largest * largest / root)
        extremes = each[:, :2].max(axis=1)
        extremes = np.where(np.isfinite(extremes), extremes, 0.0)
        sums = np.where(np.isfinite(each[:, SUMS]), each[:, SUMS], 0.0).max(axis=1)
        each = np.where(apart > 0.0, each, 0.0)
        likely = np.where(unit > 0.0, np.minimum(1.0, each[:, SUMS].max(axis=1) * unit), 0.0)
    return StatShifts(extremes * unit, np.maximum(sums, share * extremes) * unit, unit, each.max(axis=1), likely)
