"""Sums over the errors of two tensors against a third, the truth: ratio, scale error, bias and overlap.

The elements of a tensor are divided into BLOCKS neighbouring parts, with sums of their own. Errors of neighbouring
elements depend on each other (rows are tokens, and an error that entered a token moves its whole row), so the variance
of a figure is estimated by leaving out one part after the other (jackknife), not from the number of elements. The same
parts of several steps are added.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.model.three_runs import ErrorRatio

Array = npt.NDArray[Any]
BLOCKS = 32  # parts of a tensor: work: so many give the variance to 13 %
FEWEST = 8  # parts with errors: chosen: fewer do not give a variance, not measured
BINS, PER_UNIT = 66, 8  # of the histogram of errors: work: an eighth of the golden's rms error each, and two ends
Z = 1.96  # standard deviations: definition: of an interval of 95 %
HUGE = 1e30  # magnitude of a truth: chosen: masks of attention, "minus infinity" of each type, are larger, not measured
SMALL = 1e-7  # definition: the vendor's rule adds this to the magnitude of an element
# columns of the sums: products of the errors t and g, the truth f and 1, two by two
TT, TG, TF, T, GG, GF, G, FF, COUNT = 0, 1, 2, 3, 5, 6, 7, 10, 15


class Estimate(NamedTuple):
    """A figure and its standard deviation; both NaN if it is not known."""

    value: float
    deviation: float

    def low(self, deviations: float) -> float:
        return self.value - deviations * self.deviation

    def high(self, deviations: float) -> float:
        return self.value + deviations * self.deviation

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.deviation)

    @property
    def ratio(self) -> ErrorRatio:
        """The interval of a ratio whose logarithm this is."""
        return ErrorRatio(*(_exp(one) for one in (self.value, self.low(Z), self.high(Z))))


UNKNOWN = Estimate(math.nan, math.nan)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0)) if not math.isnan(value) else math.nan


class ErrorSums:
    """The sums of one tensor. `bits` are the significant bits that the values of golden and truth need: 8, 11, 24
    or 53."""

    def __init__(self) -> None:
        self.parts = np.zeros((BLOCKS, 16))
        self.counts = np.zeros((2, BINS), np.int64)
        self.most = np.zeros(4)  # largest |error|, and largest relative error, of target and golden
        self.relative = np.zeros(2)  # sums of relative errors
        self.elements, self.steps = 0, 1
        self.odd = [0, 0]  # elements of target and golden that are not finite where the truth is
        self.bits = [0, 0]
        self._unit = 0.0

    def add(self, x: Array, y: Array, z: Array, at: int, size: int) -> None:
        """Add a block of target, golden and truth, which begins at element `at` of `size`."""
        self.bits = [known if known >= _most_bits(values) else max(known, _bits(values))
                     for known, values in zip(self.bits, (y, z))]  # fmt: skip
        x, y, z = map(widen, (x, y, z))
        factors = np.empty((4, z.size))
        factors[0], factors[1], factors[2], factors[3] = x - z, y - z, z, 1.0
        if not max(factors.max(), -factors.min()) < HUGE:  # also of NaN
            is_counted = np.abs(z) < HUGE
            odd = [int(np.count_nonzero(is_counted & ~np.isfinite(one))) for one in (x, y)]
            self.odd = [count + more for count, more in zip(self.odd, odd)]
            factors[:, ~(is_counted & np.isfinite(factors).all(axis=0))] = 0.0
        self.elements += int(np.count_nonzero(factors[3]))
        begin = at
        while begin < at + z.size:
            part = begin * BLOCKS // size
            end = min(at + z.size, -(-(part + 1) * size // BLOCKS))
            block = factors[:, begin - at : end - at]
            self.parts[part] += (block @ block.T).ravel()
            begin = end
        self._add_extremes(*factors[:3])

    def _add_extremes(self, t: Array, g: Array, z: Array) -> None:
        if not self._unit:
            self._unit = math.sqrt(float(g @ g) / g.size) or math.sqrt(float(t @ t) / t.size)
        scale = np.abs(z) + SMALL
        for row, errors in enumerate((t, g)):
            sizes = np.abs(errors)
            relative = sizes / scale
            self.relative[row] += relative.sum()
            self.most[row] = max(self.most[row], sizes.max())
            self.most[row + 2] = max(self.most[row + 2], relative.max())
            if self._unit:
                bins = np.clip(errors * (PER_UNIT / self._unit) + BINS // 2, 0, BINS - 1)
                self.counts[row] += np.bincount(bins.astype(np.int64), minlength=BINS)

    def merged(self, other: ErrorSums) -> ErrorSums:
        """Return the sums of the same tensor in two steps. Tensors with the same values share their sums, so these are
        not changed."""
        found = ErrorSums()
        found.parts, found.counts = self.parts + other.parts, self.counts + other.counts
        found.most, found.relative = np.maximum(self.most, other.most), self.relative + other.relative
        found.elements, found.steps = self.elements + other.elements, self.steps + other.steps
        found.odd = [a + b for a, b in zip(self.odd, other.odd)]
        found.bits = [max(pair) for pair in zip(self.bits, other.bits)]
        found._unit = self._unit or other._unit
        return found

    @property
    def total(self) -> Array:
        found: Array = self.parts.sum(axis=0)
        return found

    def error(self, column: int) -> float:
        """Return ‖error‖ / ‖truth‖ of TT or GG."""
        total = self.total
        return math.sqrt(total[column] / total[FF]) if total[FF] else math.inf if total[column] else 0.0

    def log_ratio(self, floor: float = 0.0) -> Estimate:
        """Return the logarithm of the target's error over the golden's, each at least `floor` of the truth."""

        def figure(sums: Array) -> Array:
            target, golden = (np.maximum(sums[..., one], floor * floor * sums[..., FF]) for one in (TT, GG))
            return np.asarray(0.5 * (np.log(target) - np.log(golden)))

        return self._estimate(figure, (FF,) if floor else (TT, GG))

    def gain(self, column: int) -> float:
        """Return the relative scale error of TF or GF."""
        total = self.total
        return float(total[column] / total[FF]) if total[FF] else math.nan

    def gain_excess(self) -> Estimate:
        """Return by how much the target's scale error is larger than the golden's, both without sign."""
        sign_t, sign_g = (1.0 if self.gain(column) >= 0 else -1.0 for column in (TF, GF))

        def figure(sums: Array) -> Array:
            return np.asarray((sign_t * sums[..., TF] - sign_g * sums[..., GF]) / sums[..., FF])

        return self._estimate(figure, (FF,))

    @property
    def correlation(self) -> float:
        """How much both errors are the same: 1 for equal ones, 0 for independent ones."""
        total = self.total
        product = float(total[TT] * total[GG])
        return float(total[TG]) / math.sqrt(product) if product > 0 else 0.0

    def bias(self, mean: int, squares: int) -> Optional[float]:
        """Return the mean error in units of its root mean square."""
        total = self.total
        if not total[squares] or not total[COUNT]:
            return None
        return float(total[mean] / math.sqrt(total[squares] * total[COUNT]))

    @property
    def shares(self) -> Array:
        """The distributions of both errors."""
        found: Array = (self.counts / np.maximum(1, self.counts.sum(axis=1, keepdims=True))).astype(np.float32)
        return found

    @property
    def overlap(self) -> Optional[float]:
        """The Bhattacharyya coefficient of both distributions of errors."""
        return overlap_of(self.shares) if self._unit else None

    def _estimate(self, figure: Any, needed: tuple[int, ...]) -> Estimate:
        held = self.parts[(self.parts[:, COUNT] > 0)]
        total = held.sum(axis=0)
        if len(held) < FEWEST or not all(total[column] > 0 for column in needed):
            return UNKNOWN
        with np.errstate(all="ignore"):
            value, without = float(figure(total)), figure(total - held)
        spread = without - without.mean()
        return Estimate(value, math.sqrt((len(held) - 1) / len(held) * float(spread @ spread)))


def overlap_of(shares: Array) -> float:
    """Return the Bhattacharyya coefficient of two distributions."""
    return float(np.sqrt(shares[0].astype(np.float64) * shares[1]).sum())


def _most_bits(values: Array) -> int:
    """Return the significant bits of a type."""
    return {4: 24, 8: 53}.get(values.dtype.itemsize, 8) if values.dtype != np.float16 else 11


def _bits(values: Array) -> int:
    """Return the significant bits that values need: those of bfloat16, float16, float32 or float64."""
    if values.dtype.kind != "f" or values.dtype.itemsize == 2:
        return 11 if values.dtype == np.float16 else 8
    single = values.astype(np.float32)
    if values.dtype.itemsize > 4 and not np.array_equal(single, values, equal_nan=True):
        return 53
    if not (single.view(np.uint32) & 0xFFFF).any():
        return 8
    return 11 if np.array_equal(single.astype(np.float16), single, equal_nan=True) else 24
