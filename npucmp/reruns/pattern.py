"""The pattern of elements in which two tensors differ, and its frequent causes: a hint, never a verdict."""

from __future__ import annotations

import math
from typing import Iterator, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import NpucmpError
from npucmp.judge.precision import coarser_round_off, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.measure.bitwise import PLACES, BitDifferences, differences
from npucmp.measure.pairs import payload_of
from npucmp.model import Evidence, Fact, Measurement, Moments, Pair, Payload, first_of, position

Places = npt.NDArray[np.int64]

# elements: chosen: device buffers are handed out and copied in multiples of it, not measured; for hints alone
BLOCK = 2048
# probability: chosen: differing elements that lie in a part by chance as often show nothing, not measured
CHANCE = 0.01
MEMORY = "memory overwritten"
OTHER_ORDER = "hint: rounding of sums accumulated in another order (atomic additions, split reductions)"
SQUARES = 3  # part of n³: definition: a third of it is the sum of the first n squares
SUMS = 4.0  # times the rounding of partial sums: chosen: both orders round, and not all sums are alike, not measured
TERMS = 1 << 22  # elements of an input that is read for its size: work
# share of a piece of memory: chosen: as much differs if other data was written over it, not measured; for hints alone
DENSE = 0.9
# share of the rows or columns: chosen: lines that hold all differing elements, not measured; for hints alone
FEW_LINES = 0.25
# elements that differ in a row or column: chosen: by chance they would lie in many more, not measured; for hints alone
PER_LINE = 8


def differing_elements(measurement: Measurement, context: ReadContext = ANYWHERE) -> Optional[BitDifferences]:
    """The elements in which two tensors differ; None if unknown or if there are none."""
    pair = measurement.pair
    if pair.target is None or pair.golden is None or measurement.moments is None:
        return None
    try:
        found = differences(pair.target, pair.golden, context)
    except NpucmpError:
        return None
    return found if found.number else None


def pattern(measurement: Measurement, found: BitDifferences, context: ReadContext = ANYWHERE) -> tuple[Evidence, ...]:
    """The evidence of the elements that `differing_elements` found: their places, and a frequent cause of such a
    pattern, as a hint."""
    pair, moments = measurement.pair, measurement.moments
    try:
        payload = payload_of(pair.golden, context=context) if pair.golden is not None else None
    except NpucmpError:  # the file was readable during measurement
        return ()
    if payload is None or moments is None:
        return ()
    places, total = found.places, math.prod(payload.shape)
    rounding = by_rounding(moments, pair, found.number) or _by_terms(moments, pair, found.number, context)
    if found.number == total:
        return rounding
    piece = _block(found, payload) or _piece(found, payload)
    if piece:
        return (piece[0], *rounding) if rounding and piece[1].words.startswith(f"hint: {MEMORY}") else piece
    lines = _lines(places, payload) if places is not None else ()
    is_dense = found.number >= max(PER_LINE, DENSE * (found.end - found.first))
    scattered = (
        () if is_dense else _box(places, payload.shape) or (Evidence("places", "the differing elements are scattered"),)
    )
    return lines or (*scattered, *rounding)


def _is_chance(number: int, part: int, total: int, ways: float) -> bool:
    """Whether `number` elements that differ at random among `total` may all lie in one of `ways` parts of `part`
    elements each; `ways` is a logarithm."""
    return ways + _log_choices(part, number) - _log_choices(total, number) > math.log(CHANCE)


def _log_choices(every: int, number: int) -> float:
    return math.lgamma(every + 1) - math.lgamma(number + 1) - math.lgamma(every - number + 1)


def _places(words: str, hint: str, **facts: int | str) -> tuple[Evidence, ...]:
    """The places of the differing elements, and a frequent cause."""
    values = {name: Fact(value) for name, value in facts.items()}
    return Evidence("places", words, values), Evidence("hint", f"hint: {hint}")


def _block(found: BitDifferences, payload: Payload) -> tuple[Evidence, ...]:
    """One or more pieces of memory that begin at a multiple of BLOCK and differ nearly everywhere."""
    where = ""
    if payload.device is not None:
        if found.places is None or math.prod(payload.device.shape) > PLACES:
            return ()
        found = _in_memory(found.places, payload)
        where = f" in memory ({payload.device.layout})"
    total = math.prod(payload.device.shape if payload.device else payload.shape)
    first, length = found.first, found.end - found.first
    hint = "memory overwritten, or copied before it was written"
    last = payload.shape[-1] if payload.shape and payload.device is None else 0
    if last and first % last == 0 and length % last == 0:
        hint += f", or {length // last:,} rows of the last axis computed in another order"
    is_chance = _is_chance(found.number, length, total, 0.0)
    if first % BLOCK == 0 and BLOCK * DENSE <= found.number >= DENSE * length and not is_chance:
        words = "one block of {length} elements from {first} on{where}, a multiple of {block}"
        return _places(words, hint, length=length, first=first, where=where, block=BLOCK)
    if found.places is None:
        return ()

    blocks = np.unique(found.places // BLOCK)
    if 1 < len(blocks) <= FEW_LINES * total / BLOCK and found.number >= DENSE * BLOCK * len(blocks):
        starts = first_of([f"{block * BLOCK:,}" for block in blocks.tolist()])
        words = "{number} blocks of {block} elements{where}, from {starts} on"
        return _places(words, hint, number=len(blocks), block=BLOCK, where=where, starts=starts)
    return ()


def _in_memory(places: Places, payload: Payload) -> BitDifferences:
    """The same elements in the device's storage order."""

    from npucmp.dump.layouts import to_logical

    device = payload.device
    assert device is not None
    stored = np.arange(math.prod(device.shape)).reshape(device.shape)
    logical = to_logical(stored, device.layout, device.origin, payload.shape, device.groups)
    moved = np.sort(logical.reshape(-1)[places])
    return BitDifferences(len(moved), int(moved[0]), int(moved[-1]) + 1, moved)


def _box(places: Optional[Places], shape: tuple[int, ...]) -> tuple[Evidence, ...]:
    """The part of each axis that holds all differing elements, if nearly all elements there differ."""

    if places is None:
        return ()
    ends = [(int(axis.min()), int(axis.max()) + 1) for axis in np.unravel_index(places, shape)]
    size = math.prod(stop - start for start, stop in ends)
    ways = sum(math.log(length * (length + 1) / 2) for length in shape)
    if len(places) < DENSE * size or _is_chance(len(places), size, math.prod(shape), ways):
        return ()
    parts = [":" if stop - start == length else f"{start}:{stop}" for (start, stop), length in zip(ends, shape)]
    return (Evidence("places", "all in the part {part}", {"part": Fact(f"[{', '.join(parts)}]")}),)


class TensorCut(NamedTuple):
    """A way to cut a tensor: the line of each differing element, how many lines there are, and the elements of each."""

    what: str
    lines: Places
    number: int
    length: int
    hint: str


def _lines(places: Places, payload: Payload) -> tuple[Evidence, ...]:
    """A few rows, columns, slices or blocks of channels that hold all differing elements."""

    best: tuple[Evidence, ...] = ()
    least = math.inf
    for cut in _cuts(places, payload):
        names = np.unique(cut.lines)
        number, size = len(names), len(names) * cut.length
        whole = len(places) == size
        few = number <= FEW_LINES * cut.number and len(places) >= PER_LINE * number
        cost = number + (0 if whole else PER_LINE)  # a few whole lines are preferred to a part of one line
        if number == cut.number or cost >= least or not (whole or few):
            continue
        total = cut.number * cut.length
        if _is_chance(len(places), size, total, _log_choices(cut.number, number)):
            continue
        share = "all" if whole else f"{len(places) / size:.0%}"
        words = f"in {{number}} of {{all}} {cut.what} only ({{which}}), {{share}} of their elements"
        which = first_of([f"{name:,}" for name in names.tolist()])
        best = _places(words, cut.hint, number=number, all=cut.number, which=which, share=share)
        least = cost
    return best


def _cuts(places: Places, payload: Payload) -> Iterator[TensorCut]:
    shape = payload.shape
    total, last = math.prod(shape), shape[-1] if shape else 1
    tile = "a tile computed by another core, or in another order"
    device = payload.device
    if device is not None and "C1HWC0" in device.layout and len(device.origin) == len(shape):
        axis, c0 = device.origin.index("C"), device.shape[-1]
        if shape[axis] % c0 == 0:
            channels = places // math.prod(shape[axis + 1 :]) % shape[axis]
            number = shape[axis] // c0
            yield TensorCut(f"blocks of C0={c0} channels", channels // c0, number, total // number, tile)
    if 1 < last < total:
        yield TensorCut("rows of the last axis", places // last, total // last, last, tile)
        hint = "sums over the other axes, in another order"
        yield TensorCut("columns of the last axis", places % last, last, total // last, hint)
    for axis in range(len(shape) - 1):
        inner = math.prod(shape[axis + 1 :])
        if shape[axis] < total:
            yield TensorCut(
                f"slices of axis {axis}", places // inner % shape[axis], shape[axis], total // shape[axis], tile
            )


def _piece(found: BitDifferences, payload: Payload) -> tuple[Evidence, ...]:
    """One contiguous piece that differs nearly everywhere and does not consist of whole rows."""
    first, length, last = found.first, found.end - found.first, payload.shape[-1] if payload.shape else 1
    total = math.prod(payload.shape)
    if found.number < max(min(PER_LINE, FEW_LINES * total), DENSE * length):
        return ()
    if first % last == 0 and length % last == 0:
        return ()
    if _is_chance(found.number, length, total, math.log(total - length + 1)):
        return ()
    if found.end == total:
        hint = "memory beyond the result, or a tail block computed separately"
        return _places("the tail from {first} on", hint, first=position(first, payload.shape))
    start, end = (position(place, payload.shape) for place in (first, found.end - 1))
    return _places("one piece, from {first} to {last}", MEMORY, first=start, last=end)


def by_rounding(moments: Moments, pair: Pair, differing: int) -> tuple[Evidence, ...]:
    """The hint for differences that are as small as those of sums in another order."""
    if moments.mismatched or not moments.yy or not moments.sum_dd:
        return ()
    size = math.sqrt(moments.sum_dd / differing / (moments.yy / max(1, moments.compared)))
    if size > FACTOR * round_off_of(pair):
        return ()
    return (Evidence("hint", OTHER_ORDER),)


def _by_terms(moments: Moments, pair: Pair, differing: int, context: ReadContext) -> tuple[Evidence, ...]:
    """The hint for sums that differ by as much as the rounding of their partial sums, estimated from an input with more
    elements than the sums: of n terms with mean m and deviation s, u √(n² s²/2 + n³ m²/3)."""
    from npucmp.measure.preview import array_of

    operator = pair.golden_op
    if operator is None or moments.mismatched or not moments.sum_dd:
        return ()
    size = math.sqrt(moments.sum_dd / differing)
    for tensor in operator.tensors:
        elements = math.prod(tensor.shape)
        if tensor.is_output or not moments.elements < elements <= TERMS or not coarser_round_off(tensor.dtype):
            continue
        try:
            terms = array_of(tensor, context).astype("float64")
        except NpucmpError:
            continue
        mean, deviation, count = float(terms.mean()), float(terms.std()), elements / moments.elements
        partial = count * math.hypot(deviation / math.sqrt(2), mean * math.sqrt(count / SQUARES))
        if not 0 < size <= SUMS * coarser_round_off(tensor.dtype) * partial:
            continue
        rms = math.hypot(mean, deviation)
        if moments.yy / moments.compared > rms**2:
            return (Evidence("hint", OTHER_ORDER),)
        words = (
            "hint: rounding of sums around zero, accumulated in another order: the differences are {share} of "
            "the rms of {slot}"
        )
        return (Evidence("hint", words, {"share": Fact(size / rms), "slot": Fact(tensor.slot)}),)
    return ()
