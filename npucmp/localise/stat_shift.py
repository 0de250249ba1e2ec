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
from typing import NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.flow.operators import of_row
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.localise.golden_rows import MASKS
from npucmp.model import Finding, Pair
from npucmp.model.dtypes import MOST
from npucmp.model.finding import OTHER_NODE

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

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
    number of elements, `unit` the round-off of the coarser of its two types, at least that of float32, in which figures
    are written. `level` is the shift that the tensor passes to its consumers: one element that is off affects sums
    little."""

    size: float
    each: tuple[float, ...]
    resolution: tuple[float, ...]
    elements: int
    unit: float
    level: Level

    @property
    def is_still(self) -> bool:
        """Whether all figures agree to the last digit."""
        return not any(self.each)


class StatShifts(NamedTuple):
    """The shifts of many tensors, as columns; `unit` is 0 without a figure of floats that both sides have."""

    each: Floats
    resolution: Floats
    elements: Floats
    unit: Floats
    extremes: Floats
    sums: Floats

    @property
    def size(self) -> Floats:
        found: Floats = self.each.max(axis=1, initial=0.0)
        return found

    @property
    def likely(self) -> Floats:
        """The likely errors (`likely_error`)."""
        found: Floats = np.minimum(1.0, self.each[:, SUMS].max(axis=1, initial=0.0) * self.unit)
        return found

    def at(self, row: int) -> Optional[StatShift]:
        """The shift of one tensor; None if it is unknown."""
        if not self.unit[row]:
            return None
        each, level = tuple(self.each[row].tolist()), Level(float(self.extremes[row]), float(self.sums[row]))
        resolution = tuple(self.resolution[row].tolist())
        return StatShift(max(each), each, resolution, int(self.elements[row]), float(self.unit[row]), level)


def shifts_of(
    x: Floats, y: Floats, in_x: Flags, in_y: Flags, own: Floats, elements: Floats, rounding: Floats, is_split: Flags
) -> StatShifts:
    """The shifts of tensors, from figures of target and golden (tensors, 4), of which in_x, in_y are recorded. own:
    round-offs of their types; rounding: of the figures in the dumps; is_split: the target's are those of parts on
    several ranks.

    A mean has at most the resolution of float32. Masks of minus infinity leave neither mean nor norm; if a tensor holds
    only zeros and copies of one value, as a mask does, all roundings are equal. Figures of 16-bit tensors may have been
    rounded to that type itself, and then have only the digits of the type. Figures are summed and written in float32 at
    best, whose numbers are two round-offs apart.
    """
    both = in_x & in_y
    is_known = (own > 0.0) & (elements > 0.0) & in_y[:, NORM] & both.any(axis=1)
    unit, root, norm = np.where(is_known, np.maximum(SINGLE, own), 0.0), np.sqrt(elements), y[:, NORM]
    with np.errstate(all="ignore"):
        most, least, mean = (np.where(in_y[:, at], y[:, at], 0.0) for at in range(NORM))
        rms = np.where(np.isfinite(norm), norm / root, 0.0)
        high, low = (np.where(np.isfinite(one), np.maximum(np.abs(one), rms), rms) for one in (most, least))
        alone = np.abs((mean / rms)[:, None] * (np.stack((most, least), axis=1) / rms[:, None]) - 1.0) < ONE_VALUE
        alone = alone.any(axis=1) & (rms > 0.0)
        of_mean = np.where(alone, unit * np.abs(mean), np.maximum(unit / root, SINGLE) * rms)
        units = np.stack((unit * high, unit * low, of_mean, unit * np.where(alone, norm, rms)), axis=1)
        lost = np.repeat(rounding[:, None], len(FIGURES), axis=1)
        lost[:, NORM] += np.where(is_split, PARTS_ROUNDING * SINGLE * root * norm, 0.0)
        apart = np.maximum(0.0, np.abs(x - y) - lost)
        each = np.where(units > 0.0, apart / units, np.where(apart > 0.0, math.inf, 0.0))
        each[~(np.isfinite(x) & np.isfinite(y))] = math.inf
        each[~both | (x == y) | (np.isnan(x) & np.isnan(y)) | ~is_known[:, None]] = 0.0
        digits = np.stack([*map(_digits, (x, y), (in_x, in_y), (own, own))]).max(axis=0)
        digits = np.maximum(digits, rounding[:, None])
        digits[:, :2] = 0.0
        resolution = np.where(units > 0.0, digits / units, 0.0)
        rms = norm / root
        largest = np.fmax(np.fmax(np.abs(most), np.abs(least)), rms)
        share = np.fmin(1.0, np.where(rms > 0.0, largest / rms, math.inf) ** 2 / root)
        extremes = each[:, :2].max(axis=1, initial=0.0)
        extremes = np.where(np.isfinite(extremes), extremes, 0.0)
        sums = np.where(np.isfinite(each[:, SUMS]), each[:, SUMS], 0.0).max(axis=1, initial=0.0)
        sums = np.where(is_known, np.maximum(sums, share * extremes), 0.0) * unit
    return StatShifts(each, resolution, elements, unit, extremes * unit, sums)


def _digits(figures: Floats, are_recorded: Flags, own: Floats) -> Floats:
    """The resolutions of figures."""
    is_short = np.frexp(figures)[0] / (own / 2.0)[:, None] % 1.0 == 0.0
    found = np.where(is_short, own[:, None], 2.0 * SINGLE) * np.abs(figures)
    return np.where(are_recorded & np.isfinite(figures), found, 0.0)


def movement(finding: Finding) -> Optional[StatShift]:
    """The shift of a tensor; None without a figure of floats that both sides have, or if they belong to two tensors.

    If values went through coarser types upstream, the shifts of the inputs show it, not this one.
    """
    return None if finding.rule == OTHER_NODE else movement_of_row(finding)


@of_row
def movement_of_row(finding: Finding) -> Optional[StatShift]:
    measurement, pair = finding.measurement, finding.pair
    x, y = measurement.statistics
    if measurement.moments is not None or x is None or y is None or pair.target is None or pair.golden is None:
        return None
    if measurement.shapes_differ:
        return None
    a, b = (np.array([[math.nan if one is None else one for one in side]], dtype=np.float64) for side in (x, y))
    in_a, in_b = (np.array([[one is not None for one in side]]) for side in (x, y))
    count = float(pair.elements) if pair.elements < MOST else 0.0
    own, many, lost = np.array([[round_off_of(pair)], [count], [pair.target.rounding + pair.golden.rounding]])
    return shifts_of(a, b, in_a, in_b, own, many, lost, np.array([is_split(pair)])).at(0)


@of_row
def likely_error(finding: Finding) -> Optional[float]:
    """The rel_l2 that the figures of a tensor make likely if its elements' errors are independent; at most 1. None
    without records."""
    moved = movement(finding)
    return None if moved is None else min(1.0, max(moved.each[SUMS]) * moved.unit)


def level(finding: Finding) -> Level:
    """The shift that a tensor passes to its consumers; none without records."""
    moved = movement(finding)
    return Level() if moved is None else moved.level


def is_split(pair: Pair) -> bool:
    """Whether the figures of the target are those of parts on several ranks."""
    relation = pair.target.relation if pair.target is not None else None
    return any(placement.is_split for placement in getattr(relation, "placements", ()))


def is_hidden(finding: Finding) -> bool:
    """Whether a mask hides the values of the golden tensor from its figures: minus infinity, or a number so far below
    the largest value that its exponential is 0 and that it dominates the norm."""
    recorded = finding.measurement.recorded(1) if finding.measurement.moments is None else None
    if recorded is None or recorded.max is None or recorded.min is None or not math.isfinite(recorded.max):
        return False
    return recorded.min <= MASKS and abs(recorded.max) * MASKED_TIMES <= -recorded.min
