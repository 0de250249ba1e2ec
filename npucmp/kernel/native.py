"""The kernel in C (native.c), where it was built, for pairs of floats; numpy_kernel.py for everything else.

`pip install` builds it when a compiler is there and leaves it out when not. NPUCMP_KERNEL=numpy leaves it alone.
The library is plain C behind ctypes: it gets pointers and lengths of arrays that are held here, and no Python object;
while it works, other threads do.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from npucmp.dtypes import numpy_dtype
from npucmp.kernel import numpy_kernel
from npucmp.kernel.merge import merge, merge_sides
from npucmp.kernel.numpy_kernel import HIGHEST_MASK, MASK_ROUNDING, MASKS, Bars, decades
from npucmp.model import HISTOGRAM_BINS, Moments, Side

Array = npt.NDArray[Any]

BLOCK = 1 << 13  # elements that the numpy kernel measures at once: 64 KB of float64 scratch
SWITCH = "NPUCMP_KERNEL"
_TYPES = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3, "float8_e4m3fn": 4, "float8_e5m2": 4}
_NO_ULP, _SAME = 0, 1
_SLOTS, _FIRST_EXPONENT = 96, 1023 - 70  # as in native.c
_ROUNDED = {  # narrower type → how it is rounded to, and what can be
    "float32": (2, ("float32", "float64")),
    "float16": (3, ("float16", "float32")),
    "bfloat16": (4, ("bfloat16", "float16", "float32")),
}


class _Side(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nan", "posinf", "neginf")),
        *((name, ctypes.c_double) for name in ("minimum", "maximum", "total", "squares")),
    ]


class _Moments(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("count", "compared", "masked", "mismatched", "equal")),
        *(
            (n, ctypes.c_double)
            for n in ("xx", "yy", "xy", "sum_d", "sum_abs", "sum_dd", "max_abs", "max_rel", "sum_rel")
        ),
        *((n, ctypes.c_int64) for n in ("max_abs_index", "max_rel_index", "below_1e3", "below_5e3", "outside")),
        ("max_ulp", ctypes.c_uint64),
        ("histogram", ctypes.c_int64 * HISTOGRAM_BINS),
        ("target", _Side),
        ("golden", _Side),
    ]


class _Bars(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("x_type", "y_type", "ulp", "same_type")),
        *((n, ctypes.c_double) for n in ("floor", "rtol", "atol", "x_largest", "y_largest", "highest", "rounding")),
        ("masks", ctypes.c_void_p),
        ("mask_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("edges", "bins", "x_table", "y_table")),
    ]


@cache
def library() -> Optional[ctypes.CDLL]:
    """The compiled kernel; None where it was not built or is switched off."""
    if os.environ.get(SWITCH) == "numpy":
        return None
    for file in sorted(Path(__file__).parent.glob("_native*")):
        if file.suffix not in (".so", ".pyd", ".dylib"):
            continue
        try:
            found = ctypes.CDLL(str(file))
            found.npucmp_measure.restype = found.npucmp_side.restype = None
        except (OSError, AttributeError):  # built for another machine, or another file of that name
            continue
        return found
    return None


def name() -> str:
    """Which kernel is at work: "native" or "numpy"."""
    return "numpy" if library() is None else "native"


def measure_block(x: Array, y: Array, bars: Bars, start: int = 0) -> Moments:
    """Moments of two flat arrays of one length, the first element being number `start` of the tensor."""
    native = library()
    prepared = None if native is None else _prepared(x.dtype.name, y.dtype.name, bars)
    if native is None or prepared is None:
        return _by_numpy(x, y, bars, start)
    x, y = _plain(x), _plain(y)
    found = _Moments()
    native.npucmp_measure(
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_void_p(y.ctypes.data),
        ctypes.c_int64(len(x)),
        ctypes.byref(prepared.bars),
        ctypes.byref(found),
    )
    return _moments(found, prepared.bars.ulp, start)


def measure_side(x: Array) -> Side:
    """One side's half alone, for a tensor without a partner."""
    native, kind = library(), _TYPES.get(x.dtype.name)
    if native is None or kind is None:
        return _side_by_numpy(x)
    x = _plain(x)
    table = _table(x.dtype.name)
    found = _Side()
    native.npucmp_side(
        ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(len(x)), kind, _address(table), ctypes.byref(found)
    )
    return _side(found)


def _by_numpy(x: Array, y: Array, bars: Bars, start: int) -> Moments:
    total: Optional[Moments] = None
    for at in range(0, len(x), BLOCK):
        block = numpy_kernel.measure_block(x[at : at + BLOCK], y[at : at + BLOCK], bars, start + at)
        total = block if total is None else merge(total, block)
    return numpy_kernel.measure_block(x, y, bars, start) if total is None else total


def _side_by_numpy(x: Array) -> Side:
    total = Side()
    for at in range(0, len(x), BLOCK):
        total = merge_sides(total, numpy_kernel.measure_side(x[at : at + BLOCK]))
    return total


class _Prepared(NamedTuple):
    """What a call needs besides the arrays; `held` keeps the tables alive that it points to."""

    bars: _Bars
    held: tuple[object, ...]


@lru_cache(maxsize=256)
def _prepared(x: str, y: str, bars: Bars) -> Optional[_Prepared]:
    """None for types that the C kernel does not measure."""
    if x not in _TYPES or y not in _TYPES:
        return None
    if bars.target.kind != "f" or bars.golden.kind != "f" or bars.narrower.memory:
        ulp = _NO_ULP
    elif x == y == bars.narrower.name:
        ulp = _SAME
    else:
        ulp, wider = _ROUNDED.get(bars.narrower.name, (_NO_ULP, ()))
        if x not in wider or y not in wider:
            return None  # two roundings in a row are not one
    tables = _table(x), _table(y)
    held = (np.array(MASKS), *_slots(), *tables)
    made = _Bars(
        _TYPES[x], _TYPES[y], ulp, int(x == y),
        bars.floor, bars.rtol, bars.atol, bars.target.largest, bars.golden.largest, HIGHEST_MASK, MASK_ROUNDING,
        held[0].ctypes.data, len(MASKS), held[1].ctypes.data, held[2].ctypes.data, *map(_address, tables),
    )  # fmt: skip
    return _Prepared(made, held)


@cache
def _slots() -> "tuple[Array, Array]":
    """For each binary exponent the decimal edge in it, and the bins of the histogram below and above that edge."""
    low, edges = decades()
    first = low[_FIRST_EXPONENT : _FIRST_EXPONENT + _SLOTS]
    upper = np.ldexp(1.0, np.arange(_FIRST_EXPONENT, _FIRST_EXPONENT + _SLOTS) - 1022)
    inside = (first < HISTOGRAM_BINS - 1) & (edges[first] < upper)
    above = np.minimum(first + inside, HISTOGRAM_BINS - 1)
    return np.where(inside, edges[first], np.inf), np.column_stack([first, above]).astype(np.int8)


@cache
def _table(name: str) -> Optional[Array]:
    """The 256 values of an 8-bit type."""
    if _TYPES[name] != 4:
        return None
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float32)


def _address(table: Optional[Array]) -> Optional[int]:
    return None if table is None else int(table.ctypes.data)


def _plain(x: Array) -> Array:
    return x if x.flags.c_contiguous and x.flags.aligned else np.ascontiguousarray(x).copy()


def _moments(found: _Moments, ulp: int, start: int) -> Moments:
    return Moments(
        count=found.count,
        target=_side(found.target),
        golden=_side(found.golden),
        compared=found.compared,
        masked=found.masked,
        mismatched=found.mismatched,
        equal=found.equal,
        xx=found.xx,
        yy=found.yy,
        xy=found.xy,
        sum_d=found.sum_d,
        sum_abs=found.sum_abs,
        sum_dd=found.sum_dd,
        max_abs=found.max_abs,
        max_abs_index=found.max_abs_index + start if found.max_abs_index >= 0 else -1,
        max_rel=found.max_rel,
        max_rel_index=found.max_rel_index + start if found.max_rel_index >= 0 else -1,
        sum_rel=found.sum_rel,
        below_1e3=found.below_1e3,
        below_5e3=found.below_5e3,
        outside=found.outside,
        max_ulp=None if ulp == _NO_ULP else found.max_ulp,
        histogram=tuple(found.histogram),
    )


def _side(found: _Side) -> Side:
    return Side(found.nan, found.posinf, found.neginf, found.minimum, found.maximum, found.total, found.squares)
