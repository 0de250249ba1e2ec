"""The producer of every tensor that an operator reads, computed once for each step and rank.

A graph names producers. Other dumps have no edges: there, the nearest earlier tensor of equal content is the producer.
The golden run is asked, whose numbers no fault disturbs; the target only where the golden recorded nothing that tells.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Iterable, NamedTuple, Optional, Sequence

from npucmp.dump.readers.names import escaped
from npucmp.flow.communications import is_buffer
from npucmp.flow.contents import TINY, golden_content, target_content
from npucmp.model import DataFlow, Finding, Measurement, Pair
from npucmp.model.roles import is_argument, is_output


class _Index:
    """The latest row that holds a tensor, by the names that graphs have for it and by its content."""

    def __init__(self) -> None:
        self.by_content: dict[int, int] = {}
        self.by_target: dict[int, int] = {}  # outputs, by the content of the target's tensor
        self._named: dict[tuple[str, str], int] = {}

    def named(self, pair: Pair) -> int:
        """The row of the tensor that a graph names as the producer; -1 without one."""
        for side, tensor in (("target", pair.target), ("golden", pair.golden)):
            if tensor is not None and tensor.source:
                found = self._named.get((side, escaped(tensor.source)), -1)
                if found >= 0:
                    return found
        return -1

    def found(self, pair: Pair, content: int, of_target: int) -> int:
        """The row of equal content: of the golden tensor, or of the target's where the golden has none that tells."""
        golden = pair.golden
        if golden is None or (not content and math.prod(golden.shape) < TINY):
            return self.by_target.get(of_target, -1) if of_target else -1
        return self.by_content.get(content, -1) if content else -1

    def wrote(self, row: int, pair: Pair, content: int, of_target: int) -> None:
        if content:
            self.by_content[content] = row
        if of_target:
            self.by_target[of_target] = row
        index = pair.slot.partition(":")[2]
        golden = None if pair.golden is None and pair.is_inside else pair.golden_op  # inside a fused one: no such name
        for side, operator in (("target", pair.target_op), ("golden", golden)):
            if operator is not None:
                self._named[side, escaped(f"{operator.name}:{index}")] = row


def edges_of(measurements: Iterable[Measurement], rank: Optional[int] = None) -> list[DataFlow]:
    """The edge of each row of one step and rank, in graph order.

    Raises nothing: where nothing tells a producer, its row is -1.
    """
    matched, every = _Index(), _Index()
    found: list[DataFlow] = []
    for _, group in groupby(measurements, key=lambda one: one.pair.order):
        rows = [(at, one.pair, golden_content(one), target_content(one)) for at, one in enumerate(group, len(found))]
        first = rows[0][1]
        both = first.target_op is not None and first.golden_op is not None
        for _, pair, content, of_target in rows:
            found.append(_edge(pair, content, of_target, matched, every))
        for row, pair, content, _ in rows if both else ():
            if content and not is_output(pair) and not is_argument(pair) and not _is_buffer(pair, rank):
                matched.by_content.setdefault(content, row)
        for row, pair, content, of_target in rows:
            if is_output(pair):
                every.wrote(row, pair, content, of_target)
                if both:
                    matched.wrote(row, pair, content, of_target)
    return found


def _edge(pair: Pair, content: int, of_target: int, matched: _Index, every: _Index) -> DataFlow:
    target = matched.by_target.get(of_target, -1) if of_target else -1
    if is_output(pair):
        return DataFlow(content, of_target, matched.found(pair, content, of_target), target)
    named = matched.named(pair)
    source = named if named >= 0 else matched.found(pair, content, of_target)
    writer = every.named(pair)
    is_named = writer >= 0
    if not is_named:
        writer = every.found(pair, content, of_target)
        writer = writer if writer >= 0 or not of_target else every.by_target.get(of_target, -1)
    return DataFlow(content, of_target, source, target, writer, named >= 0, is_named)


def _is_buffer(pair: Pair, rank: Optional[int]) -> bool:
    """Whether an input is memory that a received tensor is put into."""
    operator, tensor = pair.golden_op or pair.operator, pair.golden or pair.target
    return tensor is not None and is_buffer(operator, tensor, rank)


def with_edges(findings: Sequence[Finding], rank: Optional[int] = None) -> Sequence[Finding]:
    """The findings with their edges; those that have edges are returned as they are."""
    if all(one.flow is not None for one in findings):
        return findings
    edges = edges_of([one.measurement for one in findings], rank)
    return [one._replace(flow=flow) for one, flow in zip(findings, edges)]


class Link(NamedTuple):
    """The operator, by its order, that produced what a row reads, and how that is known."""

    order: int
    how: str


def links(findings: Sequence[Finding]) -> list[Optional[Link]]:
    """The producer of what each row reads, for findings in graph order; None for outputs, and where nothing tells."""
    known = with_edges(findings)
    return [None if one.flow is None or one.flow.writer < 0 else _link(one.flow, known) for one in known]


def _link(flow: DataFlow, findings: Sequence[Finding]) -> Link:
    how = "by the graph" if flow.writer_is_named else "by equal content"
    return Link(findings[flow.writer].pair.order, how)
