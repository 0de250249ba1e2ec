"""Findings grouped by operator, with inputs, outputs and extra inputs; and a cache of results that depend on one row
of the table only, for the duration of a search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import groupby
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, TypeVar

from npucmp.model import Finding, Operator, Pair
from npucmp.model.arguments import draws_numbers
from npucmp.model.checkpointing import figures_of, forwards_run_again
from npucmp.model.network import SearchRows, by_network
from npucmp.model.optypes import OpType, is_gradient, op_type_of
from npucmp.model.roles import is_argument, is_output
from npucmp.model.table import LazySequence, Table

Found = TypeVar("Found")
GRADIENTS = ".parameters_grad"  # in the names of records of the gradients of a module's parameters: definition


class OperatorPlace(NamedTuple):
    """An operator: the index of its rank and its position in that rank's sequence."""

    rank: int
    at: int


@dataclass
class OperatorFindings:
    """One matched operator: its findings, and the state of the root-cause search.

    extra_inputs           forward tensors that a backward operator also reads, and tensors from other ranks
    assumed_inputs         outputs of the preceding operator, if no inputs were recorded
    beside                 of gradients of parameters: the gradients that the backward of their module wrote
    tainted                it bears an error or passes one on; inherits: an input descends from a root
    has_remote_inputs      the data from other ranks are known
    error_from_other_rank  an error arrives with these data that descends from a root of another rank
    remote_inputs_missing  other ranks send data to it, and not all of these data are compared
    recomputed             the forward from which a backward reads, if it ran again on one side only, with other values,
                           or drew a mask that was not recorded; is_rerun_lost: the forward of another layer that did,
                           because the second execution of its own has no record
    unequal                outputs of a collective that differ from those of other ranks, by slot (remote_inputs.py)
    row                    the row of its first tensor
    """

    pair: Pair
    inputs: list[Finding]
    outputs: list[Finding]
    extra_inputs: list[Finding] = field(default_factory=list)
    assumed_inputs: list[Finding] = field(default_factory=list)
    beside: list[Finding] = field(default_factory=list)
    tainted: bool = False
    inherits: bool = False
    has_remote_inputs: bool = False
    error_from_other_rank: bool = False
    remote_inputs_missing: bool = False
    recomputed: str = ""
    is_rerun_lost: bool = False
    unequal: dict[str, Any] = field(default_factory=dict)
    row: int = -1
    operator: Operator = field(init=False)
    op: OpType = field(init=False)
    is_gradient: bool = field(init=False)

    def __post_init__(self) -> None:
        self.operator = self.pair.operator
        self.op, self.is_gradient = op_type_of(self.operator), is_gradient(self.operator)

    @cached_property
    def _are_inputs_recorded(self) -> bool:
        return any(op.reads_recorded for op in (self.pair.target_op, self.pair.golden_op) if op is not None)

    @property
    def reads_operands(self) -> bool:
        """Whether it is a gradient of products that reads the operands of its forward directly, as in graphs."""
        return self.is_gradient and not self.extra_inputs and self.op.has("contracts")

    @cached_property
    def reads_saved(self) -> bool:
        """Whether it is a backward that reads tensors saved by its forward. An operator without a call index, as in
        graphs, reads all its inputs directly."""
        operator, op = self.operator, self.op
        forgets = op.has("saves nothing") or (op.has("views", "hands on") and not op.has("picks"))
        return operator.phase == "backward" and operator.call not in ("", operator.name) and not forgets

    def writes_to(self, finding: Finding) -> bool:
        """Whether an input is memory that the operator writes to and does not read."""
        return self.op.has("in place") and self.op.has("overwrites", "copies") and finding.pair.slot == "input:0"

    @property
    def reads_recorded(self) -> bool:
        """Whether either run records the inputs of the operator; both runs read the same. A receiving operator reads
        the data that were sent."""
        if GRADIENTS in self.operator.name:
            return bool(self.inputs)  # those of the module's backward
        return self._are_inputs_recorded or (self.has_remote_inputs and not self.inputs)


class OperatorRows(NamedTuple):
    """The rows of a matched operator, as the fields of OperatorFindings."""

    pair: Pair
    at: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    extra_inputs: tuple[int, ...] = ()
    assumed_inputs: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    recomputed: str = ""
    is_rerun_lost: bool = False

    @property
    def operator(self) -> Operator:
        return self.pair.operator


class Roles(NamedTuple):
    """The roles of rows by their pairs. `starts` are the first rows of operators, and the number of rows."""

    starts: list[int]
    both: list[bool]
    output: list[bool]
    argument: list[bool]


@by_network
def roles_of(pairs: Sequence[Pair]) -> Roles:
    orders = [pair.order for pair in pairs]
    starts = [at for at, order in enumerate(orders) if not at or order != orders[at - 1]]
    both = [pair.target_op is not None and pair.golden_op is not None for pair in pairs]
    return Roles([*starts, len(pairs)], both, [*map(is_output, pairs)], [*map(is_argument, pairs)])


@by_network
def rows_of_operators(pairs: Sequence[Pair]) -> list[OperatorRows]:
    """The rows of matched operators in graph order. Gradients of parameters read the inputs of their module's backward,
    and the tensors that its forward saved."""
    nodes: list[OperatorRows] = []
    alone: dict[tuple[str, str], Operator] = {}  # forward operators that only one side has, by side and call
    at = 0
    for _, group in groupby(pairs, key=lambda pair: pair.order):
        own = [*group]
        first, rows = own[0], range(at, at + len(own))
        at += len(own)
        if first.target_op is None or first.golden_op is None:
            side, one = ("golden", first.golden_op) if first.target_op is None else ("target", first.target_op)
            if one is not None and one.phase == "forward" and one.call:
                alone[side, one.call] = one
            continue
        outputs = tuple(row for row, pair in zip(rows, own) if is_output(pair))
        inputs = tuple(row for row, pair in zip(rows, own) if not is_output(pair) and not is_argument(pair))
        nodes.append(OperatorRows(first, rows[0], inputs, outputs))
    forward = {call: number for number, node in enumerate(nodes) if node.operator.phase == "forward"
               for call in _calls(node)}  # fmt: skip
    backward: dict[str, list[int]] = {}  # by module
    for number, node in enumerate(nodes):
        if node.operator.phase == "backward":
            backward.setdefault(node.operator.call.rpartition(".")[0], []).append(number)
    gradients: dict[str, list[int]] = {}  # of parameters, by module
    goldens = [golden for node in nodes if (golden := node.pair.golden_op) is not None]
    by_order = {golden.order: number for number, golden in enumerate(goldens)}
    again = forwards_run_again(goldens)
    for number, node in enumerate(nodes):
        if node.operator.phase != "backward":
            continue
        found = next((forward[call] for call in _calls(node) if call in forward), None)
        order = goldens[number].order
        if order in again.recorded:
            found = by_order[again.recorded[order].order]
        partner = None if found is None else nodes[found]
        recomputed = _recomputed_forward(node, partner, alone) if partner else ""
        if partner and not partner.outputs and draws_numbers(partner.operator):
            recomputed = partner.operator.name
        lost = order in again.unrecorded
        recomputed = again.unrecorded[order].name if lost else recomputed
        extra = partner.inputs + partner.outputs if partner and not recomputed else ()
        nodes[number] = node._replace(extra_inputs=extra, recomputed=recomputed, is_rerun_lost=lost)
        if GRADIENTS in node.operator.name:
            gradients.setdefault(node.operator.call, []).append(number)
    for call, records in gradients.items():
        of_module = backward.get(call, [])
        for place, number in enumerate(records):  # a record for each call: of the one beside it and those before
            record = nodes[number]
            others = [
                nodes[other] for other in (of_module[: place + 1] if len(records) == len(of_module) else of_module)
            ]
            nodes[number] = record._replace(
                inputs=(*record.inputs, *(row for other in others for row in other.inputs)),
                extra_inputs=(*record.extra_inputs, *(row for other in others for row in other.extra_inputs)),
                beside=tuple(row for other in others for row in other.outputs),
            )
    before: dict[bool, tuple[int, ...]] = {False: (), True: ()}
    for number, node in enumerate(nodes):
        is_backward = is_gradient(node.operator)
        nodes[number] = node._replace(assumed_inputs=before[is_backward] if not node.inputs else ())
        before[is_backward] = node.outputs or before[is_backward]
    return nodes


class Nodes(LazySequence[OperatorFindings]):
    """The matched operators of findings, which are built on request."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self.rows = rows_of_operators(findings)
        self._found: list[Optional[OperatorFindings]] = [None] * len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def _item(self, at: int) -> OperatorFindings:
        found = self._found[at]
        if found is None:
            rows, row = self.rows[at], self._findings.__getitem__
            named = rows.inputs, rows.outputs, rows.extra_inputs, rows.assumed_inputs, rows.beside
            inputs, outputs, extra, assumed, beside = ([*map(row, own)] for own in named)
            found = self._found[at] = OperatorFindings(
                row(rows.at).pair, inputs, outputs, extra, assumed, beside,
                recomputed=rows.recomputed, is_rerun_lost=rows.is_rerun_lost, row=row(rows.at).row,
            )  # fmt: skip
        return found


def nodes_of(findings: Sequence[Finding]) -> Sequence[OperatorFindings]:
    """Matched operators in graph order."""
    return Nodes(findings)


def _recomputed_forward(node: OperatorRows, partner: OperatorRows, alone: Mapping[tuple[str, str], Operator]) -> str:
    """The forward that ran again on one side (checkpointing) and from which a backward reads, if its recorded values
    differ from the first execution; else "". The comparison of the first execution then does not apply."""
    first = {"target": partner.pair.target_op, "golden": partner.pair.golden_op}
    for side, call in _calls(node):
        again, before = alone.get((side, call)), first[side]
        if again is not None and before is not None and figures_of(again) != figures_of(before):
            return again.name
    return ""


def _calls(node: OperatorRows) -> list[tuple[str, str]]:
    """The call of an operator on each side. If one side ran its forward twice (checkpointing), the other
    identifies it."""
    sides = (("golden", node.pair.golden_op), ("target", node.pair.target_op))
    return [(side, operator.call) for side, operator in sides if operator is not None and operator.call]


_UNKNOWN = object()


class RowCache:
    """The results of functions of a row, by its number. The rows are `count` rows from `first` on."""

    __slots__ = ("_count", "_results", "first")

    def __init__(self, first: int, count: int) -> None:
        self.first, self._count = first, count
        self._results: dict[object, list[Any]] = {}

    def __repr__(self) -> str:
        return f"<cache of {self._count} rows>"

    def __eq__(self, other: object) -> bool:
        """Compare the ranges of rows. Results are not part of a finding's identity."""
        return isinstance(other, RowCache) and (self.first, self._count) == (other.first, other._count)

    def __hash__(self) -> int:
        return hash((self.first, self._count))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without results: the cache of a pickled finding is empty."""
        return RowCache, (self.first, self._count)

    def results(self, function: object) -> list[Any]:
        """The results of one function so far."""
        found = self._results.get(function)
        if found is None:
            found = self._results[function] = [_UNKNOWN] * self._count
        return found

    def fill(self, function: Callable[[Finding], Found], results: Any) -> None:
        """Set the results of a function (`of_row`): a sequence by row, counted from the first."""
        self._results[getattr(function, "__wrapped__", function)] = results


def numbered(findings: Sequence[Finding], first: int = 0) -> SearchRows:
    """Findings with their row numbers, from `first` on, and a shared cache."""
    table = findings if isinstance(findings, Table) else Table(findings)
    return SearchRows(table, first, RowCache(first, len(findings)))


def of_row(function: Callable[[Finding], Found]) -> Callable[[Finding], Found]:
    """Cache a function of a finding that depends only on its measurement; it is called once for each row of a cache."""

    @wraps(function)
    def found(finding: Finding) -> Found:
        cache: Optional[RowCache] = finding.cache
        if cache is None:
            return function(finding)
        results, at = cache.results(function), finding.row - cache.first
        value = results[at]
        if value is _UNKNOWN:
            value = results[at] = function(finding)
        result: Found = value
        return result

    return found
