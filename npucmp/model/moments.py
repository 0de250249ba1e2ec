"""What one pass over tensors measured; no opinion.

Side and Moments are tables as well: the annotation of each field says how those of two neighbouring blocks become one,
and what C keeps it as. Of FIELDS are made the merge (measure/kernel/merge.py), the record that C fills (native.py) and
the columns of the table (table.py).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Callable, NamedTuple, Optional, get_type_hints


class Extremes(NamedTuple):
    """What one tensor holds at the limits of its type, over all its elements.

    high and low count the elements that equal the largest and the lowest finite value, zeros those that are 0;
    first_… are flat indices of the first NaN, infinity and element at a limit, -1 for none. minimum and maximum are
    those of the finite elements, NaN if there is none.
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
        """(elements of a kind of event, the flat index of the first)."""
        return {
            "nan": (self.nan, self.first_nan),
            "inf": (self.inf, self.first_inf),
            "saturated": (self.high + self.low, self.first_limit),
        }[kind]

    @property
    def largest(self) -> float:
        """Largest finite magnitude; NaN if nothing is finite."""
        return max(abs(self.minimum), abs(self.maximum))


class Merge(Enum):
    """How a field of two neighbouring blocks becomes one. NaN and None stand for "nothing there"."""

    SUM = "sum"
    SUMS = "sums, place by place"
    WORD_SUMS = "the sums of its lower and of its higher 32 bits, each modulo 2^32"
    LEAST = "the least"
    MOST = "the most"
    PLACE = "where the field of its name without _index stood that is the most, the first if both are"
    HALF = "a record of its own, merged field by field"


class Kept(NamedTuple):
    """What the annotation of a field says; without a type in C, only numpy's kernel fills it."""

    merge: Merge
    c_type: str = ""


Count = Annotated[int, Kept(Merge.SUM, "int64_t")]
Sum = Annotated[float, Kept(Merge.SUM, "double")]
Least = Annotated[float, Kept(Merge.LEAST, "double")]
Most = Annotated[float, Kept(Merge.MOST, "double")]
Place = Annotated[int, Kept(Merge.PLACE, "int64_t")]
Exact = Annotated[Optional[int], Kept(Merge.MOST)]
Ulp = Annotated[Optional[int], Kept(Merge.MOST, "uint64_t")]
Bits = Annotated[int, Kept(Merge.MOST, "int64_t")]
Hash = Annotated[int, Kept(Merge.WORD_SUMS, "uint64_t")]
Decades = Annotated[tuple[int, ...], Kept(Merge.SUMS, "decades_t")]


class Side(NamedTuple):
    """One side's own half of Moments, over all its elements.

    minimum, maximum, total and squares (sum of squares) are over the finite elements; for complex
    tensors over the magnitudes. minimum and maximum are NaN when nothing is finite.

    Float32 tensors may hold values of 16 bits. Over the compared values, where both sides are float32:

    bits        significant bits that a value needs at most; 24 means more than 11, 0 means zeros alone
    last_bit    smallest place value of a last set bit; inf for zeros alone, 0 where a value needs more than 11 bits
    nonzero     values that are not zero; -inf where a value needs more than 11 bits, as are the next two
    full_8      values whose 8th significant bit is set: the last one of bfloat16
    full_11     values whose 11th significant bit is set: the last one of float16

    hash is that of all elements in any order, masks among them (measure/kernel/numpy_kernel.py).
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
    """The hash of elements that all stand there several times."""
    word = (1 << 32) - 1
    return ((one & word) * times & word) | (((one >> 32) * times & word) << 32)


Half = Annotated[Side, Kept(Merge.HALF, "side_t")]
SHORT_BITS = 8, 11  # significant bits of bfloat16 and float16: definition
SINGLE_BITS = 24  # significant bits of float32: definition
# significant bits: chosen: numbers that people write or count need no more, and are numbers of every type, not measured
FEW_BITS = 4
# bins of |x-y|/max(|y|, floor): definition: bin 0 holds exact zeros, bin k decade 10^(k-20) ≤ e < 10^(k-19)
HISTOGRAM_BINS = 24


class Moments(NamedTuple):
    """What one pass over a tensor pair measured; no opinion. x is the target, y the golden.

    elements    how many were looked at
    compared    positions that are finite on both sides and no mask: all sums below run over these
    masked      positions where both sides hold the same "minus infinity" (measure/kernel/masks.py)
    mismatched  positions that are NaN or Inf on one side only, or differently so
    equal       positions with the same bits, masks among them
    outside     positions outside the bar of allclose, masks among them
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
    max_abs_exact: Exact = None
    max_rel: Most = 0.0
    max_rel_index: Place = -1
    sum_rel: Sum = 0.0
    below_1e3: Count = 0
    below_5e3: Count = 0
    outside: Count = 0
    max_ulp: Ulp = None
    histogram: Decades = (0,) * HISTOGRAM_BINS

    @property
    def differing(self) -> int:
        """Positions that hold two numbers: other bits of one number, as of 0 and -0, of NaN or of a mask, are none."""
        return self.compared - self.histogram[0] + self.mismatched


class Field(NamedTuple):
    """A field of Moments or Side; `make` makes it of plain values, if it holds several."""

    name: str
    neutral: Any
    merge: Merge
    c_type: str
    make: Optional[Callable[[Any], Any]]


def _fields(record: type[Side] | type[Moments]) -> tuple[Field, ...]:
    kept = {name: hint.__metadata__[0] for name, hint in get_type_hints(record, include_extras=True).items()}
    return tuple(
        Field(name, neutral, kept[name].merge, kept[name].c_type, _maker(neutral))
        for name, neutral in record._field_defaults.items()
    )


def _maker(neutral: object) -> Optional[Callable[[Any], Any]]:
    if not isinstance(neutral, tuple):
        return None
    return Side._make if isinstance(neutral, Side) else tuple


SIDE_FIELDS = _fields(Side)
FIELDS = _fields(Moments)
