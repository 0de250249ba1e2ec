"""Kernels of two devices: the same functions with another order of accumulation, and rounding to 16 or 8 bits.

Values are float64 arrays whose numbers are those of the device's type. A kernel computes in float32 as a device does,
and rounds its result once.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BITS = {"bfloat16": 8, "float16": 11, "float32": 24}  # significant bits
ERF = np.vectorize(math.erf)
LARGEST_8 = 448.0  # of float8_e4m3


class Device(NamedTuple):
    """dtype      of tensors
    block      terms of a sum that are added at once
    reverse    blocks are added from the last to the first
    inside     a norm and a softmax round inside: the normalised values before the weight, the exponentials
    wide       sums are accumulated in float64
    bits       significant bits of the accumulator, more than those of the results by six or more
    eight      operands of products are rounded to float8_e4m3 with a scale for each tensor
    """

    dtype: str
    block: int = 32
    reverse: bool = False
    inside: bool = False
    wide: bool = False
    eight: bool = False
    bits: int = 24


class Fault(NamedTuple):
    """kind: factor, zero or floor (rounding to one side), or bits (lost in the accumulation); size: the factor, or
    the significant bits of the accumulator."""

    kind: str
    size: float = 0.0


def rounded(values: Array, dtype: str, side: str = "") -> Array:
    """Return values rounded to nearest, or toward zero or down, in a type. Subnormal numbers are not emulated."""
    if dtype == "float64":
        return values
    return to_bits(values, BITS[dtype], side)


def to_bits(values: Array, bits: int, side: str = "") -> Array:
    mantissa, exponent = np.frexp(values)
    scaled = np.ldexp(mantissa, bits)
    whole = np.trunc(scaled) if side == "zero" else np.floor(scaled) if side == "floor" else np.rint(scaled)
    found: Array = np.ldexp(whole, exponent - bits)
    return found


def in_eight_bits(values: Array) -> Array:
    """Return values rounded to float8_e4m3 after scaling by their largest magnitude."""
    scale = LARGEST_8 / max(float(np.abs(values).max(initial=0.0)), 1e-30)
    scaled = values * scale
    normal = to_bits(scaled, 4)
    small = np.rint(scaled * 512.0) / 512.0  # subnormal numbers are multiples of 2^-9
    found: Array = np.where(np.abs(scaled) < 2.0**-6, small, normal) / scale
    return found


class Kernels:
    """The kernels of a device; `fault` changes the next call, and is then forgotten."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.fault: Optional[Fault] = None

    def _in(self, values: Array) -> Array:
        exact = self.device.dtype == "float64" or self.device.wide
        return values if exact else values.astype(np.float32).astype(np.float64)

    def end(self, values: Array) -> Array:
        """Return the result of a kernel in the type of the device."""
        fault, dtype = self.fault, self.device.dtype
        if fault is not None and fault.kind == "factor":
            values = values * fault.size
        side = fault.kind if fault is not None and fault.kind in ("zero", "floor") else ""
        return rounded(values, dtype, side)

    def _added(self, parts: list[Array]) -> Array:
        """Return the sum of blocks in the order of the device, in its accumulator."""
        fault = self.fault
        total: Any = 0.0
        for part in parts[::-1] if self.device.reverse else parts:
            total = self._in(total + part)
            bits = int(fault.size) if fault is not None and fault.kind == "bits" else self.device.bits
            total = total if bits >= 24 else to_bits(total, bits)
        return np.asarray(total)

    def _blocks(self, terms: int) -> list[slice]:
        if self.device.dtype == "float64":
            return [slice(0, terms)]
        step = self.device.block if self.fault is None or self.fault.kind != "bits" else min(16, self.device.block)
        return [slice(at, at + step) for at in range(0, terms, step)]

    def product(self, x: Array, y: Array) -> Array:
        """Return x @ y."""
        if self.device.eight:
            x, y = in_eight_bits(x), in_eight_bits(y)
        return self._added([self._in(x[..., one] @ y[..., one, :]) for one in self._blocks(x.shape[-1])])

    def total(self, x: Array) -> Array:
        """Return the sum along the last axis, which is kept."""
        return self._added([self._in(x[..., one].sum(-1, keepdims=True)) for one in self._blocks(x.shape[-1])])

    def linear(self, x: Array, weight: Array, bias: Optional[Array] = None) -> Array:
        found = self.product(x, weight.T)
        return self.end(found if bias is None else found + bias)

    def matmul(self, x: Array, y: Array) -> Array:
        return self.end(self.product(x, y))

    def add(self, x: Array, y: Array) -> Array:
        return self.end(x + y)

    def mul(self, x: Array, y: Array | float) -> Array:
        return self.end(x * y)

    def _inner(self, values: Array) -> Array:
        return rounded(values, self.device.dtype) if self.device.inside else values

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        count = x.shape[-1]
        away = self._in(x - self.total(x) / count)
        normal = self._in(away / np.sqrt(self.total(away * away) / count + 1e-5))
        return self.end(self._inner(normal) * weight + bias)

    def rms_norm(self, x: Array, weight: Array) -> Array:
        normal = self._in(x / np.sqrt(self.total(x * x) / x.shape[-1] + 1e-6))
        return self.end(self._inner(normal) * weight)

    def softmax(self, x: Array) -> Array:
        powers = self._in(np.exp(self._in(x - x.max(-1, keepdims=True))))
        return self.end(powers / self.total(powers))

    def attention(self, q: Array, k: Array, v: Array) -> Array:
        """Return the fused attention; `inside`: probabilities are rounded before they are normalised."""
        scores = self._in(self.product(q, np.swapaxes(k, -1, -2)) / math.sqrt(q.shape[-1]))
        powers = self._in(np.exp(self._in(scores - scores.max(-1, keepdims=True))))
        return self.end(self.product(self._inner(powers), v) / self.total(powers))

    def gelu(self, x: Array) -> Array:
        return self.end(self._in(0.5 * x * (1.0 + ERF(x / math.sqrt(2.0)))))

    def silu(self, x: Array) -> Array:
        return self.end(self._in(x / (1.0 + np.exp(-x))))

    def relu(self, x: Array) -> Array:
        return self.end(np.maximum(x, 0.0))

    def conv2d(self, x: Array, weight: Array, bias: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
        rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(x.shape[0], *x.shape[2:], -1)
        found = self.product(rows, weight.reshape(len(weight), -1).T) + bias
        return self.end(found.transpose(0, 3, 1, 2))
