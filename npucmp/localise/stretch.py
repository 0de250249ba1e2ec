"""A stretch of the golden: connected open contents and the operators that connect them."""

from __future__ import annotations

from npucmp.localise.golden_graph import GoldenGraph
from npucmp.localise.golden_rows import GoldenRow, SharedRecords
from npucmp.localise.gradient_stretches import is_unrecorded_output
from npucmp.model import Verdict
from npucmp.model.optypes import is_gradient
from npucmp.model.roles import is_output, is_parameter


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
        rows = [row for some in self.operators.values() for row in some]
        if any(row.finding.verdict is Verdict.UNREADABLE for content in self.contents for row in content.rows):
            return False
        if not any(self._graph.is_compared(row) and not is_parameter(row.finding.pair) for row in rows):
            return False
        if not all(map(self._is_recorded, self.operators.values())):
            return False
        if not all(self._is_inside(content) for content in self.contents):
            return False
        return not self._graph.leads_astray(row for row in rows if row.is_alone)

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
            all(row.is_alone and is_parameter(row.finding.pair) for row in content.readers)
            or all(map(self._graph.is_known_constant, content.readers))
            or any(is_unrecorded_output(self._graph, row) for row in content.readers)
        )

    def _is_parameter_gradient(self, row: GoldenRow) -> bool:
        """Whether a row is the gradient of a parameter that lies in a stretch, where the target has no backward."""
        if not (row.is_alone and is_gradient(row.operator)) or self._graph.has_backward_at(row):
            return False
        forward = self._graph.forward_of(row)
        if not forward or not all(one.is_alone for one in forward):
            return False
        return self._graph.is_of_parameter(row)
