"""What one pass over tensors measured; no opinion."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Extremes(NamedTuple):
    """What one tensor holds at the limits of its type, over all its elements.

    high and low count the elements that equal the largest and the lowest finite value, zeros those that are 0;
    first_… are flat indices of the first NaN, infinity and element at a limit, -1 for none. minimum and maximum are
    those of the finite elements, NaN if there is none.
    """

    elements: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    high: int = 0
    low: int = 0
    zeros: int = 0
    first_nan: int = -1
    first_inf: int = -1
    first_limit: int = -1
    minimum: float = float("nan")
    maximum: float = float("nan")

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf

    def of(self, kind: str) -> tuple[int, int]:
        """(elements of a kind of event, the flat index of the first)."""
        return {
            "nan": (self.nan, self.first_nan),
            "inf": (self.inf, self.first_inf),
            "saturated": (self.high + self.low, self.first_limit),
        }[kind]

    @property
    def largest(self) -> float:
        """Largest finite magnitude; NaN if nothing is finite."""
        return max(abs(self.minimum), abs(self.maximum))


class Side(NamedTuple):
    """One side's own half of Moments, over all its elements.

    minimum, maximum, total and squares (sum of squares) are over the finite elements; for complex
    tensors over the magnitudes. minimum and maximum are NaN when nothing is finite.
    """

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    minimum: float = float("nan")
    maximum: float = float("nan")
    total: float = 0.0
    squares: float = 0.0

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf


HISTOGRAM_BINS = 24  # |x-y|/max(|y|, floor): bin 0 holds exact zeros, bin k decade 10^(k-20) ≤ e < 10^(k-19)


class Moments(NamedTuple):
    """What one pass over a tensor pair measured; no opinion. x is the target, y the golden.

    elements    how many were looked at
    compared    positions that are finite on both sides and no mask: all sums below run over these
    masked      positions where both sides hold "minus infinity" (kernel/numpy_kernel.py)
    mismatched  positions that are NaN or Inf on one side only, or differently so
    equal       positions with the same bits
    max_abs_exact  largest |x-y| of integer tensors, exact, None for other dtypes
    """

    elements: int = 0
    target: Side = Side()
    golden: Side = Side()
    compared: int = 0
    masked: int = 0
    mismatched: int = 0
    equal: int = 0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    sum_d: float = 0.0
    sum_abs: float = 0.0
    sum_dd: float = 0.0
    max_abs: float = 0.0
    max_abs_index: int = -1
    max_abs_exact: Optional[int] = None
    max_rel: float = 0.0
    max_rel_index: int = -1
    sum_rel: float = 0.0
    below_1e3: int = 0
    below_5e3: int = 0
    outside: int = 0
    max_ulp: Optional[int] = None
    histogram: tuple[int, ...] = (0,) * HISTOGRAM_BINS
