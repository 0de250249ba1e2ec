"""Graph, Node and Port: the network that a compiler or framework executes. Immutable, without tensor values. GraphIndex
holds all graphs of a run, and finds a node by its name in a dump.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple, Optional

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.names import file_name_of, made_of
from npucmp.model import Run
from npucmp.model.optypes import op_type


class Port(NamedTuple):
    """The description of one input or output in a graph.

    dtype          the type name in the graph ("DT_FLOAT16"), "" if it has none
    layout, shape  as stored ("NC1HWC0"); a dimension below 0 was unknown when the graph was compiled
    origin_layout  order of the logical axes ("NHWC"), "" if unknown
    origin_shape   logical shape, None if unknown
    origin_name    operator of the unfused network whose output this is, "" if unknown
    origin_index   output index in that operator; the port's own index if unknown
    """

    dtype: str = ""
    layout: str = ""
    shape: tuple[int, ...] = ()
    origin_layout: str = ""
    origin_shape: Optional[tuple[int, ...]] = None
    origin_name: str = ""
    origin_index: int = 0


class Node(NamedTuple):
    """One operator of a graph.

    order      position in the order of execution; not unique if the graph was written before it had one
    inputs     (producer, its output index) in input order, without optional inputs that are absent: the i-th is
               input i of a dump
    controls   operators that must run before, without passing a tensor
    originals  operators of the unfused network that it computes; () if the compiler inserted it, None if the graph
               does not say, as for operators that the compiler left unchanged
    passes     fusion passes that made it, in the order in which they ran
    is_multiop, group  it is one of several that together compute its originals; `group` names the L1 fusion
    ports_in   one per entry of `inputs`, or () if descriptions and inputs cannot be matched
    ports_out  one per output, or ()
    scope      number of the unified-buffer fusion that will contain it, 0 for none
    attributes the attributes kept by attributes.py
    outputs    the names of its output tensors, if the graph names them (ONNX)
    """

    name: str
    op_type: str
    order: int = 0
    inputs: tuple[tuple[str, int], ...] = ()
    controls: tuple[str, ...] = ()
    originals: Optional[tuple[str, ...]] = None
    passes: tuple[str, ...] = ()
    is_multiop: bool = False
    group: str = ""
    ports_in: tuple[Port, ...] = ()
    ports_out: tuple[Port, ...] = ()
    scope: int = 0
    attributes: Mapping[str, Any] = {}
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """One graph of a file, its nodes in order of execution; several graphs may share a name."""

    path: str
    name: str
    nodes: tuple[Node, ...]

    @cached_property
    def of_device(self) -> bool:
        """Return whether a device compiler wrote the graph: it has fused operators and describes each tensor."""
        return any(node.ports_out or node.originals is not None for node in self.nodes)


class GraphSource(NamedTuple):
    """The source of the graphs that describe the operators of a format.

    of_device  True: graphs of a device's compiler, anywhere around the dump; False: graphs of the framework, beside the
               dump. Matching by names alone would give a reference run the fusions of the device.
    own        (path, notes, context) → the graphs stored inside a dump of the format; a malformed one becomes a note
    """

    of_device: bool = False
    own: Optional[Callable[[Path, list[str], ReadContext], list[Graph]]] = None


def in_topological_order(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes in topological order, the first in the file where several are possible.

    While loops are cycles. Edges that close a loop are left out; if a cycle remains, its first node goes first.
    """
    place = {node.name: i for i, node in reversed(list(enumerate(nodes)))}
    readers: dict[int, list[int]] = defaultdict(list)
    missing = [0] * len(nodes)
    for i, node in enumerate(nodes):
        names = {name for name, _ in node.inputs}.union(node.controls)
        before = {place[name] for name in names if name in place}
        for producer in before:
            if not op_type(nodes[producer].op_type).has("loops back"):  # the only edges that may close a cycle
                readers[producer].append(i)
                missing[i] += 1
    return [nodes[i]._replace(order=order) for order, i in enumerate(_topological_order(readers, missing))]


def _topological_order(readers: Mapping[int, Sequence[int]], missing: list[int]) -> list[int]:
    """Sort by Kahn's algorithm; `missing` counts the pending producers of each node and is modified."""
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    done = [False] * len(missing)
    order: list[int] = []
    first = 0
    while len(order) < len(missing):
        while not ready and done[first]:
            first += 1
        i = heappop(ready) if ready else first
        if done[i]:
            continue
        done[i] = True
        order.append(i)
        for reader in readers.get(i, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return order


def groups(graph: Graph) -> dict[Hashable, list[Node]]:
    """Group nodes that together compute the same part of the unfused network, in order of execution.

    A group shares a fusion in the unified buffer, an L1 fusion, or its originals; other nodes form groups of one.
    Inserted nodes are in no group.
    """
    found: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        if node.scope:
            key: Hashable = ("scope", node.scope)
        elif node.group:
            key = ("L1", node.group)
        else:
            key = (node.name,) if node.originals is None else node.originals
        if key:
            found.setdefault(key, []).append(node)
    return found


def fused_operators(graph: Graph) -> list[Node]:
    """Return the operators that unified-buffer fusions will make; the name of each joins the names of its parts."""
    parts = [nodes for nodes in groups(graph).values() if len(nodes) > 1 and nodes[0].scope]
    readers: dict[tuple[str, int], set[int]] = {}
    for node in graph.nodes if parts else ():
        for read in node.inputs:
            readers.setdefault(read, set()).add(node.scope)
    return [_merge_nodes(nodes, readers) for nodes in parts]


def _merge_nodes(nodes: Sequence[Node], readers: Mapping[tuple[str, int], set[int]]) -> Node:
    scope = nodes[0].scope
    written = [
        port._replace(origin_name=port.origin_name or node.name)
        for node in nodes
        for index, port in enumerate(node.ports_out)
        if readers.get((node.name, index), {0}) - {scope}
    ]
    originals = tuple(dict.fromkeys(name for node in nodes for name in node.originals or (node.name,)))
    return merge_nodes("".join(node.name for node in nodes), nodes, originals, tuple(written))


def merge_nodes(name: str, nodes: Sequence[Node], originals: tuple[str, ...], written: tuple[Port, ...]) -> Node:
    """Return several nodes as one, which reads the inputs that no part wrote."""
    names = {node.name for node in nodes}
    outside = [(node, i) for node in nodes for i, read in enumerate(node.inputs) if read[0] not in names]
    described = all(len(node.ports_in) == len(node.inputs) for node in nodes)
    return Node(
        name=name,
        op_type=nodes[0].op_type,
        order=nodes[-1].order,
        inputs=tuple(node.inputs[i] for node, i in outside),
        originals=originals,
        passes=tuple(dict.fromkeys(name for node in nodes for name in node.passes)),
        ports_in=tuple(node.ports_in[i] for node, i in outside) if described else (),
        ports_out=written,
        attributes={
            **{key: value for node in reversed(nodes) for key, value in node.attributes.items() if key != "inputs"},
            "parts": tuple(node.op_type for node in nodes),
        },
    )


class GraphIndex(NamedTuple):
    """All graphs of a run in one: nodes by name and by escaped name."""

    by_name: Mapping[str, Node]
    by_key: Mapping[str, Optional[Node]]
    inner: frozenset[tuple[str, int]] = frozenset()  # outputs read only by other parts of the same original operator
    last: tuple[tuple[str, str], ...] = ()  # node merged by the compiler → the last of its parts
    tensors: Mapping[str, tuple[str, int]] = {}  # escaped name of an output → its node and index

    def node(self, name: str) -> Optional[Node]:
        """Return the node of a dumped name, escaped or not; None if none matches, or more than one."""
        return self.by_name.get(name) or self.by_key.get(file_name_of(name))

    def writer(self, name: str) -> Optional[tuple[str, int]]:
        """Return the node and index of an output by the dumped name of the tensor; None for the name of a node."""
        return None if self.node(name) is not None else self.tensors.get(file_name_of(name))

    def has(self, name: str) -> bool:
        return self.node(name) is not None or self.writer(name) is not None


def merge_graphs(graphs: Sequence[Graph]) -> GraphIndex:
    """Merge several graphs; of two nodes with the same name the first counts."""
    by_name: dict[str, Node] = {}  # several graphs of one run may share node names
    for graph in graphs:
        for node in (*graph.nodes, *fused_operators(graph)):
            by_name.setdefault(node.name, node)
    by_key: dict[str, Optional[Node]] = {}
    for node in by_name.values():
        key = file_name_of(node.name)
        by_key[key] = None if key in by_key else node
    tensors = {
        file_name_of(output): (node.name, index)
        for node in by_name.values()
        for index, output in enumerate(node.outputs)
    }
    return GraphIndex(by_name, by_key, _inner(by_name), tensors=tensors)


def with_joined(known: GraphIndex, run: Run) -> GraphIndex:
    """Add nodes that the compiler merged later and named after their parts ("Add_2Cast_9").

    The outputs of such a node are those of its last part.
    """
    strange = {operator.name for operator in run.operators if known.node(operator.name) is None}
    lengths = sorted({len(key) for key in known.by_key if key}, reverse=True) if strange else []
    found: dict[str, Node] = {}
    last: dict[str, str] = {}
    for name in strange:
        parts = [known.by_key[part] for part in made_of(file_name_of(name), known.by_key, lengths)]
        nodes = [node for node in parts if node is not None]
        if len(nodes) == len(parts) > 1:
            found[name] = merge_nodes(name, nodes, tuple(dict.fromkeys(map(_stands_for, nodes))), nodes[-1].ports_out)
            last[name] = nodes[-1].name
    by_key = {**known.by_key, **{file_name_of(name): node for name, node in found.items()}}
    return known._replace(by_name={**known.by_name, **found}, by_key=by_key, last=tuple(last.items()))


def _stands_for(node: Node) -> str:
    """Return the operator of the unfused network that a node computes, according to its graph."""
    return next((port.origin_name for port in node.ports_out if port.origin_name), node.name)


def _inner(nodes: Mapping[str, Node]) -> frozenset[tuple[str, int]]:
    """Return the inner outputs of originals that several operators compute.

    An example is RandomNormalLike, computed by a draw, a product and a sum: only the output that others read belongs to
    the original operator.
    """
    stays: dict[tuple[str, int], bool] = {}
    for node in nodes.values():
        for read in node.inputs:
            producer = nodes.get(read[0])
            if producer is not None and producer.originals and len(producer.originals) == 1:
                stays[read] = stays.get(read, True) and node.originals == producer.originals
    return frozenset(read for read, value in stays.items() if value)
