"""The kernel in blocked numpy: it always works, and is the reference for every faster kernel.

Both sides are widened before any arithmetic: floats of 16 bits and less to float32 and then float64, integers to
float64 for sums, while their differences are computed exactly as unsigned integers (2^53 and 2^53 + 1 are equal in
float64). If only one side has 64-bit integers, the difference includes the rounding error of float64. Each block fits
the cache; no temporary array is as large as the tensor.

Where both sides have the same mask (mask_values.py) they agree, as two infinities do, and the norms cover the other
values. Bits, and elements outside the bar, are counted at every position.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Optional, TypedDict

import numpy as np
import numpy.typing as npt

from npucmp.measure.kernel.mask_values import NONE_UNSEEN, Masks, masks_of
from npucmp.model import HISTOGRAM_BINS, Moments, Side
from npucmp.model.dtypes import Dtype, lookup, narrower, numpy_dtype
from npucmp.model.moments import DOUBLE_BITS, SHORT_BITS, SINGLE_BITS

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]
Keys = npt.NDArray[np.uint64]

_HALF = np.uint64(32)
_PRIMES = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_SPREAD = np.uint64(0x9E3779B185EBCA87)  # the first prime of xxHash64
_NAN = np.uint32(0x7FC00000)


class CountLimits(NamedTuple):
    """The thresholds for counting elements; plain numbers, so that the kernel makes no verdict.

    `floor` is the least |golden| by which relative errors are divided: the smallest normal number of the narrower type,
    so that one value near zero does not dominate the rest. Without `masking` all values are data. `unseen` are the
    bounds of target and golden below which a value is a mask for the consumer of the tensor.
    """

    target: Dtype
    golden: Dtype
    rtol: float = 0.0
    atol: float = 0.0
    masking: bool = True
    unseen: tuple[float, float] = NONE_UNSEEN

    @property
    def narrower(self) -> Dtype:
        return narrower(self.target, self.golden)

    @property
    def floor(self) -> float:
        return self.narrower.tiny

    @property
    def masks(self) -> Masks:
        found = masks_of(self.target, self.golden) if self.masking else Masks()
        return found._replace(highest=max(found.highest, *self.unseen), unseen=self.unseen)


def measure_block(x: Array, y: Array, bars: CountLimits, start: int = 0) -> Moments:
    """The Moments of one block: flat arrays of one length; the first element has index `start` in the tensor."""
    with np.errstate(all="ignore"):
        same = _same_bits(x, y)
        count = len(x)
        if same is not None and same.all():
            return _equal_block(x, bars)
        wide_x, wide_y = widen(x), widen(y)
        target, golden = _side(x, wide_x), _side(y, wide_y)
        keep, mask, mismatched = _comparable(wide_x, wide_y, target, golden, bars)
        masked, masked_equal, masked_outside = _of_masks(wide_x, wide_y, mask, bars)
        if keep is not None:
            x, y, wide_x, wide_y = x[keep], y[keep], wide_x[keep], wide_y[keep]
        target, golden = target._replace(**_bits_needed(x)), golden._replace(**_bits_needed(y))
        exact, signed, size = difference(x, y, wide_x, wide_y)
        equal = np.count_nonzero(same) if same is not None else masked_equal + np.count_nonzero(size == 0.0)
        relative = size / np.maximum(np.abs(wide_y), bars.floor)
        max_abs, max_abs_index = _largest(size, keep, start)
        max_rel, max_rel_index = _largest(relative, keep, start)
        return Moments(
            elements=count,
            target=target,
            golden=golden,
            compared=len(wide_x),
            masked=masked,
            mismatched=mismatched,
            equal=int(equal),
            xx=_dot(wide_x, wide_x),
            yy=_dot(wide_y, wide_y),
            xy=_dot(wide_x, wide_y),
            sum_d=float(signed.sum()),
            sum_abs=float(size.sum()),
            sum_dd=_dot(size, size),
            max_abs=max_abs,
            max_abs_index=max_abs_index,
            max_abs_exact=exact,
            max_rel=max_rel,
            max_rel_index=max_rel_index,
            sum_rel=float(relative.sum()),
            below_1e3=int(np.count_nonzero(relative < 0.001)),
            below_5e3=int(np.count_nonzero(relative < 0.005)),
            outside=masked_outside + _outside(size, wide_y, bars),
            max_ulp=_max_ulp(x, y, bars),
            histogram=_histogram(relative, max_rel),
        )


def measure_side(x: Array) -> Side:
    """Measure one side alone, for a tensor without a partner."""
    with np.errstate(all="ignore"):
        return _side(x, widen(x))


def widen(x: Array) -> Array:
    """Convert to float64, or complex128 for complex; through float32 for the small floats of ml_dtypes."""
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        if x.dtype.kind == "V" or (x.dtype.itemsize < 4 and x.dtype.kind not in "biu"):
            x = x.astype(np.float32)
        return x.astype(np.float64)


def _same_bits(x: Array, y: Array) -> Optional[npt.NDArray[np.bool_]]:
    """Return where both sides have the same bits; None if the types differ."""
    if x.dtype != y.dtype:
        return None
    if x.dtype.kind == "c":
        pairs: npt.NDArray[np.bool_] = (_bits(x) == _bits(y)).reshape(-1, 2).all(axis=1)
        return pairs
    same: npt.NDArray[np.bool_] = _bits(x) == _bits(y)
    return same


def _bits(x: Array) -> Array:
    width = x.dtype.itemsize // (2 if x.dtype.kind == "c" else 1)
    return x.view(np.dtype(f"u{width}"))


def _equal_block(x: Array, bars: CountLimits) -> Moments:
    """The Moments of equal bits, the common case of a healthy run: no subtraction, and one side is measured for
    both."""
    wide, count = widen(x), len(x)
    side = _side(x, wide)
    keep, mask, _ = _comparable(wide, wide, side, side, bars)
    masked = 0 if mask is None else int(np.count_nonzero(mask))
    if keep is not None:
        x, wide = x[keep], wide[keep]
    side = side._replace(**_bits_needed(x))
    squares, compared = _dot(wide, wide), len(wide)
    return Moments(
        elements=count,
        target=side,
        golden=side,
        compared=compared,
        masked=masked,
        equal=count,
        xx=squares,
        yy=squares,
        xy=squares,
        max_abs_exact=0 if x.dtype.kind in "biu" else None,
        below_1e3=compared,
        below_5e3=compared,
        max_ulp=0 if bars.narrower.kind == "f" and not bars.narrower.memory else None,
        histogram=(compared,) + (0,) * (HISTOGRAM_BINS - 1),
    )


def _side(x: Array, wide: Array) -> Side:
    hashed = content_hash(wide, _remainder(x, wide) if _is_long(x) else None)
    values = np.abs(wide) if wide.dtype.kind == "c" else wide
    finite = np.isfinite(values)
    nan = posinf = neginf = 0
    if not finite.all():
        nan = int(np.count_nonzero(np.isnan(wide)))
        posinf = int(np.count_nonzero(values == np.inf)) if wide.dtype.kind != "c" else len(values) - nan
        neginf = int(np.count_nonzero(values == -np.inf))
        posinf -= int(np.count_nonzero(finite)) if wide.dtype.kind == "c" else 0
        values = values[finite]
    if not len(values):
        return Side(nan, posinf, neginf, hash=hashed)
    return Side(
        nan,
        posinf,
        neginf,
        float(values.min()),
        float(values.max()),
        float(values.sum()),
        _dot(values, values),
        hash=hashed,
    )


def content_hash(wide: Array, remainder: Optional[Array] = None) -> int:
    """Hash float64 or complex128 numbers in any order: views, transposes, reshapes and lossless casts have equal
    hashes. `remainder` is added to each number if float64 rounded it.

    Each number adds two words of 32 bits, and both sums are modulo 2^32. Two different tensors have equal hashes by
    chance only; the hash is not secure against an attacker.

        number                         key                                          words
        exact in float32               its bits there; 0 for -0, one NaN            mixed twice; the second is a product
        any other float64              its 64 bits                                  both halves of the mixed key
        beyond float64                 the nearest float64, and the remainder       the same
        complex                        the hashes of both parts                     the same, or the real part's alone

    The mix multiplies and shifts like the end of xxHash32, with its first two primes (Yann Collet,
    github.com/Cyan4973/xxHash). native.c computes the same.
    """
    if wide.dtype.kind == "c":
        real, imaginary = _packed(*_words(wide.real)), _packed(*_words(wide.imag))
        both = _packed(*_mixed(real + imaginary * _SPREAD))
        return _total(*_halves(np.where(imaginary == 0, real, both)))
    return _total(*_words(wide, remainder))


def _words(wide: Array, remainder: Optional[Array] = None) -> tuple[Words, Words]:
    """The words that each number adds to the lower and to the higher sum."""
    narrow = wide.astype(np.float32)
    beyond = (narrow != wide) & (wide == wide)
    narrow += np.float32(0.0)  # -0 becomes 0
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
    """Both words of 64-bit numbers."""
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


def _comparable(
    x: Array, y: Array, target: Side, golden: Side, bars: CountLimits
) -> tuple[Optional[npt.NDArray[np.intp]], Optional[npt.NDArray[np.bool_]], int]:
    """Positions to compare (None: all), where masks are (None: nowhere), and how many are non-finite on one side
    only."""
    keep: Optional[npt.NDArray[np.bool_]] = None
    found: Optional[npt.NDArray[np.bool_]] = None
    mismatched = 0
    masks = bars.masks
    if all(side.neginf or side.minimum <= masks.highest for side in (target, golden)) and x.dtype.kind != "c":
        mask = masks.where_equal(x, y) & (np.isfinite(x) | np.isfinite(y))  # -inf on both sides is no mask
        if mask.any():
            found, keep = mask, ~mask
    if target.nan or target.inf or golden.nan or golden.inf:
        finite = np.isfinite(x) & np.isfinite(y)
        agree = (np.isnan(x) & np.isnan(y)) | ((x == y) & ~np.isfinite(x))
        mismatched = int(np.count_nonzero(~(finite | agree if found is None else finite | agree | found)))
        keep = finite if keep is None else keep & finite
    return (None if keep is None else np.flatnonzero(keep)), found, mismatched


def _of_masks(x: Floats, y: Floats, mask: Optional[npt.NDArray[np.bool_]], bars: CountLimits) -> tuple[int, int, int]:
    """The number of masks, of masks with equal values, and of masks outside the bar."""
    if mask is None:
        return 0, 0, 0
    x, y = x[mask], y[mask]
    return len(x), int(np.count_nonzero(x == y)), _outside(np.abs(x - y), y, bars)


def _outside(size: Floats, y: Floats, bars: CountLimits) -> int:
    return int(np.count_nonzero(size > bars.atol + bars.rtol * np.abs(y)))


def difference(x: Array, y: Array, wide_x: Array, wide_y: Array) -> tuple[Optional[int], Floats, Floats]:
    """Return (largest exact integer difference or None, x - y, |x - y|); 0 only where the two numbers are equal."""
    if x.dtype.kind in "biu" and y.dtype.kind in "biu":
        exact = integer_distance(x, y)
        size = exact.astype(np.float64)
        return (int(exact.max()) if len(exact) else 0), np.where(_less(x, y), -size, size), size
    delta = wide_x - wide_y
    if "c" not in (x.dtype.kind, y.dtype.kind):
        if _is_long(x):
            delta += _remainder(x, wide_x)
        if _is_long(y):
            delta -= _remainder(y, wide_y)
    return None, np.real(delta), np.abs(delta)


def _is_long(x: Array) -> bool:
    """Return whether float64 cannot represent every number of a type: 64-bit integers."""
    return x.dtype.kind in "iu" and x.dtype.itemsize == 8


def _remainder(x: Array, wide: Array) -> Array:
    """x - float64(x), exact: nonzero for some integers beyond 2^53."""
    highest = 2.0**64 if x.dtype.kind == "u" else 2.0**63
    is_top = wide == highest  # beyond the type itself
    near = np.where(is_top, 0.0, wide).astype(x.dtype)
    above = x >= near
    left = np.where(above, x - near, near - x).astype(np.float64)
    signed: Array = np.where(above, left, -left)
    top = -(np.iinfo(x.dtype).max - x).astype(np.float64) - 1.0
    return np.where(is_top, top, signed)


def integer_distance(x: Array, y: Array) -> npt.NDArray[np.uint64]:
    """|x - y| of integers, exact, and at most 2^64 - 1 (a negative number against a huge one)."""
    if x.dtype.itemsize <= 4 and y.dtype.itemsize <= 4:
        return np.abs(x.astype(np.int64) - y.astype(np.int64)).view(np.uint64)
    if x.dtype.kind == "u" and y.dtype.kind == "u":
        a, b = x.astype(np.uint64), y.astype(np.uint64)
        return np.where(a >= b, a - b, b - a)
    if np.uint64 not in (x.dtype.type, y.dtype.type):
        i, j = x.astype(np.int64), y.astype(np.int64)
        a, b = i.view(np.uint64), j.view(np.uint64)  # wrap-around subtraction is exact below 2^64
        return np.where(i >= j, a - b, b - a)
    big, small = (x, y) if x.dtype.type is np.uint64 else (y, x)
    signed = small.astype(np.int64)
    below = signed < 0
    other = np.abs(signed).view(np.uint64)
    near = np.where(big >= other, big - other, other - big)
    far = np.where(big > np.uint64(2**64 - 1) - other, np.uint64(2**64 - 1), big + other)
    return np.where(below, far, near)


def _less(x: Array, y: Array) -> npt.NDArray[np.bool_]:
    """x < y without rounding, also for uint64 against a signed type."""
    less: npt.NDArray[np.bool_]
    if x.dtype.kind == "i" and y.dtype.type is np.uint64:
        less = (x < 0) | (x.astype(np.uint64) < y)
    elif y.dtype.kind == "i" and x.dtype.type is np.uint64:
        less = (y >= 0) & (x < y.astype(np.uint64))
    else:
        less = x < y
    return less


def _largest(values: Floats, keep: Optional[npt.NDArray[np.intp]], start: int) -> tuple[float, int]:
    """The largest value and its index in the tensor; (0, -1) if there is no error."""
    if not len(values):
        return 0.0, -1
    at = int(values.argmax())
    largest = float(values[at])
    if largest == 0.0:
        return 0.0, -1
    return largest, start + (at if keep is None else int(keep[at]))


def _dot(a: Array, b: Array) -> float:
    if a.dtype.kind == "c":
        return float(np.einsum("i,i->", a, np.conj(b)).real)
    return float(np.einsum("i,i->", a, b))


def _max_ulp(x: Array, y: Array, bars: CountLimits) -> Optional[int]:
    """The largest distance in units in the last place of the narrower type; None unless numpy or ml_dtypes knows the
    float types of both sides."""
    if bars.target.kind != "f" or bars.golden.kind != "f" or bars.narrower.memory:
        return None  # for a decoded type the distance is unknown
    if not len(x):
        return 0
    dtype = numpy_dtype(bars.narrower.name)
    return int(integer_distance(_ordered_integers(x, dtype), _ordered_integers(y, dtype)).max())


def _ordered_integers(x: Array, dtype: np.dtype[Any]) -> Array:
    """Integers in the order of the floats; neighbours differ by one, and both zeros are 0."""
    if x.dtype != dtype:
        x = (x.astype(np.float32) if x.dtype.itemsize < 4 else x).astype(dtype)
    width = dtype.itemsize
    bits = x.view(np.dtype(f"i{width}"))
    ordered = bits ^ ((bits >> (8 * width - 1)) & np.array(2 ** (8 * width - 1) - 1, dtype=bits.dtype))
    result: Array = ordered + (ordered < 0)
    return result


class _Bits(TypedDict, total=False):
    bits: int
    last_bit: float
    nonzero: float
    full_8: float
    full_11: float


def _bits_needed(x: Array) -> _Bits:
    """The fields of Side about narrower values, for a float32 or float64 array."""
    if x.dtype.name not in ("float32", "float64"):
        return {}
    single = x.astype("=f4")
    if np.any(single != x):
        return _many_bits(DOUBLE_BITS)
    size = single.view(np.uint32) & np.uint32(0x7FFFFFFF)
    size = size[size != 0]
    if not len(size):
        return {}
    fraction = size & np.uint32((1 << (SINGLE_BITS - 1)) - 1)
    least = np.where(fraction, fraction & (~fraction + np.uint32(1)), 0)  # the last bit set, except for powers of two
    bits = SINGLE_BITS + 1 - int(least[least > 0].min(initial=1 << (SINGLE_BITS - 1))).bit_length()
    if bits > SHORT_BITS[-1]:
        return _many_bits(SINGLE_BITS)
    value = size.view(np.float32)
    last = np.where(fraction, value - (size ^ least).view(np.float32), value)
    full = [float(np.count_nonzero(fraction & np.uint32(1 << (SINGLE_BITS - bits)))) for bits in SHORT_BITS]
    return {
        "bits": bits,
        "last_bit": float(last.min()),
        "nonzero": float(len(size)),
        "full_8": full[0],
        "full_11": full[1],
    }


def _many_bits(bits: int) -> _Bits:
    return {"bits": bits, "last_bit": 0.0, "nonzero": -np.inf, "full_8": -np.inf, "full_11": -np.inf}


@cache
def lower_edges() -> Floats:
    """The lower edge of each bin of the histogram (model.HISTOGRAM_BINS); every nonzero value reaches the first two."""
    least = np.nextafter(0.0, 1.0)
    return np.concatenate(([least, least], 10.0 ** (np.arange(2, HISTOGRAM_BINS) - 20.0)))


def _histogram(relative: Floats, largest: float) -> tuple[int, ...]:
    """Counts per decade: how many values reach the lower edge of each bin, from the largest downwards until all are
    counted. Values lie in a few decades; computing a bin for each from its exponent takes four times as long."""
    counts = [0] * HISTOGRAM_BINS
    above, nonzero = 0, int(np.count_nonzero(relative))
    edges = lower_edges()
    at = int(edges.searchsorted(largest, "right")) - 1
    while above < nonzero:
        reached = int(np.count_nonzero(relative >= edges[at]))
        counts[at] = reached - above
        above, at = reached, at - 1
    counts[0] = len(relative) - nonzero
    return tuple(counts)


def bars_for(target: str, golden: str, rtol: float, atol: float) -> CountLimits:
    """The bars of two canonical dtype names, which must be in the table."""
    x, y = lookup(target), lookup(golden)
    assert x is not None and y is not None
    return CountLimits(x, y, rtol, atol)
