"""The precision that two runs worked in, as facts: what the limits of localise/rules/ are made of."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import groupby
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.measure import metrics
from npucmp.model import Measurement, Operator, Pair, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_gradient, op_type_of

REDUCED_ERROR = 2.0**-15, 2.0**-10.5  # rel_l2 that products of numbers rounded to 11 bits have
REDUCED_ADDS = 1.5 * 2.0**-13  # what each such product adds to the error of what it read; 2 to 3 times 2^-13, usually
NEAREST = 5  # products behind a single witness that are asked: those that read the smallest errors, all but one of them
FEWEST = 3  # that must be there; where fewer than those are, all are asked
SINGLE = 2.0**-24
# Units in the last place of float32, round-off, and decade of the histogram that half of it is in: bfloat16, float16.
KEPT = ((1 << 16, 2.0**-8, 17), (1 << 13, 2.0**-11, 16))
KEPT_SAME = 0.5  # share of values that are the same
SHORT = (("bfloat16", 8), ("float16", 11))  # bits of a number of each
FEW_BITS = 4  # a number that needs no more is one of every type, as the bounds of a clip are


class Precision(NamedTuple):
    """What rounded the values of a tensor on their way.

    round_off  the coarsest unit round-off of the types of both runs up to here
    reduced    matrix products kept 11 bits of a float32, as HF32 and TF32 units do
    quantised  one run holds steps of 8 bits
    """

    round_off: float = 0.0
    reduced: bool = False
    quantised: bool = False


def round_off_of(pair: Pair) -> float:
    """The coarser unit round-off of a pair's float types; 0 without floats."""
    target, golden = pair.target or pair.golden, pair.golden or pair.target
    return _coarser(target.dtype, golden.dtype) if target is not None and golden is not None else 0.0


@lru_cache(maxsize=1024)
def _coarser(*names: str) -> float:
    return max((row.round_off for row in map(lookup, names) if row), default=0.0)


def kept_round_off(measurement: Measurement) -> float:
    """The unit round-off of a 16-bit type whose values both runs keep in float32; 0 of what is none.

    Files of numpy have no bfloat16. That the largest difference is a whole number of its steps, 2^16 units in the last
    place of float32 (2^13 for float16), and no element differs by less than half of one, is no chance.
    """
    moments, tensors = measurement.moments, (measurement.pair.target, measurement.pair.golden)
    if moments is None or not moments.max_ulp or moments.equal < KEPT_SAME * moments.elements:
        return 0.0
    if any(tensor is None or tensor.dtype != "float32" for tensor in tensors):
        return 0.0
    smallest = next((place for place, count in enumerate(moments.histogram) if place and count), 0)
    return next((unit for steps, unit, least in KEPT if moments.max_ulp % steps == 0 and smallest >= least), 0.0)


def rounded_to(measurement: Measurement) -> str:
    """The 16-bit type that the target's float32 values look rounded to: the smallest and the largest are numbers of
    that type, which by chance one in 2^26 pairs is, and those of the golden are not; "" for none."""
    moments, tensors = measurement.moments, (measurement.pair.target, measurement.pair.golden)
    if moments is None or any(tensor is None or tensor.dtype != "float32" for tensor in tensors):
        return ""
    x, y = moments.target, moments.golden
    needed = [(_bits(a), _bits(b)) for a, b in ((x.minimum, y.minimum), (x.maximum, y.maximum))]
    if x.minimum == x.maximum:
        return ""
    return next((name for name, bits in SHORT if all(FEW_BITS < a <= bits < b for a, b in needed)), "")


def _bits(value: float) -> int:
    """How many bits the significand of a float32 needs; more than any has for NaN and infinity."""
    part = math.frexp(value)[0]
    return next((bits for bits in range(25) if (part * 2.0**bits).is_integer()), 25)


def quantised(measurement: Measurement) -> bool:
    """Whether one run holds whole numbers where the other has floats that they are no roundings of: they are steps."""
    moments = measurement.moments
    if moments is None or not moments.max_abs > 1:
        return False
    tensors = [tensor for tensor in (measurement.pair.target, measurement.pair.golden) if tensor is not None]
    rows = [row for tensor in tensors if (row := lookup(tensor.dtype))]
    counts = any(row.kind in "iu" and row.itemsize <= 4 for row in rows)  # sums of products have 32 bits
    return counts and any(row.kind == "f" for row in rows)


def reduced_products(steps: "Iterable[Sequence[Measurement]]") -> bool:
    """Whether the float32 matrix products of these runs were computed with HF32 or TF32, by all steps and ranks.

    All products whose inputs agree must show it: a single one that does not is computed in float32. One alone that does
    may be at fault itself; it is believed if those that read the smallest errors add as much error again: a fault that
    is passed on grows here and there, not everywhere. Evidence: 700 of 720 chains of 4 to 20 products drawn with HF32,
    with and without rectifiers, show it, and 10 of 3,600 without it, with one to three faults of that range; the median
    of what all of them add took 157 of these for HF32.
    """
    said = [reduced_in(measurements) for measurements in steps]
    return True in said and False not in said


def reduced_in(measurements: "Sequence[Measurement]") -> Optional[bool]:
    """What those of one step and rank say."""
    return _are_reduced(list(_products(measurements)))


def _are_reduced(products: "list[_Product]") -> Optional[bool]:
    """What the products of one step say; None if nothing, because all of them read noise or a single one does not."""
    witnesses = [one for one in products if max(one.read) <= 8 * SINGLE]
    if not witnesses:
        return None
    if not all(one.is_reduced for one in witnesses):
        return False
    later = sorted((one for one in products if one not in witnesses), key=lambda one: max(one.read))[:NEAREST]
    adding = sum(one.added > REDUCED_ADDS for one in later)
    confirmed = len(later) >= FEWEST and adding >= min(len(later), NEAREST - 1)
    return True if confirmed or len(witnesses) > 1 else None


class _Product(NamedTuple):
    """A float32 matrix product of a forward pass: the errors of what it read and wrote."""

    read: "list[float]"
    wrote: float
    is_reduced: bool

    @property
    def added(self) -> float:
        """The error that it adds to what it read, as far as errors add up like independent ones; ** would raise."""
        return math.sqrt(max(0.0, self.wrote * self.wrote - sum(error * error for error in self.read)))


def _products(measurements: Sequence[Measurement]) -> "Iterator[_Product]":
    for _, group in groupby(measurements, key=lambda one: one.pair.order):
        rows = list(group)
        operator = rows[0].pair.operator
        if is_gradient(operator) or not op_type_of(operator).has("contracts") or not _single(rows):
            continue
        outputs = [one for one in rows if one.pair.slot.startswith("output")]
        read = [_error(one) for one in rows if not one.pair.slot.startswith("output")]
        wrote = [_error(one) for one in outputs]
        if read and wrote and None not in read and None not in wrote:
            known = [error for error in read if error is not None]
            yield _Product(known, max(error for error in wrote if error is not None), all(map(_reduced, outputs)))


def _error(one: Measurement) -> Optional[float]:
    """None where there are no two sides to compare."""
    both = one.pair.target is not None and one.pair.golden is not None
    return metrics.rel_l2(one.moments) if both and one.moments is not None else None


def _single(rows: Iterable[Measurement]) -> bool:
    """Whether all floats of an operator are float32 on both sides."""
    names = {tensor.dtype for one in rows for tensor in (one.pair.target, one.pair.golden) if tensor is not None}
    return {name for name in names if "float" in name} == {"float32"}


def _reduced(one: Measurement) -> bool:
    """An error of the right size that is rounding, not one common factor."""
    if one.moments is None:
        return False
    error = metrics.rel_l2(one.moments)
    return REDUCED_ERROR[0] < error < REDUCED_ERROR[1] and abs(metrics.gain(one.moments)) < error / 2


def terms_summed(operator: Operator, output: TensorRef) -> float:
    """About how many terms went into each element of an output, from shapes alone; 1 for what is no sum.

    A product (m, k) × (k, n) → (m, n) has k = √(mk · kn / mn); a gradient of a parameter sums over what is left of
    the incoming gradient when the parameter's first axis is taken out of it, that of a number over all of it.
    """
    backward = is_gradient(operator)
    if not output.is_output or not (output.shape or backward) or 0 in output.shape:
        return 1.0
    weights = [t.shape for t in operator.tensors if t.slot.startswith("param:") and len(t.shape) > 1]
    if weights and not backward:
        return float(max(min(math.prod(shape[1:]), 2**62) for shape in weights))
    inputs = (math.prod(tensor.shape) for tensor in operator.tensors if not tensor.is_output)
    sizes = sorted((min(size, 2**62) for size in inputs), reverse=True)
    elements = math.prod(output.shape)
    if backward:
        rows = output.shape[0] if output.shape else 1  # of a number that was broadcast, all
        return float(sizes[0] // rows) if sizes and len(output.shape) != 3 else 1.0
    if op_type_of(operator).has("contracts") and len(sizes) > 1:
        return math.sqrt(sizes[0] * sizes[1] // elements)
    return float(sizes[0] // elements) if sizes else 1.0


def narrower_dtype(pair: Pair) -> str:
    """The coarser of a pair's types, which a tolerance is chosen by."""
    tensors: list[TensorRef] = [tensor for tensor in (pair.target, pair.golden) if tensor is not None]
    return max(tensors, key=lambda t: row.round_off if (row := lookup(t.dtype)) else 0.0).dtype
