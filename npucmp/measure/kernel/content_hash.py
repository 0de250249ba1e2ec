"""The hash of a tensor's elements in any order: views, transposes, reshapes and lossless casts have equal ones.

Each number adds two words of 32 bits, and both sums are modulo 2^32. Two different tensors of one run have equal
hashes by chance only, once in 2^64.

    number                         key                                          words
    held exactly by float32        its bits there; 0 for -0, one NaN            mixed twice; the second is a product
    any other float64              its 64 bits                                  both halves of the mixed key
    beyond what float64 holds      the float64 next to it, and what is left     the same
    complex                        the hashes of both parts                     the same; those of the real part if real

The mix multiplies and shifts as the end of xxHash32 does, by its first two primes (Yann Collet,
github.com/Cyan4973/xxHash). native.c computes the same.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
Keys = npt.NDArray[np.uint64]

_HALF = np.uint64(32)
_PRIMES = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_SPREAD = np.uint64(0x9E3779B185EBCA87)  # the first prime of xxHash64
_NAN = np.uint32(0x7FC00000)


def content_hash(wide: Array, remainder: Optional[Array] = None) -> int:
    """The hash of float64 or complex128 numbers; `remainder` is what must be added to each, where float64 rounded."""
    if wide.dtype.kind == "c":
        real, imaginary = _packed(*_words(wide.real)), _packed(*_words(wide.imag))
        both = _packed(*_mixed(real + imaginary * _SPREAD))
        return _total(*_halves(np.where(imaginary == 0, real, both)))
    return _total(*_words(wide, remainder))


def _words(wide: Array, remainder: Optional[Array] = None) -> tuple[Words, Words]:
    """What each number adds to the lower and to the higher sum."""
    narrow = wide.astype(np.float32)
    beyond = (narrow != wide) & (wide == wide)
    narrow += np.float32(0.0)  # -0 is 0
    bits = narrow.view(np.uint32)
    bits[np.isnan(narrow)] = _NAN
    bits *= _PRIMES[0]
    bits ^= bits >> np.uint32(16)
    bits *= _PRIMES[1]
    top = bits >> np.uint32(15)
    low, high = bits ^ top, bits * top
    keys = np.ascontiguousarray(wide).view(np.uint64)
    if remainder is not None:
        beyond |= remainder != 0.0
        keys = keys + remainder.astype(np.int64).view(np.uint64) * _SPREAD
    if beyond.any():
        low[beyond], high[beyond] = _mixed(keys[beyond])
    return low, high


def _mixed(keys: Keys) -> tuple[Words, Words]:
    """Both words of numbers of 64 bits."""
    low, high = _halves(keys)
    low, high = (low ^ high) * _PRIMES[0], high * _PRIMES[0]
    high ^= low
    low, high = ((one ^ (one >> np.uint32(15))) * _PRIMES[1] for one in (low, high))
    low ^= high
    return low ^ (low >> np.uint32(13)), high ^ (high >> np.uint32(13))


def _halves(keys: Keys) -> tuple[Words, Words]:
    return keys.astype(np.uint32), (keys >> _HALF).astype(np.uint32)


def _packed(low: Words, high: Words) -> Keys:
    packed: Keys = low | (high.astype(np.uint64) << _HALF)
    return packed


def _total(low: Words, high: Words) -> int:
    return int(low.sum(dtype=np.uint32)) | int(high.sum(dtype=np.uint32)) << 32
