"""Measurement of pairs: Pairs → Measurements. Both tensors are opened, checked against each other, and read once in
blocks.

A problem with a tensor never ends a run: it becomes the Measurement's `problem` (a side cannot be read) or `unlike`
(both are readable, but not comparable). Peak memory is a few blocks, for tensors of any size.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache, partial, reduce
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.dump.readers import header, header_of
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.errors import DumpError, NpucmpError
from npucmp.measure.executor import TASKS_TO_FORK, read_distinct, workers
from npucmp.measure.recorded_stats import measure_records, statistics_of
from npucmp.model import Measurement, Moments, Pair, Payload, Side, TensorRef
from npucmp.model.dtypes import lookup, narrower, size_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from npucmp.dump.readers.values import ReadBuffer
    from npucmp.measure.kernel.numpy_kernel import CountLimits

    Array = npt.NDArray[Any]

READ = 1 << 16  # elements read at once: work: blocks of both sides stay in the cache of a core
WHOLE = 1 << 17  # bytes of a file that is read at once, header and values
LONGEST = 1 << 12  # ids of a row that may be a set: work

# rtol, atol by the narrower type: torch.testing.assert_close; float8 after the CANN operator standard
ALLCLOSE = {
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float8_e4m3fn": (2.0**-2, 2.0**-4),
    "float8_e5m2": (2.0**-1, 2.0**-3),
    "hifloat8": (2.0**-2, 2.0**-4),
}


class Closeness(NamedTuple):
    """The user's bar for allclose; None selects the table."""

    rtol: Optional[float] = None
    atol: Optional[float] = None


class IncomparableTensors(Exception):
    """Two readable tensors that cannot be compared."""

    def __init__(self, because: str, shapes_differ: bool = False) -> None:
        self.shapes_differ = shapes_differ
        super().__init__(because)


def measure_pairs(
    pairs: Iterable[Pair], closeness: Closeness = Closeness(), jobs: int = 1, context: ReadContext = ANYWHERE
) -> Iterator[Measurement]:
    """Yield one Measurement per pair, in the order of the pairs. Values that several pairs share are read once."""
    for pair, measurement, again in read_distinct(
        list(pairs), values_of, lambda firsts: map_pairs(measure, firsts, jobs, closeness, context)
    ):
        yield measurement._replace(pair=pair, bytes_read=0) if again else measurement


def map_pairs(
    function: Callable[..., Measurement], pairs: Sequence[Pair], jobs: int, *more: object
) -> Iterator[Measurement]:
    """Apply `function` to each pair and the other arguments. Workers send back the result without the pair."""
    if jobs == 1:
        return (function(pair, *more) for pair in pairs)
    found = workers(jobs, least=TASKS_TO_FORK).map(partial(_found, function, more), pairs, _failed, payload_bytes)
    return (Measurement(pair, *rest) for rest, pair in zip(found, pairs))


def _found(function: Callable[..., Measurement], more: tuple[object, ...], pair: Pair) -> tuple[Any, ...]:
    return function(pair, *more)[1:]


def _failed(pair: Pair, because: str) -> tuple[Any, ...]:
    return Measurement(pair, problem=f"reading it ended the process: {because}")[1:]


def payload_bytes(pair: Pair) -> int:
    """Bytes of values that a measurement of a pair will read, as far as the dumps state it."""
    target, golden = pair.target, pair.golden
    stored = [tensor for tensor in (target, golden) if tensor is not None and tensor.file]
    return sum(size_of(tensor.dtype, tensor.shape) for tensor in stored)


def values_of(pair: Pair) -> Optional[tuple[object, ...]]:
    """A key that identifies the values of a pair; None if a side has none."""
    target, golden = pair.target, pair.golden
    if target is None or golden is None or not (target.file and golden.file):
        return None
    return (
        (target.payload or target.file, target.dtype, target.shape, target.problem),
        (golden.payload or golden.file, golden.dtype, golden.shape, golden.problem),
    )


def measure(
    pair: Pair,
    closeness: Closeness = Closeness(),
    context: ReadContext = ANYWHERE,
    unseen: Optional[tuple[float, float]] = None,
) -> Measurement:
    """Measure a pair in one pass; never raises for the content of a dump. `unseen` are bounds of target and golden:
    values below both are masks."""
    try:
        if pair.target is None or pair.golden is None:
            return _one_side(pair, context)
        return _both_sides(pair, pair.target, pair.golden, closeness, context, unseen)
    except IncomparableTensors as reason:
        return Measurement(pair, unlike=str(reason), shapes_differ=reason.shapes_differ)


def holds_other_ids(measurement: Measurement) -> bool:
    """Return whether a tensor holds rows of whole numbers that differ."""
    moments, target, golden = measurement.moments, measurement.pair.target, measurement.pair.golden
    if moments is None or not moments.differing or target is None or golden is None:
        return False
    kinds = [lookup(tensor.dtype) for tensor in (target, golden)]
    fits = golden.shape == target.shape and bool(golden.shape) and 1 < golden.shape[-1] <= LONGEST
    return fits and all(kind is not None and kind.kind in "iu" for kind in kinds)


def measure_arrays(pair: Pair, x: Array, y: Array, closeness: Closeness) -> Moments:
    """Return the Moments of two arrays, which hold the values of a pair in one order."""
    from npucmp.measure.kernel.native import measure_block

    assert pair.target is not None and pair.golden is not None
    bars = _bars(pair.target.dtype, pair.golden.dtype, _closeness_of(pair.target, closeness))
    return measure_block(x.reshape(-1), y.reshape(-1), bars)


def _closeness_of(target: TensorRef, closeness: Closeness) -> Closeness:
    """The user's bar, else that of the relation of a parameter of a checkpoint."""
    if target.relation is None or closeness != Closeness():
        return closeness
    return Closeness(*target.relation.tolerance)


class _Trouble(Exception):
    """The side that cannot be read, and the reason."""


def _one_side(pair: Pair, context: ReadContext) -> Measurement:
    side = "target" if pair.golden is None else "golden"
    tensor = pair.target or pair.golden
    assert tensor is not None
    try:
        payload = _payload(side, tensor, None, context)
        if payload is None:
            recorded = tensor.statistics
            return Measurement(pair, statistics=(recorded, None) if side == "target" else (None, recorded))
        measured = _side(payload, context)
    except _Trouble as trouble:
        return Measurement(pair, problem=str(trouble))
    count = math.prod(payload.shape)
    moments = Moments(count, target=measured) if side == "target" else Moments(count, golden=measured)
    return Measurement(pair, moments, bytes_read=_size(payload))


def _both_sides(
    pair: Pair,
    target: TensorRef,
    golden: TensorRef,
    closeness: Closeness,
    context: ReadContext,
    unseen: Optional[tuple[float, float]],
) -> Measurement:
    left: list[RegularFile] = []  # closed by hand: an ExitStack takes a tenth of the time of a small pair
    right: list[RegularFile] = []
    try:
        x = _payload("target", target, left, context)
        y = _payload("golden", golden, right, context)
        if x is None or y is None:
            return _measure_records(pair, target, golden, x, y, context)
        _require_alike(x, y)
        own = _closeness_of(target, closeness)
        bars = _bars(recorded_type(target, x), recorded_type(golden, y), own)
        bars = bars if unseen is None else bars._replace(unseen=unseen)
        moments = _moments(x, y, left[0] if left else None, right[0] if right else None, bars, context)
    except _Trouble as trouble:
        return Measurement(pair, problem=str(trouble))
    finally:
        for file in (*left, *right):
            file.close()
    return Measurement(pair, moments, bytes_read=_size(x) + _size(y))


def _payload(
    side: str, tensor: TensorRef, opened: Optional[list[RegularFile]], context: ReadContext
) -> Optional[Payload]:
    try:
        return payload_of(tensor, opened, context)
    except NpucmpError as error:
        raise _trouble(side, error) from None


def _trouble(side: str, error: NpucmpError) -> _Trouble:
    return _Trouble(f"{side}: {getattr(error, 'because', error)}")


def payload_of(
    tensor: TensorRef, opened: Optional[list[RegularFile]] = None, context: ReadContext = ANYWHERE
) -> Optional[Payload]:
    """The header of a tensor's file, checked against the dump; None if no values were kept.

    If `opened` is given, a file that had to be opened is added to it and stays open; a small one is read whole. Raises
    DumpError if header and dump disagree or the file cannot be read, UnsupportedError for an unsupported type.
    """
    if tensor.problem:
        raise DumpError(tensor.file, tensor.problem)
    if tensor.payload is not None or not tensor.file:
        return tensor.payload
    try:
        if opened is None:
            found = header(tensor.encoding, tensor.file, context)
        else:
            file = open_regular(tensor.file, context)
            opened.append(file)
            if file.size <= WHOLE:
                file.prefetch(0, file.size)
            found = header_of(tensor.encoding, file)
    except DumpError as error:
        raise DumpError(tensor.file, f"{error.because} ({tensor.label})", error.offset) from None
    if found.shape != tensor.shape:
        raise DumpError(tensor.file, f"the file holds shape {list(found.shape)}, the dump says {list(tensor.shape)}")
    if found.dtype != tensor.dtype and not is_widened(found.dtype, tensor.dtype):
        raise DumpError(tensor.file, f"the file holds {found.dtype}, the dump says {tensor.dtype}")
    return found


def is_widened(stored: str, recorded: str) -> bool:
    """Return whether a file stores a type without loss in a wider one, as MindSpore stores bfloat16 in float32. An
    unknown type of the dump does not conflict."""
    file, dump = lookup(stored), lookup(recorded)
    if file is None or dump is None:
        return dump is None
    return file.kind == dump.kind == "f" and file.round_off <= dump.round_off and file.largest >= dump.largest


def recorded_type(tensor: TensorRef, found: Payload) -> str:
    """The type in which the run computed: the dump's type, unless npucmp does not know it."""
    return tensor.dtype if lookup(tensor.dtype) else found.dtype


def alike(x: Payload, y: Payload) -> bool:
    """Return whether two payloads can be compared element by element."""
    try:
        _require_alike(x, y)
    except IncomparableTensors:
        return False
    return True


def _require_alike(x: Payload, y: Payload) -> None:
    _require_one_shape(x.shape, y.shape)
    if x.dtype == y.dtype and lookup(x.dtype):
        return
    kinds = {lookup(x.dtype), lookup(y.dtype)}
    if None in kinds or len({kind.kind == "c" for kind in kinds if kind}) > 1:
        raise IncomparableTensors(f"dtype {x.dtype} cannot be compared with {y.dtype}")


def _require_one_shape(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Raise Unlike unless shapes are equal, ignoring axes of length one: compilers remove Squeeze and make 1-d
    convolutions 2-d."""
    if x != y and [n for n in x if n != 1] != [n for n in y if n != 1]:
        raise IncomparableTensors(f"shape {list(x)} against {list(y)}", shapes_differ=True)


@lru_cache(maxsize=256)
def _bars(target: str, golden: str, closeness: Closeness) -> CountLimits:
    from npucmp.measure.kernel.numpy_kernel import bars_for

    return bars_for(target, golden, *allclose_bars(target, golden, closeness))


def _moments(
    x: Payload,
    y: Payload,
    left: Optional[RegularFile],
    right: Optional[RegularFile],
    bars: CountLimits,
    context: ReadContext,
) -> Moments:
    """Read both sides once, or a second time without masks if they are not masks: a mask occurs more than once, and
    beside other values."""
    found = _walked(x, y, left, right, bars, context)
    if found.masked == 1 or (found.masked and not found.compared):
        return _walked(x, y, left, right, bars._replace(masking=False), context)
    return found


def _walked(
    x: Payload,
    y: Payload,
    left: Optional[RegularFile],
    right: Optional[RegularFile],
    bars: CountLimits,
    context: ReadContext,
) -> Moments:
    from npucmp.dump.readers.values import values_in_memory
    from npucmp.measure.kernel.native import Total, measure_bytes

    if left is not None and right is not None:
        a, b = values_in_memory(x, left), values_in_memory(y, right)
        if a is not None and b is not None and a.elements:
            return measure_bytes(a, b, bars)
    total = Total(bars)
    for block_x, block_y in zip_longest(_blocks("target", x, left, context), _blocks("golden", y, right, context)):
        total.add(block_x, block_y)
    return total.moments()


def allclose_bars(target: str, golden: str, closeness: Closeness) -> tuple[float, float]:
    """(rtol, atol) of a pair: the user's, else the table's row of the narrower type, else exact."""
    x, y = lookup(target), lookup(golden)
    name = narrower(x, y).name if x and y else ""
    rtol, atol = ALLCLOSE.get(name, (0.0, 0.0))
    if closeness.rtol is not None or closeness.atol is not None:
        return closeness.rtol or 0.0, closeness.atol or 0.0
    return rtol, atol


def _blocks(
    side: str, payload: Payload, file: Optional[RegularFile], context: ReadContext
) -> Iterator[npt.NDArray[Any]]:
    from npucmp.dump.readers.values import blocks

    try:
        yield from blocks(payload, READ, file, _rooms.of(side), context)
    except NpucmpError as error:
        raise _trouble(side, error) from None


class _ReadBuffers(threading.local):
    """Read buffers of each thread: one for each side."""

    def __init__(self) -> None:
        self.rooms: dict[str, ReadBuffer] = {}

    def of(self, side: str) -> ReadBuffer:
        from npucmp.dump.readers.values import ReadBuffer

        return self.rooms.setdefault(side, ReadBuffer())


_rooms = _ReadBuffers()


def _side(payload: Payload, context: ReadContext) -> Side:
    from npucmp.measure.kernel.merge import merge_sides
    from npucmp.measure.kernel.native import measure_side

    return reduce(merge_sides, map(measure_side, _blocks("", payload, None, context)), Side())


def _measure_records(
    pair: Pair,
    target: TensorRef,
    golden: TensorRef,
    x: Optional[Payload],
    y: Optional[Payload],
    context: ReadContext,
) -> Measurement:
    """Measure a pair without a payload on one side or both, by checksums and statistics. They are computed for a
    side with values, unless the dump recorded as much with them: both sides are then rounded alike."""
    _require_one_shape(target.shape, golden.shape)
    x = None if x is None or _has_same_records(target, golden) else x
    y = None if y is None or _has_same_records(golden, target) else y
    if x is not None:
        target = _as_recorded(target, x, golden.checksum, context)
    if y is not None:
        golden = _as_recorded(golden, y, target.checksum, context)
    (measured,) = measure_records([pair._replace(target=target, golden=golden)])
    return measured._replace(pair=pair, bytes_read=(_size(x) if x else 0) + (_size(y) if y else 0))


def _has_same_records(one: TensorRef, other: TensorRef) -> bool:
    """Return whether a tensor has every record that its partner has."""
    if one.statistics is None or other.statistics is None or (other.checksum and not one.checksum):
        return False
    return all(a is not None or b is None for a, b in zip(one.statistics, other.statistics))


def _as_recorded(tensor: TensorRef, payload: Payload, checksum: str, context: ReadContext) -> TensorRef:
    """A tensor with values, as a dump without values would have recorded it: with a checksum of the other side's
    kind."""
    from npucmp.measure.checksums import Checksum
    from npucmp.measure.kernel.merge import merge_sides
    from npucmp.measure.kernel.native import measure_side

    total, found = Side(), Checksum(checksum, tensor.dtype, payload)
    for block in _blocks("", payload, None, context):
        total = merge_sides(total, measure_side(block))
        found.add(block)
    return tensor._replace(statistics=statistics_of(total, math.prod(payload.shape)), checksum=found.text)


def _size(payload: Payload) -> int:
    return size_of(payload.dtype, payload.shape)
