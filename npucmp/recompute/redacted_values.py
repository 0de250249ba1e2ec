"""Draw other values for a tensor: same exponents, signs and special values, other mantissas; other indices in the
same range.

A value with a mantissa of zero (a power of two, 0, ±Inf, NaN) is trivial: it stays in its place. Every other float gets
another mantissa of the same number of bits, drawn from uniform random numbers that do not depend on the original.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.model.dtypes import DTYPES, Dtype, lookup
from npucmp.recompute.arguments import RefusedRecord

MANY = 16  # elements: fewer may share their trailing zeros by chance
BITS = 53  # of a float64
LARGE = 1 << 62
HALVES = {"complex64": "float32", "complex128": "float64"}
RUN_BITS = 44  # of drawn mantissas in a run that must not recur: two elements of float32


def fresh_generator() -> np.random.Generator:
    """Return a generator with a seed from the operating system, which is not recorded."""
    return np.random.default_rng(secrets.randbits(128))


def require_plain(dtype: str, slot: str) -> Dtype:
    """Return the row of an element type. Raises RefusedRecord for a type whose mantissas cannot be drawn."""
    row = lookup(dtype)
    if row is None or row.memory or row.bits or (row.kind == "f" and not row.round_off):
        raise RefusedRecord(f"{slot} has the type {dtype!r:.40}, which cannot be redacted")
    return row


def redraw(values: Array, dtype: Dtype, rng: np.random.Generator, keeps_elements: bool = False) -> Array:
    """Return other values of the same type and shape; floats are float64.

    keeps_elements  permute integers instead of drawing others: their sum and their counts stay
    """
    if dtype.kind == "b":
        return values
    if dtype.kind in "iu":
        return redraw_integers(values, rng, keeps_elements)
    if dtype.kind == "c":
        parts = (redraw_floats(one, DTYPES[HALVES[dtype.name]], rng) for one in (values.real, values.imag))
        real, imaginary = parts
        found: Array = real + 1j * imaginary
        return found
    return redraw_floats(values, dtype, rng)


def redraw_floats(values: Array, dtype: Dtype, rng: np.random.Generator) -> Array:
    """Return values with drawn mantissas. Trailing zeros that all values share stay: integers stay integers, and
    float32 that holds bfloat16 keeps doing so. NaN loses its payload; subnormal numbers keep their leading bit."""
    wide = np.array(values, np.float64)
    wide[np.isnan(wide)] = np.nan
    drawn = has_mantissa(wide)
    if not drawn.any():
        return wide
    size = np.abs(wide[drawn])
    exponent = np.frexp(size)[1].astype(np.int64)
    step = _lowest_bit(size, exponent, dtype)
    last = np.rint(np.ldexp(size, -step)).astype(np.int64)  # the value in units of its last bit
    lead = np.left_shift(np.int64(1), exponent - 1 - step)
    with np.errstate(over="ignore"):
        beyond = (
            np.ldexp(np.full(step.shape, dtype.largest), -step) + 1.0
        )  # infinite where no value is near the largest
    top = np.minimum((2 * lead).astype(np.float64), beyond).astype(np.int64)
    count = top - lead - 2  # mantissas besides zero and the original
    other = lead + 1 + np.floor(rng.random(size.shape) * np.maximum(count, 1)).astype(np.int64)
    other = np.where(other >= last, other + 1, other)
    other = np.where(count > 0, other, lead)
    wide[drawn] = np.copysign(np.ldexp(other.astype(np.float64), step), wide[drawn])
    return wide


def has_mantissa(values: Array) -> Array:
    """Return whether each float has a mantissa other than zero."""
    with np.errstate(invalid="ignore"):
        found: Array = np.isfinite(values) & (values != 0) & (np.abs(np.frexp(values)[0]) != 0.5)
    return found


def _lowest_bit(size: Array, exponent: Array, dtype: Dtype) -> Array:
    """Return the exponent of the last bit of each value: of its type, or coarser if all values end in zeros."""
    bits = 1 - int(np.frexp(dtype.round_off)[1])
    least = int(np.frexp(dtype.tiny)[1]) - bits
    whole = np.ldexp(np.frexp(size)[0], BITS).astype(np.int64)
    zeros = np.frexp((whole & -whole).astype(np.float64))[1].astype(np.int64) - 1
    used = BITS - zeros
    common = min(bits, int(used.max())) if size.size >= MANY else bits
    lowest = int((exponent - used).min())
    floor = max(least, lowest) if size.size >= MANY or lowest >= 0 else least
    found: Array = np.maximum(exponent - common, floor)
    return found


def redraw_integers(values: Array, rng: np.random.Generator, keeps_elements: bool = False) -> Array:
    """Return other integers between 1 and the largest. Zero and negative numbers stay (padding, ignored labels), as do
    masks of 0 and 1, and counters. Distinct indices stay distinct, sorted ones sorted."""
    if is_structure(values):
        return values
    flat = values.reshape(-1).copy()
    places = np.flatnonzero(flat > 0)
    own = flat[places]
    if keeps_elements:
        flat[places] = own[rng.permutation(own.size)]
    elif np.unique(own).size == own.size > 1 and int(own.max()) <= 4 * MANY * own.size:
        flat[places] = _distinct(own, rng)
    else:
        flat[places] = _others(own, rng)
    found = flat.reshape(values.shape)
    if is_sorted(values):
        found = np.sort(found, axis=-1)
        if not values[..., 0].any():  # bounds of sequences: the last is the number of all tokens, as in shapes
            found[..., -1] = values[..., -1]
    return np.asarray(found)


def _others(own: Array, rng: np.random.Generator) -> Array:
    """Return integers from 1 to the largest, none of them in its place unless 1 is the largest."""
    most = int(own.max())
    by = 1 + np.floor(rng.random(own.size) * max(1, most - 1)).astype(np.int64)
    kind = object if most >= LARGE else np.int64  # a sum of larger ones exceeds 64 bits
    return np.asarray((own.astype(kind) - 1 + by.astype(kind)) % most + 1).astype(own.dtype)


def _distinct(own: Array, rng: np.random.Generator) -> Array:
    """Return as many distinct integers up to the largest, few of them in their place."""
    most = int(own.max())
    best = own
    for _ in range(4):
        found = 1 + rng.permutation(most)[: own.size]
        if int((found == own).sum()) < int((best == own).sum()):
            best = found.astype(own.dtype)
    return best


def is_structure(values: Array) -> bool:
    """Return whether integers hold a structure and no data: none above 1, or a counter along the last axis."""
    if values.size == 0 or int(values.max()) <= 1:
        return True
    steps = np.diff(values.astype(np.float64), axis=-1) if values.ndim else np.empty(0)
    return bool(steps.size and np.all(steps == 1) and np.all(values.reshape(-1, values.shape[-1])[:, 0] <= 1))


def is_sorted(values: Array) -> bool:
    """Return whether integers rise along the last axis, as bounds of sequences do."""
    return bool(values.ndim and values.shape[-1] > 2 and np.all(values[..., 1:] >= values[..., :-1]))


def equal_places(before: Array, after: Array) -> int:
    """Return the number of floats with a mantissa that kept their value in their place."""
    if before.dtype.kind == "c":
        return equal_places(before.real, after.real) + equal_places(before.imag, after.imag)
    return int(np.count_nonzero((before == after) & has_mantissa(before)))


def run_length(values: Array, dtype: Dtype) -> int:
    """Return how many elements of a float tensor hold RUN_BITS bits of drawn mantissa; more if all end in zeros."""
    size = np.abs(values[has_mantissa(values)])
    if not size.size:
        return values.size + 1
    exponent = np.frexp(size)[1].astype(np.int64)
    bits = float(np.median(exponent - 1 - _lowest_bit(size, exponent, dtype)))
    return max(1, math.ceil(RUN_BITS / max(0.5, bits)))


def runs(values: Array, length: int) -> Array:
    """Return a hash of each run of `length` floats that all have a mantissa, if not all are the same."""
    wide = np.ascontiguousarray(values, np.float64).reshape(-1)
    if wide.size < length:
        return np.empty(0, np.uint64)
    bits = np.lib.stride_tricks.sliding_window_view(wide.view(np.uint64), length)
    good = np.lib.stride_tricks.sliding_window_view(has_mantissa(wide), length).all(axis=1)
    if length > 1:
        good &= (bits != bits[:, :1]).any(axis=1)
    found = np.zeros(len(bits), np.uint64)
    for at in range(length):
        found = (found ^ bits[:, at]) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found[good]
