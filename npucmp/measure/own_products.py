"""Distance of a side's matrix product from the exact product of the operands that the same side recorded.

The difference of two runs shows rounding that only one of them does. If both round their operands alike, it shows
nothing: an operand that differs by d crosses a step δ of 11 bits with the probability d / δ. The product is then off by
√(d δ), otherwise by nothing. The values of one run show the rounding, independent of the other run.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Sequence

from npucmp.dump.limits import ReadContext
from npucmp.errors import if_unreadable
from npucmp.measure.preview import array_of
from npucmp.model import TensorRef

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

BLOCK = 64  # rows and columns of a product: work: so many are computed again
MOST = 1 << 24  # elements: work: no larger tensor is read for it
UNLIKE = 0.01  # rel_l2: chosen: tensors that are farther from it are no product of these operands, not measured


class OwnProduct(NamedTuple):
    """A block of a product: the root mean squares of two operands and of the exact product, the number of terms of an
    element, the distance (rel_l2) of the recorded product, and the number of elements."""

    operands: tuple[float, float]
    output: float
    terms: int
    error: float
    elements: int


@if_unreadable(None)
def own_product(
    operands: Sequence[TensorRef], addends: Sequence[TensorRef], output: TensorRef, context: ReadContext
) -> Optional[OwnProduct]:
    """The block of the first matrix; None for tensors that are not such a product, too large, or unreadable."""
    tensors = (*operands, output, *addends)
    if any(not 0 < math.prod(one.shape) <= MOST for one in tensors):
        return None
    a, b, y, *others = (array_of(one, context).astype("float64") for one in tensors)
    found = (_block(left, right, y, others) for left, right, y in _orders(a, b, y))
    return min(filter(None, found), key=lambda one: one.error, default=None)


def _orders(a: Array, b: Array, y: Array) -> Iterator[tuple[Array, Array, Array]]:
    """The products of two operands, possibly transposed, that have the shape of the output. A dump does not always
    record which operand was transposed."""
    is_batch = min(a.ndim, b.ndim, y.ndim) > 2
    a, b, y = (one.reshape(-1, *one.shape[-2:])[0] if is_batch else one.reshape(-1, one.shape[-1]) for one in (a, b, y))
    for left, right in product((a, a.T), (b, b.T)):
        if left.shape[1] == right.shape[0] and (left.shape[0], right.shape[1]) == y.shape:
            yield left[:BLOCK], right[:, :BLOCK], y[:BLOCK, :BLOCK]


def _block(left: Array, right: Array, y: Array, addends: Sequence[Array]) -> Optional[OwnProduct]:
    exact = left @ right
    for one in addends:
        exact = exact + one[: exact.shape[1]]
    size = _rms(exact)
    error = _rms(y - exact) / size if size else math.inf
    if not error < UNLIKE:
        return None
    return OwnProduct((_rms(left), _rms(right)), size, left.shape[1], error, exact.size)


def _rms(x: Array) -> float:
    return math.sqrt(float((x * x).mean())) if x.size else 0.0
