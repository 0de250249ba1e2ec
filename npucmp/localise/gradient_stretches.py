"""Backward operators of stretches. Dumps record the gradient of one autograd node of each operator, so that content
does not link them; their forward, or the shapes of what they read, tell what they write.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Optional, Sequence

from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRow, round_off_of_row
from npucmp.model import Verdict
from npucmp.model.roles import is_output, is_parameter


def closed_backwards(graph: GoldenGraph, left: "Sequence[GoldenRow]") -> "set[int]":
    """The places of backward operators whose forward lies in a closed stretch, and of which the gradients of all that
    enters and leaves that stretch were compared. `left` are the rows that are open so far."""
    open_calls = {row.operator.call for row in left if row.operator.phase == "forward"}
    places: "dict[str, set[int]]" = defaultdict(set)
    for row in left:
        if row.is_alone and row.operator.phase == "backward" and row.finding.verdict is Verdict.MISSING:
            places[row.operator.call].add(row.finding.pair.order)
    closed = {
        call
        for call in places
        if (rows := graph.forward_call(call)) and call not in open_calls and all(row.is_alone for row in rows)
    }
    before = -1
    while len(closed) != before:
        before = len(closed)
        known: "dict[tuple[int, bool], bool]" = {}
        closed = {
            call for call in closed if all(_has_gradient(graph, row, closed, known) for row in graph.forward_call(call))
        }
    return {order for call in closed for order in places[call]}


def _has_gradient(
    graph: GoldenGraph, row: GoldenRow, closed: "set[str]", known: "dict[tuple[int, bool], bool]"
) -> bool:
    """Whether the gradient of a tensor of a forward operator was compared, or has none, or lies in the stretch. `known`
    holds what was found of the readers, or of the writers, of a content."""
    tensor = row.finding.pair.golden
    if tensor is None or is_parameter(row.finding.pair) or not round_off_of_row(row):
        return True
    content = graph.content(row)
    key = id(content), is_output(row.finding.pair)
    others = content.readers if is_output(row.finding.pair) else content.writers
    if not others:
        return graph.is_known_constant(row) or id(row.finding) in graph.proven
    if key not in known:
        known[key] = all(_is_closed(graph, other, closed) for other in others)
    return known[key]


def _is_closed(graph: GoldenGraph, other: GoldenRow, closed: "set[str]") -> bool:
    """Whether an operator that reads or writes a content lies in the stretch, or its gradient was compared."""
    return (
        other.operator.call in closed
        or (other.is_alone and all(map(graph.is_compared, graph.backward_of(other))))
        or any(map(graph.is_decided, graph.backward_of(other)))
    )


def is_unrecorded_output(graph: GoldenGraph, row: GoldenRow) -> bool:
    """Whether a gradient that a backward operator reads and none wrote can be an output that no dump recorded: a
    backward operator before it, in the same place, read a tensor of that shape, and none of its outputs has it."""
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


def _shape(row: GoldenRow) -> "Optional[tuple[int, ...]]":
    return row.finding.pair.golden.shape if row.finding.pair.golden is not None else None
