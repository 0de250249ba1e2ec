"""Findings grouped by operator: what it read, what it wrote, and what contains it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Iterable, Iterator, Mapping, Sequence

from npucmp.model import Finding, Operator, Pair
from npucmp.model.arguments import argument_name
from npucmp.model.optypes import OpType, is_gradient, op_type, op_type_of


@dataclass
class OperatorFindings:
    """One matched operator: its findings, and what the search has made of it.

    context  forward tensors that a backward operator also reads, and what other ranks put in
    presumed where no inputs were recorded: what came just before
    tainted  it bears an error or wrote one on; inherits: some of what it reads descends from a root
    arrived  what other ranks put in is known; carried: an error comes in with it that descends from a root there
    unheard  other ranks put something in, and not all of them are compared
    recomputed  the forward that a backward reads from, where it ran again, alone and with other values
    unequal     outputs of a collective that differ from those of other ranks, by slot (rank_equality.py)
    """

    pair: Pair
    inputs: list[Finding]
    outputs: list[Finding]
    context: list[Finding] = field(default_factory=list)
    presumed: list[Finding] = field(default_factory=list)
    tainted: bool = False
    inherits: bool = False
    arrived: bool = False
    carried: bool = False
    unheard: bool = False
    recomputed: str = ""
    unequal: "dict[str, Any]" = field(default_factory=dict)
    operator: Operator = field(init=False)
    op: OpType = field(init=False)
    is_gradient: bool = field(init=False)

    def __post_init__(self) -> None:
        self.operator = self.pair.operator
        self.op, self.is_gradient = op_type_of(self.operator), is_gradient(self.operator)

    @property
    def reads_operands(self) -> bool:
        """Whether it is a gradient of products that reads the operands of its forward itself, as those of graphs do."""
        return self.is_gradient and not self.context and self.op.has("contracts")

    @property
    def reads_saved(self) -> bool:
        """Whether it is a backward of something that its forward saves; what is called by no index, as are operators
        of graphs, reads what it needs itself."""
        operator, op = self.operator, self.op
        forgets = op.has("saves nothing") or (op.has("views", "hands on") and not op.has("picks"))
        return operator.phase == "backward" and operator.call not in ("", operator.name) and not forgets

    def writes_to(self, finding: Finding) -> bool:
        """Whether an input is memory that it was given to write to, and does not read."""
        return self.op.has("in place") and self.op.has("overwrites", "copies") and finding.pair.slot == "input:0"

    @property
    def reads_recorded(self) -> bool:
        """Whether either run says what the operator reads: what one read, the other did. What receives reads what was
        sent."""
        sides = self.pair.target_op, self.pair.golden_op
        return (self.arrived and not self.inputs) or any(op.reads_recorded for op in sides if op is not None)


def nodes_of(findings: Sequence[Finding]) -> list[OperatorFindings]:
    """Matched operators in graph order; gradients of parameters read what their module's backward reads."""
    nodes = []
    alone: dict[tuple[str, str], Operator] = {}  # forwards that one side has, by side and call
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
        nodes.append(OperatorFindings(pair, inputs, outputs))
    forward = {call: node for node in nodes if node.operator.phase == "forward" for call in _calls(node)}
    backward: dict[str, list[OperatorFindings]] = {}  # by module
    for node in nodes:
        if node.operator.phase == "backward":
            backward.setdefault(node.operator.call.rpartition(".")[0], []).append(node)
    for node in nodes:
        if node.operator.phase == "backward":
            partner = next((forward[call] for call in _calls(node) if call in forward), None)
            node.recomputed = _recomputed(node, partner, alone) if partner else ""
            node.context += partner.inputs + partner.outputs if partner and not node.recomputed else []
            if ".parameters_grad" in node.operator.name:
                for other in backward.get(node.operator.call, ()):
                    node.inputs += other.inputs
    before: dict[bool, list[Finding]] = {False: [], True: []}
    for node in nodes:
        node.presumed = before[node.is_gradient] if not node.inputs else []
        before[node.is_gradient] = node.outputs or before[node.is_gradient]
    return nodes


def _recomputed(node: OperatorFindings, partner: OperatorFindings, alone: "Mapping[tuple[str, str], Operator]") -> str:
    """The forward that ran again on one side (checkpointing), for a backward to read from, if other values were
    recorded of it than the first time: then what was compared the first time is not what is read."""
    first = {"target": partner.pair.target_op, "golden": partner.pair.golden_op}
    for side, call in _calls(node):
        again, before = alone.get((side, call)), first[side]
        if again is not None and before is not None and _figures(again) != _figures(before):
            return again.name
    return ""


def _figures(operator: Operator) -> "list[str]":
    """What was recorded of its tensors beside their values; NaN equals NaN."""
    return [repr((one.slot, one.shape, one.statistics, one.checksum)) for one in operator.tensors]


def _calls(node: OperatorFindings) -> "list[tuple[str, str]]":
    """The call of an operator on each side; where one side ran its forward twice (checkpointing), the other knows."""
    sides = (("golden", node.pair.golden_op), ("target", node.pair.target_op))
    return [(side, operator.call) for side, operator in sides if operator is not None and operator.call]


def is_output(pair: Pair) -> bool:
    """Whether a pair is something that its operator wrote."""
    tensor = pair.target or pair.golden
    return tensor is not None and tensor.is_output


def is_argument(pair: Pair) -> bool:
    """Whether a tensor holds an argument (an epsilon), which is no input that an error comes in by."""
    target, golden = pair.target_op, pair.golden_op
    return target is not None and golden is not None and pair.slot in target.arguments and pair.slot in golden.arguments


def containers(operator: Operator, scopes: Mapping[str, str]) -> Iterator[str]:
    """Records and paths of the modules around an operator, as construct.json or the module paths tell."""
    name, seen = scopes.get(operator.name, ""), {operator.name}
    while name and name not in seen:
        seen.add(name)
        yield name
        name = scopes.get(name, "")
    path = operator.path.rpartition(".")[0]
    while path:
        yield f"{operator.phase} {path}"
        path = path.rpartition(".")[0]


def is_meaningless(pair: Pair) -> bool:
    """Whether a tensor is uninitialised memory or a device's workspace, which nobody promises to be equal."""
    return _is_meaningless(pair.operator.op_type, pair.slot)


@lru_cache(maxsize=1 << 14)
def _is_meaningless(spelled: str, slot: str) -> bool:
    op = op_type(spelled)
    role, _, key = slot.partition(":")
    return role == "output" and (op.has("uninitialised") or _place(key) in op.workspaces)


def is_parameter(pair: Pair) -> bool:
    """Whether a tensor is a weight, a bias or a running statistic, as far as slot and operator tell."""
    if pair.slot.partition(":")[0] == "param":
        return True
    return _is_place_of_parameter(pair.operator.op_type, pair.slot) and not is_gradient(pair.operator)


@lru_cache(maxsize=1 << 14)
def _is_place_of_parameter(spelled: str, slot: str) -> bool:
    return _place(slot.partition(":")[2]) in op_type(spelled).parameters


def is_folded(pair: Pair) -> bool:
    """Whether a tensor is a weight that lies in the target's graph alone: the compiler made it of several, so that the
    golden run has none like it."""
    return pair.golden is None and pair.target is not None and pair.target.stored


def _place(key: str) -> int:
    """The number of a slot, -1 for one that has none."""
    return int(key) if key.isdecimal() and len(key) < 10 else -1


def _respelled(target: Operator, golden: Operator) -> "dict[str, str]":
    """Slot of the target → slot of the golden, of arguments that one side gives by keyword and the other by place."""
    if target.arguments.keys() == golden.arguments.keys():
        return {}
    alone = {argument_name(golden, slot): slot for slot in golden.arguments if slot not in target.arguments}
    named = {slot: argument_name(target, slot) for slot in target.arguments if slot not in golden.arguments}
    return {slot: alone[name] for slot, name in named.items() if name in alone}


def differing_arguments(target: Operator, golden: Operator) -> Iterable[tuple[str, object, object]]:
    """(slot, target's value, golden's value); devices are expected to differ, and NaN equals NaN.

    What is an argument on one side and a tensor on the other is compared as a tensor, or not at all. Nothing is absent
    where nothing that the operator reads was recorded, or what the other side gives by keyword instead of by place.
    """
    if not target.arguments and not golden.arguments:
        return
    told = all(
        one.reads_recorded and (one.arguments or any(not tensor.is_output for tensor in one.tensors))
        for one in (target, golden)
    )
    tensors = {tensor.slot for operator in (target, golden) for tensor in operator.tensors}
    respelled = _respelled(target, golden)
    for slot in {**target.arguments, **golden.arguments}:
        if slot in respelled.values():
            continue
        a, b = target.arguments.get(slot, "absent"), golden.arguments.get(respelled.get(slot, slot), "absent")
        if "absent" in (a, b) and (slot in tensors or not told):
            continue
        if repr(a) != repr(b) and not slot.endswith("device"):
            yield slot, a, b
