"""Operators that bear the name of a tensor become outputs of the node that wrote it.

Engines and ONNX Runtime name tensors, other tools name nodes. torch's exporter names output 0 of node "/head/Conv"
"/head/Conv_output_0"; TensorFlow and tf2onnx name it "head/Conv:0".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Optional

from npucmp.dump.readers.names import file_name_of, type_of_name
from npucmp.model import Operator, Run, TensorRef

_OUTPUT = re.compile(r"(?P<node>.+?)(?:_output_|:)(?P<index>[0-9]{1,4})")

NodeOutput = tuple[str, int]  # the name of a node, and the number of its output


def by_node(run: Run, node_of: Callable[[str], Optional[NodeOutput]]) -> Run:
    """Return the run in which operators with one output, named as tensors, are outputs of their nodes; the same run if
    `node_of` knows none of the names."""
    places = {op.order: node for op in run.operators if _is_tensor(op) and (node := node_of(op.name)) is not None}
    if not places:
        return run
    found: dict[str, Operator] = {}
    for op in run.operators:
        if op.order not in places:
            found[f"\0{op.order}"] = op
            continue
        name, index = places[op.order]
        inputs, written = [tensor for tensor in op.tensors if not tensor.is_output], op.tensors[-1]
        tensor = written._replace(slot=f"output:{index}", label=written.label or op.name)
        known = found.get(name)
        if known is None or any(other.slot == tensor.slot for other in known.tensors):  # else another execution
            key = name if known is None else f"\0{op.order}"
            own = op._replace(name=name, op_type=type_of_name(name), kind=name, call=name, tensors=(*inputs, tensor))
            found[key] = own if op.op_type == type_of_name(op.name) else own._replace(op_type=op.op_type)
        else:
            outputs = sorted((*(made for made in known.tensors if made.is_output), tensor), key=_slot_number)
            before = (read for read in known.tensors if not read.is_output)
            found[name] = known._replace(tensors=(*before, *outputs))
    operators = tuple(op._replace(order=order) for order, op in enumerate(found.values()))
    return replace(run, operators=operators)


def in_node_names(target: Run, golden: Run) -> tuple[Run, Run]:
    """Return both runs with the names of nodes where one run names nodes and the other their output tensors."""
    return _named_after(target, golden), _named_after(golden, target)


def _named_after(run: Run, other: Run) -> Run:
    own, nodes = ({file_name_of(op.name) for op in side.operators} for side in (run, other))
    names = {file_name_of(op.name): op.name for op in other.operators}

    def node_of(name: str) -> Optional[NodeOutput]:
        parts = _OUTPUT.fullmatch(name)
        node = file_name_of(parts["node"]) if parts is not None else ""
        if parts is None or node not in nodes or node in own or file_name_of(name) in nodes:
            return None
        return names[node], int(parts["index"])

    return by_node(run, node_of)


def _is_tensor(op: Operator) -> bool:
    return [tensor.slot for tensor in op.tensors if tensor.is_output] == ["output:0"] and op.tensors[-1].is_output


def _slot_number(tensor: TensorRef) -> int:
    return int(tensor.slot.partition(":")[2])
