"""Prove golden tensors by values: a tensor of the target alone in the same place holds the same values, as a whole or
as one of its slices (queries, keys and values of one product); or the sum of a compared gradient equals them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import Iterator, Optional

from npucmp.judge.tolerance import FACTOR
from npucmp.localise.dead_ends import elements_of
from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import golden_round_off, golden_side
from npucmp.localise.rules.explanations import GROWTH
from npucmp.measure.views import AxisSlice, Views
from npucmp.model import Finding, Pair, TensorRef, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_weight, op_type_of
from npucmp.model.roles import is_output

CANDIDATES = 8  # tensors of the target in one place: work: a golden tensor is measured against no more
SLICES = 16  # slices of a tensor: work: a golden tensor is measured against no more


class ValueProof:
    """Measure tensors that only the golden has against tensors that only the target has in the same place, each
    once."""

    def __init__(self, graph: GoldenGraph, views: Views) -> None:
        self._graph, self._views, self._tried = graph, views, set[int]()
        self._alone: dict[object, list[Finding]] = defaultdict(list)  # by gap, role and elements, or by `_across`
        self._errors: dict[int, float] = defaultdict(float)  # the largest of each matched operator, by its place
        self._taken: dict[int, tuple[AxisSlice, int]] = {}  # the last slice of a target tensor, and where it ends
        for finding in graph.findings:
            pair = finding.pair
            if pair.golden_op is None and finding.measurement.moments is not None and finding.has_elements:
                gap = bisect_right(graph.columns.matched, pair.order)
                for key in ((gap, is_output(pair), elements_of(finding)), *_across(gap, pair, pair.target)):
                    self._alone[key].append(finding)
            elif finding.verdict is Verdict.MATCH and finding.error:
                self._errors[pair.order] = max(finding.error, self._errors[pair.order])

    def proves(self, at: int) -> bool:
        """Whether the target holds the same values as a row within rounding; False if the row was queried before."""
        if at in self._tried:
            return False
        self._tried.add(at)
        if not self._graph.alone[at]:
            return self._is_sum(at)
        pair, gap, elements = self._graph.pairs[at], self._graph.gap_number(at), self._graph.columns.elements[at] or 0
        if any(self._is_near(at, one) for one in self._alone.get((gap, is_output(pair), elements), [])[:CANDIDATES]):
            return True
        longer = (row for key in _across(gap, pair, pair.golden) for row in self._alone.get(key, [])[:CANDIDATES])
        return any(self._has_slice(at, other) for other in longer if elements_of(other) > elements)

    def _is_sum(self, at: int) -> bool:
        """Whether a row is the gradient of an addend that was broadcast: the sum of the incoming gradient, which was
        compared. Only runs in which the addend requires a gradient record it."""
        graph, golden, op = self._graph, self._graph.pairs[at].golden, op_type_of(self._graph.operators[at])
        if graph.operators[at].phase != "backward" or not (op.has("sums") and op.has("saves nothing")):
            return False
        arrived = (graph.findings[row] for row in graph.members(at) if not graph.outputs[row])
        wholes = (finding.pair.golden for finding in arrived if finding.verdict is Verdict.MATCH)
        errors = (self._views.sum_error(golden, whole) for whole in wholes if golden and whole)
        return any(error is not None and error <= FACTOR * golden_round_off(graph.pairs[at]) for error in errors)

    def _is_near(self, at: int, other: Finding, part: Optional[AxisSlice] = None) -> bool:
        """Whether a tensor of the target, or a slice of it, is a golden tensor within rounding."""
        finding, limit = self._graph.findings[at], self._limit(at, other)
        limit = max(limit, self._bias_limit(at, other, limit, part is not None))
        pair = finding.pair._replace(target_op=other.pair.target_op, target=other.pair.target)
        may_be = _may_be_near(finding, other, limit, part is not None)
        return may_be and (error := self._views.rel_l2(pair, part)) is not None and error <= limit

    def _has_slice(self, at: int, other: Finding) -> bool:
        """Whether a tensor of the target holds a golden tensor as a slice. A fused product holds its parts in the order
        in which the golden ran them, gradients in the reverse order; slices in another order do not count."""
        taken, is_backward = self._taken.get(other.row), self._graph.is_of_gradient(at)
        for part, end in _slices(self._graph.pairs[at], other.pair):
            if taken is not None:
                before, after = (end, taken[0].start) if is_backward else (taken[1], part.start)
                if part.axis != taken[0].axis or before > after:
                    continue
            if self._is_near(at, other, part):
                self._taken[other.row] = part, end
                return True
        return False

    def _bias_limit(self, at: int, other: Finding, limit: float, is_part: bool) -> float:
        """The limit of the gradient of a bias whose terms may cancel, as for the bias of keys: relative to the incoming
        gradient. A slice gets this limit only if it is rounding relative to the whole; 0 for other tensors."""
        graph, side, first = self._graph, golden_side(self._graph.findings[at]), self._graph.members(at)[0]
        if side is None or not side.squares or len(graph.columns.shapes[at]) > 1 or not graph.is_of_gradient(at):
            return 0.0
        arrived = golden_side(graph.findings[first]) if not graph.outputs[first] and graph.is_compared(first) else None
        if is_part:
            arrived = other.measurement.moments.target if other.measurement.moments is not None else None
        wide = limit * math.sqrt(arrived.squares / side.squares) if arrived is not None else 0.0
        return wide if wide >= 1.0 or not is_part else 0.0

    def _limit(self, at: int, other: Finding) -> float:
        """The error that rounding may cause in this place: that of the coarsest type of its operators, or growth of the
        largest error around it."""
        gap, operators = self._graph.gap_number(at), (self._graph.operators[at], other.pair.operator)
        around = map(self._errors.__getitem__, self._graph.columns.matched[max(0, gap - 1) : gap + 1])
        types = map(lookup, {tensor.dtype for operator in operators for tensor in operator.tensors})
        unit = max((dtype.round_off for dtype in types if dtype is not None), default=0.0)
        return max(GROWTH * max(around, default=0.0), FACTOR * unit)


def _across(gap: int, pair: Pair, tensor: Optional[TensorRef]) -> Iterator[tuple[object, ...]]:
    """The keys under which tensors are stored that differ in the length of one axis."""
    shape = tensor.shape if tensor is not None else ()
    for axis in range(len(shape)):
        yield gap, is_output(pair), axis, (*shape[:axis], *shape[axis + 1 :])


def _slices(own: Pair, other: Pair) -> Iterator[tuple[AxisSlice, int]]:
    """The slices of a tensor that is longer than a golden tensor along one axis, and where they end; empty for a
    checkpoint, whose tensors have no order."""
    golden, target, operator = own.golden, other.target, other.target_op
    if golden is None or target is None or operator is None or is_weight(operator):
        return
    axis = next(axis for axis, (a, b) in enumerate(zip(golden.shape, target.shape)) if a != b)
    length, total = golden.shape[axis], target.shape[axis]
    step = math.gcd(length, total)
    if length and (total - length) // step < SLICES:
        for start in range(0, total - length + 1, step):
            yield AxisSlice(axis, start), start + length


def _may_be_near(golden: Finding, target: Finding, limit: float, is_part: bool) -> bool:
    """Whether the norms of two tensors, or of a part of the target's, allow an error within the limit."""
    moments, own = golden.measurement.moments, target.measurement.moments
    if moments is None or own is None:
        return False
    more = math.sqrt(own.target.squares) - (norm := math.sqrt(moments.golden.squares))
    return more >= -limit * norm and (is_part or more <= limit * norm)
