"""Findings grouped by operator: what it read, what it wrote, and what contains it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby
from typing import Iterable, Iterator, Mapping, Sequence

from npucmp.model import Finding, Operator, Pair

PARAMETERS = {  # positional inputs that are parameters, of functional operators; modules say param: themselves
    "linear": (1, 2), "conv1d": (1, 2), "conv2d": (1, 2), "conv3d": (1, 2), "conv_transpose2d": (1, 2),
    "embedding": (1,), "layer_norm": (2, 3), "batch_norm": (1, 2, 3, 4), "group_norm": (2, 3),
    "instance_norm": (1, 2, 3, 4), "rms_norm": (2,), "prelu": (1,), "bilinear": (2, 3), "addmm": (0, 2),
    "Conv2D": (1, 2), "Conv3D": (1, 2), "DepthwiseConv2D": (1, 2), "DepthwiseConv2dNative": (1,), "BiasAdd": (1,),
    "FusedBatchNorm": (1, 2, 3, 4), "FusedBatchNormV2": (1, 2, 3, 4), "FusedBatchNormV3": (1, 2, 3, 4),
    "BNInfer": (1, 2, 3, 4), "LayerNorm": (1, 2), "FullyConnection": (1, 2),
}  # fmt: skip

IN_PLACE = re.compile(r"[a-z0-9]_$|^__i[a-z]+__$|^__setitem__$|^(Apply|Assign|Scatter|Inplace)[A-Z]?")
UNINITIALISED = {"empty", "emptylike", "newempty", "emptystrided", "newemptystrided", "emptywithformat"}
WORKSPACES = {  # outputs that only the operator's own gradient reads; their content is the device's business
    "FusedBatchNormV3": ("output:3", "output:4", "output:5"),  # reserve_space_1 to 3 in TensorFlow's API
    "FusedBatchNormV2": ("output:3", "output:4"),
}


@dataclass
class Node:
    """One matched operator: its findings, and what the search has made of it."""

    pair: Pair
    inputs: list[Finding]
    outputs: list[Finding]
    context: list[Finding] = field(default_factory=list)  # forward tensors that a backward operator also reads
    tainted: bool = False

    @property
    def operator(self) -> Operator:
        return self.pair.operator

    @property
    def reads_recorded(self) -> bool:
        """Whether either run says what the operator reads: what one read, the other did."""
        return any(op.reads_recorded for op in (self.pair.target_op, self.pair.golden_op) if op is not None)


def nodes_of(findings: Sequence[Finding]) -> list[Node]:
    """Matched operators in graph order; gradients of parameters read what their module's backward reads."""
    nodes = []
    for _, group in groupby(findings, key=lambda finding: finding.pair.order):
        rows = list(group)
        pair = rows[0].pair
        if pair.target_op is None or pair.golden_op is None:
            continue
        outputs = [row for row in rows if is_output(row.pair)]
        inputs = [row for row in rows if not is_output(row.pair) and not is_argument(row.pair)]
        nodes.append(Node(pair, inputs, outputs))
    forward = {node.operator.call: node for node in nodes if node.operator.phase == "forward"}
    backward = _by_module(node for node in nodes if node.operator.phase == "backward")
    for node in nodes:
        if node.operator.phase == "backward":
            partner = forward.get(node.operator.call)
            node.context += partner.inputs + partner.outputs if partner else []
            if ".parameters_grad" in node.operator.name:
                for other in backward.get(node.operator.call, ()):
                    node.inputs += other.inputs
    return nodes


def _by_module(nodes: Iterable[Node]) -> "Mapping[str, list[Node]]":
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.operator.call.rpartition(".")[0], []).append(node)
    return found


def is_output(pair: Pair) -> bool:
    """Whether a pair is something that its operator wrote."""
    tensor = pair.target or pair.golden
    return tensor is not None and tensor.is_output


def is_argument(pair: Pair) -> bool:
    """Whether a tensor holds an argument (an epsilon), which is no input that an error comes in by."""
    sides = pair.target_op, pair.golden_op
    return all(operator is not None and pair.slot in operator.arguments for operator in sides)


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
    op_type = pair.operator.op_type
    if op_type.replace("_", "").lower() in UNINITIALISED:  # empty_like of PyTorch, EmptyLike of MindSpore and GE
        return pair.slot.startswith("output")
    return pair.slot in WORKSPACES.get(op_type, ())


def is_parameter(pair: Pair) -> bool:
    """Whether a tensor is a weight, a bias or a running statistic, as far as slot and operator tell."""
    role, _, key = pair.slot.partition(":")
    if role == "param":
        return True
    return (
        key.isdecimal()
        and len(key) < 10
        and int(key) in PARAMETERS.get(pair.operator.op_type, ())
        and pair.operator.phase != "backward"
    )


def differing_arguments(target: Operator, golden: Operator) -> Iterable[tuple[str, object, object]]:
    """(slot, target's value, golden's value); devices are expected to differ, and NaN equals NaN.

    What is an argument on one side and a tensor on the other is compared as a tensor, or not at all. Nothing is absent
    where nothing that the operator reads was recorded.
    """
    told = all(map(_tells_reads, (target, golden)))
    tensors = {tensor.slot for operator in (target, golden) for tensor in operator.tensors}
    for slot in {**target.arguments, **golden.arguments}:
        a, b = target.arguments.get(slot, "absent"), golden.arguments.get(slot, "absent")
        if "absent" in (a, b) and (slot in tensors or not told):
            continue
        if repr(a) != repr(b) and not slot.endswith("device"):
            yield slot, a, b


def _tells_reads(operator: Operator) -> bool:
    some = bool(operator.arguments) or any(not tensor.is_output for tensor in operator.tensors)
    return operator.reads_recorded and some
