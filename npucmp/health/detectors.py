"""Probes: measurements beyond the figures of a single tensor, computed in the same pass at the request of gather.py.

A probe reads the blocks of all tensors of a StatsTask together; each StatsTask has a new instance. Rules read the
result of `result()` under the probe's name: `Parameter.moves`, `Tensor.found["channels"]`, `Op.found["dropped"]`.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.measure.tensor_stats import Probe
from npucmp.model import Payload

if TYPE_CHECKING:
    from npucmp.measure.kernel.range_stats import Array

MOST_ELEMENTS = 1 << 20  # most elements of a tensor that is kept whole
MOST_CHANNELS = 1 << 16  # most channels or samples that are distinguished


class StepChange(NamedTuple):
    """The change of a tensor from one step to the next: sums over the elements that are finite in both.

    same_bits  whether all bits are equal
    size       mean of |w|; `moved` is the mean of |w' - w|
    along      cosine of w' - w with minus the gradient of the earlier step; None without a gradient
    """

    same_bits: bool
    size: float
    moved: float
    along: Optional[float] = None

    @property
    def ratio(self) -> float:
        """Mean |w' - w| over mean |w|."""
        return self.moved / (self.size + 1e-9)


class ParameterMoves:
    """The moves of a parameter through all steps: a Moved per pair of steps. Reads the weights, then as many
    gradients."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        self.steps = len(payloads) // 2
        self.has = [one is not None for one in payloads]
        self.types = [one.dtype if one is not None else "" for one in payloads]
        self.sums = np.zeros((max(self.steps - 1, 0), 6))  # elements, |w|, |w'-w|, (w'-w)², g², (w'-w)·g
        self.same = [self.types[k] == self.types[k + 1] for k in range(self.steps - 1)]

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        arrays = [None if block is None else wide(block) for block in blocks]
        for k in range(self.steps - 1):
            before, after, gradient = arrays[k], arrays[k + 1], arrays[self.steps + k]
            if before is None or after is None:
                continue
            self.same[k] = self.same[k] and _bits(blocks[k]) == _bits(blocks[k + 1])
            with np.errstate(all="ignore"):
                moved = after - before
                good = np.isfinite(moved) if gradient is None else np.isfinite(moved) & np.isfinite(gradient)
                if not good.all():
                    before, moved = before[good], moved[good]
                    gradient = None if gradient is None else gradient[good]
                self.sums[k, :4] += len(moved), np.abs(before).sum(), np.abs(moved).sum(), np.dot(moved, moved)
                if gradient is not None:
                    self.sums[k, 4:] += np.dot(gradient, gradient), np.dot(moved, gradient)

    def result(self) -> list[Optional[StepChange]]:
        return [self._step_change(k) if self.has[k] and self.has[k + 1] else None for k in range(self.steps - 1)]

    def _step_change(self, k: int) -> Optional[StepChange]:
        count, size, moved, squares, steep, dot = map(float, self.sums[k])
        if not count:
            return StepChange(self.same[k], 0.0, 0.0) if self.same[k] else None
        length = math.sqrt(squares) * math.sqrt(steep)
        along = -dot / length if self.has[self.steps + k] and length > 0 else None
        return StepChange(self.same[k], size / count, moved / count, along)


class Channels:
    """Count the channels that are zero throughout. The channel axis is the second, or the last of two or three axes.

    Found: (zero channels, channels, values per channel); None without channels or with more than MANY.
    """

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        shape = payloads[0].shape if payloads[0] is not None else ()
        axis = (1 if len(shape) > 3 else len(shape) - 1) if len(shape) > 1 else None
        self.channels = shape[axis] if axis is not None else 0
        self.below = math.prod(shape[axis + 1 :]) if axis is not None else 1
        self.each = math.prod(shape) // self.channels if self.channels else 0
        self.alive = np.zeros(self.channels if self.channels <= MOST_CHANNELS else 0, bool)

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        block = blocks[0]
        if block is not None and len(self.alive):
            at = np.flatnonzero(block != 0) + start
            self.alive[at // self.below % self.channels] = True

    def result(self) -> Optional[tuple[int, int, int]]:
        if not len(self.alive):
            return None
        return int(np.count_nonzero(~self.alive)), self.channels, self.each


class ZeroRows:
    """Count the zero rows of a table, the first tensor: (zero rows, rows); None if it is empty or has more than KEPT
    rows."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        shape: tuple[int, ...] = payloads[0].shape if payloads[0] is not None else ()
        elements: int = math.prod(shape)
        self.alive = np.zeros(shape[0] if shape and elements and shape[0] <= MOST_ELEMENTS else 0, bool)
        self.each = elements // len(self.alive) if len(self.alive) else 0

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        if blocks[0] is not None and self.each:
            self.alive[(np.flatnonzero(blocks[0] != 0) + start) // self.each] = True

    def result(self) -> Optional[tuple[int, int]]:
        return (int(np.count_nonzero(~self.alive)), len(self.alive)) if self.each else None


class ChannelMeans:
    """The mean of each channel (second axis); None without channels or with more than MANY."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        shape: tuple[int, ...] = payloads[0].shape if payloads[0] is not None else ()
        self.channels = shape[1] if len(shape) > 1 and shape[1] <= MOST_CHANNELS else 0
        self.below, self.each = math.prod(shape[2:]), math.prod(shape) // self.channels if self.channels else 0
        self.sums = np.zeros(self.channels)

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        if blocks[0] is not None and self.channels:
            at = (start + np.arange(len(blocks[0]))) // self.below % self.channels
            with np.errstate(all="ignore"):
                self.sums += np.bincount(at, wide(blocks[0]), self.channels)

    def result(self) -> Optional[Array]:
        return self.sums / self.each if self.each else None


class Samples:
    """A digest of each sample of a batch (row of the first axis); None if it is empty or has more than MANY samples."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        shape: tuple[int, ...] = payloads[0].shape if payloads[0] is not None else ()
        elements: int = math.prod(shape)
        self.rows = shape[0] if shape and elements and shape[0] <= MOST_CHANNELS else 0
        self.size = elements // self.rows if self.rows else 0
        self.digests = [hashlib.blake2b(digest_size=8) for _ in range(self.rows)]

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        block = blocks[0]
        at = 0
        while block is not None and self.rows and at < len(block):
            row, inside = divmod(start + at, self.size)
            count = min(len(block) - at, self.size - inside)
            self.digests[row].update(_bits(block[at : at + count]))
            at += count

    def result(self) -> Optional[tuple[bytes, ...]]:
        return tuple(one.digest() for one in self.digests) if self.rows else None


class FullValues:
    """The values of a small tensor in its shape: labels, tokens, inputs of a loss. None above KEPT elements."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        self.shape: tuple[int, ...] = payloads[0].shape if payloads[0] is not None else ()
        self.blocks: Optional[list[Array]] = [] if math.prod(self.shape) <= MOST_ELEMENTS else None

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        if self.blocks is not None and blocks[0] is not None:
            self.blocks.append(blocks[0].copy())

    def result(self) -> Optional[Array]:
        if not self.blocks:
            return None
        joined = np.concatenate(self.blocks)
        return (joined if joined.dtype.kind in "biuc" else widen(joined)).reshape(self.shape)


class MagnitudeShares:
    """For the input of a saturating function: the share of elements whose magnitude exceeds each of SIZES."""

    SIZES = (5.0, 8.0)

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        self.counts, self.elements = [0] * len(self.SIZES), 0

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        if blocks[0] is not None:
            with np.errstate(all="ignore"):
                size = np.abs(wide(blocks[0]))
            self.elements += len(size)
            self.counts = [count + int(np.count_nonzero(size > one)) for count, one in zip(self.counts, self.SIZES)]

    def result(self) -> Optional[dict[float, float]]:
        if not self.elements:
            return None
        return {size: count / self.elements for size, count in zip(self.SIZES, self.counts)}


class IntervalShare:
    """The share of the elements of a tensor between `start` and `end`, in per cent; None without elements."""

    def __init__(self, start: float, end: float, payloads: Sequence[Optional[Payload]]) -> None:
        self.start, self.end = start, end
        self.inside = self.elements = 0

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        if blocks[0] is not None:
            values = wide(blocks[0])
            self.elements += len(values)
            self.inside += int(np.count_nonzero((values >= self.start) & (values <= self.end)))

    def result(self) -> Optional[float]:
        return 100.0 * self.inside / self.elements if self.elements else None


class DropoutZeros:
    """Compare input and output of a dropout: (elements set to zero, nonzero inputs); None unless both are readable."""

    def __init__(self, payloads: Sequence[Optional[Payload]]) -> None:
        self.both = len(payloads) == 2 and None not in payloads
        self.zeroed = self.there = 0

    def add(self, blocks: Sequence[Optional[Array]], start: int) -> None:
        read, written = blocks[0], blocks[-1]
        if self.both and read is not None and written is not None:
            there = read != 0
            self.there += int(np.count_nonzero(there))
            self.zeroed += int(np.count_nonzero(there & (written == 0)))

    def result(self) -> Optional[tuple[int, int]]:
        return (self.zeroed, self.there) if self.both else None


PROBES: dict[str, type[Probe]] = {
    "moves": ParameterMoves,
    "channels": Channels,
    "rows": ZeroRows,
    "means": ChannelMeans,
    "samples": Samples,
    "whole": FullValues,
    "beyond": MagnitudeShares,
    "dropped": DropoutZeros,
}


def wide(block: Array) -> Array:
    """Values in float64; magnitudes of complex values."""
    with np.errstate(all="ignore"):
        found = widen(block)
    return np.abs(found) if found.dtype.kind == "c" else found


def _bits(block: Optional[Array]) -> bytes:
    return b"" if block is None else np.ascontiguousarray(block).tobytes()
