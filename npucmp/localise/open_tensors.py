"""Find golden tensors without a compared counterpart, except repeated recordings and closed stretches.

A stretch of the golden consists of connected open contents and the operators that connect them. It is closed if all
tensors that enter or leave it were compared. The backward operators of closed stretches are found too: dumps record the
gradient of one autograd node of each operator, so content does not link them; their forward, or the shapes of their
inputs, show their outputs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Optional, Sequence, Tuple

from npucmp.dump.limits import ReadContext
from npucmp.localise.golden_graph import GoldenGraph, lost_outputs
from npucmp.localise.golden_rows import GoldenRow, SharedRecords, round_off_of_row
from npucmp.localise.golden_weights import GoldenWeights
from npucmp.localise.value_proof import ValueProof
from npucmp.measure.views import Views
from npucmp.model import DECIDED, Finding, Verdict
from npucmp.model.finding import BY_CONTENT
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_golden_parameter, is_output, is_parameter

_Key = Tuple[SharedRecords, bool]  # a content, and whether its readers are wanted


def enclosed_backward_places(graph: GoldenGraph, left: Sequence[GoldenRow]) -> set[int]:
    """The places of backward operators whose forward lies in a closed stretch, if the gradients of all tensors that
    enter or leave that stretch were compared. `left` are the rows that are open so far."""
    open_calls = {row.operator.call for row in left if row.operator.phase == "forward"}
    places: dict[str, set[int]] = defaultdict(set)
    for row in left:
        if row.is_alone and row.operator.phase == "backward" and row.finding.verdict is Verdict.MISSING:
            places[row.operator.call].add(row.finding.pair.order)
    closed = {
        call
        for call in places
        if (rows := graph.forward_call(call)) and call not in open_calls and all(row.is_alone for row in rows)
    }
    closed -= _not_closed(graph, closed)
    return {order for call in closed for order in places[call]}


def _not_closed(graph: GoldenGraph, calls: set[str]) -> set[str]:
    """The calls with an entering or leaving gradient that was not compared, and all calls that depend on them."""
    lost: set[str] = set()
    users: dict[_Key, set[str]] = defaultdict(set)  # calls that read or write a content
    others: dict[_Key, list[GoldenRow]] = {}  # rows at the other end of the content
    for call in calls:
        for row in graph.forward_call(call):
            tensor = row.finding.pair.golden
            if tensor is None or is_parameter(row.finding.pair) or not round_off_of_row(row):
                continue
            content, written = graph.content(row), is_output(row.finding.pair)
            ends = content.readers if written else content.writers
            if ends:
                users[content, written].add(call)
                others[content, written] = ends
            elif not (graph.is_known_constant(row) or row.finding.row in graph.proven):
                lost.add(call)
    leaning: dict[str, set[_Key]] = defaultdict(set)  # contents that are closed as long as a call is
    for key, ends in others.items():
        for other in ends:
            if _has_gradient(graph, other):
                continue
            leaning[other.operator.call].add(key)
            if other.operator.call not in calls:
                lost |= users[key]
    todo = [*lost]
    while todo:
        for key in leaning.pop(todo.pop(), ()):
            more = users.pop(key, set()) - lost
            lost |= more
            todo += more
    return lost


def _has_gradient(graph: GoldenGraph, row: GoldenRow) -> bool:
    """Whether the gradient of an operator that reads or writes a content was compared, or does not exist."""
    backward = graph.backward_of(row)
    return (row.is_alone and all(map(graph.is_compared, backward))) or any(map(graph.is_decided, backward))


def is_unrecorded_output(graph: GoldenGraph, row: GoldenRow) -> bool:
    """Whether a gradient that a backward operator reads and no operator wrote can be an output that dumps do not
    record: an earlier backward operator in the same place read a tensor of that shape, and none of its outputs has
    it."""
    tensor = row.finding.pair.golden
    if tensor is None or not row.is_alone or not graph.is_backward(row.operator) or graph.content(row).writers:
        return False
    for rows in graph.before(row):
        if graph.is_backward(rows[0].operator):
            read, written = (
                any(_shape(one) == tensor.shape for one in rows if is_output(one.finding.pair) is way)
                for way in (False, True)
            )
            if read and not written:
                return True
    return False


def _shape(row: GoldenRow) -> Optional[tuple[int, ...]]:
    return row.finding.pair.golden.shape if row.finding.pair.golden is not None else None


class Stretch:
    """Open contents of the golden that operators connect, and these operators."""

    def __init__(self, graph: GoldenGraph, start: SharedRecords, loose: set[int]) -> None:
        self._graph, self._loose = graph, loose
        self.contents: list[SharedRecords] = []
        self.operators: dict[int, list[GoldenRow]] = {}  # rows of each, by merged order
        forward = any(not is_gradient(row.operator) for row in start.rows)
        seen, todo = {start}, [start]
        while todo:
            content = todo.pop()
            self.contents.append(content)
            for row in content.rows:
                order = row.finding.pair.order
                if order in self.operators or (forward and is_gradient(row.operator)):
                    continue  # tensors of the forward that a backward reads are closed by the forward's own consumers
                rows = self.operators[order] = graph.of_operator(row)
                for one in rows:
                    other = graph.content(one)
                    if self._is_left(one) and other not in seen:
                        seen.add(other)
                        todo.append(other)

    def _is_left(self, row: GoldenRow) -> bool:
        return row.finding.row in self._loose

    def is_closed(self) -> bool:
        """Whether all tensors that enter or leave the stretch were compared."""
        rows = [row for members in self.operators.values() for row in members]
        if any(row.finding.verdict is Verdict.UNREADABLE for content in self.contents for row in content.rows):
            return False
        if not any(self._graph.is_compared(row) and not is_parameter(row.finding.pair) for row in rows):
            return False
        if not all(map(self._is_recorded, self.operators.values())):
            return False
        if not all(self._is_inside(content) for content in self.contents):
            return False
        return not self._graph.is_inserted_dead_end(row for row in rows if row.is_alone)

    @staticmethod
    def _is_recorded(rows: list[GoldenRow]) -> bool:
        """Whether the golden recorded the inputs and outputs of an operator."""
        return rows[0].operator.reads_recorded and any(is_output(row.finding.pair) for row in rows)

    def _is_inside(self, content: SharedRecords) -> bool:
        if content.writers and content.readers:
            forward = not is_gradient(content.writers[0].operator)
            readers = [row.operator.order for row in content.readers if not (forward and is_gradient(row.operator))]
            return max(readers, default=-1) > min(row.operator.order for row in content.writers)
        if content.writers:
            return all(map(self._is_parameter_gradient, content.writers))
        return (
            all(self._is_own_parameter(row) for row in content.readers)
            or all(map(self._graph.is_known_constant, content.readers))
            or any(is_unrecorded_output(self._graph, row) for row in content.readers)
        )

    def _is_own_parameter(self, row: GoldenRow) -> bool:
        """Whether a row is a parameter of a golden operator that the target lacks, or computes with other parameters
        (align/contents/): a convolution into which a batch norm was folded."""
        pair = row.finding.pair
        if row.is_alone or pair.target is not None:
            return row.is_alone and is_parameter(pair)
        others = self._graph.of_operator(row)
        return is_golden_parameter(pair) and any(one.finding.pair.via in BY_CONTENT for one in others)

    def _is_parameter_gradient(self, row: GoldenRow) -> bool:
        """Whether a row is the gradient of a parameter that lies in a stretch, where the target has no backward."""
        if not (row.is_alone and is_gradient(row.operator)) or self._graph.has_backward_at(row):
            return False
        forward = self._graph.forward_of(row)
        if not forward or not all(one.is_alone for one in forward):
            return False
        return self._graph.is_of_parameter(row)


def still_open(
    findings: Sequence[Finding],
    golden: list[GoldenRow],
    open_rows: list[GoldenRow],
    context: Optional[ReadContext],
) -> list[GoldenRow]:
    """The open rows that no compared tensor accounts for, in merged graph order."""
    if not any(row.finding.verdict in DECIDED for row in golden):
        return open_rows
    weights = GoldenWeights(findings)
    open_rows = [row for row in open_rows if not weights.is_known(row.finding)]
    graph = GoldenGraph(findings, golden)
    left = _remaining_rows(graph, open_rows)
    proof = ValueProof(findings, graph, Views(context)) if left and context is not None else None
    while left and proof is not None:
        proven = {row.finding.row for row in left if proof.proves(row)}
        if not proven:
            break
        graph.prove(proven)
        left = _remaining_rows(graph, open_rows)
    return left


def _remaining_rows(graph: GoldenGraph, open_rows: list[GoldenRow]) -> list[GoldenRow]:
    """The rows that remain after recordings of compared tensors and closed stretches are removed."""
    left = [row for row in open_rows if not graph.is_again(row)]
    loose = {row.finding.row for row in left}
    interior: set[int] = set()
    seen: set[SharedRecords] = set()
    for row in left:
        content = graph.content(row)
        if content in seen:
            continue
        stretch = Stretch(graph, content, loose)
        seen |= {*stretch.contents}
        if stretch.is_closed():
            interior |= {one.finding.row for inside in stretch.contents for one in inside.rows}
    left = [row for row in left if row.finding.row not in interior or lost_outputs(row.finding.pair)]
    closed = enclosed_backward_places(graph, left)
    return [row for row in left if row.finding.pair.order not in closed or graph.is_of_parameter(row)]
