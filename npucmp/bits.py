"""Are two tensors the same bits, and if not, where do they differ? Equal bytes are settled without their values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Optional

from npucmp.dtypes import lookup
from npucmp.errors import NpucmpError
from npucmp.judge import STATISTICS_SLACK
from npucmp.measure import READ, measure, payload_of
from npucmp.model import Finding, Measurement, Moments, Pair, Payload, TensorRef, Verdict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Places = npt.NDArray[np.int64]

CHUNK = 1 << 18  # bytes compared at once: what malloc hands out again without asking the system
PLACES = 1 << 22  # differing elements whose places are kept


def measure_bits(pair: Pair) -> Measurement:
    """`same` for equal bytes; everything that measure tells for others. Never raises for what a dump holds."""
    if pair.target is None or pair.golden is None:
        return Measurement(pair)
    read = same_bytes(pair.target, pair.golden)
    return measure(pair) if read is None else Measurement(pair, same=True, bytes_read=read)


def same(one: TensorRef, other: TensorRef, pair: Pair) -> Optional[bool]:
    """Whether two tensors of one slot hold the same values; None if that cannot be told."""
    measurement = measure_bits(Pair(pair.order, pair.slot, pair.target_op, pair.golden_op, one, other, pair.via))
    verdict = judge_bits(measurement).verdict
    return {Verdict.MATCH: True, Verdict.DIVERGED: False, Verdict.NONFINITE: False}.get(verdict)


def same_bytes(one: TensorRef, other: TensorRef) -> Optional[int]:
    """Bytes read of two payloads that lie in one piece and are equal; None if they are not, or do not."""
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
    if row is None:
        return None
    size = row.stored(math.prod(x.device.shape if x.device else x.shape))
    with open_regular(x.path) as left, open_regular(y.path) as right:
        for at in range(0, size, CHUNK):
            length = min(CHUNK, size - at)
            if left.read(x.offset + at, length) != right.read(y.offset + at, length):
                return None
    return 2 * size


def judge_bits(measurement: Measurement) -> Finding:
    """A Finding without any tolerance: the same values or not. The sign of a zero and the payload of a NaN are told,
    and are no difference; neither is padding beyond the logical shape."""
    pair, moments = measurement.pair, measurement.moments
    if measurement.problem:
        return Finding(measurement, Verdict.UNREADABLE, measurement.problem)
    if pair.target is None or pair.golden is None:
        return Finding(measurement, Verdict.UNKNOWN if pair.is_inside else Verdict.MISSING, pair.note)
    if measurement.unlike:
        verdict = Verdict.SHAPE if measurement.shapes_differ else Verdict.DTYPE
        return Finding(measurement, verdict, measurement.unlike, math.inf if measurement.shapes_differ else None)
    if measurement.same is not None:
        if measurement.same:
            return Finding(measurement, Verdict.MATCH, "the same bits", 0.0)
        return Finding(measurement, Verdict.DIVERGED, "checksums differ", math.nan, metric="checksum")
    if moments is None:
        return _by_statistics(measurement)
    return _by_values(measurement, moments, pair.target, pair.golden)


def _by_statistics(measurement: Measurement) -> Finding:
    """Extremes that differ prove a difference; sums only if they differ by more than their own rounding."""
    pair, bound = measurement.pair, measurement.bound
    if bound is None:
        return Finding(measurement, Verdict.UNKNOWN, "the dumps kept neither values nor comparable statistics")
    extremes = [None if one is None else one[:2] for one in measurement.statistics]
    recorded = not any(tensor is None or tensor.file for tensor in (pair.target, pair.golden))
    if bound > STATISTICS_SLACK or (recorded and bound and extremes[0] != extremes[1]):
        return Finding(measurement, Verdict.DIVERGED, "its statistics differ", math.nan, metric="rel_l2")
    return Finding(measurement, Verdict.UNKNOWN, "only statistics are known: they prove no equality of bits")


def _by_values(measurement: Measurement, moments: Moments, target: TensorRef, golden: TensorRef) -> Finding:
    differing = moments.count - moments.equal
    if not differing:
        words = "the same bits" if target.dtype == golden.dtype else f"equal values, in {target.dtype} {golden.dtype}"
        if _is_padded(target, golden):
            words = "the same values; only the padding beyond the logical shape differs; hint: uninitialised padding"
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    if moments.mismatched:
        words = f"{moments.mismatched:,} of {moments.count:,} positions are NaN or Inf in one run only"
        return Finding(measurement, Verdict.NONFINITE, words, math.inf, metric="nonfinite_mismatch")
    masks = differences(target, golden).number if moments.masked and not moments.max_abs else 0
    if masks:
        words = f"{masks:,} of {moments.count:,} elements differ, all of them masks (minus infinity and the like)"
        return Finding(measurement, Verdict.DIVERGED, words, math.nan, metric="exact_ratio")
    if not moments.max_abs:
        words = (
            f"the same values; {differing:,} differ in the sign of a zero or the payload of a NaN, which is harmless"
        )
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    error = math.sqrt(moments.sum_dd / moments.yy) if moments.yy else math.inf
    ulp = "" if moments.max_ulp is None else f", {moments.max_ulp:,} ulp"
    words = f"{differing:,} of {moments.count:,} elements differ, by up to {moments.max_abs:.3g}{ulp}"
    return Finding(measurement, Verdict.DIVERGED, words, error, metric="exact_ratio")


def _is_padded(target: TensorRef, golden: TensorRef) -> bool:
    """Whether both are stored alike, with padding: then their bytes were compared first, and differ."""
    try:
        x, y = payload_of(target), payload_of(golden)
    except NpucmpError:
        return False
    return x is not None and y is not None and _in_one_piece(x) and x.device is not None and x.device == y.device


class Differing(NamedTuple):
    """How many elements differ, from the first to before `end`, in C order.

    `places` are all of them, None where there are too many.
    """

    number: int
    first: int
    end: int
    places: "Optional[Places]"


def differences(one: TensorRef, other: TensorRef) -> Differing:
    import numpy as np

    from npucmp.readers.values import blocks

    x, y = payload_of(one), payload_of(other)
    found, count, start = [], 0, 0
    for a, b in zip(blocks(x, READ), blocks(y, READ)) if x is not None and y is not None else ():
        wide_a, wide_b = (v.astype(np.float64) if v.dtype.kind not in "biuc" else v for v in (a, b))
        differs = np.flatnonzero((wide_a != wide_b) & ~((wide_a != wide_a) & (wide_b != wide_b)))
        if len(differs) and count <= PLACES:
            found.append(differs + start)
        elif len(differs):
            found[-1] = differs + start  # for the end
        count += len(differs)
        start += len(a)
    if not count:
        return Differing(0, 0, 0, None)
    places = np.concatenate(found) if count <= PLACES else None
    return Differing(count, int(found[0][0]), int(found[-1][-1]) + 1, places)
