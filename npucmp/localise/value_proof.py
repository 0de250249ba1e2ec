"""Prove golden tensors by values: a tensor of the target alone in the same place holds the same values, as a whole or
as one of its slices (queries, keys and values of one product); or the sum of a compared gradient equals them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import Iterator, NamedTuple, Optional, Sequence, Tuple

from npucmp.judge.tolerance import FACTOR
from npucmp.localise.dead_ends import elements_of
from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRow, round_off_of_row, side_of
from npucmp.localise.rules.explanations import GROWTH
from npucmp.measure.views import AxisSlice, Views
from npucmp.model import Finding, Operator, Pair, TensorRef, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.optypes import is_weight, op_type_of
from npucmp.model.roles import is_output

CANDIDATES = 8  # tensors of the target in one place: work: a golden tensor is measured against no more
SLICES = 16  # slices of a tensor: work: a golden tensor is measured against no more


_Across = Tuple[int, bool, int, Tuple[int, ...]]  # gap, role, an axis, and the lengths of all others


class _LastSlice(NamedTuple):
    """The last slice of a target tensor that proved a golden tensor, and where it ends along its axis."""

    part: AxisSlice
    end: int


class ValueProof:
    """Measure tensors that only the golden has against tensors that only the target has in the same place, each
    once."""

    def __init__(self, findings: Sequence[Finding], graph: GoldenGraph, views: Views) -> None:
        self._graph, self._matched, self._views = graph, graph.matched, views
        self._tried: set[int] = set()  # by row
        self._alone: dict[tuple[int, bool, int], list[Finding]] = defaultdict(list)  # by gap, role and elements
        self._longer: dict[_Across, list[Finding]] = defaultdict(list)
        self._units: dict[Tuple[str, ...], float] = {}  # the coarsest round-off of an operator, by its types
        self._errors: dict[int, float] = {}  # the largest of each matched operator, by its place
        self._taken: dict[int, _LastSlice] = {}  # by the row of the target alone
        for one in findings:
            pair = one.pair
            if pair.golden_op is None and one.measurement.moments is not None and one.has_elements:
                gap = bisect_right(graph.matched, pair.order)
                self._alone[gap, is_output(pair), elements_of(one)].append(one)
                for key in _across(gap, pair, pair.target):
                    self._longer[key].append(one)
            elif one.verdict is Verdict.MATCH and one.error:
                self._errors[pair.order] = max(one.error, self._errors.get(pair.order, 0.0))

    def proves(self, row: GoldenRow) -> bool:
        """Whether the target holds the same values within rounding; False if the row was queried before."""
        if row.finding.row in self._tried:
            return False
        self._tried.add(row.finding.row)
        if not row.is_alone:
            return self._is_sum(row)
        pair = row.finding.pair
        gap = bisect_right(self._matched, pair.order)
        whole = self._alone.get((gap, is_output(pair), row.elements or 0), [])[:CANDIDATES]
        if any(self._is_near(gap, row, one) for one in whole):
            return True
        longer = [one for key in _across(gap, pair, pair.golden) for one in self._longer.get(key, [])[:CANDIDATES]]
        return any(self._has_slice(gap, row, one) for one in longer if elements_of(one) > (row.elements or 0))

    def _is_sum(self, row: GoldenRow) -> bool:
        """Whether a row is the gradient of an addend that was broadcast: the sum of the incoming gradient, which was
        compared. Only runs in which the addend requires a gradient record it."""
        golden, op = row.finding.pair.golden, op_type_of(row.operator)
        if golden is None or row.operator.phase != "backward" or not (op.has("sums") and op.has("saves nothing")):
            return False
        arrived = (
            one.finding.pair.golden
            for one in self._graph.of_operator(row)
            if one.finding.verdict is Verdict.MATCH and not is_output(one.finding.pair)
        )
        limit = FACTOR * round_off_of_row(row)
        errors = (self._views.sum_error(golden, one) for one in arrived if one is not None)
        return any(error is not None and error <= limit for error in errors)

    def _is_near(self, gap: int, row: GoldenRow, other: Finding, part: Optional[AxisSlice] = None) -> bool:
        limit = self._limit(gap, row, other)
        limit = max(limit, self._bias_limit(row, other, limit, part is not None))
        if not _may_be_near(row.finding, other, limit, part is not None):
            return False
        pair = row.finding.pair._replace(target_op=other.pair.target_op, target=other.pair.target)
        error = self._views.rel_l2(pair, part)
        return error is not None and error <= limit

    def _has_slice(self, gap: int, row: GoldenRow, other: Finding) -> bool:
        """Whether a tensor of the target holds a golden tensor as a slice. A fused product holds its parts in the order
        in which the golden ran them, gradients in the reverse order; slices in another order do not count."""
        taken, is_backward = self._taken.get(other.row), self._graph.is_of_gradient(row)
        for part, end in _slices(row, other):
            if taken is not None:
                before, after = (end, taken.part.start) if is_backward else (taken.end, part.start)
                if part.axis != taken.part.axis or before > after:
                    continue
            if self._is_near(gap, row, other, part):
                self._taken[other.row] = _LastSlice(part, end)
                return True
        return False

    def _bias_limit(self, row: GoldenRow, other: Finding, limit: float, is_part: bool) -> float:
        """The limit of the gradient of a bias whose terms may cancel, as for the bias of keys: relative to the incoming
        gradient. A slice gets this limit only if it is rounding relative to the whole; 0 for other tensors."""
        golden, side = row.finding.pair.golden, side_of(row)
        if golden is None or side is None or not side.squares or len(golden.shape) > 1:
            return 0.0
        if not self._graph.is_of_gradient(row):
            return 0.0
        if is_part:
            own = other.measurement.moments
            scale = math.sqrt(own.target.squares / side.squares) if own is not None else 0.0
            return limit * scale if limit * scale >= 1.0 else 0.0
        first = self._graph.of_operator(row)[0]
        arrived = side_of(first) if not is_output(first.finding.pair) and self._graph.is_compared(first) else None
        return limit * math.sqrt(arrived.squares / side.squares) if arrived is not None else 0.0

    def _limit(self, gap: int, row: GoldenRow, other: Finding) -> float:
        """The error that rounding may cause in this place: that of the coarsest type of its operators, or growth of the
        largest error around it."""
        around = max((self._errors.get(place, 0.0) for place in self._matched[max(0, gap - 1) : gap + 1]), default=0.0)
        return max(GROWTH * around, FACTOR * self._unit(row.operator), FACTOR * self._unit(other.pair.operator))

    def _unit(self, operator: Operator) -> float:
        names = tuple(tensor.dtype for tensor in operator.tensors)
        if names not in self._units:
            self._units[names] = max((one.round_off for one in map(lookup, names) if one is not None), default=0.0)
        return self._units[names]


def _across(gap: int, pair: Pair, tensor: Optional[TensorRef]) -> Iterator[_Across]:
    """The keys under which tensors are stored that differ in the length of one axis."""
    shape = tensor.shape if tensor is not None else ()
    for axis in range(len(shape)):
        yield gap, is_output(pair), axis, (*shape[:axis], *shape[axis + 1 :])


def _slices(row: GoldenRow, other: Finding) -> Iterator[tuple[AxisSlice, int]]:
    """The slices of a tensor that is longer than a golden tensor along one axis, and where they end; empty for a
    checkpoint, whose tensors have no order."""
    golden, target, operator = row.finding.pair.golden, other.pair.target, other.pair.target_op
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
