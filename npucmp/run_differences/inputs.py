"""Describe how a network input differs between two runs, by its records and by its values, which are read again."""

from __future__ import annotations

from functools import partial
from typing import Optional

from npucmp.dump.context import ReadContext
from npucmp.measure.recorded_stats import equal_by_record
from npucmp.model import Statistics, TensorRef
from npucmp.model.precheck_result import Relation
from npucmp.run_differences.data_relation import HARMLESS
from npucmp.run_differences.tensor_values import readable_values
from npucmp.run_differences.tensors import TensorSummary, relation_of


def input_difference(target: TensorRef, golden: TensorRef, context: ReadContext) -> str:
    """Return how an input differs; "" if it is equal, rounded, or of unknown relation."""
    found = _relation(target, golden, context)
    return "" if found.kind in (*HARMLESS, "rounded", "unknown") else found.words


def _relation(target: TensorRef, golden: TensorRef, context: ReadContext) -> Relation:
    """The relation of two inputs, by the data known of both."""
    comparable = target.dtype == golden.dtype and target.shape == golden.shape
    equal = equal_by_record(target, golden) if comparable else None
    x, y = (TensorSummary(one, _figures(one), partial(readable_values, one, context)) for one in (target, golden))
    return relation_of(x, y, equal)


def _figures(tensor: TensorRef) -> tuple[Optional[float], ...]:
    return tuple(tensor.statistics or Statistics())
