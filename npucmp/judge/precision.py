"""The precision that two runs worked in: the facts from which localise/rules/ makes the limits.

The limit of an input uses the coarsest float type that its values went through (localise/effective_precision.py). Whole
numbers (indices, masks, counts) have the limit 0. If one side holds floats, an element that is 0.5 or more away from
the whole number of the other side is another number, also beyond 2^53.

Float32 tensors may hold values of bfloat16 or float16, because numpy files have no bfloat16. They have the round-off of
the 16-bit type if every value of both sides is a number of that type and the values show rounding: an eighth of them
use its last place, and the spacing at the usual size is at least twice the finest spacing. Constants, whole numbers and
multiples of one step show no rounding. Weights, network inputs and values that were only moved count if a tenth of the
computed tensors show rounding too: a bfloat16 checkpoint in a float32 run is float32.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, Optional

from npucmp.model import Measurement, Operator, Pair, Side, TensorRef
from npucmp.model.dtypes import DTYPES, MOST, SUM_ROUNDING, Dtype, lookup
from npucmp.model.dtypes import SINGLE as SINGLE
from npucmp.model.moments import SINGLE_BITS
from npucmp.model.optypes import is_gradient, op_type_of

MIN_CORRELATION = 0.3  # correlation: chosen: below it no scale and offset relate whole numbers to floats, not measured
ROUNDING_ERROR = 4.0 / 12.0  # steps²: definition: rounding to whole steps leaves 1/12, and four times that is more
BOTH_SIDES = 2.0  # round-offs: definition: each side rounds once
SCALE_TOLERANCE = 0.1  # distance of a scale from 1: chosen: a few wrong elements may give as much, not measured
# share of values: chosen: values that use the last place of the type they were rounded to, by chance one half, not
# measured
FULL = 1 / 8
HALF_TYPES = ("bfloat16", "float16")
# types of files whose values may be numbers of narrower types, coarsest first
NARROWER = {"float32": HALF_TYPES, "float64": (*HALF_TYPES, "float32")}
STEP_BITS = 8  # bits: definition: width of quantised numbers; masks of whole numbers do not need more


class Precision(NamedTuple):
    """The precisions that rounded the values of a tensor, from the inputs of the run to the tensor.

    round_off  the coarsest unit round-off of the types of both runs up to this tensor
    reduced    matrix products kept 11 bits of a float32, as HF32 and TF32 units do
    quantised  one run holds steps of 8 bits
    """

    round_off: float = 0.0
    reduced: bool = False
    quantised: bool = False


def round_off_of(pair: Pair) -> float:
    """The coarser unit round-off of a pair's float types; 0 if neither type is a float."""
    target, golden = pair.target or pair.golden, pair.golden or pair.target
    return coarser_round_off(target.dtype, golden.dtype) if target is not None and golden is not None else 0.0


@lru_cache(maxsize=1024)
def coarser_round_off(*names: str) -> float:
    """The coarsest unit round-off of the named types; 0 if none is a float type."""
    return max((row.round_off for row in map(lookup, names) if row), default=0.0)


def stored_round_off(measurement: Measurement) -> float:
    """The unit round-off of the 16-bit type to which all values of both float32 or float64 tensors were rounded; 0 if
    there is none.

    numpy files cannot hold bfloat16. Every value must be a number of the 16-bit type; the differences do not matter.
    Numbers that need few bits belong to every type: constants, whole numbers, multiples of one step. Rounding shows in
    values that use the last place of the type, and in a spacing that grows with the values: the spacing of usual values
    is at least twice the finest spacing.
    """
    moments, tensors = measurement.moments, (measurement.pair.target, measurement.pair.golden)
    if moments is None or not moments.target.bits or not moments.golden.bits:
        return 0.0
    if any(tensor is None or tensor.dtype not in NARROWER for tensor in tensors):
        return 0.0
    squares = (moments.target, moments.xx), (moments.golden, moments.yy)
    row = next((row for row in map(lookup, HALF_TYPES) if row and all(holds(row, *one) for one in squares)), None)
    return row.round_off if row is not None and all(is_rounded(row, *one) for one in squares) else 0.0


def holds(row: Dtype, side: Side, squares: float) -> bool:
    """Whether every compared value is a number of the type; `squares` is the sum of the squares of the values."""
    if row.name == "float32":
        return side.bits <= SINGLE_BITS
    largest = min(max(abs(side.minimum), abs(side.maximum)), math.sqrt(squares))  # the extremes may be masks
    smallest = 2.0 * row.round_off * row.tiny  # subnormal number
    return row.round_off * 2.0**side.bits <= 1.0 and side.last_bit >= smallest and largest <= row.largest


def is_rounded(row: Dtype, side: Side, squares: float) -> bool:
    """Whether values that are numbers of a type look rounded to that type, or to a coarser one."""
    if row.name == "float32":
        halves = [DTYPES[name] for name in HALF_TYPES]
        return side.bits == SINGLE_BITS or any(
            holds(half, side, squares) and is_rounded(half, side, squares) for half in halves
        )
    full = side.full_8 if row.name == "bfloat16" else side.full_11
    usual = math.sqrt(squares / side.nonzero)
    is_whole = side.last_bit >= 1.0 and usual * SINGLE < 1.0
    return not is_whole and full >= FULL * side.nonzero and usual * row.round_off > side.last_bit


def is_counted(measurement: Measurement, round_off: float) -> bool:
    """Whether a float tensor holds whole numbers on both sides that do not come from rounding to a type of this
    round-off. Either the type cannot hold them, or its steps are finer than 1 and they need more than STEP_BITS bits,
    which separates counts from masks."""
    moments = measurement.moments
    if moments is None or not round_off:
        return False
    sides = moments.target, moments.golden
    if not all(side.last_bit >= 1.0 for side in sides):
        return False
    largest = max(max(abs(side.minimum), abs(side.maximum)) for side in sides)
    finer = 2.0 * round_off * largest < 1.0 and min(side.bits for side in sides) > STEP_BITS
    return finer or all(round_off * 2.0**side.bits > 1.0 for side in sides)


def rounded_to(measurement: Measurement) -> str:
    """The 16-bit type to which all values of the float32 or float64 target were rounded, those of the golden were not;
    "" if there is none."""
    moments, tensors = measurement.moments, (measurement.pair.target, measurement.pair.golden)
    if (
        moments is None
        or not moments.target.bits
        or any(tensor is None or tensor.dtype not in NARROWER for tensor in tensors)
    ):
        return ""
    target, golden = (moments.target, moments.xx), (moments.golden, moments.yy)
    rows = [row for row in map(lookup, HALF_TYPES) if row and holds(row, *target) and not holds(row, *golden)]
    return next((row.name for row in rows if is_rounded(row, *target)), "")


def is_rounded_to_16_bits(measurement: Measurement) -> bool:
    """Whether the values of a side look rounded to a 16-bit type."""
    moments = measurement.moments
    if moments is None:
        return False
    sides = [(moments.target, moments.xx), (moments.golden, moments.yy)]
    rows = [DTYPES[name] for name in HALF_TYPES]
    return any(
        side.bits > 0 and holds(row, side, squares) and is_rounded(row, side, squares)
        for side, squares in sides
        for row in rows
    )


def is_mixed(pair: Pair) -> bool:
    """Whether one side holds whole numbers and the other side floats."""
    rows = [lookup(tensor.dtype) for tensor in (pair.target, pair.golden) if tensor is not None]
    kinds = [row.kind for row in rows if row is not None]
    return "f" in kinds and any(kind in "iub" for kind in kinds)


def is_quantised(measurement: Measurement) -> bool:
    """Whether one run holds whole numbers that may count steps of the other run's floats.

    Such numbers are not roundings of the floats. A scale and an offset convert them to floats, and both are unknown.
    """
    moments = measurement.moments
    if moments is None or not moments.max_abs > 1 or not is_mixed(measurement.pair):
        return False
    rows = [lookup(tensor.dtype) for tensor in (measurement.pair.target, measurement.pair.golden) if tensor]
    if not any(row.kind in "iu" and row.itemsize <= 4 for row in rows if row):  # sums of products have 32 bits
        return False
    fit = linear_fit(measurement)
    return fit is None or not (fit.is_far or fit.is_identity)


class LinearFit(NamedTuple):
    """The best linear map with a scale above 0 from the floats of one run to the whole numbers of the other.

    correlation  correlation of the two runs, from -1 to 1; 0 if one holds a constant
    left         mean square of the whole numbers that the map leaves, in steps
    is_identity  whether the numbers themselves are compared: most are equal, and the scale is 1
    """

    correlation: float
    left: float
    is_identity: bool

    @property
    def is_far(self) -> bool:
        """Whether the map leaves more than rounding does, and explains almost nothing."""
        return self.correlation < MIN_CORRELATION and self.left > ROUNDING_ERROR


def linear_fit(measurement: Measurement) -> Optional[LinearFit]:
    """The fit of whole numbers to floats, computed from sums and products alone; None if these do not suffice."""
    moments, target = measurement.moments, measurement.pair.target
    if moments is None or target is None or moments.mismatched or moments.masked or not moments.compared:
        return None
    n, floats, whole = moments.compared, moments.golden, moments.target
    floats_squares, whole_squares = moments.yy, moments.xx
    if (row := lookup(target.dtype)) is not None and row.kind == "f":
        floats, whole, floats_squares, whole_squares = whole, floats, whole_squares, floats_squares
    spread_floats = _variance(floats, floats_squares, n)
    spread_whole = _variance(whole, whole_squares, n)
    if spread_floats is None or spread_whole is None:
        return None
    both = math.sqrt(spread_floats) * math.sqrt(spread_whole)
    covariance = moments.xy / n - (floats.total / n) * (whole.total / n)
    correlation = max(-1.0, min(1.0, covariance / both)) if both else 0.0
    left = spread_whole * (1.0 - max(0.0, correlation) ** 2)
    scale = covariance / spread_floats if spread_floats else 0.0
    return LinearFit(correlation, left, 2 * moments.equal > n and abs(scale - 1.0) < SCALE_TOLERANCE)


def _variance(side: Side, squares: float, n: int) -> Optional[float]:
    """The variance of one side; None if it is below the rounding of the sums."""
    if side.minimum == side.maximum:
        return 0.0
    mean = side.total / n
    found = squares / n - mean * mean  # infinite, where a power would raise an error
    return found if math.isfinite(found) and found > SUM_ROUNDING * squares / n else None


def terms_summed(operator: Operator, output: TensorRef) -> float:
    """Estimate the number of terms summed in each element of an output, from shapes alone; 1 if the output is not a
    sum.

    A product (m, k) × (k, n) → (m, n) has k = √(mk · kn / mn). The gradient of a parameter sums over the elements of
    the incoming gradient divided by the length of the parameter's first axis; the gradient of a scalar sums over all
    elements.
    """
    backward = is_gradient(operator)
    if not output.is_output or not (output.shape or backward) or 0 in output.shape:
        return 1.0
    weights = [t.shape for t in operator.tensors if t.slot.startswith("param:") and len(t.shape) > 1]
    if weights and not backward:
        return float(max(min(math.prod(shape[1:]), MOST) for shape in weights))
    inputs = (math.prod(tensor.shape) for tensor in operator.tensors if not tensor.is_output)
    sizes = sorted((min(size, MOST) for size in inputs), reverse=True)
    elements = math.prod(output.shape)
    if backward:
        rows = output.shape[0] if output.shape else 1  # a scalar that was broadcast sums over all elements
        return float(sizes[0] // rows) if sizes and len(output.shape) != 3 else 1.0
    if op_type_of(operator).has("contracts") and len(sizes) > 1:
        return math.sqrt(sizes[0] * sizes[1] // elements)
    return float(sizes[0] // elements) if sizes else 1.0


def narrower_dtype(pair: Pair) -> str:
    """The coarser type of a pair, which selects the tolerance."""
    tensors: list[TensorRef] = [tensor for tensor in (pair.target, pair.golden) if tensor is not None]
    return max(tensors, key=lambda t: row.round_off if (row := lookup(t.dtype)) else 0.0).dtype
