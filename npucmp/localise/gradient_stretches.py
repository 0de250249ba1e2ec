"""Find backward operators of closed stretches. Dumps record the gradient of one autograd node of each operator, so
content does not link them; their forward, or the shapes of their inputs, show their outputs."""

from __future__ import annotations

from collections import defaultdict
from typing import Optional, Sequence, Tuple

from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRow, SharedRecords, round_off_of_row
from npucmp.model import Verdict
from npucmp.model.roles import is_output, is_parameter

_Key = Tuple[SharedRecords, bool]  # a content, and whether its readers are wanted


def closed_backwards(graph: GoldenGraph, left: Sequence[GoldenRow]) -> set[int]:
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
