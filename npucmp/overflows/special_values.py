"""Special values of one tensor at the limits of its type: NaN, Inf, saturated values, and the headroom."""

from __future__ import annotations

import math
from typing import Optional

from npucmp.measure.range_scan import ScanResult
from npucmp.model import Evidence, Extremes, Fact, TensorRef, position
from npucmp.model.dtypes import lookup

SCALED_TO_THE_LIMIT = 0.25  # share of an 8-bit tensor (or smaller) at its largest value because it was scaled to it


def kinds_of(tensor: TensorRef, extremes: Optional[Extremes]) -> list[str]:
    """The kinds of events in a tensor."""
    if extremes is None:
        return []
    limits = extremes.high + extremes.low
    row = lookup(tensor.dtype)
    if row is not None and row.itemsize == 1 and limits <= max(1, SCALED_TO_THE_LIMIT * extremes.elements):
        limits = 0  # quantisation scales the largest value to the limit by design, and rounds others to it
    counts = (("nan", extremes.nan), ("inf", extremes.inf), ("saturated", limits))
    return [kind for kind, count in counts if count]


def headroom(tensor: TensorRef, extremes: Optional[Extremes]) -> Optional[float]:
    """log2(largest finite value of the type / largest finite magnitude), in bits; None for other types and zeros."""
    row = lookup(tensor.dtype)
    if extremes is None or row is None or row.kind != "f" or not extremes.largest > 0:
        return None
    return math.log2(row.largest / extremes.largest)


def amount(kind: str, one: ScanResult) -> Evidence:
    """Evidence with the number of such elements and the first position."""
    x, tensor = one.extremes, one.tensor
    assert x is not None
    what, counted = {
        "nan": ("{slot}: NaN", "{slot}: {count} of {all} NaN"),
        "inf": ("{slot}: Inf", "{slot}: {count} of {all} Inf"),
        "saturated": (
            "{slot}: values at ±{largest:g}, the largest of {dtype}",
            "{slot}: {count} of {all} values at ±{largest:g}, the largest of {dtype}",
        ),
    }[kind]
    facts = {"slot": Fact(tensor.slot), "largest": Fact(x.largest), "dtype": Fact(tensor.dtype)}
    if not one.counted:
        return Evidence("amount", f"{what}, by its statistics", facts)
    count, first = x.of(kind)
    facts.update(count=Fact(count, one.operator.name, tensor.slot), all=Fact(x.elements))
    facts.update(first=Fact(position(first, tensor.shape)))
    where = ", the first at {first}" if tensor.shape else ""
    return Evidence("amount", counted + where, facts)
