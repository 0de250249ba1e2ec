"""A content: all tensors of one run that hold the same values, in any order of their elements.

Views, transposes, reshapes and lossless casts of a tensor are one content. A content is known by its number of elements
and a hash that no order changes, and is described by a sketch: 17 quantiles and the root mean square. A tensor with
recorded statistics alone is described by these.

Constants, masks, integers and tensors of fewer than 8 elements are no contents: that two of them are equal proves
nothing. Values are read block by block.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, Hashable, Iterator, NamedTuple, Optional

import numpy as np

from npucmp.align.content_hash import WIDTH, hash_values
from npucmp.dump.readers.values import blocks
from npucmp.errors import if_unreadable
from npucmp.model import TensorRef
from npucmp.model.dtypes import lookup
from npucmp.relations.held_values import Values

# numbers: chosen: as many identify a content among thousands (research on 389 pairs), and take 136 bytes
QUANTILES = 17
FEWEST = 8  # elements: chosen: fewer agree by chance
DISTINCT = 6  # numbers: chosen: a tensor of fewer different numbers is a mask, a one-hot or a constant
MASKED = -5e3  # value: chosen: lower numbers are masks, half the smallest mask constant in use (-1e4)
_PROBE = 512  # elements: work: so many show whether a tensor holds different numbers
_BLOCK = 1 << 16  # elements: work
_UPPER = 16  # bits: definition: the upper half of a float32 number
_LEVELS = 1 << 16  # numbers: definition: of so many bits
_SIGN = 0x8000  # bit: definition: of a float32 number, in its upper half
_SIZE = 0x7FFF  # bits: definition: all but the sign
_ALL = 0xFFFF  # bits: definition: all of the upper half


class Recording(NamedTuple):
    """One tensor of a content, and the place of its operator in the run."""

    operator: int
    tensor: TensorRef


class Sketch(NamedTuple):
    """A description of values that no order of them changes.

    key        the number of elements and the hash, or the recorded statistics
    quantiles  17 of them as an array, smallest first, without masks and NaN; None if only statistics are recorded
    figures    largest, smallest, mean and root mean square
    """

    key: Hashable
    quantiles: Optional[Any]
    figures: tuple[float, float, float, float]


class Content:
    """A content of one run.

    number      its place among the contents of the run
    size        number of elements; `shape`: of the first tensor that holds it
    recordings  the tensors that hold it, in order of execution
    orders      by shape without axes of length one: the checksum of the values in C order
    makers      places of the operators that compute it, in order; `readers`: of those that read it
    is_weight   no operator computes it
    """

    __slots__ = ("first", "is_weight", "makers", "number", "orders", "readers", "recordings", "shape", "size", "sketch")

    def __init__(self, number: int, tensor: TensorRef, sketch: Sketch, first: int) -> None:
        self.number, self.shape, self.size, self.sketch = number, tensor.shape, math.prod(tensor.shape), sketch
        self.recordings: list[Recording] = []
        self.orders: dict[tuple[int, ...], int] = {}
        self.makers: list[int] = []
        self.readers: list[int] = []
        self.first, self.is_weight = first, False

    @property
    def rms(self) -> float:
        """The root mean square of its values, without masks."""
        return self.sketch.figures[3]

    @property
    def tensor(self) -> TensorRef:
        """The tensor in whose shape and order of axes the content is compared: the first one that was written."""
        written = (one.tensor for one in self.recordings if one.tensor.is_output)
        return next(written, self.recordings[0].tensor)

    def is_in_order(self, tensor: TensorRef) -> bool:
        """Whether both tensors have the same values in the same order; shapes may differ."""
        places = ((*(size for size in one.shape if size != 1),) for one in (tensor, self.tensor))
        return len({self.orders.get(shape) for shape in places}) == 1


class ContentReader:
    """The values of tensors, and their sketches."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._sketches: dict[Hashable, Optional[Sketch]] = {}

    def sketch(self, tensor: TensorRef) -> Optional[Sketch]:
        """The sketch of a tensor; None if its values identify nothing or cannot be read."""
        kind = lookup(tensor.dtype)
        if kind is None or kind.kind != "f" or math.prod(tensor.shape) < FEWEST or tensor.problem:
            return None
        if not tensor.file and tensor.payload is None:
            return _of_statistics(tensor)
        array = self._values.array(tensor)
        return self._of_blocks(tensor) if array is None else self._of_array(array)

    def flat(self, tensor: TensorRef) -> Optional[Any]:
        """All values in C order; None if they cannot be read or are too many to hold."""
        array = self._values.array(tensor)
        return None if array is None else array.reshape(-1)

    def order(self, tensor: TensorRef) -> Optional[int]:
        """A checksum of the values in C order; None as for `flat`."""

        flat = self.flat(tensor)
        return None if flat is None else zlib.crc32(np.ascontiguousarray(flat, np.float32) + np.float32(0.0))

    @if_unreadable(None)
    def picked(self, tensor: TensorRef, places: Any) -> Optional[Any]:
        """The values at these places of the C order, as float64; None if they cannot be read."""

        flat = self.flat(tensor)
        if flat is not None:
            return flat[places].astype(np.float64)
        found, start = np.empty(len(places)), 0
        for block in self._blocks(tensor):
            inside = (places >= start) & (places < start + len(block))
            found[inside] = block[places[inside] - start]
            start += len(block)
        return found if start == math.prod(tensor.shape) else None

    def _blocks(self, tensor: TensorRef) -> Iterator[Any]:
        payload = self._values.payload(tensor)
        return iter(()) if payload is None else blocks(payload, _BLOCK, context=self._values.context)

    def _of_array(self, array: Any) -> Optional[Sketch]:
        wide = np.ascontiguousarray(array).reshape(-1)
        key = wide.size, hash_values(wide)
        if key not in self._sketches:
            valid = np.sort(wide[np.isfinite(wide) & (wide > MASKED)]).astype(np.float64)
            found = None
            if _varies(wide) and valid.size:
                found = Sketch(key, _quantiles(valid), _figures(valid[-1], valid[0], valid.mean(), valid))
            self._sketches[key] = found
        return self._sketches[key]

    @if_unreadable(None)
    def _of_blocks(self, tensor: TensorRef) -> Optional[Sketch]:
        """The sketch of a tensor that is too large to hold: quantiles from a histogram of the upper bits of float32
        numbers, with a linear interpolation inside of each."""

        total, count, squares, plain, varies = 0, 0, 0.0, 0.0, False
        levels = np.zeros(_LEVELS, np.int64)
        for block in self._blocks(tensor):
            wide = block.astype(np.float64)
            total = (total + hash_values(wide)) & WIDTH
            valid = wide[np.isfinite(wide) & (wide > MASKED)]
            varies = varies or _varies(wide)
            count, plain, squares = count + valid.size, plain + valid.sum(), squares + float(valid @ valid)
            levels += np.bincount(_level(valid.astype(np.float32)), minlength=_LEVELS)
        if not varies or not count:
            return None
        quantiles = _from_levels(levels, count)
        figures = float(quantiles[-1]), float(quantiles[0]), plain / count, math.sqrt(squares / count)
        return Sketch((math.prod(tensor.shape), total), quantiles, figures)


def _quantiles(values: Any) -> Any:
    """Quantiles of sorted values; np.quantile takes ten times as long for a few."""

    places = np.linspace(0, values.size - 1, QUANTILES)
    low = places.astype(np.int64)
    high = np.minimum(low + 1, values.size - 1)
    return values[low] + (places - low) * (values[high] - values[low])


def _figures(high: float, low: float, mean: float, valid: Any) -> tuple[float, float, float, float]:
    return float(high), float(low), float(mean), math.sqrt(float(valid @ valid) / valid.size)


def _varies(wide: Any) -> bool:
    """Whether a sample of the values has more than a few different numbers."""

    sample = wide[:: max(1, wide.size // _PROBE)]
    return bool(np.unique(sample[np.isfinite(sample)]).size > DISTINCT)


def _level(values: Any) -> Any:
    """The upper bits of float32 numbers as whole numbers in the order of the values."""

    bits = values.view(np.uint32) >> np.uint32(_UPPER)
    return np.where(bits & _SIGN, _ALL - bits, bits | _SIGN).astype(np.int64)


def _from_levels(levels: Any, count: int) -> Any:
    """Quantiles of values whose levels were counted."""

    numbers = np.arange(_LEVELS, dtype=np.uint32)
    bits = np.where(numbers & _SIGN, numbers & _SIZE, _ALL - numbers).astype(np.uint32)
    with np.errstate(all="ignore"):
        starts = (bits << np.uint32(_UPPER)).view(np.float32).astype(np.float64)
    used = np.flatnonzero(levels)
    ends = np.cumsum(levels[used])
    middles = ends - levels[used] / 2
    return np.interp(np.linspace(0, count, QUANTILES), middles, starts[used])


def _of_statistics(tensor: TensorRef) -> Optional[Sketch]:
    """The sketch of recorded statistics; None if they are incomplete, or of a constant."""
    found, size = tensor.statistics, math.prod(tensor.shape)
    if found is None or found.max == found.min:
        return None
    if not all(one is not None and math.isfinite(one) for one in found):
        return None
    figures = found.max, found.min, found.mean, found.norm / math.sqrt(size)  # type: ignore[operator]
    return Sketch((size, *found), None, figures)  # type: ignore[arg-type]
