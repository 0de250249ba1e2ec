"""The acceptance rules of Ascend for single operators, for reports to its engineers.

    mixed tolerance     at least 99 % of elements within atol + rtol·|y|, and max |x - y| ≤ max(limit, 32 ulp)
    MERE and MARE       mean and largest |x - y| / (|y| + 1e-7): below t, and below 10 t (the older rule)
    small values        if |y| < s, a relative error is meaningless: |x - y| > e is wrong

Source: the precision standards that CANN's operator repositories publish; their tables by type change over time.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.measure.pairs import READ, alike, payload_of
from npucmp.model.dtypes import Dtype, lookup, narrower
from npucmp.model.dump import Payload
from npucmp.model.finding import Pair
from npucmp.model.tensor_detail import AscendCriteria

Array = npt.NDArray[Any]


class ErrorLimits(NamedTuple):
    """The limits of a type. `most` is the largest absolute error that passes, `mean` limits the mean relative error."""

    rtol: float
    atol: float
    most: float
    mean: float
    small: float
    small_error: float


BARS = {
    "float16": ErrorLimits(2.0**-9, 2.0**-9, 1e-1, 2.0**-10, 2.0**-11, 2.0**-16),
    "bfloat16": ErrorLimits(2.0**-6, 2.0**-6, 1.0, 2.0**-7, 2.0**-8, 2.0**-16),
    "float32": ErrorLimits(2.0**-10, 2.0**-16, 1e-2, 2.0**-13, 2.0**-14, 2.0**-30),
}
SMALL = 1e-7  # the rule adds this to the magnitude of an element
SHARE, ULPS = 0.99, 32  # share of elements within the tolerance; units in the last place that always pass


def passes_mixed(bars: ErrorLimits, inside: float, largest: float, ulps: float) -> bool:
    """Return whether the mixed tolerance passes: the share of elements inside, and the largest error, absolute and in
    ulp."""
    return inside >= SHARE and (largest <= bars.most or ulps <= ULPS)


def passes_mere_mare(bars: ErrorLimits, mere: float, mare: float) -> bool:
    """Return whether the older rule passes: the mean and the largest relative error."""
    return mere < bars.mean and mare < 10 * bars.mean


def vendor_of(pair: Pair, context: ReadContext = ANYWHERE) -> Optional[AscendCriteria]:
    """The vendor's statistics of a pair, whose values are read once more; None if values are missing or not comparable,
    or the vendor has no limits for their type. Empty tensors pass. Raises NpucmpError for values that cannot be read.
    """
    if pair.target is None or pair.golden is None:
        return None
    x, y = payload_of(pair.target, context=context), payload_of(pair.golden, context=context)
    figures = figures_of(pair, x, y)
    if x is None or y is None or figures is None:
        return None
    from npucmp.dump.readers.values import blocks

    for a, b in zip_longest(blocks(x, READ, context=context), blocks(y, READ, context=context)):
        figures.add(a, b)
    return figures.result()


def figures_of(pair: Pair, x: Optional[Payload], y: Optional[Payload]) -> Optional[PairFigures]:
    """An accumulator for the blocks of both sides; None if the vendor's rules do not cover the pair."""
    if pair.target is None or pair.golden is None or x is None or y is None or not alike(x, y):
        return None
    kinds = [lookup(tensor.dtype) or lookup(one.dtype) for tensor, one in ((pair.target, x), (pair.golden, y))]
    if kinds[0] is None or kinds[1] is None:
        return None
    dtype = narrower(kinds[0], kinds[1])
    bars = BARS.get(dtype.name)
    return None if bars is None else PairFigures(pair.slot, dtype, bars)


class PairFigures:
    """The vendor's statistics of one pair, block by block."""

    def __init__(self, slot: str, dtype: Dtype, bars: ErrorLimits) -> None:
        self.slot, self.dtype, self.bars = slot, dtype, bars
        self.compared = self.mismatched = self.inside = self.small = self.small_wrong = 0
        self.total = self.mare = self.largest = self.ulps = 0.0

    def add(self, x: Array, y: Array) -> None:
        """Add one block of both sides."""

        target, golden = x.astype(np.float64), y.astype(np.float64)
        finite = np.isfinite(target) & np.isfinite(golden)
        same = (target == golden) | (np.isnan(target) & np.isnan(golden))
        self.mismatched += int(np.count_nonzero(~finite & ~same))
        target, golden = target[finite], golden[finite]
        if not target.size:
            return
        away, size = np.abs(target - golden), np.abs(golden)
        relative = away / (size + SMALL)
        self.compared += away.size
        self.total, self.mare = self.total + float(relative.sum()), max(self.mare, float(relative.max()))
        self.largest = max(self.largest, float(away.max()))
        self.inside += int(np.count_nonzero(away <= self.bars.atol + self.bars.rtol * size))
        ulps = away / (2 * self.dtype.round_off * np.maximum(size, self.dtype.tiny))
        self.ulps = max(self.ulps, float(ulps.max()))
        is_small = size < self.bars.small
        self.small += int(np.count_nonzero(is_small))
        self.small_wrong += int(np.count_nonzero(is_small & (away > self.bars.small_error)))

    def result(self) -> AscendCriteria:
        """The result of all blocks."""
        bars, compared, mismatched = self.bars, self.compared, self.mismatched
        share = self.inside / (compared + mismatched) if compared + mismatched else 1.0
        mere, mare = (self.total / compared if compared else 0.0, self.mare) if not mismatched else (math.inf, math.inf)
        largest, ulps = (self.largest, self.ulps) if not mismatched else (math.inf, math.inf)
        return AscendCriteria(self.slot, self.dtype.name, compared, mismatched, mere, mare, share, largest, self.small,
                      self.small_wrong, passes_mixed(bars, share, largest, ulps), passes_mere_mare(bars, mere, mare),
                      bars._asdict())  # fmt: skip
