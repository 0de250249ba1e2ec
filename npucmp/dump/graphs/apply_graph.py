"""Annotate a run with its graphs: the operators that each operator computes, and the tensors that it reads.

A GE graph gives: originals and passes of a fused operator, the tensor of the unfused network that each output is
(`origin`), the tensor that each input reads (`source`) and its origin, logical shapes, axis orders, and the order of
execution. A TensorFlow GraphDef, whose dumps hold outputs only, gives types and the inputs themselves, which are the
outputs of their producers.
Source of the rules: attributes of GE's public graph_metadef, and msaccucmp's mapping of outputs and inputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Mapping, Optional, Sequence

from npucmp.dump.graphs.attributes import VALUE
from npucmp.dump.graphs.graph import Graph, GraphIndex, Node, Port, merge_graphs, with_joined
from npucmp.dump.layouts import DEVICE_LAYOUTS, fits
from npucmp.dump.readers.folders import from_newest
from npucmp.dump.readers.names import fed_tensor, file_name_of
from npucmp.dump.readers.node_outputs import by_node
from npucmp.model import Operator, Run, TensorRef
from npucmp.model.optypes import op_type

_HOPS = 64  # operators passed through on the way back to a dumped producer
_LEAST = 0.2  # minimum share of a run's operators that its graph holds


Written = Mapping[tuple[str, int], Sequence[TensorRef]]  # (node, output index) → its tensors, oldest execution first


def holds(graph: Graph, run: Run) -> float:
    """Return the share of a run's operators that a graph holds."""
    known = merge_graphs([graph])
    return sum(map(known.has, (operator.name for operator in run.operators))) / max(1, len(run.operators))


def matching_graphs(graphs: Sequence[Graph], run: Run) -> list[Graph]:
    """Return the graphs of a run: of several states of one graph the one with the largest share, the last of equals."""
    best: dict[str, tuple[float, Graph]] = {}
    for number, graph in enumerate(graphs):
        share = holds(graph, run)
        name = graph.name or f"\0{number}"
        if share > 0 and share >= best.get(name, (0.0, graph))[0]:
            best[name] = share, graph
    found = sorted(best.values(), key=lambda one: -one[0])
    enough = [one for share, one in found if share >= _LEAST or share * len(run.operators) >= 0.5 * len(one.nodes)]
    return _useful_graphs([graph for graph in enough if not _is_less_fused(run, graph, enough)], run)


def _is_less_fused(run: Run, graph: Graph, graphs: Sequence[Graph]) -> bool:
    """Return whether a run executed separately operators that a graph has fused: then the graph is not of this run."""
    nodes = {
        file_name_of(node.name) for one in graphs for node in one.nodes
    }  # one part of a split operator has its name
    fused = {file_name_of(name) for node in graph.nodes for name in node.originals or ()} - nodes
    return any(file_name_of(operator.name) in fused for operator in run.operators)


def _useful_graphs(graphs: Sequence[Graph], run: Run) -> list[Graph]:
    """Drop graphs, given best first, that add no operators to better graphs."""
    left = {file_name_of(operator.name) for operator in run.operators}
    found = []
    for graph in graphs:
        names = {file_name_of(name) for node in graph.nodes for name in (node.name, *node.outputs)}
        if left & names:
            found.append(graph)
            left -= names
    return found


def annotate(run: Run, graphs: Sequence[Graph]) -> Run:
    """Return the run annotated by its graphs; the same run if no graph fits."""
    models = _models(run, graphs)
    if len(models) < 2:
        return _annotate(run, graphs)
    operators, notes = list(run.operators), list(run.notes)
    for model, places in models.items():  # the compiler's own names (trans_Cast_1) repeat in every model
        part = replace(run, operators=tuple(run.operators[place] for place in places), notes=())
        files = {graph.path for graph in graphs if file_name_of(graph.name) == model}
        part = _annotate(part, [graph for graph in graphs if graph.path in files] if model else graphs)
        for place, operator in zip(places, part.operators):
            operators[place] = operator._replace(order=place)
        notes += [note for note in part.notes if note not in notes]
    if operators == list(run.operators):
        return run
    return replace(run, operators=tuple(operators), ordered=True, notes=tuple(notes))


def _models(run: Run, graphs: Sequence[Graph]) -> dict[str, list[int]]:
    """Map each model to the positions of its operators; GE names the folder of a model's dump after its graph."""
    names = {file_name_of(graph.name) for graph in graphs if graph.name}
    found: dict[str, list[int]] = defaultdict(list)
    for place, operator in enumerate(run.operators):
        folders = set(PurePath(operator.tensors[0].file).parts) if operator.tensors and names else set[str]()
        found[min(names & folders, default="")].append(place)
    return found


def _annotate(run: Run, graphs: Sequence[Graph]) -> Run:
    chosen = matching_graphs(graphs, run)
    if not chosen:
        return run
    known = with_joined(merge_graphs(chosen), run)
    run = by_node(run, known.writer)
    written = _outputs_by_node(run, known)
    counted = from_newest(run.operators, lambda operator: operator.name)
    operators = [_with_node(operator, back, known, written) for operator, back in counted]
    files = dict.fromkeys(graph.path for graph in chosen)
    return replace(
        run,
        operators=tuple(_in_order(operators, known) if _has_order(chosen) else _after_producers(operators)),
        ordered=True,
        notes=(*run.notes, *(f"graph {path}" for path in files)),
    )


def _outputs_by_node(run: Run, known: GraphIndex) -> dict[tuple[str, int], list[TensorRef]]:
    """Map (node, output index) to the tensors of that output, oldest execution first."""
    last = dict(known.last)
    found: dict[tuple[str, int], list[TensorRef]] = defaultdict(list)
    for operator in run.operators:
        node, number = known.node(operator.name), ""
        if node is None:
            name, _, number = fed_tensor(operator.name).partition(":")
            node = known.node(name)
        for tensor in operator.tensors if node is not None else ():
            index = int(number) if number else _index(tensor)
            if node is not None and tensor.slot.startswith("output") and index is not None:
                found[last.get(node.name, node.name), index].append(tensor)
    return found


def _index(tensor: TensorRef) -> Optional[int]:
    index = tensor.slot.partition(":")[2]
    return int(index) if index.isdecimal() and len(index) < 10 else None


def _with_node(operator: Operator, back: int, known: GraphIndex, written: Written) -> Operator:
    """Return the operator annotated by its node; `back` executions of it are newer."""
    node = known.node(operator.name)
    if node is None:
        return operator
    tensors = operator.tensors
    if operator.reads_recorded or node.ports_out:
        tensors = _node_tensors(tensors, node, known, written)
    reads_recorded = operator.reads_recorded
    if not any(tensor.slot.startswith("input") for tensor in tensors):
        borrowed = [_undumped_input(i, one, back, known, written) for i, one in enumerate(node.inputs)]
        tensors = (*(tensor for tensor in borrowed if tensor is not None), *tensors)
        reads_recorded = all(
            tensor is not None or _is_constant(one[0], known) for tensor, one in zip(borrowed, node.inputs)
        )
    originals = node.originals if node.originals is not None else ()
    return operator._replace(
        op_type=node.op_type or operator.op_type,
        tensors=tensors,
        reads_recorded=reads_recorded,
        originals=originals,
        inserted=_is_inserted(node) if node.ports_out else operator.inserted and not originals,
        passes=node.passes,
        attributes=_attributes(node, known),
    )


def _attributes(node: Node, known: GraphIndex) -> dict[str, Any]:
    """Return the attributes of a node, the constants that it reads, and the axis orders of its inputs and outputs."""
    found = dict(node.attributes)
    for i, (name, _) in enumerate(node.inputs):
        producer = known.by_name.get(name)
        if producer is not None and VALUE in producer.attributes:
            found[f"input:{i}"] = producer.attributes[VALUE]
    for role, ports in (("input", node.ports_in), ("output", node.ports_out)):
        orders = {f"order of {role}:{i}": port.origin_layout or port.layout for i, port in enumerate(ports)}
        found.update((key, order) for key, order in orders.items() if order)
    return found


def _is_constant(name: str, known: GraphIndex) -> bool:
    node = known.by_name.get(name)
    return node is not None and op_type(node.op_type).has("constant")


def _undumped_input(
    i: int, read: tuple[str, int], back: int, known: GraphIndex, written: Written
) -> Optional[TensorRef]:
    """Return an input that was not dumped: the output that it reads, of the same execution."""
    for one in _back(read, known):
        if one in written:
            dumped = written[one][max(0, len(written[one]) - 1 - back)]
            producer = known.by_name[one[0]]
            origin = _origin(producer, one[1], known) if producer.ports_out else ""
            return _logical_output(dumped, one, known)._replace(
                slot=f"input:{i}", source=f"{one[0]}:{one[1]}", origin=origin
            )
    return None


def _logical_output(tensor: TensorRef, one: tuple[str, int], known: GraphIndex) -> TensorRef:
    ports = known.by_name[one[0]].ports_out
    return _logical(tensor, ports[one[1]]) if one[1] < len(ports) else tensor


def _back(read: tuple[str, int], known: GraphIndex) -> list[tuple[str, int]]:
    """Return the tensor that is read, and the tensors it is a copy of, nearest first."""
    found = [read]
    for _ in range(_HOPS):
        node = known.by_name.get(found[-1][0])
        if node is None or not _copies_input(node) or node.inputs[0] in found:
            break
        found.append(node.inputs[0])
    return found


def _copies_input(node: Node) -> bool:
    """Return whether the output of a node equals its first input."""
    return bool(node.inputs) and op_type(node.op_type).has("hands on")


def _node_tensors(
    tensors: Sequence[TensorRef], node: Node, known: GraphIndex, written: Written
) -> tuple[TensorRef, ...]:
    """Return the tensors of an operator of a GE graph with the facts of their descriptors."""
    inputs = _places(tensors, "input", node.ports_in)
    outputs = _places(tensors, "output", node.ports_out)
    found = []
    for at, tensor in enumerate(tensors):
        port: Optional[Port] = None
        if at in outputs:
            port = node.ports_out[outputs[at]]
            tensor = tensor._replace(origin=_origin(node, outputs[at], known) or tensor.origin)
        elif at in inputs:
            port = node.ports_in[inputs[at]]
            if inputs[at] < len(node.inputs):
                tensor = _linked_input(tensor, node.inputs[inputs[at]], known, written)
        found.append(tensor if port is None else _logical(tensor, port))
    return tuple(found)


def _places(tensors: Sequence[TensorRef], role: str, ports: Sequence[Port]) -> dict[int, int]:
    """Map tensors to descriptors, both by index.

    Tensors match in order if the counts are equal; otherwise only by a stored shape that exactly one descriptor has.
    """
    mine = [at for at, tensor in enumerate(tensors) if tensor.slot.startswith(role)]
    if len(mine) == len(ports):
        return dict(zip(mine, range(len(ports))))
    found = {}
    for at in mine:
        matching_graphs = [i for i, port in enumerate(ports) if tensors[at].stored_shape == tuple(port.shape)]
        if len(matching_graphs) == 1:
            found[at] = matching_graphs[0]
    taken = Counter(found.values())
    return {at: i for at, i in found.items() if taken[i] == 1}


def _origin(node: Node, index: int, known: GraphIndex, hops: int = _HOPS) -> str:
    """Return the tensor of the unfused network that an output is; "" for a tensor inside a fused operator.

    The output of an inserted operator that copies is its input. An inserted operator may bear the name of the operator
    that it precedes.
    """
    port = node.ports_out[index] if index < len(node.ports_out) else None
    if _is_inserted(node) and _copies_input(node) and hops:
        producer, at = node.inputs[0]
        before = known.by_name.get(producer)
        origin = _origin(before, at, known, hops - 1) if before is not None else f"{producer}:{at}"
        if origin:
            return origin
    if port is not None and port.origin_name:
        return f"{port.origin_name}:{port.origin_index}"
    if node.originals is None and not _is_inserted(node):
        return f"{node.name}:{index}"
    if node.originals and len(node.originals) == 1:
        inner = node.is_multiop and file_name_of(node.name) != file_name_of(node.originals[0])
        return "" if inner or (node.name, index) in known.inner else f"{node.originals[0]}:{index}"
    return ""


def _is_inserted(node: Node) -> bool:
    """Return whether the compiler inserted the operator, which an empty list of originals states.

    An operator that GE left alone has no list, for example a Cast of the network itself. A GraphDef has no lists: there
    an operator that copies its input counts as inserted.
    """
    if node.originals is not None:
        return node.originals == ()
    kind = op_type(node.op_type)
    if not node.ports_out:
        return kind.has("hands on")
    is_cast = kind.has("hands on") and not kind.has("copies")
    return kind.has("inserted") and (not is_cast or node.name.startswith("trans_"))


def _linked_input(tensor: TensorRef, read: tuple[str, int], known: GraphIndex, written: Written) -> TensorRef:
    """Return an input with the output that it reads (`source`) and the tensor of the unfused network (`origin`)."""
    dumped = next((one for one in _back(read, known) if one in written), read)
    producer = known.by_name.get(read[0])
    origin = _origin(producer, read[1], known) if producer is not None else f"{read[0]}:{read[1]}"
    stored = known.by_name.get(_back(read, known)[-1][0])
    return tensor._replace(
        source=f"{dumped[0]}:{dumped[1]}",
        origin=origin,
        stored=stored is not None and op_type(stored.op_type).has("stored"),
    )


def _logical(tensor: TensorRef, port: Port) -> TensorRef:
    """Return the tensor in the logical shape and axis order of its descriptor, if the stored shape fits."""
    payload = tensor.payload
    if payload is None or payload.device is None or port.origin_shape is None:
        return tensor
    device, shape = payload.device, tuple(port.origin_shape)
    order = port.origin_layout if port.origin_layout not in ("", *DEVICE_LAYOUTS) else device.origin
    if not fits(device.shape, device.layout, order, shape, device.groups):
        return tensor
    return tensor._replace(shape=shape, payload=payload._replace(shape=shape, device=device._replace(origin=order)))


def _has_order(graphs: Sequence[Graph]) -> bool:
    """Return whether the graphs have an order of execution: a GE graph has one, a GraphDef gives only dependencies."""
    return any(node.ports_out for graph in graphs for node in graph.nodes)


def _after_producers(operators: Sequence[Operator]) -> list[Operator]:
    """Sort operators by time, but each after the operators that it reads: a debugger may write producers later."""
    times = Counter(operator.name for operator in operators)
    places = {file_name_of(op.name): i for i, op in enumerate(operators) if times[op.name] == 1}
    done: dict[int, None] = {}
    for start in range(len(operators)):
        path = {start: None} if start not in done else {}  # a dictionary, so that a cycle is found fast
        while path:
            last = next(reversed(path))
            reads = (places.get(file_name_of(t.source.rpartition(":")[0])) for t in operators[last].tensors if t.source)
            waiting = next((i for i in reads if i is not None and i not in done and i not in path), None)
            if waiting is not None:
                path[waiting] = None
            else:
                done[last] = path.pop(last)
    return [operators[i]._replace(order=order) for order, i in enumerate(done)]


def _in_order(operators: Sequence[Operator], known: GraphIndex) -> list[Operator]:
    """Sort by the order of the graph; an operator that it lacks follows its predecessor, repetitions follow in time."""
    keys, rounds = [], Counter[str]()
    last = (0, -1)
    for operator in operators:
        node = known.node(operator.name)
        if node is not None:
            last = (rounds[operator.name], node.order)
        rounds[operator.name] += 1
        keys.append(last)
    ranked = sorted(range(len(operators)), key=lambda i: (keys[i], i))
    return [operators[i]._replace(order=order) for order, i in enumerate(ranked)]
