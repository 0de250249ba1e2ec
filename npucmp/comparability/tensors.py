"""Find the relation of two tensors by the best data known of both (bits, values, shape, statistics), and describe how a
network input differs between two runs.

Values of single tensors are read again for this. The number of elements is bounded, so that a check stays much faster
than a comparison.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from npucmp.comparability.data_relation import HARMLESS, SAME_BITS, by_statistics, relation
from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.values import Array, blocks
from npucmp.errors import NpucmpError
from npucmp.measure.kernel.numpy_kernel import widen
from npucmp.measure.pairs import payload_of
from npucmp.measure.recorded_stats import equal_by_record
from npucmp.model import Statistics, TensorRef
from npucmp.model.precheck_result import InputRelation

MOST = 1 << 22  # most elements of a tensor that are read


def values_of(tensor: TensorRef, context: ReadContext, most: int = MOST) -> Optional[Array]:
    """The values of a tensor; of a large tensor those of its first samples. None if the dump has no values.

    16-bit and narrower floats are returned as float32. Raises NpucmpError if the values are unreadable.
    """
    payload = payload_of(tensor, context=context)
    if payload is None:
        return None
    count = math.prod(payload.shape)
    row = max(1, math.prod(payload.shape[1:]))
    rows = payload.shape[0] if count <= most or not payload.shape else max(1, most // row)
    wanted = min(count, rows * row, most) if payload.shape else 1
    found: list[Any] = []
    for block in blocks(payload, min(1 << 16, max(1, wanted)), context=context):
        found.append(block[: wanted - sum(map(len, found))].copy())
        if sum(map(len, found)) >= wanted:
            break
    flat = np.concatenate(found) if found else np.empty(0, np.float32)
    with np.errstate(all="ignore"):  # signalling NaN
        flat = flat if flat.dtype.kind in "biuc" else widen(flat)
    if not payload.shape or wanted == count:
        return flat.reshape(payload.shape)
    return flat.reshape(wanted // row, *payload.shape[1:]) if wanted % row == 0 else flat


def readable_values(tensor: TensorRef, context: ReadContext) -> Optional[Array]:
    """The values of a tensor, bounded; None if the dump has none or they are unreadable."""
    try:
        return values_of(tensor, context)
    except NpucmpError:
        return None


class TensorSummary(NamedTuple):
    """A tensor with its figures (max, min, mean, norm), and a function that reads its values."""

    ref: TensorRef
    figures: tuple[Optional[float], ...]
    values: Callable[[], Optional[Array]]


def relation_of(target: TensorSummary, golden: TensorSummary, equal: Optional[bool]) -> InputRelation:
    """Return the relation of the target to the golden tensor; `equal`: whether their bits are equal, None if
    unknown."""
    if equal:
        return InputRelation(SAME_BITS, "the same values", residual=0.0)
    x, y = target.values(), golden.values()
    if x is not None and y is not None:
        found = relation(x, y)
        if found.kind == SAME_BITS and equal is False:  # the values read are equal, so the rest differs
            return InputRelation("differs", f"the first {x.size:,} elements are the same, others differ")
        return found
    if target.ref.shape != golden.ref.shape:
        return InputRelation("shape", f"shape {list(target.ref.shape)} against {list(golden.ref.shape)}")
    if equal is False and target.ref.statistics is None:
        return InputRelation("differs", "its checksums differ")
    count = int(np.prod(target.ref.shape, dtype=object))
    return by_statistics(target.figures, golden.figures, count)


def input_difference(target: TensorRef, golden: TensorRef, context: ReadContext) -> str:
    """Return how an input differs; "" if it is equal, rounded, or of unknown relation."""
    comparable = target.dtype == golden.dtype and target.shape == golden.shape
    equal = equal_by_record(target, golden) if comparable else None
    x, y = (
        TensorSummary(one, tuple(one.statistics or Statistics()), partial(readable_values, one, context))
        for one in (target, golden)
    )
    found = relation_of(x, y, equal)
    return "" if found.kind in (*HARMLESS, "rounded", "unknown") else found.words
