"""The golden as a graph: operators, and the contents that they write and read, by recorded names or equal values."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from typing import Hashable, Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.dump.readers.names import file_name_of
from npucmp.flow.contents import content_of, target_content_of
from npucmp.flow.execution_order import ran_again
from npucmp.localise.autograd_nodes import hands_on
from npucmp.localise.dead_ends import dead_ends
from npucmp.localise.golden_rows import (
    GoldenRow,
    SharedRecords,
    constant_of,
    is_expansion,
    is_mask,
    round_off_of_row,
    rounds_to,
    side_of,
)
from npucmp.model import DECIDED, Finding, Operator, Pair, Verdict
from npucmp.model.finding import OTHER_NODE
from npucmp.model.optypes import is_gradient, op_type_of
from npucmp.model.roles import is_output, is_parameter

LATEST_TENSORS = 16  # tensors, operators: work: a cast is compared with the latest of one size
LATEST_OUTPUTS = 8  # outputs: work: an input may be an expansion of one of the latest
SCALAR = 1  # elements: definition: a number is an argument of the operator that reads it


class ContentStatus(NamedTuple):
    """Whether any row of a content was compared, and the order of the last operator with a compared row that reads
    it."""

    is_any: bool
    last_reader: int


class GoldenGraph:
    """The golden tensors of a comparison by content, and the contents that were compared.

    matched  places of the operators that both sides have, ascending
    proven   rows that a target tensor in their place proves
    """

    def __init__(self, findings: Sequence[Finding], golden: Sequence[GoldenRow]) -> None:
        self.matched = sorted({one.pair.order for one in findings if one.pair.target_op and one.pair.golden_op})
        self.proven: set[int] = set()
        self._findings, self._golden = findings, golden
        self._again = ran_again(findings)
        self._contents: dict[int, SharedRecords] = {}  # by row
        self._by_operator: dict[int, list[GoldenRow]] = defaultdict(list)  # by merged order
        self._forward: dict[str, list[GoldenRow]] = defaultdict(list)  # by call
        self._backward: dict[str, list[GoldenRow]] = defaultdict(list)  # by call
        self._of_size: dict[Optional[int], list[GoldenRow]] = defaultdict(list)  # compared rows with values
        self._orders: dict[Optional[int], list[int]] = defaultdict(list)  # of their operators, ascending
        self._compared: dict[SharedRecords, ContentStatus] = {}
        self._constants: set[Hashable] = set()  # of compared rows
        self._of_gradient: dict[int, bool] = {}  # by merged order
        self._arrived: Optional[dict[int, int]] = None  # the last reader of a gradient of the target, by content
        self._astray: Optional[set[int]] = None  # gaps with dead ends
        self._backward_gaps: Optional[set[int]] = None  # gaps with backward operators of the target alone
        self._backward_from = min((row.operator.order for row in golden if is_gradient(row.operator)), default=math.inf)
        self._link()

    def _link(self) -> None:
        """Find the rows that hold the same content."""
        known: dict[int, SharedRecords] = {}
        named: dict[str, SharedRecords] = {}
        latest: deque[GoldenRow] = deque(maxlen=LATEST_OUTPUTS)
        for row in sorted(self._golden, key=lambda row: (row.operator.order, is_output(row.finding.pair))):
            finding, tensor = row.finding, row.finding.pair.golden
            assert tensor is not None
            self._by_operator[finding.pair.order].append(row)
            if row.operator.phase == "forward" and row.operator.call:
                self._forward[row.operator.call].append(row)
            elif row.operator.phase == "backward" and row.operator.call:
                self._backward[row.operator.call].append(row)
            if finding.verdict in DECIDED and side_of(row) is not None:
                self._of_size[row.elements].append(row)
                self._orders[row.elements].append(row.operator.order)
            writes = is_output(finding.pair)
            number = content_of(finding)
            content = None if writes or not tensor.source else named.get(file_name_of(tensor.source))
            content = content or known.get(number)
            if content is None and not writes:
                content = self._expanded_record(row, latest)
            if content is None:
                content = SharedRecords()
                if number:
                    known[number] = content
            if writes:
                latest.append(row)
                named[file_name_of(f"{row.operator.name}:{finding.pair.slot.partition(':')[2]}")] = content
            (content.writers if writes else content.readers).append(row)
            self._contents[finding.row] = content
            if finding.verdict is Verdict.MATCH and (constant := constant_of(row)) is not None:
                self._constants.add(constant)

    def _expanded_record(self, row: GoldenRow, latest: Iterable[GoldenRow]) -> Optional[SharedRecords]:
        """The content that an input expands: the input holds each of its elements several times."""
        written = [one for one in latest if is_expansion(one, row)] if row.is_alone else []
        return self._contents[written[-1].finding.row] if written else None

    def content(self, row: GoldenRow) -> SharedRecords:
        return self._contents[row.finding.row]

    def of_operator(self, row: GoldenRow) -> list[GoldenRow]:
        """All rows of the operator of a row."""
        return self._by_operator[row.finding.pair.order]

    def prove(self, rows: set[int]) -> None:
        """Add rows that a target tensor in their place proves."""
        self.proven |= rows
        self._compared.clear()

    def content_status(self, content: SharedRecords) -> ContentStatus:
        found = self._compared.get(content)
        if found is None:
            read = [row.operator.order for row in content.readers if self.is_decided(row)]
            is_any = bool(read) or any(map(self.is_decided, content.writers))
            found = self._compared[content] = ContentStatus(is_any, max(read, default=-1))
        return found

    def is_again(self, row: GoldenRow) -> bool:
        """Whether a row holds the content of a compared row."""
        finding = row.finding
        if finding.verdict is Verdict.UNREADABLE or lost_outputs(finding.pair):
            return False
        if finding.pair.order in self._again or finding.row in self.proven:
            return True
        compared = self.content_status(self._contents[finding.row])
        if not is_output(finding.pair):
            return compared.is_any
        if copies_input(row.operator):
            return compared.is_any or self._is_cast(row)
        # other outputs hold the same values by chance, or in another order
        if compared.last_reader <= row.operator.order and not self._is_own_gradient(row):
            return False
        return not (row.is_alone and self.is_inserted_dead_end([row]))

    def is_known_constant(self, row: GoldenRow) -> bool:
        """Whether a tensor that no dumped operator wrote is a constant that was compared elsewhere, a scalar or a mask;
        of these only the effect counts."""
        constant = constant_of(row)
        written = bool(self._contents[row.finding.row].writers)
        known = row.elements == SCALAR or (constant is not None and constant in self._constants)
        return not written and (known or is_mask(row))

    def _is_own_gradient(self, row: GoldenRow) -> bool:
        """Whether a backward operator wrote a tensor that it read: dumps record the gradient of a view in place of that
        of a product."""
        if row.operator.phase != "backward":
            return False
        read = [one for one in self.of_operator(row) if not is_output(one.finding.pair) and self.is_decided(one)]
        if row.finding.rule == OTHER_NODE and (
            any(hands_on(tensor.finding, row.finding, 1) for tensor in read) or self._passes_on_alike(row)
        ):
            return True
        return any(self.content(one) is self.content(row) for one in read)

    def _passes_on_alike(self, row: GoldenRow) -> bool:
        """Whether the golden wrote the gradient of an inner node of a call, which no operator reads, and the gradient
        that the call passed on was compared where the next operator reads it."""
        if self.content(row).readers:
            return False
        if self._arrived is None:
            inputs = (one.finding for one in self._golden if self.is_backward(one.operator) and self.is_decided(one))
            self._arrived = {}
            for finding in inputs:
                if not is_output(finding.pair):
                    self._arrived[target_content_of(finding)] = finding.pair.order
        passed = target_content_of(row.finding)
        return bool(passed) and self._arrived.get(passed, -1) > row.finding.pair.order

    def _is_cast(self, row: GoldenRow) -> bool:
        """Whether a row is a compared tensor in another type: same number of elements, extremes and norm equal within
        rounding."""
        own = side_of(row)
        if own is None or not op_type_of(row.operator).has("hands on"):
            return False
        end = bisect_left(self._orders[row.elements], row.operator.order)
        return any(
            (wide := side_of(one)) is not None
            and rounds_to(wide, own, max(round_off_of_row(one), round_off_of_row(row)))
            for one in self._of_size[row.elements][max(0, end - LATEST_TENSORS) : end]
        )

    def is_compared(self, row: GoldenRow) -> bool:
        """Whether the content of a row was compared, in this row or in another."""
        return self.content_status(self._contents[row.finding.row]).is_any

    def is_decided(self, row: GoldenRow) -> bool:
        return row.finding.verdict in DECIDED or row.finding.row in self.proven

    def gap_number(self, row: GoldenRow) -> int:
        """The gap between matched operators that contains the operator of a row without a partner."""
        return bisect_right(self.matched, row.finding.pair.order)

    def is_backward(self, operator: Operator) -> bool:
        """Whether an operator belongs to a backward pass. If a dump records no phases, the backward pass begins with
        the first operator whose type is a gradient."""
        return is_gradient(operator) or (not operator.phase and operator.order >= self._backward_from)

    def is_of_gradient(self, row: GoldenRow) -> bool:
        """Whether a row belongs to a backward operator, or to an operator that forwards gradients, as a collective
        does."""
        order = row.finding.pair.order
        if order not in self._of_gradient:
            written = (writer for one in self.of_operator(row) for writer in self.content(one).writers)
            handed = any(self.is_backward(one.operator) for one in written)
            self._of_gradient[order] = self.is_backward(row.operator) or handed
        return self._of_gradient[order]

    def before(self, row: GoldenRow) -> Iterator[list[GoldenRow]]:
        """Yield the rows of each operator without a partner that precedes a row's operator in the same gap, the nearest
        first; at most NEAREST operators back."""
        gap, own = self.gap_number(row), row.finding.pair.order
        first = max(self.matched[gap - 1] if gap else -1, own - LATEST_TENSORS)
        for order in range(own - 1, first, -1):
            if order in self._by_operator:
                yield self._by_operator[order]

    def is_inserted_dead_end(self, rows: Iterable[GoldenRow]) -> bool:
        """Whether an operator of the target alone, in the place of these rows, wrote tensors that no operator reads and
        no compared tensor holds: its effect is unknown."""
        if self._astray is None:
            places = dead_ends(self._findings, self.matched, self._again)
            self._astray = {bisect_right(self.matched, place) for place in places}
        return any(self.gap_number(row) in self._astray for row in rows)

    def is_of_parameter(self, row: GoldenRow) -> bool:
        """Whether a row is the gradient of a parameter, according to the forward of its operator."""
        slot = row.finding.pair.slot
        own = [one for one in self.forward_of(row) if one.finding.pair.slot == slot.replace("output:", "input:")]
        return slot.startswith("grad:") or any(is_parameter(one.finding.pair) for one in own)

    def has_backward_at(self, row: GoldenRow) -> bool:
        """Whether the target alone has a backward operator in the place of a row."""
        if self._backward_gaps is None:
            self._backward_gaps = {
                bisect_right(self.matched, one.pair.order)
                for one in self._findings
                if one.pair.golden_op is None and one.pair.target_op is not None and is_gradient(one.pair.target_op)
            }
        return self.gap_number(row) in self._backward_gaps

    def forward_of(self, row: GoldenRow) -> list[GoldenRow]:
        """The rows of the forward call that a backward row belongs to."""
        return self.forward_call(row.operator.call)

    def backward_of(self, row: GoldenRow) -> list[GoldenRow]:
        """The rows of the backward call that a forward row belongs to."""
        return self._backward.get(row.operator.call, [])

    def forward_call(self, call: str) -> list[GoldenRow]:
        """The rows of a forward call."""
        return self._forward.get(call, [])


def lost_outputs(pair: Pair) -> bool:
    """Whether a tensor is an output, and the target's record of its matched operator lost all outputs."""
    if pair.target_op is None or not is_output(pair):
        return False
    return not any(tensor.is_output for tensor in pair.target_op.tensors)


def copies_input(operator: Operator) -> bool:
    """Whether an operator writes its input, at most in another shape, order or type."""
    op = op_type_of(operator)
    return op.has("hands on", "copies", "views") and not op.has("picks", "collective")
