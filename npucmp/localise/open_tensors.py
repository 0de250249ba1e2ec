"""Find golden tensors without a compared counterpart, except repeated recordings and closed stretches.

A stretch of the golden consists of connected open contents and the operators that connect them. It is closed if all
tensors that enter or leave it were compared. The backward operators of closed stretches are found too: dumps record the
gradient of one autograd node of each operator, so content does not link them; their forward, or the shapes of their
inputs, show their outputs.

Prove golden tensors by values: a tensor of the target alone in the same place holds the same values, as a whole or
as one of its slices (queries, keys and values of one product); or the sum of a compared gradient equals them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from typing import Iterable, Iterator, Mapping, Optional, Sequence, Tuple

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.flow.contents import by_equal_rows, contents_of, rows_in_columns
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.golden_graph import GoldenGraph, elements_of
from npucmp.localise.golden_rows import GoldenRows, golden_round_off, golden_side
from npucmp.localise.golden_weights import GoldenWeights
from npucmp.localise.rules.explanations import GROWTH
from npucmp.measure.views import AxisSlice, Views
from npucmp.model import Finding, Pair, TensorRef, Verdict
from npucmp.model.dtypes import lookup
from npucmp.model.finding import BY_CONTENT, OTHER_NODE
from npucmp.model.optypes import is_weight, op_type_of
from npucmp.model.roles import is_golden_parameter, is_output, is_parameter
from npucmp.model.table import rows_of_rule

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


_Key = Tuple[int, bool]  # a content, and whether its readers are wanted


def still_open(golden: GoldenRows, context: Optional[ReadContext]) -> list[int]:
    """The undecided rows that no compared tensor accounts for."""
    findings, columns = golden.findings, golden.columns
    rows: list[int] = golden.undecided.tolist()
    if not golden.decided[golden.golden].any():
        return rows
    if columns.missing[rows].any():
        weights = GoldenWeights(findings)
        rows = [at for at in rows if not weights.is_known(findings[at])]
        rows = _without_local(golden, rows)
    elif _decide_verdicts_alone(golden):
        key = still_open, golden.decided.tobytes(), golden.undecided.tobytes()
        return by_equal_rows(findings, key, lambda: _remaining_rows(GoldenGraph(golden), rows))
    graph = GoldenGraph(golden)
    left = _remaining_rows(graph, rows)
    proof = ValueProof(graph, Views(context)) if left and context is not None and columns.readable else None
    while proof is not None and (proven := {*filter(proof.proves, left)}):
        graph.prove(proven)
        left = _remaining_rows(graph, rows)
    return left


def _decide_verdicts_alone(golden: GoldenRows) -> bool:
    """Whether the rows that are still open depend on verdicts and equal contents alone: no values were measured, and
    each tensor has a partner of the same autograd node."""
    columns, rows = golden.columns, rows_in_columns(golden.findings)
    are_paired = not (columns.missing.any() or columns.alone.any() or columns.lone or golden.unreadable)
    is_measured = rows is None or columns.readable or len(rows.columns.moments)
    return are_paired and not (is_measured or rows_of_rule(golden.findings, OTHER_NODE))


def _without_local(golden: GoldenRows, rows: list[int]) -> list[int]:
    """The rows that are no recording, by an operator of the golden alone, of an input in whose place each rank has a
    tensor of its own."""
    relations = (pair.golden.relation if pair.golden else None for pair in golden.columns.pairs)
    local = [at for at, relation in enumerate(relations) if relation is not None and relation.is_local]
    if not local:
        return rows
    contents = contents_of(golden.findings)
    known = {contents[at] for at in local if not golden.columns.outputs[at] and contents[at]}
    alone = golden.columns.alone
    return [at for at in rows if golden.columns.outputs[at] or not alone[at] or contents[at] not in known]


def _remaining_rows(graph: GoldenGraph, rows: Sequence[int]) -> list[int]:
    """The rows that remain after recordings of compared tensors and closed stretches are removed."""
    left = graph.first_recordings(rows)
    is_open = np.isin(np.arange(len(graph.pairs)), left).tolist()
    contents, seen, interior = graph.contents, set[int](), set[int]()
    for at in left:
        if contents[at] not in seen:
            inside, operators = _stretch(graph, contents[at], is_open)
            seen |= inside
            interior |= inside if _is_closed(graph, inside, operators) else set()
    left = [at for at in left if contents[at] not in interior or graph.columns.lost[at]] if interior else left
    closed = _enclosed_backward_places(graph, left) if graph.alone[left].any() else set()
    return [at for at in left if graph.pairs[at].order not in closed or graph.is_of_parameter(at)] if closed else left


def _stretch(graph: GoldenGraph, start: int, is_open: Sequence[bool]) -> tuple[set[int], Iterable[int]]:
    """Open contents that operators connect, and a row of each of these operators."""
    holders, of_row = graph.holders, graph.contents
    numbers, members, gradients = graph.columns.numbers, graph.columns.members, graph.columns.gradients
    forward = not all(gradients[at] for at in holders[start])
    contents, operators, todo = {start}, dict[int, int](), [start]
    while todo:
        for at in holders[todo.pop()]:
            if numbers[at] in operators or (forward and gradients[at]):
                continue  # tensors of the forward that a backward reads are closed by the forward's own consumers
            operators[numbers[at]] = at
            for row in members[numbers[at]]:
                if is_open[row] and of_row[row] not in contents:
                    contents.add(of_row[row])
                    todo.append(of_row[row])
    return contents, operators.values()


def _is_closed(graph: GoldenGraph, contents: Iterable[int], operators: Iterable[int]) -> bool:
    """Whether all tensors that enter or leave a stretch were compared."""
    if not all(_is_inside(graph, content) for content in contents):
        return False
    members = [*map(graph.members, operators)]
    rows = [at for of_operator in members for at in of_operator]
    return (
        all(graph.operators[own[0]].reads_recorded and any(graph.outputs[at] for at in own) for own in members)
        and any(graph.is_compared(at) and not is_parameter(graph.pairs[at]) for at in rows)
        and not any(at in graph.unreadable for content in contents for at in graph.holders[content])
        and not graph.has_dead_end(rows)
    )


def _is_inside(graph: GoldenGraph, content: int) -> bool:
    """Whether operators write a content and then read it, or a tensor that no other operator writes or reads need not
    be compared."""
    orders, gradients, rows = graph.orders, graph.columns.gradients, graph.holders[content]
    writers = [at for at in rows if graph.outputs[at]]
    if writers and len(writers) < len(rows):
        forward = not gradients[writers[0]]
        readers = (at for at in rows if not graph.outputs[at] and not (forward and gradients[at]))
        return any(orders[at] > orders[writers[0]] for at in readers)
    if writers:
        return all(_is_parameter_gradient(graph, at) for at in writers)
    return (
        all(_is_own_parameter(graph, at) for at in rows)
        or all(map(graph.is_known_constant, rows))
        or any(_is_unrecorded_output(graph, at) for at in rows)
    )


def _is_own_parameter(graph: GoldenGraph, at: int) -> bool:
    """Whether a row is a parameter of a golden operator that the target lacks, or computes with other parameters
    (align/contents/): a convolution into which a batch norm was folded."""
    if graph.alone[at] or not graph.columns.missing[at]:
        return bool(graph.alone[at]) and is_parameter(graph.pairs[at])
    by_content = (graph.pairs[row].via in BY_CONTENT for row in graph.members(at))
    return is_golden_parameter(graph.pairs[at]) and any(by_content)


def _is_parameter_gradient(graph: GoldenGraph, at: int) -> bool:
    """Whether a row is the gradient of a parameter that lies in a stretch, where the target has no backward."""
    if not (graph.alone[at] and graph.columns.gradients[at]) or graph.gap_number(at) in graph.columns.astray:
        return False
    forward = graph.calls["forward", graph.operators[at].call]
    return bool(forward) and bool(graph.alone[forward].all()) and graph.is_of_parameter(at)


def _is_unrecorded_output(graph: GoldenGraph, at: int) -> bool:
    """Whether a gradient that a backward operator reads and no operator wrote can be an output that dumps do not
    record: an earlier backward operator in the same place read a tensor of that shape, and none of its outputs has
    it."""
    if not graph.alone[at] or not graph.is_backward(at):
        return False
    before = (rows for rows in graph.before(at) if graph.is_backward(rows[0]))
    alike = ([row for row in rows if graph.columns.shapes[row] == graph.columns.shapes[at]] for rows in before)
    return any({graph.outputs[row] for row in rows} == {False} for rows in alike)


def _enclosed_backward_places(graph: GoldenGraph, left: Sequence[int]) -> set[int]:
    """The places of backward operators whose forward lies in a closed stretch, if the gradients of all tensors that
    enter or leave that stretch were compared. `left` are the rows that are open so far."""
    places: dict[str, set[int]] = defaultdict(set)
    for at in (at for at in left if graph.alone[at] and graph.findings[at].verdict is Verdict.MISSING):
        if graph.operators[at].phase == "backward":
            places[graph.operators[at].call].add(graph.pairs[at].order)
    still = {graph.operators[at].call for at in left if graph.operators[at].phase == "forward"}
    forwards = {call: graph.calls["forward", call] for call in places.keys() - still}
    closed = {call: rows for call, rows in forwards.items() if rows and graph.alone[rows].all()}
    return {place for call in closed.keys() - _not_closed(graph, closed) for place in places[call]}


def _not_closed(graph: GoldenGraph, calls: Mapping[str, Sequence[int]]) -> set[str]:
    """The calls with an entering or leaving gradient that was not compared, and all calls that depend on them."""
    lost: set[str] = set()
    users: dict[_Key, set[str]] = defaultdict(set)  # calls that read or write a content
    leaning: dict[str, set[_Key]] = defaultdict(set)  # contents that are closed as long as a call is
    floats = ((call, at) for call, rows in calls.items() for at in rows if golden_round_off(graph.pairs[at]))
    for call, at in floats:
        if is_parameter(graph.pairs[at]):
            continue
        key, ends = (graph.contents[at], graph.outputs[at]), graph.ends(at, not graph.outputs[at])
        users[key].add(call)
        if not ends and not (graph.is_known_constant(at) or at in graph.proven):
            lost.add(call)
        for end in ends:
            if not _has_gradient(graph, end):
                leaning[graph.operators[end].call].add(key)
    todo = [*lost, *(leaning.keys() - calls.keys())]
    while todo:
        for key in leaning.pop(todo.pop(), ()):
            more = users.pop(key, set()) - lost
            lost |= more
            todo += more
    return lost


def _has_gradient(graph: GoldenGraph, at: int) -> bool:
    """Whether the gradient of an operator that reads or writes a content was compared, or does not exist."""
    backward = graph.calls["backward", graph.operators[at].call]
    none_open = graph.alone[at] and all(map(graph.is_compared, backward))
    return bool(none_open) or bool(graph.decided[backward].any())
