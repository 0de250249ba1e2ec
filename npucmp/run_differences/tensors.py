"""Find the relation of two tensors by the best data known of both: bits, values, shape, statistics."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

import numpy as np

from npucmp.model import TensorRef
from npucmp.model.precheck_result import Relation
from npucmp.run_differences.data_relation import SAME_BITS, Array, by_statistics, relation


class TensorSummary(NamedTuple):
    """A tensor with its figures (max, min, mean, norm), and a function that reads its values."""

    ref: TensorRef
    figures: tuple[Optional[float], ...]
    values: Callable[[], Optional[Array]]


def relation_of(target: TensorSummary, golden: TensorSummary, equal: Optional[bool]) -> Relation:
    """Return the relation of the target to the golden tensor; `equal`: whether their bits are equal, None if
    unknown."""
    if equal:
        return Relation(SAME_BITS, "the same values", residual=0.0)
    x, y = target.values(), golden.values()
    if x is not None and y is not None:
        found = relation(x, y)
        if found.kind == SAME_BITS and equal is False:  # the values read are equal, so the rest differs
            return Relation("differs", f"the first {x.size:,} elements are the same, others differ")
        return found
    if target.ref.shape != golden.ref.shape:
        return Relation("shape", f"shape {list(target.ref.shape)} against {list(golden.ref.shape)}")
    if equal is False and target.ref.statistics is None:
        return Relation("differs", "its checksums differ")
    count = int(np.prod(target.ref.shape, dtype=object))
    return by_statistics(target.figures, golden.figures, count)
