"""The kernel in C (native.c) for pairs of floats, if it was built; numpy_kernel.py for everything else.

The library (library.py) is plain C called through ctypes: it gets pointers and lengths of arrays that Python keeps
alive, and no Python object. Other threads run during a call.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache, reduce
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.measure.kernel import numpy_kernel
from npucmp.measure.kernel.library import has_avx512, library
from npucmp.measure.kernel.mask_values import NONE_UNSEEN
from npucmp.measure.kernel.merge import merge, merge_sides
from npucmp.measure.kernel.numpy_kernel import CountLimits, lower_edges
from npucmp.model import Moments, Side
from npucmp.model.dtypes import numpy_dtype
from npucmp.model.moments import RECORD, SIDE_RECORD, moments_in, record_of

if TYPE_CHECKING:
    from npucmp.dump.readers.values import ValueBytes

Array = npt.NDArray[Any]

BLOCK = 1 << 15  # elements that the numpy kernel measures at once: twice as many exceed the cache
_TYPES = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3, "float8_e4m3fn": 4, "float8_e5m2": 4}
_NO_ULP, _SAME = 0, 1
_ROUNDED = {  # narrower type → the rounding to it, and the possible types of the arrays
    "float32": (2, ("float32", "float64")),
    "float16": (3, ("float16", "float32")),
    "bfloat16": (4, ("bfloat16", "float16", "float32")),
}

_NOTHING, _Record = record_of(Moments()), ctypes.c_char * RECORD.size


class _Bars(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("x_type", "y_type", "ulp", "same_type", "avx512")),
        *((name, ctypes.c_double) for name in ("floor", "rtol", "atol", "highest_mask", "mask_bound")),
        *((name, ctypes.c_void_p) for name in ("masks", "x_masks", "y_masks")),
        *((name, ctypes.c_int64) for name in ("mask_count", "x_count", "y_count")),
        *((name, ctypes.c_void_p) for name in ("edges", "x_table", "y_table")),
    ]


def measure_block(x: Array, y: Array, bars: CountLimits, start: int = 0) -> Moments:
    """The Moments of two flat arrays of one length; the first element has index `start` in the tensor."""
    total = Total(bars, start)
    total.add(x, y)
    return total.moments()


def measure_bytes(x: ValueBytes, y: ValueBytes, bars: CountLimits) -> Moments:
    """The Moments of two tensors in the bytes of their files. For a small tensor, two arrays would take longer than the
    kernel."""
    prepared = _prepared(x.dtype, y.dtype, bars)
    if prepared is None or x.start % x.dtype.itemsize or y.start % y.dtype.itemsize:
        return measure_block(x.array(), y.array(), bars)
    record = _Record.from_buffer_copy(_NOTHING)
    prepared.measure(x.data, x.start, y.data, y.start, x.elements, 0, prepared.address, record)
    return moments_in(record.raw)


class Total:
    """The Moments of a tensor that arrives block by block. The kernel in C merges its own blocks."""

    def __init__(self, bars: CountLimits, start: int = 0) -> None:
        self._bars, self._at = bars, start
        self._by_numpy: Optional[Moments] = None
        self._by_c: Optional[ctypes.Array[ctypes.c_char]] = None

    def add(self, x: Array, y: Array) -> None:
        """Add the next block of both sides. Both have one length and the types of the earlier blocks."""
        prepared = _prepared(x.dtype, y.dtype, self._bars)
        if prepared is None:
            block = _by_numpy(x, y, self._bars, self._at)
            self._by_numpy = block if self._by_numpy is None else merge(self._by_numpy, block)
        else:
            x, y, self._by_c = _plain(x), _plain(y), self._by_c or _Record.from_buffer_copy(_NOTHING)
            prepared.measure(_address(x), 0, _address(y), 0, len(x), self._at, prepared.address, self._by_c)
        self._at += len(x)

    def moments(self) -> Moments:
        return (self._by_numpy or Moments()) if self._by_c is None else moments_in(self._by_c.raw)


def measure_side(x: Array) -> Side:
    """Measure one side alone, for a tensor without a partner."""
    native, kind = library(), _TYPES.get(x.dtype.name)
    if native is None or kind is None or not x.dtype.isnative:
        return _side_by_numpy(x)
    x = _plain(x)
    table, record = _table(x.dtype.name), (ctypes.c_char * SIDE_RECORD.size)()
    native.npucmp_side(_address(x), len(x), kind, None if table is None else _address(table), record)
    return Side(*SIDE_RECORD.unpack(record))


def _address(x: Array) -> int:
    """The address of an array; x.ctypes.data returns the same and takes four times as long."""
    place: int = x.__array_interface__["data"][0]
    return place


def _by_numpy(x: Array, y: Array, bars: CountLimits, start: int) -> Moments:
    starts = range(0, max(1, len(x)), BLOCK)
    measured = (numpy_kernel.measure_block(x[at : at + BLOCK], y[at : at + BLOCK], bars, start + at) for at in starts)
    return reduce(merge, measured)


def _side_by_numpy(x: Array) -> Side:
    measured = (numpy_kernel.measure_side(x[at : at + BLOCK]) for at in range(0, len(x), BLOCK))
    return reduce(merge_sides, measured, Side())


class _Prepared(NamedTuple):
    """The function in C, and its arguments other than the arrays. `references` keeps the targets of `address` alive."""

    measure: Callable[..., None]
    address: int
    references: tuple[object, ...]


@lru_cache(maxsize=256)
def _prepared(x: np.dtype[Any], y: np.dtype[Any], bars: CountLimits) -> Optional[_Prepared]:
    """Prepare a call; None for types that the kernel in C does not measure."""
    native, one, other = library(), x.name, y.name
    if (
        native is None
        or one not in _TYPES
        or other not in _TYPES
        or not (x.isnative and y.isnative)
        or bars.unseen != NONE_UNSEEN
    ):
        return None
    narrow = bars.narrower  # the arrays may be wider: bfloat16 stored as float32
    if bars.target.kind != "f" or bars.golden.kind != "f" or narrow.memory:
        ulp = _NO_ULP
    elif one == other == narrow.name:
        ulp = _SAME
    else:
        ulp, rounded = _ROUNDED.get(narrow.name, (_NO_ULP, ()))
        if one not in rounded or other not in rounded:
            return None  # rounding twice may differ from rounding once
    tables = _table(one), _table(other)
    masks = bars.masks
    values = masks.values, masks.target, masks.golden
    held: list[Optional[Array]] = [*(np.array(one, np.float64) for one in values), lower_edges(), *tables]
    places = [None if one is None else _address(one) for one in held]
    made = _Bars(
        _TYPES[one], _TYPES[other], ulp, int(one == other), has_avx512(),
        bars.floor, bars.rtol, bars.atol, masks.highest, masks.bound,
        *places[:3], *map(len, values), *places[3:],
    )  # fmt: skip
    return _Prepared(native.npucmp_measure, ctypes.addressof(made), (made, *held))


@cache
def _table(name: str) -> Optional[Array]:
    """The 256 values of an 8-bit type."""
    if _TYPES[name] != 4:
        return None
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)


def _plain(x: Array) -> Array:
    return x if x.flags.c_contiguous and x.flags.aligned else np.ascontiguousarray(x).copy()
