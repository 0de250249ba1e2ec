"""Find golden tensors without a compared counterpart, except repeated recordings and closed stretches.

A stretch of the golden consists of connected open contents and the operators that connect them. It is closed if all
tensors that enter or leave it were compared. The backward operators of closed stretches are found too: dumps record the
gradient of one autograd node of each operator, so content does not link them; their forward, or the shapes of their
inputs, show their outputs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Iterable, Mapping, Optional, Sequence, Tuple

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRows, golden_round_off
from npucmp.localise.golden_weights import GoldenWeights
from npucmp.localise.value_proof import ValueProof
from npucmp.measure.views import Views
from npucmp.model import Verdict
from npucmp.model.finding import BY_CONTENT
from npucmp.model.roles import is_golden_parameter, is_parameter

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
    graph = GoldenGraph(golden)
    left = _remaining_rows(graph, rows)
    proof = ValueProof(graph, Views(context)) if left and context is not None and columns.readable else None
    while proof is not None and (proven := {*filter(proof.proves, left)}):
        graph.prove(proven)
        left = _remaining_rows(graph, rows)
    return left


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
