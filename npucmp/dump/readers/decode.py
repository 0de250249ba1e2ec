"""Decode the bytes of a file into elements. A type that numpy lacks becomes a wider type (named in dtypes.py).

    complex32            two float16, real part first                                  → complex64
    hifloat8             sign, a prefix code for the width D of the exponent, exponent, mantissa:
                           11 D=4 · 10 D=3 · 01 D=2 · 001 D=1 · 0001 D=0 · 0000 denormal; exponent = sign and
                           magnitude with a hidden leading one; 1, 2, 3, 3, 3 bits of mantissa for D = 4 … 0;
                           denormal ±2^(M-23) for M = 1 … 7; 00 zero, 80 NaN, 6F +Inf, EF -Inf  → float32
    float8_e8m0          2^(byte - 127), FF NaN                                        → float32
    float4_e2m1          sign, 2 bits of exponent (bias 1), 1 of mantissa; low half of a byte first → float32
    int4, int2, uint2    two's complement or plain, low bits of a byte first           → int8, uint8
    uint1                the highest bit of a byte first                               → uint8

Sources: arXiv 2409.16626 for hifloat8 (UNVERIFIED against hardware), OCP Microscaling Formats 1.0 for e8m0 and
e2m1, numpy.unpackbits as msaccucmp uses it for uint1. The order of the halves of a byte is UNVERIFIED.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npucmp.model.dtypes import DTYPES, numpy_dtype

Array = NDArray[Any]


NATIVE = "<" if sys.byteorder == "little" else ">"


def native(data: Any, name: str, byteorder: str) -> Array:
    """Return the elements of a flat buffer in native byte order; the type must exist in numpy or ml_dtypes."""
    if name == "bool":
        truth: Array = np.frombuffer(data, np.uint8) != 0  # a bool of byte 2 would equal neither True nor False
        return truth
    dtype = numpy_dtype(name, NATIVE)
    if byteorder == NATIVE or dtype.itemsize == 1:
        return np.frombuffer(data, dtype)
    unit = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    swapped: Array = np.frombuffer(data, f"u{unit}").byteswap()  # the types of ml_dtypes have no byte order
    return swapped.view(dtype)


def decode(name: str, data: bytes, skip: int, count: int) -> Array:
    """Return `count` elements from little-endian bytes, after `skip` elements that share the first byte."""
    memory = numpy_dtype(name)
    if name == "complex32":
        halves: Array = np.frombuffer(data, "<f2").astype(np.float32)
        return halves.view(memory)
    raw = np.frombuffer(data, np.uint8)
    bits = DTYPES[name].bits
    if not bits:
        whole: Array = _table(name)[raw]
        return whole
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    if name == "uint1":
        shifts = shifts[::-1]
    units: Array = ((raw[:, None] >> shifts) & np.uint8(2**bits - 1)).reshape(-1)[skip : skip + count]
    if memory.kind == "f":
        found: Array = _table(name)[units]
        return found
    if memory.kind == "i":
        sign = 1 << (bits - 1)
        units = (units ^ np.uint8(sign)).astype(memory) - memory.type(sign)
    return units.astype(memory, copy=False)


@cache
def _table(name: str) -> Array:
    """Return the value of each code."""
    value = {"hifloat8": _hifloat8, "float8_e8m0": _e8m0, "float4_e2m1": _e2m1}[name]
    codes = 2 ** (DTYPES[name].bits or 8)
    return np.array([value(code) for code in range(codes)], np.float32)


def _hifloat8(code: int) -> float:
    if code == 0x80:
        return math.nan
    sign = -1.0 if code & 0x80 else 1.0
    body = code & 0x7F
    if body == 0x6F:
        return sign * math.inf
    for width, prefix, length in ((4, 0b11, 2), (3, 0b10, 2), (2, 0b01, 2), (1, 0b001, 3), (0, 0b0001, 4)):
        if body >> (7 - length) == prefix:
            return sign * _hifloat8_normal(body, width, 7 - length - width)
    return sign * 2.0 ** (body - 23) if body else 0.0


def _hifloat8_normal(body: int, width: int, fraction: int) -> float:
    """Return the value of a code without its sign, with `width` bits of exponent and `fraction` bits of mantissa."""
    mantissa = 1 + (body & (2**fraction - 1)) / 2**fraction
    exponent = (body >> fraction) & (2**width - 1)
    if width:
        negative, magnitude = exponent >> (width - 1), exponent & (2 ** (width - 1) - 1)
        exponent = 2 ** (width - 1) + magnitude
        exponent = -exponent if negative else exponent
    return math.ldexp(mantissa, exponent)


def _e8m0(code: int) -> float:
    return math.nan if code == 0xFF else 2.0 ** (code - 127)


def _e2m1(code: int) -> float:
    sign, exponent, fraction = -1.0 if code & 8 else 1.0, (code >> 1) & 3, code & 1
    return sign * (2.0 ** (exponent - 1) * (1 + fraction / 2) if exponent else fraction / 2)
