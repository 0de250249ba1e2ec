"""Tensors of one run → their figures, in one pass; what several of them are together is found in the same pass.

A `Work` names tensors that are walked side by side, block by block: a parameter through all its steps with its
gradients, what a dropout read and wrote, or a single tensor. Each gets its `Figures`; a `Probe` sees the blocks of all
of them, and finds what no figure of one tensor tells. Nothing is read twice, and a few blocks are all that is held.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.errors import NpucmpError
from npucmp.measure.executor import workers
from npucmp.measure.pairs import READ, payload_of
from npucmp.measure.profile import recorded
from npucmp.model import Extremes, Payload, TensorRef
from npucmp.model.dtypes import Dtype, lookup, size_of

if TYPE_CHECKING:
    from npucmp.measure.kernel.extremes import Array

LEAST = 1 << 12  # elements of a block, however many tensors are walked side by side


class Figures(NamedTuple):
    """What is known of one tensor. Of statistics alone counts are not (`counted` is False) but for NaN and Inf.

    extremes   None where nothing is known, be it that `problem` says why it could not be read
    mean, rms  of the finite elements; of complex numbers the magnitudes count. None where unknown
    mean_abs   of the finite elements; None of statistics
    subnormal  elements below the smallest normal number of the type that are not 0; None of statistics, and of wider
               types than 16 bits
    bits       what tells its bits from others of the same type and shape: a digest of the values, or the hash that the
               dump recorded; "" where there is neither, and for an XOR, which tensors of other bits share
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
        """Whether all of it is known to be finite."""
        return self.extremes is not None and not (self.extremes.nan or self.extremes.inf)

    @property
    def minimum(self) -> Optional[float]:
        return _known(self.extremes.minimum) if self.extremes is not None else None

    @property
    def maximum(self) -> Optional[float]:
        return _known(self.extremes.maximum) if self.extremes is not None else None

    @property
    def largest(self) -> Optional[float]:
        """Largest finite magnitude."""
        return _known(self.extremes.largest) if self.extremes is not None else None

    @property
    def constant(self) -> Optional[float]:
        """The value of all elements, None if they are not known to be one."""
        low, high = self.minimum, self.maximum
        return low if low is not None and low == high and self.is_finite else None

    @property
    def is_zero(self) -> bool:
        return self.constant == 0

    @property
    def zeros(self) -> Optional[float]:
        """Share of zeros, None where they were not counted (all of statistics but those of a tensor of zeros)."""
        if self.extremes is None or not self.elements:
            return None
        return 1.0 if self.is_zero else self.extremes.zeros / self.elements if self.counted else None

    @property
    def std(self) -> Optional[float]:
        """Deviation of the finite elements about their mean."""
        if self.mean is None or self.rms is None:
            return None
        share = self.mean / self.rms if self.rms else 0.0  # no square of a large number
        return self.rms * math.sqrt(max(1.0 - share * share, 0.0)) if abs(share) < 1 else 0.0


class Probe(Protocol):
    """Finds something of tensors that are walked side by side; made anew for each Work, where that is read."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None: ...

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        """The next blocks, of the same elements of all; None for a tensor that cannot be read."""

    def found(self) -> Any: ...


MakeProbe = Callable[["Sequence[Optional[Payload]]"], Probe]  # what a worker can be sent: a class, a partial of one


class Work(NamedTuple):
    """Tensors to be walked side by side, and what else is to be found of them, by name."""

    tensors: tuple[TensorRef, ...]
    probes: Mapping[str, MakeProbe] = {}

    @property
    def bytes(self) -> int:
        return sum(size_of(one.dtype, one.shape) for one in self.tensors if one.file or one.payload)


class Worked(NamedTuple):
    """The figures of each tensor of a Work, what its probes found (None: nothing could be), and the bytes read."""

    figures: tuple[Figures, ...]
    found: Mapping[str, Any] = {}
    bytes_read: int = 0


def work_through(works: Sequence[Work], jobs: int = 1, context: ReadContext = ANYWHERE) -> Iterator[Worked]:
    """What is known of each, in their order; trouble with a tensor stands in its figures."""
    return workers(jobs).map(partial(figures_of, context=context), works, lost=_lost, weight=lambda one: one.bytes)


def _lost(work: Work, because: str) -> Worked:
    return Worked(tuple(Figures(problem=f"reading it ended the process: {because}") for _ in work.tensors))


def figures_of(work: Work, context: ReadContext = ANYWHERE) -> Worked:
    """One Work; never raises for what a dump holds. Tensors that do not go side by side are read one by one."""
    opened = [_opened(tensor, context) for tensor in work.tensors]
    told = tuple(one for one in opened if isinstance(one, Figures))
    if len(told) == len(opened):
        return Worked(told)
    if len({one.shape for one in opened if isinstance(one, Payload)}) == 1:
        try:
            return _walked(work, opened, context)
        except NpucmpError as error:
            if len(opened) == 1:
                return Worked((Figures(problem=_because(error)),))
    # they do not go together, or one ends too early: each by itself, so that the others are not lost
    alone = [figures_of(Work((tensor,)), context) for tensor in work.tensors]
    return Worked(tuple(one.figures[0] for one in alone), {}, sum(one.bytes_read for one in alone))


def _opened(tensor: TensorRef, context: ReadContext) -> Payload | Figures:
    """Where its values lie, or what is known without them."""
    try:
        return payload_of(tensor, context=context) or from_record(tensor)
    except NpucmpError as error:
        return Figures(problem=_because(error))


def from_record(tensor: TensorRef) -> Figures:
    """What a dump recorded of a tensor that it did not keep. Checksums of records stand beside figures or alone."""
    told, count = tensor.statistics, math.prod(tensor.shape)
    mean = _known(told.mean) if told is not None else None
    norm = _known(told.norm) if told is not None else None
    rms = norm / math.sqrt(count) if norm is not None and count else None
    return Figures(recorded(tensor), mean, rms, bits=tensor.digest)


def _because(error: NpucmpError) -> str:
    return str(getattr(error, "because", error))


def _walked(work: Work, opened: Sequence[Payload | Figures], context: ReadContext) -> Worked:
    from npucmp.dump.readers.values import blocks

    payloads = [one if isinstance(one, Payload) else None for one in opened]
    sums = [None if one is None else _Sums(one) for one in payloads]
    probes = {name: make(payloads) for name, make in work.probes.items()} if any(payloads) else {}
    size = max(LEAST, READ // max(1, len(payloads) // 2))
    sources = [None if one is None else blocks(one, size, context=context) for one in payloads]
    start = 0
    while True:
        some = [None if source is None else next(source, None) for source in sources]
        length = max((len(block) for block in some if block is not None), default=0)
        if not length:
            break
        for one, block in zip(sums, some):
            if one is not None and block is not None:
                one.add(block, start)
        for probe in probes.values():
            probe.add(some, start)
        start += length
    figures = tuple(
        known if isinstance(known, Figures) else one.figures() if one is not None else Figures()
        for known, one in zip(opened, sums)
    )
    read = sum(one.bytes for one in sums if one is not None)
    return Worked(figures, {name: probe.found() for name, probe in probes.items()}, read)


class _Sums:
    """The figures of one tensor, block by block."""

    def __init__(self, payload: Payload) -> None:
        row = lookup(payload.dtype)
        assert row is not None, payload.dtype  # a payload of another type is never made
        self.row: Dtype = row
        self.bytes = row.stored(math.prod(payload.shape))
        self._extremes: Optional[Extremes] = None
        self._total = self._squares = self._absolute = 0.0
        self._subnormal = 0
        self.is_narrow = row.kind == "f" and row.itemsize <= 2
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, block: Array, start: int) -> None:
        import numpy as np

        from npucmp.measure.kernel.extremes import extremes_of, merge_extremes
        from npucmp.measure.kernel.numpy_kernel import widen

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

    def figures(self) -> Figures:
        found = self._extremes or Extremes()
        finite = found.elements - found.nan - found.inf
        if not finite:
            return Figures(found, bits=self._digest.hexdigest(), counted=True)
        return Figures(
            found,
            self._total / finite,
            math.sqrt(self._squares / finite) if math.isfinite(self._squares) else None,
            self._absolute / finite,
            self._subnormal if self.is_narrow else None,
            self._digest.hexdigest(),
            counted=True,
        )


def _known(value: Optional[float]) -> Optional[float]:
    return value if value is not None and math.isfinite(value) else None
