"""The known facts about the tensors of a search: their producers, and whether their error descends from a root."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple, Optional, Sequence

from npucmp.flow.contents import content_of
from npucmp.flow.edges import Edges
from npucmp.model import Finding, Pair
from npucmp.model.roles import is_meaningless, is_output


class TensorSource(NamedTuple):
    """The earlier row of the tensor that an input holds. `tainted`: its error descends from a root; `meaningless`: it
    is memory that no operator wrote; `wanders`: it is the rest of a sum that cancels."""

    finding: Finding
    tainted: bool
    meaningless: bool = False
    wanders: bool = False


class Sources:
    """The tensors of one step and rank by row, along the edges of its run."""

    def __init__(self, findings: Sequence[Finding], edges: Edges, first_row: int = 0) -> None:
        self._findings, self._edges, self._first = findings, edges, first_row
        self._known: dict[int, TensorSource] = {}  # by row
        self._read = frozenset(edges.sources)  # rows whose tensors an operator reads
        self._latest = -1  # latest row that the search has reached
        self.any_meaningless = any(is_meaningless(one.pair) for one in findings)
        self._instead: dict[
            int, tuple[int, TensorSource]
        ] = {}  # by content: the first row to which it applies, and the replacement

    def is_read(self, finding: Finding) -> bool:
        """Whether an operator that was recorded reads an output."""
        return finding.row - self._first in self._read

    def of(self, finding: Finding) -> Optional[TensorSource]:
        """The source of a tensor; None if no earlier compared tensor holds it."""
        at = finding.row - self._first
        if not 0 <= at < len(self._findings):
            return self._of_another_rank(finding)
        row = self._edges.sources[at]
        if self._instead:
            start, other = self._instead.get(self._edges.contents[at], (at, None))
            if other is not None and start <= at and (row < start or not is_output(self._findings[row].pair)):
                return other
        if row < 0:  # no earlier row holds it; after its first read it is its own source
            return self._known.get(finding.row) if self._edges.contents[at] else None
        return self.at(row + self._first)

    def _of_another_rank(self, finding: Finding) -> Optional[TensorSource]:
        """The latest row so far that holds a tensor of another rank."""
        content = content_of(finding)
        if content in self._instead:
            return self._instead[content][1]
        rows = [row for row in self._edges.rows_of(content) if row <= self._latest]
        return self.at(rows[-1] + self._first) if rows else None

    def read_with(self, output: Finding) -> list[Finding]:
        """The inputs of the operator that wrote a tensor of this step and rank."""
        at, order = output.row - self._first, output.pair.order
        rows = takewhile(lambda row: self._findings[row].pair.order == order, range(at, -1, -1))
        return [self._findings[row] for row in rows if not is_output(self._findings[row].pair)]

    def is_marked(self, finding: Finding) -> bool:
        """Whether the error of a tensor's source descends from a root, or its content is undefined."""
        source = self.of(finding)
        return source is not None and (source.tainted or source.meaningless)

    def of_target(self, finding: Finding) -> Optional[TensorSource]:
        """The output with the same target tensor; None without one."""
        row = self._edges.of_target(finding.row - self._first)
        return None if row < 0 else self.at(row + self._first)

    def displaced(self, finding: Finding) -> Optional[Pair]:
        """The operator that wrote a tensor in the golden before it was read, and whose row comes later here because the
        target runs its partner later; None without one."""
        reader = finding.pair.golden_op
        rows = self._edges.rows_of(content_of(finding)) if reader is not None else ()
        for pair in (self._findings[row].pair for row in rows):
            behind = pair.order > finding.pair.order and is_output(pair) and pair.target_op is not None
            if behind and reader is not None and pair.golden_op is not None and pair.golden_op.order < reader.order:
                return pair
        return None

    def overtaken(self, finding: Finding) -> Optional[Pair]:
        """The first operator that the golden runs after the reader of a tensor, and the target before it."""
        reader = finding.pair.golden_op
        if reader is None or finding.pair.target_op is None:
            return None
        before = (one.pair for one in self._findings[: finding.row - self._first])
        both = ((pair, pair.golden_op) for pair in before if pair.target_op is not None)
        return next((pair for pair, golden in both if golden is not None and golden.order > reader.order), None)

    def at(self, row: int) -> TensorSource:
        """The source of a row."""
        found = self._known.get(row)
        if found is None:
            finding = self._findings[row - self._first]
            found = self._known[row] = TensorSource(finding, False, is_meaningless(finding.pair))
        return found

    def learn(self, source: TensorSource) -> None:
        """Record the result of the search for a row of this step and rank."""
        self._known[source.finding.row] = source
        self.any_meaningless |= source.meaningless
        self.reach(source.finding)

    def reach(self, finding: Finding) -> None:
        """Record that the search has reached a row."""
        self._latest = max(self._latest, finding.row - self._first)

    def replace(self, source: TensorSource, content: int, start: int) -> None:
        """Let all consumers of a content from row `start` on read this source, until an operator writes the content
        again."""
        if content:
            self._instead[content] = start - self._first, source

    def is_known(self, finding: Finding, start: int) -> bool:
        """Whether this rank held the golden tensor of another rank before row `start`."""
        content = content_of(finding)
        rows = self._edges.rows_of(content)
        return content in self._instead or (bool(rows) and rows[0] < start - self._first)
