"""What every kernel and every format must keep; their test classes inherit these."""

from __future__ import annotations

import math
import os
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npucmp import open_runs
from npucmp.dump.formats import sniffs
from npucmp.dump.readers import values as reader
from npucmp.errors import DumpError
from npucmp.measure.kernel.merge import merge
from npucmp.model import HISTOGRAM_BINS, Moments, Side
from npucmp.model.dtypes import DTYPES, numpy_dtype
from npucmp.model.moments import FIELDS, Merge

PLAIN = [name for name, row in DTYPES.items() if not row.memory]  # the others are decoded into one of these
FLOATS = [name for name in PLAIN if DTYPES[name].kind == "f"]
INTEGERS = [name for name in PLAIN if DTYPES[name].kind in "biu"]
FIRST_BIN = -19  # decade of bin 1; smaller errors are counted there too, and larger ones in the last bin

SUMS = [field.name for field in FIELDS if field.merge is Merge.SUM and isinstance(field.neutral, float)]
LARGEST = [field.name for field in FIELDS if field.merge is Merge.MOST and isinstance(field.neutral, float)]
EXACT = [field.name for field in FIELDS if field.merge is not Merge.HALF and field.name not in (*SUMS, *LARGEST)]


def sample(dtype: str, count: int, seed: int):
    """Random values: of integers the whole range, of floats about one, a few of them zero."""
    random = np.random.default_rng(seed)
    kind = DTYPES[dtype].kind
    if kind == "b":
        return random.integers(0, 2, count).astype(bool)
    if kind in "iu":
        return np.frombuffer(random.bytes(count * DTYPES[dtype].itemsize), dtype).copy()
    values = random.normal(size=count) * (random.random(count) > 0.1)
    if kind == "c":
        values = values + 1j * random.normal(size=count)
    return values.astype(numpy_dtype(dtype))


def nearly(x, seed: int):
    """A copy of which a third of the elements is a little off."""
    random = np.random.default_rng(seed)
    other = sample(x.dtype.name, len(x), seed + 1)
    if x.dtype.kind not in "biu":
        noise = max(0.01, 3 * DTYPES[x.dtype.name].round_off)
        scale = (1 + noise * random.normal(size=len(x))).astype(np.float32)
        other = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) * scale).astype(x.dtype)
    return np.where(random.random(len(x)) < 0.3, other, x)


def spoil(x, seed: int):
    """A copy with NaN, Inf and -Inf here and there (float8_e4m3fn has no Inf: NaN stands for it)."""
    random = np.random.default_rng(seed)
    y = x.copy()
    for value in (math.nan, math.inf, -math.inf):
        y[random.integers(0, len(y), 3)] = np.array(value, np.float32).astype(y.dtype)
    return y


def numbers(x) -> list:
    """Elements as Python numbers: nothing is rounded by reading them."""
    if x.dtype.kind == "b":
        return [int(value) for value in x.tolist()]
    if x.dtype.kind in "iuc":
        return x.tolist()
    return [float(value) for value in x]


def finite(value) -> bool:
    return math.isfinite(value.real) and math.isfinite(value.imag)


def is_nan(value) -> bool:
    return math.isnan(value.real) or math.isnan(value.imag)


def plain_side(values: list) -> Side:
    """One side, element by element."""
    good = [abs(v) if isinstance(v, complex) else v for v in values if finite(v)]
    infinite = [v for v in values if not finite(v) and not is_nan(v)]
    below = sum(1 for v in infinite if not isinstance(v, complex) and v < 0)
    return Side(
        nan=sum(map(is_nan, values)),
        posinf=len(infinite) - below,
        neginf=below,
        minimum=float(min(good)) if good else math.nan,
        maximum=float(max(good)) if good else math.nan,
        total=total(good),
        squares=total([v * v for v in good]),
        hash=plain_hash(values),
    )


WORD, LONG = (1 << 32) - 1, (1 << 64) - 1
PRIMES, SPREAD = (0x9E3779B1, 0x85EBCA77), 0x9E3779B185EBCA87


def plain_hash(values: list) -> int:
    """The hash of a tensor by whole numbers of Python, element by element."""
    found = [complex_hash(value) if isinstance(value, complex) else number_hash(value) for value in values]
    return sum(one & WORD for one in found) & WORD | (sum(one >> 32 for one in found) & WORD) << 32


def complex_hash(value: complex) -> int:
    real, imaginary = number_hash(value.real), number_hash(value.imag)
    return long_hash(real + imaginary * SPREAD) if imaginary else real


def number_hash(value) -> int:
    """What one number adds, both words packed; the remainder of a whole number is what float64 rounds off."""
    wide = float(value)
    try:
        narrow = struct.unpack("<f", struct.pack("<f", wide))[0]
    except OverflowError:
        narrow = math.nan
    remainder = value - int(wide) if isinstance(value, int) else 0
    if remainder or narrow != wide == wide:
        return long_hash(int.from_bytes(struct.pack("<d", wide), "little") + remainder * SPREAD)
    bits = 0x7FC00000 if wide != wide else int.from_bytes(struct.pack("<f", narrow + 0.0), "little")
    word = bits * PRIMES[0] & WORD
    word = (word ^ word >> 16) * PRIMES[1] & WORD
    top = word >> 15
    return (word ^ top) | (word * top & WORD) << 32


def long_hash(key: int) -> int:
    low, high = key & WORD, key >> 32 & WORD
    low, high = (low ^ high) * PRIMES[0] & WORD, high * PRIMES[0] & WORD
    high ^= low
    low, high = ((one ^ one >> 15) * PRIMES[1] & WORD for one in (low, high))
    low ^= high
    return (low ^ low >> 13) | (high ^ high >> 13) << 32


def total(values: list) -> float:
    return float(sum(values)) if all(isinstance(v, int) for v in values) else math.fsum(values)


def decade(error: float) -> int:
    """The histogram's bin, by exact fractions."""
    if error == 0:
        return 0
    k = 1
    while k < HISTOGRAM_BINS - 1 and Fraction(error) >= Fraction(10) ** (k + FIRST_BIN):
        k += 1
    return k


def rank(value: float, dtype: str) -> int:
    """How many values of a type lie between 0 and this one; IEEE formats are ordered as sign and magnitude."""
    if dtype in ("float64", "float32"):
        raw, size = (struct.pack("<d", value), 8) if dtype == "float64" else (struct.pack("<f", value), 4)
    else:
        raw, size = np.array(value, np.float32).astype(numpy_dtype(dtype)).tobytes(), DTYPES[dtype].itemsize
    bits, top = int.from_bytes(raw, "little"), 1 << (8 * size - 1)
    return -(bits - top) if bits & top else bits


def plain(x, y, rtol: float = 0.0, atol: float = 0.0) -> Moments:
    """Moments by loops over Python numbers; knows no masks."""
    a, b = numbers(x), numbers(y)
    coarse = max((x.dtype.name, y.dtype.name), key=lambda name: DTYPES[name].round_off)
    both = [i for i in range(len(a)) if finite(a[i]) and finite(b[i])]
    agree = [i for i in range(len(a)) if (is_nan(a[i]) and is_nan(b[i])) or (not finite(a[i]) and a[i] == b[i])]
    size = {i: abs(a[i] - b[i]) for i in both}
    relative = {i: float(size[i]) / max(float(abs(b[i])), DTYPES[coarse].tiny) for i in both}
    worst = max(both, key=lambda i: size[i], default=-1)
    farthest = max(both, key=lambda i: relative[i], default=-1)
    exact = x.dtype.kind in "biu" and y.dtype.kind in "biu"
    floats = DTYPES[x.dtype.name].kind == "f" == DTYPES[y.dtype.name].kind
    bins = [decade(error) for error in relative.values()]
    return Moments(
        elements=len(a),
        target=plain_side(a)._replace(**bits_needed(x, both)),
        golden=plain_side(b)._replace(**bits_needed(y, both)),
        compared=len(both),
        mismatched=len(a) - len(both) - len(agree),
        equal=sum(x[i : i + 1].tobytes() == y[i : i + 1].tobytes() for i in range(len(a)))
        if x.dtype == y.dtype
        else sum(a[i] == b[i] for i in both),
        xx=total([abs(a[i]) ** 2 for i in both]),
        yy=total([abs(b[i]) ** 2 for i in both]),
        xy=total([(a[i] * b[i].conjugate()).real for i in both]),
        sum_d=total([(a[i] - b[i]).real for i in both]),
        sum_abs=total(list(size.values())),
        sum_dd=total([d * d for d in size.values()]),
        max_abs=float(size[worst]) if both else 0.0,
        max_abs_index=worst if both and size[worst] else -1,
        max_abs_exact=max(size.values(), default=0) if exact else None,
        max_rel=relative[farthest] if both else 0.0,
        max_rel_index=farthest if both and relative[farthest] else -1,
        sum_rel=total(list(relative.values())),
        below_1e3=sum(error < 0.001 for error in relative.values()),
        below_5e3=sum(error < 0.005 for error in relative.values()),
        outside=sum(float(size[i]) > atol + rtol * float(abs(b[i])) for i in both),
        max_ulp=max((abs(rank(a[i], coarse) - rank(b[i], coarse)) for i in both), default=0) if floats else None,
        histogram=tuple(bins.count(k) for k in range(HISTOGRAM_BINS)),
    )


def bits_needed(side, both: list[int]) -> dict[str, float]:
    """One side's fields about values of narrower types, by fractions: numerator and denominator of each value."""
    if side.dtype.name not in ("float32", "float64"):
        return {}
    with np.errstate(over="ignore"):
        wider = any(np.float32(side[i]) != side[i] for i in both)
    ratios = [float(abs(side[i])).as_integer_ratio() for i in both if side[i]]
    needed = [(top // (top & -top)).bit_length() for top, _ in ratios]
    if not needed or wider or max(needed) > 11:
        unknown = dict.fromkeys(("nonzero", "full_8", "full_11"), -math.inf)
        return {"bits": 53 if wider else 24, "last_bit": 0.0, **unknown} if needed else {}
    return {
        "bits": max(needed),
        "last_bit": min((top & -top) / bottom for top, bottom in ratios),
        "nonzero": float(len(ratios)),
        "full_8": float(sum(_is_set(ratio, 8) for ratio in ratios)),
        "full_11": float(sum(_is_set(ratio, 11) for ratio in ratios)),
    }


def _is_set(ratio: tuple[int, int], place: int) -> bool:
    """Whether a significant bit is set, the first being number 1; those of subnormal numbers count from 2^-126."""
    value = Fraction(*ratio)
    first = Fraction(2) ** -126
    while first * 2 <= value:
        first *= 2
    while first > value and first > Fraction(2) ** -126:
        first /= 2
    return bool(value / (first / 2 ** (place - 1)) // 1 % 2)


def assert_same(found: Moments, expected: Moments, tolerance: float = 1e-12) -> None:
    """Counts, indices and maxima are equal; sums to 1e-12 of the sum of their terms' sizes."""
    for name in EXACT:
        assert getattr(found, name) == getattr(expected, name), name
    for name in LARGEST:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-15, abs=0), name
    norms = math.sqrt(expected.xx) * math.sqrt(expected.yy)
    sizes = {"xy": norms, "sum_d": expected.sum_abs}
    for name in SUMS:
        value = getattr(expected, name)
        slack = tolerance * sizes.get(name, 0)
        slack = slack if math.isfinite(slack) else 0.0
        assert getattr(found, name) == pytest.approx(value, rel=tolerance, abs=slack, nan_ok=True), name
    assert_same_side(found.target, expected.target, expected.elements, tolerance)
    assert_same_side(found.golden, expected.golden, expected.elements, tolerance)


def assert_same_side(found: Side, expected: Side, count: int, tolerance: float = 1e-12) -> None:
    assert found[:3] == expected[:3]
    assert found[3:5] == pytest.approx(expected[3:5], rel=1e-15, nan_ok=True)
    assert found[7:] == expected[7:]
    slack = tolerance * math.sqrt(count * expected.squares)
    assert found.total == pytest.approx(expected.total, rel=tolerance, abs=slack)
    assert found.squares == pytest.approx(expected.squares, rel=tolerance)


QUICK = settings(  # several classes inherit a contract: that is what it is for
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)
VALUES = hnp.arrays(np.float32, st.shared(st.integers(1, 40), key="n"), elements=st.floats(width=32))


@st.composite
def any_bits(draw):
    """A tensor of any type and an even number of elements, of any bits; some are -0, 0 and small whole numbers."""
    dtype = numpy_dtype(draw(st.sampled_from(PLAIN)))
    count = 2 * draw(st.integers(1, 12))
    if dtype.kind == "b":
        return np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    raw = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    x = np.frombuffer(raw, np.uint8).view(dtype).copy()
    for place in draw(st.lists(st.integers(0, count - 1), max_size=6)):
        x[place] = draw(st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0]))
    return x


ANY_BITS = any_bits()


class KernelContract:
    """A kernel offers measure_block(x, y, bars, start) → Moments and measure_side(x) → Side."""

    def measure(self, x, y, rtol=0.0, atol=0.0, start=0) -> Moments:
        raise NotImplementedError

    def side(self, x) -> Side:
        raise NotImplementedError

    @pytest.mark.parametrize("dtype", PLAIN)
    def test_equals_plain_arithmetic(self, dtype):
        x = sample(dtype, 300, 1)
        y = nearly(x, 2)
        assert_same(self.measure(x, y, 1e-3, 1e-5), plain(x, y, 1e-3, 1e-5))

    @pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
    @pytest.mark.parametrize("sides", ["target", "golden", "both alike", "both"])
    def test_nan_and_inf_are_counted_and_left_out(self, dtype, sides):
        x = sample(dtype, 60, 3)
        y = nearly(x, 4)
        x, y = (x if sides == "golden" else spoil(x, 5)), (y if sides == "target" else spoil(y, 5 + (sides == "both")))
        expected = plain(x, y)
        assert_same(self.measure(x, y), expected)
        assert (expected.mismatched == 0) == (sides == "both alike")

    @pytest.mark.parametrize(
        "target, golden",
        [
            ("float32", "float64"),
            ("float16", "float32"),
            ("bfloat16", "float32"),
            ("float16", "bfloat16"),
            ("float8_e5m2", "float32"),
            ("float8_e4m3fn", "bfloat16"),
            ("int32", "int64"),
            ("int64", "uint64"),
            ("uint8", "int8"),
            ("bool", "int32"),
            ("bool", "uint64"),
            ("int32", "float32"),
            ("complex64", "complex128"),
        ],
    )
    def test_two_types(self, target, golden):
        x = np.abs(sample(target, 100, 6)) if target == "int64" else sample(target, 100, 6)
        y = nearly(x, 7).astype(numpy_dtype(golden))
        assert_same(self.measure(x, y), plain(x, y))

    @pytest.mark.parametrize("dtype", PLAIN)
    def test_a_tensor_agrees_with_itself(self, dtype):
        x = sample(dtype, 100, 8)
        x = x if dtype in INTEGERS else spoil(x, 9)
        moments = self.measure(x, x.copy())
        assert_same(moments, plain(x, x))
        assert moments.equal == moments.elements == 100
        assert (moments.max_abs, moments.max_abs_index, moments.max_rel_index, moments.mismatched) == (0, -1, -1, 0)
        assert moments.histogram[0] == moments.below_1e3 == moments.compared

    @pytest.mark.parametrize("dtype", PLAIN)
    def test_empty_and_single(self, dtype):
        empty, one = sample(dtype, 0, 0), np.ones(1, numpy_dtype(dtype))
        assert self.measure(empty, empty).elements == self.measure(empty, empty).equal == 0
        zero = np.zeros(1, numpy_dtype(dtype))
        assert_same(self.measure(one, zero, start=7), shifted(one, zero, 7))

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "complex64", "bool"])
    def test_one_side_alone(self, dtype):
        x = sample(dtype, 50, 10)
        x = x if dtype in INTEGERS else spoil(x, 11)
        assert_same_side(self.side(x), plain_side(numbers(x)), 50)

    @QUICK
    @given(ANY_BITS, st.randoms(use_true_random=False))
    def test_the_hash_is_that_of_the_elements_in_any_order(self, x, chance):
        rows = x.reshape(2, -1)
        other = x[chance.sample(range(len(x)), len(x))]
        with np.errstate(all="ignore"):
            assert self.side(x).hash == plain_hash(numbers(x))
            for same in (other, rows.T.reshape(-1), x[::-1].copy()):
                found = self.measure(x, same)
                assert found.target.hash == found.golden.hash == self.side(x).hash

    @QUICK
    @given(ANY_BITS)
    def test_a_cast_that_loses_nothing_keeps_the_hash(self, x):
        with np.errstate(all="ignore"):
            for dtype in PLAIN:
                if x.dtype.kind == "c" != DTYPES[dtype].kind:
                    continue
                other = x.astype(numpy_dtype("float32")) if x.dtype.kind not in "biufc" else x
                other = other.astype(numpy_dtype(dtype))
                if all(a == b or (a != a and b != b) for a, b in zip(numbers(x), numbers(other))):
                    assert self.side(other).hash == self.side(x).hash

    @QUICK
    @given(ANY_BITS, st.integers(0, 99), st.integers(0, 63))
    def test_one_bit_of_one_element_changes_the_hash(self, x, place, bit):
        y, place = x.copy(), place % len(x)
        octets = y[place : place + 1].view(np.uint8)
        octets[bit // 8 % len(octets)] ^= 1 if x.dtype == bool else 1 << bit % 8
        with np.errstate(all="ignore"):
            found = self.measure(y, x)
        before, after = numbers(x)[place], numbers(y)[place]
        same = before == after or (is_nan(before) and is_nan(after))
        assert is_nan(before) or (found.target.hash == found.golden.hash) == same

    @pytest.mark.parametrize("dtype", PLAIN)
    def test_the_hash_of_a_side_does_not_depend_on_the_other(self, dtype):
        """Equal, nearly equal, masked and not finite: each takes another way through a kernel."""
        for count in (511, 512, 513, 5000):
            x = sample(dtype, count, 12)
            others = [x.copy(), nearly(x, 13), *([] if dtype in INTEGERS else [spoil(x, 14)])]
            for y in (*others, x[::-1].copy()):
                found = self.measure(x, y)
                assert (found.target.hash, found.golden.hash) == (self.side(x).hash, self.side(y).hash)
            low = others[1]
            with np.errstate(over="ignore"):
                low[::7] = x[::7] = np.array(-1e9, np.float32).astype(x.dtype) if dtype in FLOATS else x[0]
            assert self.measure(x, low).target.hash == self.side(x).hash == plain_hash(numbers(x))

    @QUICK
    @given(VALUES, VALUES, st.lists(st.integers(0, 40), max_size=4))
    def test_pieces_merge_to_the_whole(self, x, y, cuts):
        edges = [0, *sorted(min(cut, len(x)) for cut in cuts), len(x)]
        pieces = [self.measure(x[a:b], y[a:b], 1e-3, 1e-3, a) for a, b in zip(edges, edges[1:])]
        merged = pieces[0]
        for piece in pieces[1:]:
            merged = merge(merged, piece)
        assert_same(merged, self.measure(x, y, 1e-3, 1e-3))

    @QUICK
    @given(VALUES, VALUES, st.integers(0, 40), st.integers(0, 40))
    def test_merge_is_associative(self, x, y, one, two):
        i, j = sorted((min(one, len(x)), min(two, len(x))))
        a, b, c = (self.measure(x[s:e], y[s:e], start=s) for s, e in ((0, i), (i, j), (j, len(x))))
        assert_same(merge(merge(a, b), c), merge(a, merge(b, c)))

    def test_of_equal_errors_the_first_place_counts(self):
        x, y = np.array([1.0, 2.0, 2.0, 1.0, 2.0]), np.ones(5)
        assert self.measure(x, y, start=100).max_abs_index == 101
        assert merge(self.measure(x[:3], y[:3]), self.measure(x[3:], y[3:], start=3)).max_rel_index == 1

    @pytest.mark.parametrize(
        "x, y, dtype",
        [
            (2**53, 2**53 + 1, "int64"),
            (2**53 + 1, 2**53, "int64"),
            (2**64 - 1, 2**64 - 2, "uint64"),
            (-(2**63), 2**63 - 1, "int64"),
            (2**63 - 1, -(2**63), "int64"),
            (0, 2**64 - 1, "uint64"),
            (-128, 127, "int8"),
            (0, 1, "bool"),
        ],
    )
    def test_integers_are_exact(self, x, y, dtype):
        moments = self.measure(np.array([x], dtype), np.array([y], dtype))
        assert (moments.max_abs_exact, moments.equal, moments.max_abs_index) == (abs(x - y), 0, 0)
        assert moments.sum_d == float(x - y)

    @pytest.mark.parametrize("dtype, x, y", [("int64", 2**53 + 1, 2.0**53), ("int64", -(2**53) - 1, -(2.0**53)),
                                            ("uint64", 2**64 - 1, 2.0**64), ("int64", 2**53, 2.0**53)])  # fmt: skip
    def test_integers_against_floats_are_exact(self, dtype, x, y):
        for sign, sides in ((1, (np.array([x], dtype), np.array([y]))), (-1, (np.array([y]), np.array([x], dtype)))):
            found = self.measure(*sides)
            assert (found.max_abs, found.sum_d) == (abs(x - int(y)), sign * (x - int(y)))

    @pytest.mark.parametrize(
        "x, y",
        [(2**53, 2**53 + 1), (2**53 + 1, 2**53), (2**63 - 1, 2**63), (-1, 2**63), (-(2**63), 0), (-1, 0), (5, 5)],
    )
    def test_int64_against_uint64(self, x, y):
        for moments in (
            self.measure(np.array([x], "int64"), np.array([y], "uint64")),
            self.measure(np.array([y], "uint64"), np.array([x], "int64")),
        ):
            assert (moments.max_abs_exact, moments.equal) == (abs(x - y), int(x == y))

    def test_a_distance_beyond_64_bits_is_still_large(self):
        moments = self.measure(np.array([-(2**63)]), np.array([2**64 - 1], "uint64"))
        assert moments.max_abs_exact >= 2**64 - 1

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_ulp_of_neighbours(self, dtype):
        kind = numpy_dtype(dtype)
        bits = np.dtype(f"u{kind.itemsize}")
        x = np.array([1.0, -1.0, 0.0, 2.0, -0.5], kind)
        up = (x.view(bits) + bits.type(1)).view(kind)  # the next value away from zero
        assert self.measure(up, x).max_ulp == 1
        assert self.measure((x.view(bits) + bits.type(3)).view(kind), x).max_ulp == 3

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_ulp_by_nextafter(self, dtype):
        y = np.array([0.0, 1.0, -1.0, 1e30, 1e-40], dtype)
        x = np.nextafter(np.nextafter(y, np.array(np.inf, dtype)), np.array(np.inf, dtype))
        assert self.measure(x, y).max_ulp == 2
        assert self.measure(y + np.spacing(y), y).max_ulp == 1

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_zeros_of_both_signs_are_0_ulp_apart(self, dtype):
        x, y = np.array([-0.0, 0.0], numpy_dtype(dtype)), np.array([0.0, -0.0], numpy_dtype(dtype))
        moments = self.measure(x, y)
        assert (moments.max_ulp, moments.max_abs, moments.mismatched) == (0, 0.0, 0)
        tiny = np.array([1], f"u{x.dtype.itemsize}").view(x.dtype)
        assert self.measure(-tiny, tiny).max_ulp == 2

    def test_ulp_counts_in_the_narrower_type(self):
        x = np.array([1 + 2.0**-7], np.float32)
        assert self.measure(x, np.ones(1, numpy_dtype("bfloat16"))).max_ulp == 1
        assert self.measure(x, np.ones(1, np.float16)).max_ulp == 8

    @pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
    def test_no_ulp_without_floats(self, dtype):
        assert self.measure(np.ones(2, dtype), np.zeros(2, dtype)).max_ulp is None

    @pytest.mark.parametrize(
        "error", [0.0, 1e-25, 1.5e-19, 9.9e-17, 1.01e-16, 1e-9, 0.99e-3, 0.001, 0.0999, 1.0, 999.0, 1e30]
    )
    def test_histogram_decades(self, error):
        moments = self.measure(np.array([error, 0.0]), np.array([0.0, 0.0]))  # |y| is floored at the smallest normal
        assert sum(moments.histogram) == moments.compared == 2
        y = np.full(3, 1.0)
        found = self.measure(y + error, y).histogram
        expected = [0] * HISTOGRAM_BINS
        expected[decade(abs((1.0 + error) - 1.0))] = 3
        assert list(found) == expected

    @QUICK
    @given(VALUES, VALUES)
    def test_histogram_counts_all_compared(self, x, y):
        moments = self.measure(x, y)
        assert sum(moments.histogram) == moments.compared
        assert moments.compared + moments.masked + moments.mismatched <= moments.elements

    @pytest.mark.parametrize(
        "dtype, target, golden",
        [
            ("float32", -1e9, -1e9),
            ("float32", -3.4028235e38, -3.4028235e38),
            ("float32", -1.7014117e38, -1.7014117e38),
            ("float32", -3e38, -3e38),
            ("float16", -65504.0, -65504.0),
            ("float16", -33000.0, -33000.0),
            ("float16", -1e4, -1e4),
            ("bfloat16", -3.3895e38, -3.3895e38),
            ("bfloat16", -1e9, -1e9),
            ("bfloat16", -1e4, -9984.0),
            ("float64", -1.7976931348623157e308, -1.7976931348623157e308),
            ("float64", -1e30, -1e30),
        ],
    )
    def test_masks_stay_out_of_the_norms(self, dtype, target, golden):
        x, y = (np.array([3.0, value, 4.0], np.float64).astype(numpy_dtype(dtype)) for value in (target, golden))
        moments = self.measure(x, y)
        assert (moments.masked, moments.compared, moments.mismatched, moments.max_abs) == (1, 2, 0, 0.0)
        assert (moments.xx, moments.yy, moments.xy, sum(moments.histogram)) == (25.0, 25.0, 25.0, 2)

    @pytest.mark.parametrize(
        "dtype, target, golden",
        [
            ("float32", -1e9, 0.5),
            ("float32", 0.5, -3.4e38),
            ("float32", 1e9, 1e9),
            ("float32", -100.0, -100.0),
            ("float32", -9000.0, -9000.0),
            ("float32", -5e4, -5e4),
            ("int32", -(10**9), -(10**9)),
            ("int64", -(10**4), -(10**4)),
            ("float32", -1e9 + 64, -1e9),
            ("float32", -3.4e38, -1e9),
            ("float32", -3.4e38, -3.3e38),
            ("float32", -1e4 + 3.25, -1e4 - 1.5),
            ("float32", -1e4 + 3.25, -1e4 + 3.25),
            ("float32", -1e4, -1e9),
            ("float16", -1e4, -9992.0),
            ("float16", -65504.0, -32752.0),
            ("bfloat16", -9984.0, -10048.0),
            ("float8_e4m3fn", -448.0, -448.0),
        ],
    )
    def test_no_masks(self, dtype, target, golden):
        x, y = (np.array([3, value, 4]).astype(numpy_dtype(dtype)) for value in (target, golden))
        moments = self.measure(x, y)
        assert (moments.masked, moments.compared) == (0, 3)
        assert moments.max_abs == abs(float(x[1]) - float(y[1]))

    @pytest.mark.parametrize("target, golden", [(-65504.0, -3.4028235e38), (-1e4, -1e9), (-32752.0, -1.7014117e38)])
    def test_two_types_have_masks_of_their_own(self, target, golden):
        """They stay out of the norms; allclose and bits count every position."""
        x, y = np.array([3, target, -1e4], np.float16), np.array([3, golden, -1e4], np.float32)
        moments = self.measure(x, y, rtol=1e-2)
        assert (moments.masked, moments.compared, moments.max_abs) == (2, 1, 0.0)
        assert (moments.equal, moments.outside) == (2, 1)

    def test_masks_beside_nan_keep_their_places(self):
        x = np.array([np.nan, -1e9, 1.0, np.inf, 2.0], np.float32)
        y = np.array([np.nan, -1e9, 1.0, 5.0, 4.0], np.float32)
        moments = self.measure(x, y, start=10)
        assert (moments.masked, moments.mismatched, moments.compared) == (1, 1, 2)
        assert (moments.max_abs_index, moments.max_rel_index, moments.sum_dd) == (14, 14, 4.0)


def shifted(x, y, start: int) -> Moments:
    """What plain() says of a single differing element that stands at `start`."""
    return plain(x, y)._replace(max_abs_index=start, max_rel_index=start)


ODD_PATHS = {
    "missing": lambda path: None,
    "empty folder": lambda path: path.mkdir(),
    "empty file": lambda path: path.touch(),
    "noise": lambda path: path.write_bytes(b"\x00\xff" * 3000),
    "link to itself": lambda path: path.symlink_to(path),
    "dangling link": lambda path: path.symlink_to("gone"),
    "other files": lambda path: (path.mkdir(), (path / "deep").mkdir(), (path / "deep" / "readme.txt").touch()),
    "fifo": lambda path: os.mkfifo(path),
}


class FormatContract:
    """A format recognises its dumps without raising, and opens them without reading a payload."""

    module: object

    def write(self, folder) -> object:
        """Writes a small dump of at least three operators below `folder`; what to open is returned."""
        raise NotImplementedError

    def test_recognises_its_own(self, tmp_path):
        assert self.module.sniff(self.write(tmp_path)) is True

    @pytest.mark.parametrize("make", ODD_PATHS.values(), ids=ODD_PATHS)
    def test_sniff_never_raises(self, tmp_path, make):
        make(tmp_path / "odd")
        assert sniffs(self.module, tmp_path / "odd") is False

    @pytest.mark.parametrize("name", ["a\0b", "x" * 5000], ids=["NUL", "too long"])
    def test_sniff_never_raises_for_impossible_names(self, tmp_path, name):
        assert sniffs(self.module, tmp_path / name) is False

    def test_the_door_recognises_it(self, tmp_path):
        where = self.write(tmp_path)
        assert {run.format for run in open_runs(where)} == {self.module.NAME}
        assert open_runs(where, self.module.NAME) == open_runs(where)

    def test_order_counts_from_zero(self, tmp_path):
        for run in self.module.open_runs(self.write(tmp_path)):
            assert [operator.order for operator in run.operators] == list(range(len(run.operators)))
            assert len(run.operators) >= 3

    def test_every_tensor_says_what_it_is(self, tmp_path):
        tensors = [t for run in self.module.open_runs(self.write(tmp_path)) for op in run.operators for t in op.tensors]
        assert tensors
        for tensor in tensors:
            assert tensor.slot.split(":")[0] in ("input", "output", "param", "grad")
            assert tensor.dtype in DTYPES and tensor.problem == "" and tensor.label
            assert all(type(size) is int and size >= 0 for size in tensor.shape)

    def test_opening_twice_is_the_same(self, tmp_path):
        where = self.write(tmp_path)
        assert self.module.open_runs(where) == self.module.open_runs(where)

    def test_opening_reads_no_payload(self, tmp_path, monkeypatch):
        where = self.write(tmp_path)

        def refuse(payload, *_, **__):
            assert len(payload.shape) < 2, "a payload was read"  # numbers and lists that HDF5 keeps are arguments
            yield from real(payload)

        real = reader.blocks

        monkeypatch.setattr("npucmp.dump.readers.values.blocks", refuse)
        assert self.module.open_runs(where)

    def test_an_empty_folder_is_told(self, tmp_path):
        with pytest.raises(DumpError) as caught:
            open_runs(tmp_path, self.module.NAME)
        assert str(tmp_path) in str(caught.value)
