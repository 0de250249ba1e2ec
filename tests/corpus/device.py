"""Numbers as a device computes them: rounding, sums in blocks, functions that are not quite exact.

Everything is computed in float64 and rounded where a device rounds, so that a run has the same bits on every machine
that npucmp is tested on: no BLAS and no vector width decides over the order of a float32 sum, the Device does.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

Array = np.ndarray
ROUND_OFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
}


@dataclass(frozen=True)
class Device:
    """A way of computing. Two devices differ as two pieces of hardware, or two releases of a library, do.

    block: terms whose partial sum is exact; partial sums are added one after the other in float32.
    order: 0 blocks of neighbours, 1 the same from the end, 2 strided, as the lanes of a vector unit or threads add.
    slope: error of functions (exp, erf, tanh …) in round-offs of float32; 0 rounds the true value once. It is a smooth
        function of the argument, as that of a polynomial is.
    flips: share of roundings that are not those to the nearest, by up to half a unit more.
    reduced: products round their float32 operands to 11 bits first (HF32, TF32).
    """

    block: int = 64
    order: int = 0
    slope: float = 0.0
    flips: float = 0.0
    reduced: bool = False
    seed: int = 0


def rounded(x: Array, dtype: str, toward_zero: bool = False) -> Array:
    """x, float64, at the nearest numbers of a type (even ones at a tie), or at those toward zero; float64 again."""
    if dtype == "float64":
        return np.asarray(x, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if toward_zero:
            return _truncated(x, dtype)
        if dtype == "bfloat16":
            return _bits(x, 16)
        return np.asarray(x).astype(np.float16 if dtype == "float16" else np.float32).astype(np.float64)


def _bits(x: Array, dropped: int) -> Array:
    """float32 without its last bits, to the nearest."""
    single = np.asarray(x, np.float64).astype(np.float32)
    bits = single.view(np.uint32)
    half = np.uint32((1 << (dropped - 1)) - 1)
    kept = (bits + half + ((bits >> np.uint32(dropped)) & np.uint32(1))) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    found = kept.view(np.float32)
    return np.where(np.isfinite(single), found, single).astype(np.float64)


def _truncated(x: Array, dtype: str) -> Array:
    nearest = rounded(x, dtype)
    step = np.maximum(np.abs(nearest) * ROUND_OFF[dtype] * 1.5, 2 * TINY[dtype] * ROUND_OFF[dtype])
    lower = rounded(np.sign(nearest) * np.maximum(np.abs(nearest) - step, 0.0), dtype)
    return np.where(np.abs(nearest) > np.abs(x), lower, nearest)


def reduced(x: Array) -> Array:
    """x at the 11 significant bits that HF32 and TF32 units keep."""
    return _bits(x, 13)


_GRID = 128
_ERF = np.array([math.erf(k / _GRID) for k in range(-6 * _GRID, 6 * _GRID + 1)])


def erf(x: Array) -> Array:
    """The error function to 1e-15: Taylor's series around the nearest of a table's points; numpy has none."""
    x = np.asarray(x, np.float64)
    near = np.clip(np.where(np.isnan(x), 0.0, x), -6.0, 6.0)
    place = np.rint(near * _GRID)
    z = place / _GRID
    d = near - z
    g = 2.0 / math.sqrt(math.pi) * np.exp(-z * z)
    tail = d * (1 - z * d + (4 * z * z - 2) * d**2 / 6 + (12 * z - 8 * z**3) * d**3 / 24)
    tail += (16 * z**4 - 48 * z**2 + 12) * d**5 / 120
    found = _ERF[(place + 6 * _GRID).astype(np.int64)] + g * tail
    return np.where(np.isnan(x), np.nan, found)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}


def _finite(x: Array) -> Array:
    return np.where(np.isfinite(x), x, 0.0)


class Arithmetic:
    """The operations of a device, for one operator. Arrays in and out are float64, on the grid of float32.

    dtype: what the operator writes; float64 computes in float64 throughout. device None rounds nothing anywhere.
    The other attributes are what a faulty operator does wrong; see faults.py.
    """

    def __init__(self, device: Optional[Device], dtype: str = "float32", label: str = ""):
        self.device = device
        self.dtype = dtype
        self.label = label
        self.accumulator = "float32"  # narrow accumulation: type of partial sums
        self.dropped = 0  # terms at the end of a sum that a loop forgets
        self.weak: dict[str, float] = {}  # function → relative error of its values
        self.toward_zero = False
        self.flush = False  # numbers below the smallest normal one become 0
        self.operands = ""  # type that operands of products are rounded to

    @property
    def is_exact(self) -> bool:
        return self.device is None or self.dtype == "float64"

    def twin(self) -> Arithmetic:
        """The same without rounding and without fault."""
        return Arithmetic(None, self.dtype, self.label)

    def r(self, x: Array) -> Array:
        """An intermediate result, rounded to float32."""
        return x if self.is_exact else rounded(x, "float32")

    def function(self, name: str, x: Array) -> Array:
        with np.errstate(all="ignore"):
            y = FUNCTIONS[name](x)
            if self.weak.get(name):
                y = y * (1.0 + self.weak[name] * np.sin(21.0 * _finite(x) + 1.0))
            if self.is_exact:
                return y
            assert self.device is not None
            if self.device.slope:
                y = y * (1.0 + self.device.slope * 2.0**-24 * np.sin(37.0 * _finite(x) + self.device.seed % 7))
            return rounded(y, "float32")

    def sum(self, x: Array, axis: Union[int, Sequence[int]], keepdims: bool = False) -> Array:
        axes = sorted(a % x.ndim for a in ([axis] if isinstance(axis, int) else axis))
        kept = [a for a in range(x.ndim) if a not in axes]
        count = int(np.prod([x.shape[a] for a in axes]))
        flat = x.transpose(*kept, *axes).reshape(*(x.shape[a] for a in kept), count)
        found = self._total(flat) if x.size else np.zeros(flat.shape[:-1])
        return found.reshape([1 if a in axes else x.shape[a] for a in range(x.ndim)]) if keepdims else found

    def _total(self, x: Array) -> Array:
        """Over the last axis."""
        terms = x.shape[-1] - min(self.dropped, x.shape[-1] - 1)
        x = x[..., :terms]
        if self.device is None or (self.is_exact and self.accumulator == "float32"):
            return x.sum(-1)
        narrow = self.accumulator != "float32"
        count = -(-terms // (16 if narrow else max(self.device.block, -(-terms // 64))))
        count = min(count, 256)
        block = -(-terms // count)
        if block * count != terms:
            x = np.concatenate([x, np.zeros((*x.shape[:-1], block * count - terms))], -1)
        strided = self.device.order == 2
        parts = x.reshape(*x.shape[:-1], *((block, count) if strided else (count, block))).sum(-2 if strided else -1)
        if self.device.order == 1:
            parts = parts[..., ::-1]
        if narrow:
            return self._added([parts[..., k] for k in range(count)])
        if count == 1:
            return self.r(parts[..., 0])
        return np.add.accumulate(parts.astype(np.float32), -1, dtype=np.float32)[..., -1].astype(np.float64)

    def _added(self, parts: list[Array]) -> Array:
        found = rounded(parts[0], self.accumulator)
        for part in parts[1:]:
            found = rounded(found + part, self.accumulator)
        return found

    def mean(self, x: Array, axis: Union[int, Sequence[int]], keepdims: bool = True) -> Array:
        total = self.sum(x, axis, keepdims)
        return self.r(total / (x.size / max(1, total.size)))

    def matmul(self, a: Array, b: Array) -> Array:
        """(…, m, k) × (…, k, n), in blocks along k."""
        terms = a.shape[-1] - min(self.dropped, a.shape[-1] - 1)
        if self.operands:
            a, b = rounded(a, self.operands), rounded(b, self.operands)
        elif self.device is not None and self.device.reduced and self.dtype == "float32":
            a, b = reduced(a), reduced(b)
        if self.device is None or (self.is_exact and self.accumulator == "float32"):
            return a[..., :terms] @ b[..., :terms, :]
        narrow = self.accumulator != "float32"
        count = -(-terms // max(16 if narrow else self.device.block, -(-terms // 8)))
        if count == 1:
            return rounded(a[..., :terms] @ b[..., :terms, :], self.accumulator)
        block = -(-terms // count)
        if self.device.order == 2:
            slices = [slice(k, terms, count) for k in range(count)]
        else:
            slices = [slice(k, min(k + block, terms)) for k in range(0, terms, block)]
        if self.device.order == 1:
            slices = slices[::-1]
        return self._added([a[..., s] @ b[..., s, :] for s in slices])

    def stored(self, x: Array, dtype: str, copy: bool = False, part: int = 0) -> Array:
        """What is written to memory: x on the grid of a type, as float32 (float64 of that type).

        copy: the operator only moves values, and no device rounds them. part: which output it is.
        """
        if self.device is not None and self.device.flips and not copy and dtype != "float64" and x.size:
            draw = np.random.RandomState([self.device.seed, zlib.crc32(self.label.encode()), part])
            nudge = draw.random_sample(x.shape) - 0.5
            chosen = draw.random_sample(x.shape) < self.device.flips
            with np.errstate(invalid="ignore"):
                x = x * (1.0 + np.where(chosen, nudge, 0.0) * 2.0 * ROUND_OFF[dtype])
        if self.device is not None:
            x = rounded(x, dtype, self.toward_zero)
            if self.flush:
                x = np.where(np.abs(x) < TINY[dtype], 0.0, x)
        return x.astype(np.float64 if dtype == "float64" or self.device is None else np.float32)

    def with_(self, **changes: Any) -> Arithmetic:
        """A copy with some attributes changed."""
        found = Arithmetic(self.device, self.dtype, self.label)
        found.__dict__.update(self.__dict__)
        found.__dict__.update(changes)
        return found


def other(device: Device, **changes: Any) -> Device:
    """The same device with something else."""
    return replace(device, **changes)
