"""The producer of every tensor that an operator reads, computed once for each step and rank.

A graph names producers. Other dumps have no edges: the nearest earlier tensor of equal content is the producer. The
content is the golden run's, because no fault changes it; the target's is used only if the golden's does not identify
the tensor.

Graphs are a GE graph beside a CANN dump, a GraphDef beside or inside a TensorFlow dump, and files of --graph. A graph
also gives the order of execution. In a GE graph each output names its tensor of the unfused network. Operators that
only move data must not change it: a copy whose error exceeds that of its input bears the error. A TensorFlow dump holds
outputs only; the inputs are the outputs that its GraphDef names. Tensors that such a dump lacks stay unknown, and so
does the cause of their consumers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Generic, Hashable, Iterator, NamedTuple, Optional, Sequence, TypeVar

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import MIN_ELEMENTS, by_equal_rows, contents_of
from npucmp.flow.operators import roles_of
from npucmp.model import Finding, Operator, Pair, TensorRef
from npucmp.model.finding import OTHER_NODE
from npucmp.model.network import by_network
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_buffer
from npucmp.model.table import rows_of_rule

V = TypeVar("V")


class Producers(Generic[V]):
    """Values for written tensors, found by their consumers.

    by_name     outputs by "{operator}:{index}", escaped, as graphs name the producer of an input
    by_content  tensors by content; inconclusive contents are not included
    """

    __slots__ = ("by_content", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, V] = {}
        self.by_content: dict[Hashable, V] = {}

    def add_output(self, operator: Operator, slot: str, value: V) -> None:
        """Name `value` after the output of an operator in `slot`."""
        self.by_name[file_name_of(f"{operator.name}:{slot.partition(':')[2]}")] = value

    def graph_producer(self, tensor: Optional[TensorRef]) -> Optional[V]:
        """Return the output that a graph names as the producer of an input; None without one."""
        return self.by_name.get(file_name_of(tensor.source)) if tensor is not None and tensor.source else None


class _Index:
    """The latest row of a tensor, by its names in graphs and by its content."""

    def __init__(self, findings: Sequence[Finding], contents: Sequence[int]) -> None:
        self._findings, self._contents, self._kinds = findings, contents, _kinds_of_golden(findings)
        self._target, self._golden = Producers[int](), Producers[int]()
        self.by_content = self._golden.by_content
        self._unasked: list[int] = []  # outputs not yet in `_target`, which few dumps need
        self._has_names = _has_names(findings)
        self._target_contents: Sequence[int] = ()

    def graph_producer(self, row: int) -> int:
        """The row of the tensor that a graph names as the producer; -1 without one."""
        if not self._has_names:
            return -1
        pair = self._findings[row].pair
        found = self._target.graph_producer(pair.target)
        found = self._golden.graph_producer(pair.golden) if found is None else found
        return -1 if found is None else found

    def equal_content(self, row: int) -> int:
        """The row of equal content: of the golden tensor, or of the target's if the golden's content is not
        conclusive."""
        content = self._contents[row]
        if self._kinds[row] is None or (not content and self._kinds[row]):
            return self.of_target(row)
        return self.by_content.get(content, -1) if content else -1

    def of_target(self, row: int) -> int:
        """The row of the output whose target tensor has the content of the target tensor of a row."""
        if not self._target_contents:
            self._target_contents = contents_of(self._findings, 0)
        for output in self._unasked:
            self._target.by_content[self._target_contents[output]] = output
        self._unasked.clear()
        content = self._target_contents[row]
        return self._target.by_content.get(content, -1) if content else -1

    def add_output(self, row: int) -> None:
        if self._contents[row]:
            self.by_content[self._contents[row]] = row
        self._unasked.append(row)
        if not self._has_names:
            return
        pair = self._findings[row].pair
        if pair.target_op is not None:
            self._target.add_output(pair.target_op, pair.slot, row)
        if pair.golden_op is not None and not (pair.golden is None and pair.is_inside):  # inside a fused operator
            self._golden.add_output(pair.golden_op, pair.slot, row)


class Edges:
    """The edges of one step and rank, as columns with an entry for each row of its table.

    contents  the golden tensor as one number; 0 if it is unknown
    sources   the earlier row with the same tensor, of operators that both runs have: the latest output, else the
              first input; -1 without one
    """

    __slots__ = ("_findings", "_outputs", "_roles", "_rows", "_target_contents", "contents", "sources")

    def __init__(self, findings: Sequence[Finding], rank: Optional[int] = None) -> None:
        self._findings = findings
        self._outputs: Optional[dict[int, list[int]]] = None
        self._rows: Optional[dict[int, list[int]]] = None
        self._target_contents: Sequence[int] = ()
        self._roles = roles_of(findings)
        self.contents = contents_of(findings)
        others, receiving = rows_of_rule(findings, OTHER_NODE), _receiving(findings)
        key = Edges, others, rank if receiving else None
        self.sources: list[int] = by_equal_rows(findings, key, lambda: self._sources(others, receiving, rank))

    def _sources(self, others: frozenset[int], receiving: frozenset[int], rank: Optional[int]) -> list[int]:
        findings, contents, roles = self._findings, self.contents, self._roles
        index, sources = _Index(findings, contents), list[int]()
        for start, end in zip(roles.starts, roles.starts[1:]):
            rows = range(start, end)
            for row in rows:
                named = index.graph_producer(row) if not roles.output[row] else -1
                sources.append(named if named >= 0 else index.equal_content(row))
            if not roles.both[start]:
                continue
            for row in rows:
                is_read = contents[row] and not roles.output[row] and not roles.argument[row]
                if is_read and not (start in receiving and _is_buffer(findings[row].pair, rank)):
                    index.by_content.setdefault(contents[row], row)
            for row in rows:
                if roles.output[row] and row not in others:  # another node: no tensor that a later operator reads
                    index.add_output(row)
        return sources

    def rows_of(self, content: int) -> Sequence[int]:
        """The rows with a content that have no source, or write it, in graph order; empty for the content 0."""
        if self._rows is None:
            self._rows = {}
            for at, (one, source) in enumerate(zip(self.contents, self.sources)):
                if one and (source < 0 or self._roles.output[at]):
                    self._rows.setdefault(one, []).append(at)
        return self._rows.get(content, ()) if content else ()

    def of_target(self, row: int) -> int:
        """The latest output before a row whose target tensor has the content of the row's; -1 without one."""
        roles = self._roles
        contents = self._target_contents = self._target_contents or contents_of(self._findings, 0)
        if self._outputs is None:
            self._outputs = {}
            for at, (both, output) in enumerate(zip(roles.both, roles.output)):
                if both and output:
                    self._outputs.setdefault(contents[at], []).append(at)
        start = roles.starts[bisect_right(roles.starts, row) - 1]
        earlier = (at for at in reversed(self._outputs.get(contents[row], ())) if at < start)
        return next(earlier, -1) if contents[row] else -1


@by_network
def _has_names(pairs: Sequence[Pair]) -> bool:
    """Return whether a graph names the producer of any tensor."""
    return any((one.target and one.target.source) or (one.golden and one.golden.source) for one in pairs)


@by_network
def _kinds_of_golden(pairs: Sequence[Pair]) -> list[Optional[bool]]:
    """Return whether the golden tensor of each row has few elements; None without one."""
    return [None if one.golden is None else math.prod(one.golden.shape) < MIN_ELEMENTS for one in pairs]


@by_network
def _receiving(pairs: Sequence[Pair]) -> frozenset[int]:
    """Return the first rows of operators that receive a tensor."""
    first = (at for at, pair in enumerate(pairs) if not at or pair.order != pairs[at - 1].order)
    return frozenset(at for at in first if op_type_of(pairs[at].golden_op or pairs[at].operator).has("receives"))


def _is_buffer(pair: Pair, rank: Optional[int]) -> bool:
    """Return whether an input is memory for a received tensor."""
    operator, tensor = pair.golden_op or pair.operator, pair.golden or pair.target
    return tensor is not None and is_buffer(operator, tensor, rank)


class Link(NamedTuple):
    """The order of the operator that produced the tensor of a row, and the evidence for it."""

    order: int
    how: str


def links(findings: Sequence[Finding], orders: Sequence[int]) -> Iterator[Optional[Link]]:
    """Yield the producer of each input, including operators of one run only, for findings in graph order; None for
    outputs and for unknown producers. `orders` are those of their operators."""
    index, roles = _Index(findings, contents_of(findings)), roles_of(findings)
    for start, end in zip(roles.starts, roles.starts[1:]):
        for row in range(start, end):
            if roles.output[row]:
                yield None
            elif (named := index.graph_producer(row)) >= 0:
                yield Link(orders[named], "by the graph")
            else:
                found = index.equal_content(row)
                found = found if found >= 0 else index.of_target(row)
                yield None if found < 0 else Link(orders[found], "by equal content")
        for row in range(start, end):
            if roles.output[row]:
                index.add_output(row)
