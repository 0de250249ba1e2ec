"""The precision that two runs worked in, as facts: what the limits of localise/rules/ are made of."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import groupby
from statistics import median
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.measure import metrics
from npucmp.model import Measurement, Operator, Pair, TensorRef
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_gradient, op_type_of

REDUCED_ERROR = 2.0**-15, 2.0**-10.5  # rel_l2 that products of numbers rounded to 11 bits have
REDUCED_ADDS = 1.5 * 2.0**-13  # what such a product adds in the median to the error of what it read; 0.4 to 1 if not
FEWEST = 3  # products behind a single witness that must be there to be asked
SINGLE = 2.0**-24


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
    may be at fault itself; it is believed if the products behind it add as much error to what they read. Evidence: in
    clean HF32 pairs of the corpus (open seeds) with one witness the median of what they add is 2 to 3 times 2^-13, in
    pairs with a fault of that size in the first product up to 1.
    """
    said = [_are_reduced(list(_products(measurements))) for measurements in steps]
    return True in said and False not in said


def _are_reduced(products: "list[_Product]") -> Optional[bool]:
    """What the products of one step say; None if nothing, because all of them read noise or a single one does not."""
    witnesses = [one for one in products if max(one.read) <= 8 * SINGLE]
    if not witnesses:
        return None
    if not all(one.is_reduced for one in witnesses):
        return False
    later = [one for one in products if one not in witnesses]
    confirmed = len(later) >= FEWEST and median(one.added for one in later) > REDUCED_ADDS
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
    return metrics.rel_l2(one.moments) if one.moments is not None else None


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
    the incoming gradient when the parameter's first axis is taken out of it.
    """
    if not output.is_output or not output.shape or 0 in output.shape:
        return 1.0
    weights = [t.shape for t in operator.tensors if t.slot.startswith("param:") and len(t.shape) > 1]
    backward = is_gradient(operator)
    if weights and not backward:
        return float(max(min(math.prod(shape[1:]), 2**62) for shape in weights))
    inputs = (math.prod(tensor.shape) for tensor in operator.tensors if not tensor.is_output)
    sizes = sorted((min(size, 2**62) for size in inputs), reverse=True)
    elements = math.prod(output.shape)
    if backward:
        return float(sizes[0] // output.shape[0]) if sizes and len(output.shape) in (1, 2, 4, 5) else 1.0
    if op_type_of(operator).has("contracts") and len(sizes) > 1:
        return math.sqrt(sizes[0] * sizes[1] // elements)
    return float(sizes[0] // elements) if sizes else 1.0


def narrower_dtype(pair: Pair) -> str:
    """The coarser of a pair's types, which a tolerance is chosen by."""
    tensors: list[TensorRef] = [tensor for tensor in (pair.target, pair.golden) if tensor is not None]
    return max(tensors, key=lambda t: row.round_off if (row := lookup(t.dtype)) else 0.0).dtype
