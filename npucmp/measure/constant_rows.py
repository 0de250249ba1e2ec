"""Rows that a layer norm reads and that are constant up to rounding; its output there is only rounding error.

A norm subtracts the mean of a row and divides by √(variance + eps). If all elements of a row are nearly equal, the
subtraction leaves only the rounding of the mean, and the division amplifies it. Moments of a whole tensor do not show
such rows, so input and output of a layer norm whose output differs are read a second time.

With u the round-off of the sums, n the length of a row, M its size, σ its deviation and d the difference of both runs
there, a row is constant if σ ≤ 8 (8 u M max(1, √n / 16) + 2 d). The error of its mean is at most δ = u M max(8, n / 2)
+ 2 d, because rounding of a sum of equal terms has one sign. The error of its variance is at most δ M, if that is the
difference of two means. The output then differs by at most w (δ / s + σ (1 / s - 1 / s')), with s and s' the least and
the largest √(variance + eps). If a row differs by more, this does not explain it, and no row of the tensor is excused.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, Iterator, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.errors import if_unreadable
from npucmp.measure.metrics import rel_l2
from npucmp.measure.pairs import READ, alike, payload_of
from npucmp.model import Measurement, TensorRef
from npucmp.model.dtypes import FACTOR, SHORT_SUM, SINGLE, lookup
from npucmp.model.optypes import is_gradient, op_type_of

EPS = 1e-5  # eps of a layer norm: definition: the default of torch


def with_constant_rows(found: Sequence[Measurement], context: ReadContext) -> list[Measurement]:
    """Return the measurements of one step and rank, in graph order. If a layer norm has constant rows, its measurement
    states the error of the other rows."""
    result = [*found]
    for _, group in groupby(range(len(found)), key=lambda at: found[at].pair.order):
        rows = [*group]
        operator = found[rows[0]].pair.operator
        if not op_type_of(operator).has("normalises rows") or is_gradient(operator):
            continue
        measurements = [found[at] for at in rows]
        for at in rows:
            if _differs(found[at]):
                result[at] = found[at]._replace(settled=_error_of_rows(found[at], measurements, context))
    return result


def _differs(one: Measurement) -> bool:
    """Return whether an output differs by more than rounding of its own type."""
    moments, pair = one.moments, one.pair
    if pair.target is None or pair.golden is None or not pair.golden.is_output:
        return False
    return moments is not None and not moments.mismatched and rel_l2(moments) > FACTOR * _unit(pair.target, pair.golden)


def _unit(*tensors: TensorRef) -> float:
    rows = [lookup(one.dtype) for one in tensors]
    return max((row.round_off for row in rows if row is not None), default=0.0)


@if_unreadable(None)
def _error_of_rows(output: Measurement, rows: Sequence[Measurement], context: ReadContext) -> Optional[float]:
    """rel_l2 of the rows of an output that are not constant in the input; None if no row is constant, or if one differs
    by more than rounding explains."""
    read = [one for one in rows if one.moments is not None and one.pair.golden and not one.pair.golden.is_output]
    shape = output.pair.golden.shape if output.pair.golden else ()
    data = next((one for one in read if one.pair.golden and one.pair.golden.shape == shape), None)
    if data is None or not shape or data.pair.target is None or data.pair.golden is None:
        return None
    small = [one for one in read if one.pair.golden and 0 < len(one.pair.golden.shape) < len(shape)]
    own = [one for one in small if one.pair.golden and one.pair.golden.shape == shape[-len(one.pair.golden.shape) :]]
    width = math.prod(own[0].pair.golden.shape) if own and own[0].pair.golden else shape[-1]
    weights = [one.moments.golden.squares / width for one in own if one.moments and "bias" not in one.pair.slot]
    weight = math.sqrt(weights[0]) if weights else 1.0
    arguments = output.pair.golden_op.arguments.values() if output.pair.golden_op else ()
    numbers = [one for one in arguments if type(one) is float and 0.0 < one < 1.0]
    return _rest(data, output, width, weight, numbers[0] if numbers else EPS, context)


def _rest(
    data: Measurement, output: Measurement, width: int, weight: float, eps: float, context: ReadContext
) -> Optional[float]:
    tensors = [data.pair.target, data.pair.golden, output.pair.target, output.pair.golden]
    known = [one for one in tensors if one is not None]
    unit, rounding = min(SINGLE, _unit(*known[:2])), _unit(*known[2:])  # sums are not coarser than float32
    longer = max(1.0, math.sqrt(width) / SHORT_SUM)
    constant, squares, size = 0, 0.0, 0.0
    for a, b, x, y in _rows(known, width, context):
        wide, least = b - b.mean(axis=1, keepdims=True), FACTOR * unit * longer
        deviation, read = (np.sqrt(np.square(one).mean(axis=1)) for one in (wide, b))
        moved = 2.0 * np.sqrt(np.square(a - b).mean(axis=1))
        is_constant = deviation <= FACTOR * (least * read + moved)
        shift = max(least, unit * width / 2.0) * read + moved
        variance, off = np.square(deviation), shift * read
        low, high = (np.sqrt(one + eps) for one in (np.maximum(variance - off, 0.0), variance + off))
        differs, wrote = (np.sqrt(np.square(one).mean(axis=1)) for one in (x - y, y))
        bound = weight * (shift / low + deviation * (1.0 / low - 1.0 / high)) + FACTOR * rounding * wrote
        if not (differs <= bound)[is_constant].all():
            return None
        constant += int(is_constant.sum())
        squares += float(np.square(x - y)[~is_constant].sum())
        size += float(np.square(y)[~is_constant].sum())
    if not constant:
        return None
    return math.sqrt(squares / size) if size else (math.inf if squares else 0.0)


def _rows(tensors: Sequence[TensorRef], width: int, context: ReadContext) -> Iterator[list[Any]]:
    """The values of tensors of one shape in float64, a few rows at a time."""
    from npucmp.dump.readers.values import blocks
    from npucmp.measure.kernel.numpy_kernel import widen

    payloads = [one for tensor in tensors if (one := payload_of(tensor, context=context)) is not None]
    if len(payloads) < len(tensors) or not all(alike(payloads[0], one) for one in payloads):
        return
    sides = [blocks(one, max(1, READ // width) * width, context=context) for one in payloads]
    for arrays in zip(*sides):
        yield [widen(one).reshape(-1, width) for one in arrays]
