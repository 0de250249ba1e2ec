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
from typing import Generic, Hashable, Iterator, NamedTuple, Optional, Sequence, TypeVar

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import MIN_ELEMENTS, content_of, target_content_of
from npucmp.model import Finding, Operator, Pair, TensorRef
from npucmp.model.finding import OTHER_NODE
from npucmp.model.optypes import op_type_of
from npucmp.model.roles import is_argument, is_buffer, is_output

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

    def __init__(self, has_names: bool) -> None:
        self._target, self._golden = Producers[int](), Producers[int]()
        self.by_content = self._golden.by_content
        self._unasked: list[tuple[int, Finding]] = []  # outputs not yet in `_target`, which few dumps need
        self._has_names = has_names

    def graph_producer(self, pair: Pair) -> int:
        """The row of the tensor that a graph names as the producer; -1 without one."""
        if not self._has_names:
            return -1
        found = self._target.graph_producer(pair.target)
        found = self._golden.graph_producer(pair.golden) if found is None else found
        return -1 if found is None else found

    def equal_content(self, finding: Finding, content: int) -> int:
        """The row of equal content: of the golden tensor, or of the target's if the golden's content is not
        conclusive."""
        golden = finding.pair.golden
        if golden is None or (not content and math.prod(golden.shape) < MIN_ELEMENTS):
            return self.of_target(finding)
        return self.by_content.get(content, -1) if content else -1

    def of_target(self, finding: Finding) -> int:
        """The row of the output whose target tensor has the content of the target tensor of a row."""
        for row, output in self._unasked:
            self._target.by_content[target_content_of(output)] = row
        self._unasked.clear()
        content = target_content_of(finding)
        return self._target.by_content.get(content, -1) if content else -1

    def add_output(self, row: int, finding: Finding, content: int) -> None:
        if content:
            self.by_content[content] = row
        self._unasked.append((row, finding))
        if not self._has_names:
            return
        pair = finding.pair
        if pair.target_op is not None:
            self._target.add_output(pair.target_op, pair.slot, row)
        is_unnamed = pair.golden is None and pair.is_inside  # a tensor inside a fused operator
        if pair.golden_op is not None and not is_unnamed:
            self._golden.add_output(pair.golden_op, pair.slot, row)


class Edges:
    """The edges of one step and rank, as columns with an entry for each row of its table.

    contents  the golden tensor as one number; 0 if it is unknown
    sources   the earlier row with the same tensor, of operators that both runs have: the latest output, else the
              first input; -1 without one
    """

    __slots__ = ("_findings", "_outputs", "_rows", "contents", "sources")

    def __init__(self, findings: Sequence[Finding], rank: Optional[int] = None) -> None:
        self._findings = findings
        self._outputs: Optional[dict[int, list[int]]] = None
        self._rows: Optional[dict[int, list[int]]] = None
        self.contents = [*map(content_of, findings)]
        self.sources: list[int] = []
        index, contents, sources = _Index(_has_names(findings)), self.contents, self.sources
        for operator in _operators(findings):
            rows = range(len(sources), len(sources) + len(operator))
            pair = operator[0].pair
            both = pair.target_op is not None and pair.golden_op is not None
            outputs = {row for row, one in zip(rows, operator) if is_output(one.pair)}
            receives = both and op_type_of(pair.golden_op or pair.operator).has("receives")
            for row, one in zip(rows, operator):
                named = index.graph_producer(one.pair) if row not in outputs else -1
                sources.append(named if named >= 0 else index.equal_content(one, contents[row]))
            if not both:
                continue
            for row, one in zip(rows, operator):
                is_read = contents[row] and row not in outputs and not is_argument(one.pair)
                if is_read and not (receives and _is_buffer(one.pair, rank)):
                    index.by_content.setdefault(contents[row], row)
            for row in sorted(outputs):
                if findings[row].rule != OTHER_NODE:  # it is no tensor that a later operator reads on both sides
                    index.add_output(row, findings[row], contents[row])

    def rows_of(self, content: int) -> Sequence[int]:
        """The rows with a content that have no source, or write it, in graph order; empty for the content 0."""
        if self._rows is None:
            self._rows = {}
            for at, (one, source) in enumerate(zip(self.contents, self.sources)):
                if one and (source < 0 or is_output(self._findings[at].pair)):
                    self._rows.setdefault(one, []).append(at)
        return self._rows.get(content, ()) if content else ()

    def of_target(self, row: int) -> int:
        """The latest output before a row whose target tensor has the content of the row's; -1 without one."""
        if self._outputs is None:
            self._outputs = {}
            for at, one in enumerate(self._findings):
                pair = one.pair
                if pair.target_op is not None and pair.golden_op is not None and is_output(pair):
                    self._outputs.setdefault(target_content_of(one), []).append(at)
        content = target_content_of(self._findings[row])
        order = self._findings[row].pair.order
        earlier = (at for at in reversed(self._outputs.get(content, ())) if self._findings[at].pair.order < order)
        return next(earlier, -1) if content else -1


def _has_names(findings: Sequence[Finding]) -> bool:
    """Return whether a graph names the producer of any tensor."""
    sides = ((one.pair.target, one.pair.golden) for one in findings)
    return any((target and target.source) or (golden and golden.source) for target, golden in sides)


def _operators(findings: Sequence[Finding]) -> Iterator[Sequence[Finding]]:
    """Yield the rows of each operator, in graph order."""
    start = 0
    for at, one in enumerate(findings):
        if one.pair.order != findings[start].pair.order:
            yield findings[start:at]
            start = at
    if findings:
        yield findings[start:]


def _is_buffer(pair: Pair, rank: Optional[int]) -> bool:
    """Return whether an input is memory for a received tensor."""
    operator, tensor = pair.golden_op or pair.operator, pair.golden or pair.target
    return tensor is not None and is_buffer(operator, tensor, rank)


class Link(NamedTuple):
    """The order of the operator that produced the tensor of a row, and the evidence for it."""

    order: int
    how: str


def links(findings: Sequence[Finding]) -> Iterator[Optional[Link]]:
    """Yield the producer of each input, including operators of one run only, for findings in graph order; None for
    outputs and for unknown producers."""
    index, row = _Index(_has_names(findings)), 0
    for own in _operators(findings):
        for finding in own:
            if is_output(finding.pair):
                yield None
            elif (named := index.graph_producer(finding.pair)) >= 0:
                yield Link(findings[named].pair.order, "by the graph")
            else:
                found = index.equal_content(finding, content_of(finding))
                found = found if found >= 0 else index.of_target(finding)
                yield None if found < 0 else Link(findings[found].pair.order, "by equal content")
        for at, finding in enumerate(own, row):
            if is_output(finding.pair):
                index.add_output(at, finding, content_of(finding))
        row += len(own)
