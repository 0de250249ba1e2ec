"""Moments: the sums, extremes and counts that one pass over tensors measures, without a verdict.

Side and Moments are also tables: the annotation of each field declares its merge for two neighbouring blocks and its
type in C. FIELDS is the source of the merge (measure/kernel/merge.py) and of the record: the bytes that C fills
(native.py), that processes exchange and that the table has as a column (table.py).
"""

from __future__ import annotations

from enum import Enum
from struct import Struct, calcsize
from typing import Annotated, Any, Callable, NamedTuple, Optional, get_type_hints


class Extremes(NamedTuple):
    """Extremes of one tensor at the limits of its type, over all its elements.

    `high` and `low` count the elements that equal the largest and the lowest finite value, `zeros` those that are 0.
    first_… are flat indices of the first NaN, infinity and element at a limit, -1 for none. `minimum` and `maximum`
    cover the finite elements, NaN if there is none.
    """

    elements: int = 0
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    high: int = 0
    low: int = 0
    zeros: int = 0
    first_nan: int = -1
    first_inf: int = -1
    first_limit: int = -1
    minimum: float = float("nan")
    maximum: float = float("nan")

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf

    def of(self, kind: str) -> tuple[int, int]:
        """Return (number of elements of a kind of event, the flat index of the first)."""
        return {
            "nan": (self.nan, self.first_nan),
            "inf": (self.inf, self.first_inf),
            "saturated": (self.high + self.low, self.first_limit),
        }[kind]

    @property
    def largest(self) -> float:
        """The largest finite magnitude; NaN if nothing is finite."""
        return max(abs(self.minimum), abs(self.maximum))


class Merge(Enum):
    """The merge of a field of two neighbouring blocks. NaN and None mean "no value"."""

    SUM = "sum"
    SUMS = "sums, place by place"
    WORD_SUMS = "the sums of its lower and of its higher 32 bits, each modulo 2^32"
    LEAST = "the least"
    MOST = "the most"
    MOST_WIDE = "the most of two integers"
    PLACE = "the index of the larger value of the field without _index in its name, the first if both are equal"
    HALF = "a record of its own, merged field by field"


class MomentField(NamedTuple):
    """The annotation of a field."""

    merge: Merge
    c_type: str


Count = Annotated[int, MomentField(Merge.SUM, "int64_t")]
Sum = Annotated[float, MomentField(Merge.SUM, "double")]
Least = Annotated[float, MomentField(Merge.LEAST, "double")]
Most = Annotated[float, MomentField(Merge.MOST, "double")]
Place = Annotated[int, MomentField(Merge.PLACE, "int64_t")]
Wide = Annotated[Optional[int], MomentField(Merge.MOST_WIDE, "wide_t")]
Bits = Annotated[int, MomentField(Merge.MOST, "int64_t")]
Hash = Annotated[int, MomentField(Merge.WORD_SUMS, "uint64_t")]
Decades = Annotated[tuple[int, ...], MomentField(Merge.SUMS, "decades_t")]


class Side(NamedTuple):
    """One side's half of Moments, over all its elements.

    `minimum`, `maximum`, `total` and `squares` (sum of squares) cover the finite elements, for complex tensors their
    magnitudes. `minimum` and `maximum` are NaN if nothing is finite.

    Float32 tensors may contain 16-bit values, float64 tensors values of float32 too. Over the compared values of a
    float32 or float64 tensor:

        bits        largest number of significant bits that a value needs; 24 means more than 11, 53 more than float32
                    has, 0 only zeros
        last_bit    smallest place value of a last set bit; inf for only zeros, 0 if a value needs more than 11 bits
        nonzero     nonzero values; -inf if a value needs more than 11 bits, as are the next two
        full_8      values whose 8th significant bit is set: the last one of bfloat16
        full_11     values whose 11th significant bit is set: the last one of float16

    `hash` is the hash of all elements in any order, including masks (measure/kernel/numpy_kernel.py).
    """

    nan: Count = 0
    posinf: Count = 0
    neginf: Count = 0
    minimum: Least = float("nan")
    maximum: Most = float("nan")
    total: Sum = 0.0
    squares: Sum = 0.0
    bits: Bits = 0
    last_bit: Least = float("inf")
    nonzero: Sum = 0.0
    full_8: Sum = 0.0
    full_11: Sum = 0.0
    hash: Hash = 0

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf


def add_hashes(a: int, b: int) -> int:
    """The hash of the elements of two blocks together."""
    word = (1 << 32) - 1
    return ((a + b) & word) | (((a >> 32) + (b >> 32) & word) << 32)


def repeated_hash(one: int, times: int) -> int:
    """The hash of elements that each occur `times` times."""
    word = (1 << 32) - 1
    return ((one & word) * times & word) | (((one >> 32) * times & word) << 32)


Half = Annotated[Side, MomentField(Merge.HALF, "side_t")]
SHORT_BITS = 8, 11  # significant bits of bfloat16 and float16: definition
SINGLE_BITS = 24  # significant bits of float32: definition
DOUBLE_BITS = 53  # significant bits of float64: definition
# significant bits: chosen: numbers that people write or count need no more, and are numbers of every type, not measured
FEW_BITS = 4
# bins of |x-y|/max(|y|, floor): definition: bin 0 holds exact zeros, bin k decade 10^(k-20) ≤ e < 10^(k-19)
HISTOGRAM_BINS = 24


class Moments(NamedTuple):
    """The result of one pass over a tensor pair, without a verdict. x is the target, y the golden.

    elements    number of elements examined
    compared    positions that are finite on both sides and not a mask: all sums below cover these
    masked      positions where both sides have the same "minus infinity" (measure/kernel/mask_values.py)
    mismatched  positions that are NaN or Inf on one side only, or differ in kind
    equal       positions with the same bits, including masks
    outside     positions outside the bar of allclose, including masks
    max_abs_exact  largest |x-y| of integer tensors, exact, None for other dtypes
    """

    elements: Count = 0
    target: Half = Side()
    golden: Half = Side()
    compared: Count = 0
    masked: Count = 0
    mismatched: Count = 0
    equal: Count = 0
    xx: Sum = 0.0
    yy: Sum = 0.0
    xy: Sum = 0.0
    sum_d: Sum = 0.0
    sum_abs: Sum = 0.0
    sum_dd: Sum = 0.0
    max_abs: Most = 0.0
    max_abs_index: Place = -1
    max_abs_exact: Wide = None
    max_rel: Most = 0.0
    max_rel_index: Place = -1
    sum_rel: Sum = 0.0
    below_1e3: Count = 0
    below_5e3: Count = 0
    outside: Count = 0
    max_ulp: Wide = None
    histogram: Decades = (0,) * HISTOGRAM_BINS

    @property
    def differing(self) -> int:
        """The number of positions with different numbers. Different bits of one number (0 and -0, NaN) and masks do not
        count."""
        return self.compared - self.histogram[0] + self.mismatched

    def __reduce__(self) -> tuple[Callable[[bytes], Moments], tuple[bytes]]:
        return moments_in, (record_of(self),)


class Field(NamedTuple):
    """A field of Moments or Side."""

    name: str
    neutral: Any
    merge: Merge
    c_type: str


def _fields(record: type[Side] | type[Moments]) -> tuple[Field, ...]:
    hints = get_type_hints(record, include_extras=True)
    return tuple(
        Field(name, neutral, hints[name].__metadata__[0].merge, hints[name].__metadata__[0].c_type)
        for name, neutral in record._field_defaults.items()
    )


SIDE_FIELDS, FIELDS = _fields(Side), _fields(Moments)
_NONE = (1 << 64) - 1  # the high word of an integer that is None


def _integer(words: tuple[int, int]) -> Optional[int]:
    return None if words[0] == _NONE else (words[0] << 64) + words[1]


# the code of struct and numpy for each type in C; wide_t is an integer of up to 128 bits, the high word first
CODES = {"int64_t": "q", "uint64_t": "Q", "double": "d", "decades_t": f"{HISTOGRAM_BINS}q", "wide_t": "2Q"}
CODES["side_t"] = "".join(CODES[field.c_type] for field in SIDE_FIELDS)
_MAKERS: dict[str, Callable[[Any], Any]] = {"side_t": Side._make, "decades_t": tuple, "wide_t": _integer}
SIDE_RECORD, RECORD = (Struct("=" + "".join(CODES[one.c_type] for one in some)) for some in (SIDE_FIELDS, FIELDS))
_SEVERAL = [  # place, number of values of 8 bytes and constructor of the fields with several values
    (place, calcsize("=" + CODES[field.c_type]) // 8, _MAKERS[field.c_type])
    for place, field in enumerate(FIELDS)
    if field.c_type in _MAKERS
]
_WIDE = [place for place, field in enumerate(FIELDS) if field.merge is Merge.MOST_WIDE]


def record_of(moments: Moments) -> bytes:
    """The record of Moments."""
    values: list[Any] = [*moments]
    for place in _WIDE:
        values[place] = (_NONE, 0) if values[place] is None else divmod(int(values[place]), 1 << 64)
    for place, _, _ in reversed(_SEVERAL):
        values[place : place + 1] = values[place]
    return RECORD.pack(*values)


def moments_in(record: bytes) -> Moments:
    """The Moments of a record."""
    values: list[Any] = [*RECORD.unpack(record)]
    for place, count, make in _SEVERAL:
        values[place : place + count] = [make(values[place : place + count])]
    return Moments._make(values)
