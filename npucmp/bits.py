"""Are two tensors the same bits, and if not, where do they differ? Equal bytes are settled without their values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Iterable, Iterator, NamedTuple, Optional

from npucmp.dtypes import lookup
from npucmp.errors import NpucmpError
from npucmp.judge import STATISTICS_SLACK
from npucmp.measure import READ, measure, payload_of
from npucmp.model import Finding, Measurement, Moments, Pair, Payload, TensorRef, Verdict
from npucmp.precision import round_off_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Places = npt.NDArray[np.int64]

CHUNK = 1 << 18  # bytes compared at once: what malloc hands out again without asking the system
PLACES = 1 << 22  # differing elements that are kept to look for a pattern
BLOCK = 2048  # elements; device buffers are handed out and copied in multiples of it
DENSE = 0.9  # share of a piece of memory that differs where something else was written over it
FEW_LINES = 0.25  # share of the rows, or columns, that hold all that differs
PER_LINE = 8  # elements that differ in each of them, on average: by chance they would lie in many more
ROUNDINGS = 16.0  # round-offs between two sums of the same terms, in units of the tensor's root mean square


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
    masks = _differing(target, golden).number if moments.masked and not moments.max_abs else 0
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


def pattern(measurement: Measurement) -> str:
    """Where two tensors differ, and what such a pattern often comes from, as a hint; "" if that cannot be told."""
    pair, moments = measurement.pair, measurement.moments
    if pair.target is None or pair.golden is None or moments is None:
        return ""
    try:
        payload = payload_of(pair.golden)
        found = _differing(pair.target, pair.golden)
    except NpucmpError:
        return ""
    if payload is None or not found.number:
        return ""
    places, total = found.places, math.prod(payload.shape)
    if found.number == total:
        return by_rounding(moments, pair, found.number)
    lines = _lines(places, payload) if places is not None else ""
    hint = by_rounding(moments, pair, found.number)
    scattered = f"they are scattered; {hint}" if hint else "they are scattered"
    return _block(found, payload) or _piece(found, payload) or lines or scattered


class Differing(NamedTuple):
    """How many elements differ, from the first to before `end`, in C order.

    `places` are all of them, None where there are too many.
    """

    number: int
    first: int
    end: int
    places: "Optional[Places]"


def _differing(one: TensorRef, other: TensorRef) -> Differing:
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


def _block(found: Differing, payload: Payload) -> str:
    """One or more pieces of memory that begin at a multiple of BLOCK and differ nearly everywhere."""
    where = ""
    if payload.device is not None:
        if found.places is None or math.prod(payload.device.shape) > PLACES:
            return ""
        found = _in_memory(found.places, payload)
        where = f" in memory ({payload.device.layout})"
    total = math.prod(payload.device.shape if payload.device else payload.shape)
    first, length = found.first, found.end - found.first
    hint = "; hint: memory overwritten, or copied before it was written"
    last = payload.shape[-1] if payload.shape and payload.device is None else 0
    if last and first % last == 0 and length % last == 0:
        hint += f", or {length // last:,} rows of the last axis computed in another order"
    if first % BLOCK == 0 and BLOCK * DENSE <= found.number >= DENSE * length:
        return f"one block of {length:,} elements from {first:,} on{where}, a multiple of {BLOCK:,}{hint}"
    if found.places is None or total < 2 * BLOCK:
        return ""
    import numpy as np

    blocks = np.unique(found.places // BLOCK)
    if 1 < len(blocks) <= FEW_LINES * total / BLOCK and found.number >= DENSE * BLOCK * len(blocks):
        starts = _some(block * BLOCK for block in blocks.tolist())
        return f"{len(blocks):,} blocks of {BLOCK:,} elements{where}, from {starts} on{hint}"
    return ""


def _in_memory(places: "Places", payload: Payload) -> Differing:
    """The same elements where the device stored them."""
    import numpy as np

    from npucmp.layouts import to_logical

    device = payload.device
    assert device is not None
    stored = np.arange(math.prod(device.shape)).reshape(device.shape)
    logical = to_logical(stored, device.layout, device.origin, payload.shape, device.groups)
    moved = np.sort(logical.reshape(-1)[places])
    return Differing(len(moved), int(moved[0]), int(moved[-1]) + 1, moved)


class Line(NamedTuple):
    """A way to cut a tensor: the line of each differing element, how many lines there are, and the elements of each."""

    what: str
    lines: "Places"
    number: int
    length: int
    hint: str


def _lines(places: "Places", payload: Payload) -> str:
    """Few rows, columns, slices or blocks of channels that hold all that differs."""
    import numpy as np

    best, least = "", math.inf
    for cut in _cuts(places, payload):
        names = np.unique(cut.lines)
        number, size = len(names), len(names) * cut.length
        whole = len(places) == size > number
        few = number <= FEW_LINES * cut.number and len(places) >= PER_LINE * number
        cost = number + (0 if whole else PER_LINE)  # a few whole lines say more than a part of one
        if number == cut.number or cost >= least or not (whole or few):
            continue
        share = "all" if whole else f"{len(places) / size:.0%}"
        which = f"in {number:,} of {cut.number:,} {cut.what} only ({_some(names.tolist())})"
        best, least = f"{which}, {share} of their elements; hint: {cut.hint}", cost
    return best


def _cuts(places: "Places", payload: Payload) -> "Iterator[Line]":
    shape = payload.shape
    total, last = math.prod(shape), shape[-1] if shape else 1
    tile = "a tile computed by another core, or in another order"
    device = payload.device
    if device is not None and "C1HWC0" in device.layout and len(device.origin) == len(shape):
        axis, c0 = device.origin.index("C"), device.shape[-1]
        if shape[axis] % c0 == 0:
            channels = places // math.prod(shape[axis + 1 :]) % shape[axis]
            number = shape[axis] // c0
            yield Line(f"blocks of C0={c0} channels", channels // c0, number, total // number, tile)
    if 1 < last < total:
        yield Line("rows of the last axis", places // last, total // last, last, tile)
        hint = "sums over the other axes, in another order"
        yield Line("columns of the last axis", places % last, last, total // last, hint)
    for axis in range(len(shape) - 1 if len(shape) > 2 else 0):
        inner = math.prod(shape[axis + 1 :])
        if 1 < shape[axis] < total:
            yield Line(f"slices of axis {axis}", places // inner % shape[axis], shape[axis], total // shape[axis], tile)


def _some(numbers: "Iterable[int]") -> str:
    first = [f"{number:,}" for number in numbers]
    return ", ".join(first[:3]) + (" …" if len(first) > 3 else "")


def _piece(found: Differing, payload: Payload) -> str:
    """One piece that differs nearly everywhere, and is no whole rows."""
    first, length, last = found.first, found.end - found.first, payload.shape[-1] if payload.shape else 1
    if found.number < max(PER_LINE, DENSE * length) or (first % last == 0 and length % last == 0):
        return ""
    if found.end == math.prod(payload.shape):
        return f"the tail from element {first:,} on; hint: memory beyond the result, or a tail block computed apart"
    return f"one piece, from element {first:,} to {found.end - 1:,}; hint: memory overwritten"


def by_rounding(moments: Moments, pair: Pair, differing: int) -> str:
    """The hint that differences as small as those of sums in another order allow."""
    if moments.mismatched or not moments.yy or not moments.sum_dd:
        return ""
    size = math.sqrt(moments.sum_dd / differing / (moments.yy / max(1, moments.compared)))
    if size > ROUNDINGS * round_off_of(pair):
        return ""
    return "hint: roundings, as of sums accumulated in another order (atomic additions, split reductions)"
