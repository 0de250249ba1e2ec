"""Are two tensors the same bits, and if not, where do they differ? Equal bytes are settled without looking at values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional

from npucmp.dtypes import lookup
from npucmp.errors import NpucmpError
from npucmp.measure import READ, measure, payload_of
from npucmp.model import Finding, Measurement, Pair, Payload, TensorRef, Verdict

if TYPE_CHECKING:
    import numpy.typing as npt

CHUNK = 1 << 20  # bytes compared at once: two of them stay in the cache
PLACES = 1 << 22  # differing elements that are kept to look for a pattern
BLOCK = 2048  # elements; device buffers are handed out and copied in multiples of it
FEW_ULP = 16


def measure_bits(pair: Pair) -> Measurement:
    """`same` for equal bytes; everything that measure tells for others. Never raises for what a dump holds."""
    if pair.target is None or pair.golden is None:
        return Measurement(pair)
    read = _same_bytes(pair.target, pair.golden)
    return measure(pair) if read is None else Measurement(pair, same=True, bytes_read=read)


def same(one: TensorRef, other: TensorRef, pair: Pair) -> Optional[bool]:
    """Whether two tensors of one slot hold the same values; None if that cannot be told."""
    measurement = measure_bits(Pair(pair.order, pair.slot, pair.target_op, pair.golden_op, one, other, pair.via))
    verdict = judge_bits(measurement).verdict
    return {Verdict.MATCH: True, Verdict.DIVERGED: False, Verdict.NONFINITE: False}.get(verdict)


def _same_bytes(one: TensorRef, other: TensorRef) -> Optional[int]:
    """Bytes read of two payloads that lie in one piece and are equal; None if they are not, or cannot be compared so."""
    try:
        x, y = payload_of(one), payload_of(other)
        if x is None or y is None or not (_in_one_piece(x) and _in_one_piece(y)):
            return None
        if (x.dtype, x.shape, x.byteorder, x.device) != (y.dtype, y.shape, y.byteorder, y.device):
            return None
        return _equal_bytes(x, y)
    except NpucmpError:
        return None  # measure says why


def _in_one_piece(payload: Payload) -> bool:
    return not (payload.strides or payload.parts or payload.dataset)


def _equal_bytes(x: Payload, y: Payload) -> Optional[int]:
    from npucmp.readers.files import open_regular

    row = lookup(x.dtype)
    size = row.stored(math.prod(x.device.shape if x.device else x.shape)) if row else 0
    with open_regular(x.path) as left, open_regular(y.path) as right:
        for at in range(0, size, CHUNK):
            length = min(CHUNK, size - at)
            if left.read(x.offset + at, length) != right.read(y.offset + at, length):
                return None
    return 2 * size


def judge_bits(measurement: Measurement) -> Finding:
    """A Finding without any tolerance: the same values or not. The sign of a zero and the payload of a NaN are told,
    and are no difference."""
    pair, moments = measurement.pair, measurement.moments
    if measurement.problem:
        return Finding(measurement, Verdict.UNREADABLE, measurement.problem)
    if pair.target is None or pair.golden is None:
        return Finding(measurement, Verdict.UNKNOWN if pair.operator.inserted else Verdict.MISSING, pair.note)
    if measurement.unlike:
        verdict = Verdict.SHAPE if measurement.shapes_differ else Verdict.DTYPE
        return Finding(measurement, verdict, measurement.unlike, math.inf if measurement.shapes_differ else None)
    if measurement.same is not None:
        if measurement.same:
            return Finding(measurement, Verdict.MATCH, "the same bits", 0.0)
        return Finding(measurement, Verdict.DIVERGED, "checksums differ", math.nan, metric="checksum")
    if moments is None:
        if measurement.bound:
            return Finding(measurement, Verdict.DIVERGED, "its statistics differ", math.nan, metric="rel_l2")
        return Finding(measurement, Verdict.UNKNOWN, "only statistics are known: they prove no equality of bits")
    if moments.equal == moments.count:
        return Finding(measurement, Verdict.MATCH, "the same bits", 0.0)
    differing = moments.count - moments.equal
    if moments.mismatched:
        words = f"{moments.mismatched} of {moments.count} positions are NaN or Inf in one run only"
        return Finding(measurement, Verdict.NONFINITE, words, math.inf, metric="nonfinite_mismatch")
    if not moments.max_abs:
        words = f"the same values; {differing} differ in the sign of a zero, a NaN's payload or a masked value only"
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    error = math.sqrt(moments.sum_dd / moments.yy) if moments.yy else math.inf
    ulp = "" if moments.max_ulp is None else f", {moments.max_ulp} ulp"
    words = f"{differing:,} of {moments.count:,} elements differ, by up to {moments.max_abs:.3g}{ulp}"
    return Finding(measurement, Verdict.DIVERGED, words, error, metric="exact_ratio")


def pattern(pair: Pair, max_ulp: Optional[int]) -> str:
    """Where two tensors differ, and what such a pattern often comes from, as a hint; "" if nothing stands out."""
    if pair.target is None or pair.golden is None:
        return ""
    try:
        places, count = _differing(pair.target, pair.golden)
    except NpucmpError:
        return ""
    shape = pair.target.shape
    return _in_words(places, count, shape, max_ulp) if count and len(places) == count else ""


def _differing(one: TensorRef, other: TensorRef) -> "tuple[npt.NDArray[Any], int]":
    """Flat indices of the elements that differ, and how many there are."""
    import numpy as np

    from npucmp.readers.values import blocks

    x, y = payload_of(one), payload_of(other)
    if x is None or y is None:
        return np.zeros(0, np.int64), 0
    found, count, start = [], 0, 0
    for a, b in zip(blocks(x, READ), blocks(y, READ)):
        wide_a, wide_b = (v.astype(np.float64) if v.dtype.kind not in "biuc" else v for v in (a, b))
        differs = np.flatnonzero((wide_a != wide_b) & ~((wide_a != wide_a) & (wide_b != wide_b)))
        if count < PLACES:
            found.append(differs + start)
        count += len(differs)
        start += len(a)
    return (np.concatenate(found) if found else np.zeros(0, np.int64)), count


def _in_words(places: "npt.NDArray[Any]", count: int, shape: "tuple[int, ...]", max_ulp: Optional[int]) -> str:
    total, last = math.prod(shape), shape[-1] if shape else 1
    first, end = int(places[0]), int(places[-1]) + 1
    if count == total:
        return "every element differs" + _by_rounding(max_ulp)
    whole = end - first == count
    if whole and count > 1 and end == total and first:
        return f"the tail from element {first:,} on; hint: memory beyond the result, or a tail block computed apart"
    if whole and count >= BLOCK and (first % BLOCK == 0 or count % BLOCK == 0):
        return f"one block of {count:,} elements from {first:,}; hint: memory overwritten, or copied too early"
    rows = _whole_lines(places // last, last)
    if rows and last > 1:
        return f"{rows} whole rows of the last axis; hint: a row or tile computed by another core or in another order"
    columns = _whole_lines(places % last, total // last)
    if columns and total > last > 1:
        return f"{columns} whole columns of the last axis; hint: a reduction over the other axes in another order"
    return f"scattered over {count:,} of {total:,} elements" + _by_rounding(max_ulp)


def _whole_lines(lines: "npt.NDArray[Any]", length: int) -> int:
    """How many lines the places make up, if they are whole lines of that length and nothing else."""
    import numpy as np

    names, counts = np.unique(lines, return_counts=True)
    return len(names) if (counts == length).all() else 0


def _by_rounding(max_ulp: Optional[int]) -> str:
    if max_ulp is None or max_ulp > FEW_ULP:
        return ""
    return f", by at most {max_ulp} ulp; hint: sums accumulated in another order (atomic additions, split reductions)"
