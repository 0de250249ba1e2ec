"""Findings grouped by operator, with inputs, outputs and extra inputs; and a cache of results that depend on one row
of the table only, for the duration of a search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from itertools import groupby
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar

from npucmp.model import Finding, Operator, Pair
from npucmp.model.arguments import draws_numbers
from npucmp.model.checkpointing import figures_of, forwards_run_again
from npucmp.model.optypes import OpType, is_gradient, op_type_of
from npucmp.model.roles import is_argument, is_output

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

    @property
    def reads_operands(self) -> bool:
        """Whether it is a gradient of products that reads the operands of its forward directly, as in graphs."""
        return self.is_gradient and not self.extra_inputs and self.op.has("contracts")

    @property
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
        sides = self.pair.target_op, self.pair.golden_op
        if GRADIENTS in self.operator.name:
            return bool(self.inputs)  # those of the module's backward
        return (self.has_remote_inputs and not self.inputs) or any(op.reads_recorded for op in sides if op is not None)


def nodes_of(findings: Sequence[Finding]) -> list[OperatorFindings]:
    """Matched operators in graph order. Gradients of parameters read the inputs of their module's backward, and the
    tensors that its forward saved."""
    nodes = []
    alone: dict[tuple[str, str], Operator] = {}  # forward operators that only one side has, by side and call
    for _, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = list(group)
        pair = rows[0].pair
        if pair.target_op is None or pair.golden_op is None:
            side, one = ("golden", pair.golden_op) if pair.target_op is None else ("target", pair.target_op)
            if one is not None and one.phase == "forward" and one.call:
                alone[side, one.call] = one
            continue
        outputs = [row for row in rows if is_output(row.pair)]
        inputs = [row for row in rows if not is_output(row.pair) and not is_argument(row.pair)]
        nodes.append(OperatorFindings(pair, inputs, outputs, row=rows[0].row))
    forward = {call: node for node in nodes if node.operator.phase == "forward" for call in _calls(node)}
    backward: dict[str, list[OperatorFindings]] = {}  # by module
    for node in nodes:
        if node.operator.phase == "backward":
            backward.setdefault(node.operator.call.rpartition(".")[0], []).append(node)
    gradients: dict[str, list[OperatorFindings]] = {}  # of parameters, by module
    by_order = {node.pair.golden_op.order: node for node in nodes if node.pair.golden_op is not None}
    again = forwards_run_again([golden for node in nodes if (golden := node.pair.golden_op) is not None])
    for node in nodes:
        if node.operator.phase == "backward":
            partner = next((forward[call] for call in _calls(node) if call in forward), None)
            golden_order = node.pair.golden_op.order if node.pair.golden_op is not None else -1
            if golden_order in again.recorded:
                partner = by_order[again.recorded[golden_order].order]
            node.recomputed = _recomputed_forward(node, partner, alone) if partner else ""
            if partner and not partner.outputs and draws_numbers(partner.operator):
                node.recomputed = partner.operator.name
            if golden_order in again.unrecorded:
                node.recomputed, node.is_rerun_lost = again.unrecorded[golden_order].name, True
            node.extra_inputs += partner.inputs + partner.outputs if partner and not node.recomputed else []
            if GRADIENTS in node.operator.name:
                gradients.setdefault(node.operator.call, []).append(node)
    for call, records in gradients.items():
        for record, others in _backward_of(records, backward.get(call, [])):
            record.inputs += [finding for other in others for finding in other.inputs]
            record.extra_inputs += [finding for other in others for finding in other.extra_inputs]
            record.beside += [finding for other in others for finding in other.outputs]
    before: dict[bool, list[Finding]] = {False: [], True: []}
    for node in nodes:
        node.assumed_inputs = before[node.is_gradient] if not node.inputs else []
        before[node.is_gradient] = node.outputs or before[node.is_gradient]
    return nodes


def _backward_of(
    records: Sequence[OperatorFindings], backward: Sequence[OperatorFindings]
) -> Iterator[tuple[OperatorFindings, Sequence[OperatorFindings]]]:
    """Return the backward operators that made the gradients of a module's parameters: where each call of the module
    has a record, the one beside it and those before; else all."""
    for at, record in enumerate(records):
        yield record, backward[: at + 1] if len(records) == len(backward) else backward


def _recomputed_forward(
    node: OperatorFindings, partner: OperatorFindings, alone: Mapping[tuple[str, str], Operator]
) -> str:
    """The forward that ran again on one side (checkpointing) and from which a backward reads, if its recorded values
    differ from the first execution; else "". The comparison of the first execution then does not apply."""
    first = {"target": partner.pair.target_op, "golden": partner.pair.golden_op}
    for side, call in _calls(node):
        again, before = alone.get((side, call)), first[side]
        if again is not None and before is not None and figures_of(again) != figures_of(before):
            return again.name
    return ""


def _calls(node: OperatorFindings) -> list[tuple[str, str]]:
    """The call of an operator on each side. If one side ran its forward twice (checkpointing), the other
    identifies it."""
    sides = (("golden", node.pair.golden_op), ("target", node.pair.target_op))
    return [(side, operator.call) for side, operator in sides if operator is not None and operator.call]


Found = TypeVar("Found")
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


def number_findings(findings: Sequence[Finding], first: int = 0) -> list[Finding]:
    """Findings with their row numbers, from `first` on, and a shared cache."""
    cache = RowCache(first, len(findings))
    return [one._replace(row=row, cache=cache) for row, one in enumerate(findings, first)]


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
