"""Are two tensors the same bits, and if not, where do they differ? Equal bytes are settled without their values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from npucmp.dtypes import lookup
from npucmp.errors import NpucmpError
from npucmp.judge import STATISTICS_SLACK
from npucmp.measure import READ, measure, payload_of
from npucmp.model import Finding, Measurement, Moments, Pair, Payload, Spots, TensorRef, Verdict

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Places = npt.NDArray[np.int64]

CHUNK = 1 << 18  # bytes compared at once: what malloc hands out again without asking the system
PLACES = 1 << 22  # differing elements whose places are kept, and whose bits are looked at
DOWN, ACROSS = 24, 64  # cells of the picture of them


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
    try:
        return _by_values(measurement, moments, pair.target, pair.golden)
    except NpucmpError as error:  # it could be read when it was measured
        return Finding(measurement, Verdict.UNREADABLE, str(getattr(error, "because", error)))


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
    differing = moments.elements - moments.equal
    if not differing:
        words = "the same bits" if target.dtype == golden.dtype else f"equal values, in {target.dtype} {golden.dtype}"
        if _is_padded(target, golden):
            words = "the same values; only the padding beyond the logical shape differs; hint: uninitialised padding"
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    if moments.mismatched:
        words = f"{moments.mismatched:,} of {moments.elements:,} positions are NaN or Inf in one run only"
        return Finding(measurement, Verdict.NONFINITE, words, math.inf, metric="nonfinite_mismatch")
    masks = differences(target, golden).number if moments.masked and not moments.max_abs else 0
    if masks:
        words = f"{masks:,} of {moments.elements:,} elements differ, all of them masks (minus infinity and the like)"
        return Finding(measurement, Verdict.DIVERGED, words, math.nan, metric="exact_ratio")
    if not moments.max_abs:
        words = (
            f"the same values; {differing:,} differ in the sign of a zero or the payload of a NaN, which is harmless"
        )
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    error = math.sqrt(moments.sum_dd / moments.yy) if moments.yy else math.inf
    ulp = "" if moments.max_ulp is None else f", {moments.max_ulp:,} ulp"
    words = f"{differing:,} of {moments.elements:,} elements differ, by up to {moments.max_abs:.3g}{ulp}"
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

    `places` are all of them, None where there are too many; `spots` is their picture.
    """

    number: int
    first: int
    end: int
    places: "Optional[Places]"
    spots: Optional[Spots] = None


def differences(one: TensorRef, other: TensorRef) -> Differing:
    import numpy as np

    from npucmp.readers.values import blocks

    x, y = payload_of(one), payload_of(other)
    found, count, start = [], 0, 0
    picture = _Picture(x, y) if x is not None and y is not None else None
    for a, b in zip(blocks(x, READ), blocks(y, READ)) if x is not None and y is not None else ():
        wide_a, wide_b = (v.astype(np.float64) if v.dtype.kind not in "biuc" else v for v in (a, b))
        differs = np.flatnonzero((wide_a != wide_b) & ~((wide_a != wide_a) & (wide_b != wide_b)))
        if picture is not None and len(differs):
            picture.add(differs + start, a[differs], b[differs])
        if len(differs) and count <= PLACES:
            found.append(differs + start)
        elif len(differs):
            found[-1] = differs + start  # for the end
        count += len(differs)
        start += len(a)
    if not count or picture is None:
        return Differing(0, 0, 0, None)
    places = np.concatenate(found) if count <= PLACES else None
    return Differing(count, int(found[0][0]), int(found[-1][-1]) + 1, places, picture.spots())


class _Picture:
    """Counts where elements differ, in a grid of at most DOWN × ACROSS cells, and in which bits."""

    def __init__(self, x: Payload, y: Payload) -> None:
        import numpy as np

        self.columns = next((length for length in reversed(y.shape) if length > 1), 1)
        self.rows = max(1, math.prod(y.shape) // self.columns)
        self.down, self.across = min(DOWN, self.rows), min(ACROSS, self.columns)
        self.counts = np.zeros(self.down * self.across, np.int64)
        row = lookup(y.dtype)
        self.dtype = y.dtype
        self.size = row.itemsize if row and x.dtype == y.dtype and not row.memory and row.kind != "c" else 0
        self.bytes = np.zeros((self.size, 256), np.int64)  # of the bits that differ, by byte from the lowest

    def add(self, places: "Places", a: "npt.NDArray[Any]", b: "npt.NDArray[Any]") -> None:
        """Elements that differ: their places, and their values."""
        import numpy as np

        row = places // self.columns  # several times as fast as divmod
        column = places - row * self.columns
        cells = row * self.down // self.rows * self.across + column * self.across // self.columns
        self.counts += np.bincount(cells, minlength=len(self.counts))
        if self.size and self.counts.sum() <= PLACES:
            unsigned = f"u{self.size}"
            changed = (a.view(unsigned) ^ b.view(unsigned)).astype(f"<{unsigned}", copy=False)
            for number, byte in enumerate(changed.view(np.uint8).reshape(-1, self.size).T):
                self.bytes[number] += np.bincount(byte, minlength=256)

    def spots(self) -> Spots:
        import numpy as np

        set_in = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # of each byte, from its highest
        bits = (self.bytes[::-1] @ set_in).reshape(-1).tolist()
        return Spots(self.dtype, self.rows, self.columns, self.across, tuple(self.counts.tolist()), tuple(bits))
