"""The table of element types: names in dumps ↔ numpy / ml_dtypes ↔ width, round-off, range.

Sources: IEEE 754-2019 (float16/32/64); Micikevicius et al., "FP8 formats for deep learning" (arXiv 2209.05433) for
e4m3fn and e5m2; OCP Microscaling Formats 1.0 for e8m0 and float4; Luo et al., "Ascend HiFloat8 Format for Deep
Learning" (arXiv 2409.16626); bfloat16 is the upper half of a float32.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

from npucmp.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

SINGLE = 2.0**-24  # unit round-off of float32: definition
# limit of two tensors, in round-offs: evidence: nine of ten outputs of clean pairs of the corpus stay below 6.7
# (localise/rules/limits.py)
FACTOR = 8.0
AVERAGED_ELEMENTS = 16  # elements: chosen: rounding of fewer does not average out in a factor or a figure, not measured
# √K of a sum that has the limit of short ones: evidence: 9.2 round-offs in a weight gradient of a clean run with
# another number of threads (localise/rules/limits.py)
SHORT_SUM = 16.0
# of the scale of a sum: chosen: sums of one tensor in float64 in another order agree to this, not measured
SUM_ROUNDING = 1e-9
# round-offs: literature: Higham, Accuracy and Stability of Numerical Algorithms, §4.2; standard deviation of the
# rounding of one partial sum
SUM_DEVIATION = 0.42
# round-offs: definition: √(1/3), the standard deviation of a rounding error of a value right above a power of two
ROUNDING = 0.58
MOST = 2**62  # elements: chosen: no memory holds more, and a dump of statistics may claim any shape, not measured


class Dtype(NamedTuple):
    """One element type. `round_off` is the unit round-off (0 for non-floats), `tiny` the smallest normal number,
    `largest` the largest finite one. `kind`: b bool, i signed, u unsigned, f float, c complex.

    `memory` is the type of the values in memory, "" for the type itself. `bits` is the width in a file if that is not
    `itemsize` bytes (elements of 4 bits and less are packed, and the last byte is padded).
    """

    name: str
    kind: str
    itemsize: int
    round_off: float = 0.0
    tiny: float = 1.0
    largest: float = 0.0
    memory: str = ""
    bits: int = 0

    def stored(self, elements: int) -> int:
        """Bytes of that many elements in a file."""
        return -(-elements * self.bits // 8) if self.bits else elements * self.itemsize


def random_walk(total: Any, squares: Any, terms: Any, unit: float) -> Any:
    """Return the standard deviation of the rounding error of a sum of `terms` terms, added one after the other.

    0.42 u √(K/3·r² + K/2·Q) for K terms with the sum r and the sum of squares Q: the random walk of K partial sums,
    which grow to r and fluctuate with the terms. No other order of addition is worse. Accepts numbers, arrays and
    tensors.
    """
    return SUM_DEVIATION * unit * (terms * (total * total / 3.0 + squares / 2.0)) ** 0.5


_TABLE = (
    Dtype("bool", "b", 1),
    Dtype("int8", "i", 1),
    Dtype("int16", "i", 2),
    Dtype("int32", "i", 4),
    Dtype("int64", "i", 8),
    Dtype("uint8", "u", 1),
    Dtype("uint16", "u", 2),
    Dtype("uint32", "u", 4),
    Dtype("uint64", "u", 8),
    Dtype("float64", "f", 8, 2.0**-53, 2.0**-1022, 1.7976931348623157e308),
    Dtype("float32", "f", 4, 2.0**-24, 2.0**-126, 3.4028234663852886e38),
    Dtype("float16", "f", 2, 2.0**-11, 2.0**-14, 65504.0),
    Dtype("bfloat16", "f", 2, 2.0**-8, 2.0**-126, 3.3895313892515355e38),
    Dtype("float8_e4m3fn", "f", 1, 2.0**-4, 2.0**-6, 448.0),
    Dtype("float8_e5m2", "f", 1, 2.0**-3, 2.0**-14, 57344.0),
    Dtype("complex64", "c", 8, 2.0**-24, 2.0**-126, 3.4028234663852886e38),
    Dtype("complex128", "c", 16, 2.0**-53, 2.0**-1022, 1.7976931348623157e308),
    Dtype("complex32", "c", 4, 2.0**-11, 2.0**-14, 65504.0, memory="complex64"),
    # float8_e8m0 is for scales, powers of two that are either equal or not
    # HiFloat8: 3 bits of mantissa for |exponent| below 4, 2 below 8, 1 below 16; round_off is that of the middle range
    Dtype("hifloat8", "f", 1, 2.0**-3, 2.0**-15, 32768.0, memory="float32"),
    Dtype("float8_e8m0", "f", 1, 0.0, 2.0**-127, 2.0**127, memory="float32"),
    Dtype("float4_e2m1", "f", 1, 2.0**-2, 1.0, 6.0, memory="float32", bits=4),
    Dtype("int4", "i", 1, memory="int8", bits=4),
    Dtype("int2", "i", 1, memory="int8", bits=2),
    Dtype("uint2", "u", 1, memory="uint8", bits=2),
    Dtype("uint1", "u", 1, memory="uint8", bits=1),
)
PACKED_SUFFIX = "_x2"  # suffix of torch's name for a type in which two elements count as one
DTYPES = {row.name: row for row in _TABLE}

_ALIASES = {
    "double": "float64", "float": "float32", "half": "float16", "bf16": "bfloat16",
    "long": "int64", "int": "int32", "short": "int16", "char": "int8", "byte": "uint8",
    "cfloat": "complex64", "cdouble": "complex128", "bool_": "bool",
    "float8_e8m0fnu": "float8_e8m0", "float4_e2m1fn_x2": "float4_e2m1", "hifloat8tensor": "hifloat8",
}  # fmt: skip


@lru_cache(maxsize=1024)  # a dump repeats the same few words thousands of times
def canonical(word: str) -> str:
    """The table's name for a dump's word: "torch.bfloat16", "BFloat16", "<class 'float'>" … → "bfloat16".

    A word that is not in the table is returned unchanged, so that a report can show it.
    """
    name = word.rsplit(".", 1)[-1].strip().lower()
    name = _ALIASES.get(name, name)
    return name if name in DTYPES else word


def lookup(name: str) -> Optional[Dtype]:
    """The row of a canonical name; None if npucmp does not know the type."""
    return DTYPES.get(name)


def unit_of(name: str) -> float:
    """Return the unit round-off of a type; 0 for a type without one or unknown."""
    row = DTYPES.get(name)
    return row.round_off if row else 0.0


def size_of(name: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor in a file, 0 for a type that is not in the table."""
    row = DTYPES.get(name)
    return row.stored(math.prod(shape)) if row else 0


def offset_of(name: str, elements: int) -> int:
    """Bytes in front of an element, by the number of elements in front of it.

    Raises UnsupportedError for a packed type whose element does not begin with a byte.
    """
    row = DTYPES.get(name)
    if row and row.bits and elements * row.bits % 8:
        raise UnsupportedError(f"a part of a tensor of type {name} that does not begin with a byte")
    return elements * row.bits // 8 if row and row.bits else elements * size_of(name, ())


@cache
def numpy_dtype(name: str, byteorder: str = "<") -> np.dtype[Any]:
    """The numpy dtype for values of a canonical name; ml_dtypes is imported only for one of its types.

    Raises UnsupportedError for a name that is not in the table.
    """
    import numpy as np  # help texts import this module

    if name not in DTYPES:
        raise UnsupportedError(f"elements of type {name!r} cannot be read")
    if DTYPES[name].memory:
        name = DTYPES[name].memory
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
    plain: np.dtype[Any] = np.dtype(("<" if byteorder == "<" else ">") + np.dtype(name).str[1:])
    return plain


def narrower(a: Dtype, b: Dtype) -> Dtype:
    """The coarser of two types, which limits the resolution of a comparison. A float is coarser than an integer."""
    return a if a.round_off >= b.round_off else b


def is_short(dtype: str) -> bool:
    """Return whether a type is a float of 16 bits or fewer."""
    row = lookup(dtype)
    return row is not None and row.kind == "f" and row.itemsize <= 2
