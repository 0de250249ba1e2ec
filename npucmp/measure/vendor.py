"""The vendor's own rules for single operators: its engineers ask by them.

    mixed tolerance     at least 99 % of elements within atol + rtol·|y|, and max |x - y| ≤ max(limit, 32 ulp)
    MERE and MARE       mean and largest |x - y| / (|y| + 1e-7): below t, and below 10 t (the older rule)
    small values        where |y| < s a relative error means nothing: |x - y| > e is wrong

Source: the precision standards that CANN's operator repositories publish; tables by type, which they change.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple, Optional

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.measure.pairs import READ, alike, payload_of
from npucmp.model.accused import Vendor
from npucmp.model.dtypes import lookup, narrower
from npucmp.model.dump import Payload
from npucmp.model.pair import Pair


class Bars(NamedTuple):
    """Limits of a type; `most` is the largest error that passes, `mean` that of the mean relative error."""

    rtol: float
    atol: float
    most: float
    mean: float
    small: float
    small_error: float


BARS = {
    "float16": Bars(2.0**-9, 2.0**-9, 1e-1, 2.0**-10, 2.0**-11, 2.0**-16),
    "bfloat16": Bars(2.0**-6, 2.0**-6, 1.0, 2.0**-7, 2.0**-8, 2.0**-16),
    "float32": Bars(2.0**-10, 2.0**-16, 1e-2, 2.0**-13, 2.0**-14, 2.0**-30),
}
SMALL = 1e-7  # what the vendor adds to the size of an element
SHARE, ULPS = 0.99, 32  # of elements within the tolerance; units in the last place that pass whatever the limit is


def passes_mixed(bars: Bars, inside: float, largest: float, ulps: float) -> bool:
    """The mixed tolerance, of the share of elements inside, and the largest error, plainly and in ulp."""
    return inside >= SHARE and (largest <= bars.most or ulps <= ULPS)


def passes_mere_mare(bars: Bars, mere: float, mare: float) -> bool:
    """The older rule, of the mean and the largest relative error."""
    return mere < bars.mean and mare < 10 * bars.mean


def vendor_of(pair: Pair, context: ReadContext = ANYWHERE) -> Optional[Vendor]:
    """The figures of a pair, whose values are read once more; None where they cannot be compared, are not there, or the
    vendor has no limits for their type. Empty tensors pass. Raises NpucmpError for values that cannot be read."""
    if pair.target is None or pair.golden is None:
        return None
    x, y = payload_of(pair.target, context=context), payload_of(pair.golden, context=context)
    if x is None or y is None or not alike(x, y):
        return None
    kinds = [lookup(tensor.dtype) or lookup(one.dtype) for tensor, one in ((pair.target, x), (pair.golden, y))]
    if kinds[0] is None or kinds[1] is None:
        return None
    dtype = narrower(kinds[0], kinds[1])
    bars = BARS.get(dtype.name)
    return None if bars is None else _read(pair.slot, dtype.name, bars, x, y, context)


def _read(slot: str, name: str, bars: Bars, x: Payload, y: Payload, context: ReadContext) -> Vendor:
    import numpy as np

    from npucmp.dump.readers.values import blocks

    dtype = lookup(name)
    assert dtype is not None
    compared = mismatched = inside = small = small_wrong = 0
    total = mare = largest = ulps = 0.0
    for a, b in zip_longest(blocks(x, READ, context=context), blocks(y, READ, context=context)):
        target, golden = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(target) & np.isfinite(golden)
        same = (target == golden) | (np.isnan(target) & np.isnan(golden))
        mismatched += int(np.count_nonzero(~finite & ~same))
        target, golden = target[finite], golden[finite]
        if not target.size:
            continue
        away, size = np.abs(target - golden), np.abs(golden)
        relative = away / (size + SMALL)
        compared += away.size
        total, mare = total + float(relative.sum()), max(mare, float(relative.max()))
        largest = max(largest, float(away.max()))
        inside += int(np.count_nonzero(away <= bars.atol + bars.rtol * size))
        ulps = max(ulps, float((away / (2 * dtype.round_off * np.maximum(size, dtype.tiny))).max()))
        is_small = size < bars.small
        small += int(np.count_nonzero(is_small))
        small_wrong += int(np.count_nonzero(is_small & (away > bars.small_error)))
    share = inside / (compared + mismatched) if compared + mismatched else 1.0
    mere, mare = (total / compared if compared else 0.0, mare) if not mismatched else (math.inf, math.inf)
    largest, ulps = (largest, ulps) if not mismatched else (math.inf, math.inf)
    return Vendor(slot, name, compared, mismatched, mere, mare, share, largest, small, small_wrong,
                  passes_mixed(bars, share, largest, ulps), passes_mere_mare(bars, mere, mare),
                  bars._asdict())  # fmt: skip
