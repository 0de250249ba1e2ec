"""Statistics of the tensors of one run in one pass, and properties of several tensors together in the same pass.

A `StatsTask` names tensors that are read side by side, block by block: a parameter through all its steps with its
gradients, the input and output of a dropout, or a single tensor. Each gets its `TensorStats`. A `Probe` sees the
blocks of all of them and finds properties that no statistics of one tensor show. Nothing is read twice; only a few
blocks are in memory.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence

import numpy as np

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.executor import workers
from npucmp.measure.pairs import READ, payload_of
from npucmp.measure.range_scan import recorded_extremes
from npucmp.model import Extremes, Payload, TensorRef
from npucmp.model.dtypes import Dtype, lookup, size_of

if TYPE_CHECKING:
    from npucmp.measure.kernel.range_stats import Array

LEAST = 1 << 12  # elements of a block, for any number of tensors side by side


class TensorStats(NamedTuple):
    """The statistics of one tensor. If only the dump's statistics are known, counts other than NaN and Inf are not
    (`counted` is False).

    extremes   None if nothing is known; `problem` may say why the tensor could not be read
    mean, rms  of the finite elements; of the magnitudes for complex numbers. None if unknown
    mean_abs   of the finite elements; None for recorded statistics
    subnormal  nonzero elements below the smallest normal number of the type; None for recorded statistics, and for
               types wider than 16 bits
    bits       identifies the bits among tensors of one type and shape: a digest of the values, or the hash that the
               dump recorded; "" if there is neither, and for an XOR, which different tensors may share
    """

    extremes: Optional[Extremes] = None
    mean: Optional[float] = None
    rms: Optional[float] = None
    mean_abs: Optional[float] = None
    subnormal: Optional[int] = None
    bits: str = ""
    counted: bool = False
    problem: str = ""

    @property
    def elements(self) -> int:
        return self.extremes.elements if self.extremes is not None else 0

    @property
    def is_finite(self) -> bool:
        """Whether all elements are known to be finite."""
        return self.extremes is not None and not (self.extremes.nan or self.extremes.inf)

    @property
    def minimum(self) -> Optional[float]:
        return _finite(self.extremes.minimum) if self.extremes is not None else None

    @property
    def maximum(self) -> Optional[float]:
        return _finite(self.extremes.maximum) if self.extremes is not None else None

    @property
    def largest(self) -> Optional[float]:
        """The largest finite magnitude."""
        return _finite(self.extremes.largest) if self.extremes is not None else None

    @property
    def constant(self) -> Optional[float]:
        """The common value of all elements; None if they differ or are unknown."""
        low, high = self.minimum, self.maximum
        return low if low is not None and low == high and self.is_finite else None

    @property
    def is_zero(self) -> bool:
        return self.constant == 0

    @property
    def zeros(self) -> Optional[float]:
        """The share of zeros; None if they were not counted (recorded statistics, except those of a tensor of
        zeros)."""
        if self.extremes is None or not self.elements:
            return None
        return 1.0 if self.is_zero else self.extremes.zeros / self.elements if self.counted else None

    @property
    def std(self) -> Optional[float]:
        """Standard deviation of the finite elements."""
        if self.mean is None or self.rms is None:
            return None
        share = self.mean / self.rms if self.rms else 0.0  # avoids the square of a large number
        return self.rms * math.sqrt(max(1.0 - share * share, 0.0)) if abs(share) < 1 else 0.0


class Probe(Protocol):
    """A search for a property of tensors that are read side by side. Each StatsTask makes a new one in the
    process that reads it."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None: ...

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        """Add the next blocks, which cover the same elements of all tensors; None for a tensor that cannot be read."""

    def result(self) -> Any: ...


MakeProbe = Callable[["Sequence[Optional[Payload]]"], Probe]  # picklable for workers: a class, or a partial of one


class StatsTask(NamedTuple):
    """Tensors to be read side by side, and the probes for them by name."""

    tensors: tuple[TensorRef, ...]
    probes: Mapping[str, MakeProbe] = {}

    @property
    def bytes(self) -> int:
        return sum(size_of(one.dtype, one.shape) for one in self.tensors if one.file or one.payload)


class StatsResult(NamedTuple):
    """The statistics of each tensor of a StatsTask, the results of its probes (None: no result), and the bytes read."""

    figures: tuple[TensorStats, ...]
    found: Mapping[str, Any] = {}
    bytes_read: int = 0


def work_through(works: Sequence[StatsTask], jobs: int = 1, context: ReadContext = ANYWHERE) -> Iterator[StatsResult]:
    """Process each StatsTask, in order. A problem with a tensor is stored in its statistics."""
    return workers(jobs).map(partial(figures_of, context=context), works, lost=_failed, weight=lambda one: one.bytes)


def _failed(work: StatsTask, because: str) -> StatsResult:
    return StatsResult(tuple(TensorStats(problem=f"reading it ended the process: {because}") for _ in work.tensors))


def figures_of(work: StatsTask, context: ReadContext = ANYWHERE) -> StatsResult:
    """Process one StatsTask; never raise for the content of a dump. Tensors of several shapes are read one by one."""
    opened = [_open_tensor(tensor, context) for tensor in work.tensors]
    without_values = tuple(one for one in opened if isinstance(one, TensorStats))
    if len(without_values) == len(opened):
        return StatsResult(without_values)
    if len({one.shape for one in opened if isinstance(one, Payload)}) == 1:
        try:
            return _read_tensors(work, opened, context)
        except NpucmpError as error:
            if len(opened) == 1:
                return StatsResult((TensorStats(problem=_because(error)),))
    # shapes differ, or one file ends early: read each alone, so that the others are not lost
    alone = [figures_of(StatsTask((tensor,)), context) for tensor in work.tensors]
    return StatsResult(tuple(one.figures[0] for one in alone), {}, sum(one.bytes_read for one in alone))


def _open_tensor(tensor: TensorRef, context: ReadContext) -> Payload | TensorStats:
    """The payload of a tensor, or its statistics without values."""
    try:
        return payload_of(tensor, context=context) or from_record(tensor)
    except NpucmpError as error:
        return TensorStats(problem=_because(error))


def from_record(tensor: TensorRef) -> TensorStats:
    """The statistics that a dump recorded for a tensor without values. A record may also have a checksum, or only a
    checksum."""
    statistics, count = tensor.statistics, math.prod(tensor.shape)
    mean = _finite(statistics.mean) if statistics is not None else None
    norm = _finite(statistics.norm) if statistics is not None else None
    rms = norm / math.sqrt(count) if norm is not None and count else None
    return TensorStats(recorded_extremes(tensor), mean, rms, bits=tensor.digest)


def _because(error: NpucmpError) -> str:
    return str(getattr(error, "because", error))


def _read_tensors(work: StatsTask, opened: Sequence[Payload | TensorStats], context: ReadContext) -> StatsResult:
    from npucmp.dump.readers.values import blocks

    payloads = [one if isinstance(one, Payload) else None for one in opened]
    sums = [None if one is None else _Sums(one) for one in payloads]
    probes = {name: make(payloads) for name, make in work.probes.items()} if any(payloads) else {}
    size = max(LEAST, READ // max(1, len(payloads) // 2))
    sources = [None if one is None else blocks(one, size, context=context) for one in payloads]
    start = 0
    while True:
        read_blocks = [None if source is None else next(source, None) for source in sources]
        length = max((len(block) for block in read_blocks if block is not None), default=0)
        if not length:
            break
        for one, block in zip(sums, read_blocks):
            if one is not None and block is not None:
                one.add(block, start)
        for probe in probes.values():
            probe.add(read_blocks, start)
        start += length
    figures = tuple(
        known if isinstance(known, TensorStats) else one.figures() if one is not None else TensorStats()
        for known, one in zip(opened, sums)
    )
    read = sum(one.bytes for one in sums if one is not None)
    return StatsResult(figures, {name: probe.result() for name, probe in probes.items()}, read)


class _Sums:
    """The statistics of one tensor, block by block."""

    def __init__(self, payload: Payload) -> None:
        row = lookup(payload.dtype)
        assert row is not None, payload.dtype  # no payload of another type exists
        self.row: Dtype = row
        self.bytes = row.stored(math.prod(payload.shape))
        self._extremes: Optional[Extremes] = None
        self._total = self._squares = self._absolute = 0.0
        self._subnormal = 0
        self.is_narrow = row.kind == "f" and row.itemsize <= 2
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, block: Array, start: int) -> None:
        from npucmp.measure.kernel.numpy_kernel import widen
        from npucmp.measure.kernel.range_stats import extremes_of, merge_extremes

        part = extremes_of(block, self.row, start)
        self._extremes = part if self._extremes is None else merge_extremes(self._extremes, part)
        self._digest.update(np.ascontiguousarray(block).view(np.uint8).data)
        with np.errstate(all="ignore"):
            wide = widen(block)
            wide = (np.abs(wide) if self.row.kind == "c" else wide).astype(np.float64, copy=False)
            if part.nan or part.inf:
                wide = wide[np.isfinite(wide)]
            size = np.abs(wide)
            self._total += float(wide.sum())
            self._absolute += float(size.sum())
            self._squares += float(np.dot(wide, wide))
            if self.is_narrow:
                self._subnormal += int(np.count_nonzero((size < self.row.tiny) & (size > 0)))

    def figures(self) -> TensorStats:
        found = self._extremes or Extremes()
        finite = found.elements - found.nan - found.inf
        if not finite:
            return TensorStats(found, bits=self._digest.hexdigest(), counted=True)
        return TensorStats(
            found,
            self._total / finite,
            math.sqrt(self._squares / finite) if math.isfinite(self._squares) else None,
            self._absolute / finite,
            self._subnormal if self.is_narrow else None,
            self._digest.hexdigest(),
            counted=True,
        )


def _finite(value: Optional[float]) -> Optional[float]:
    return value if value is not None and math.isfinite(value) else None
