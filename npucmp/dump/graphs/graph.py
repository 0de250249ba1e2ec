"""The nouns of a graph: what a compiler or framework says that it executes. Immutable, and without any tensor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Optional

from npucmp.dump.context import ReadContext


class Port(NamedTuple):
    """What a graph says of one input or output.

    dtype          the graph's word ("DT_FLOAT16"), "" if it has none
    layout, shape  as stored ("NC1HWC0"); a dimension below 0 was not known when the graph was compiled
    origin_layout  order of the logical axes ("NHWC"), "" if unknown
    origin_shape   logical shape, None if unknown
    origin_name    operator of the unfused network whose output this is, "" if the graph does not say
    origin_index   which output of that operator; its own index if the graph does not say
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

    order      place in the order of execution; not unique where a graph was written before it had one
    inputs     (producer, its output index) in input order, without optional inputs that are absent: the i-th is
               input i of a dump
    controls   operators that must have run before, without handing anything over
    originals  operators of the unfused network that it computes; () if the compiler inserted it, None if the graph
               does not say, which it does not for operators that it took over as they were
    passes     fusion passes that made it, in the order in which they ran
    is_multiop, group  it is one of several that together compute its originals; `group` names those of one L1 fusion
    ports_in   one for each of `inputs`, or none at all where descriptions and inputs cannot be told to belong together
    ports_out  one for each output, or none at all
    scope      number of the fusion in the unified buffer that it is about to go into, 0 for none
    attributes how it computes: those of attributes.py
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


@dataclass(frozen=True)
class Graph:
    """One graph of a file, its nodes in order of execution; several may bear one name."""

    path: str
    name: str
    nodes: tuple[Node, ...]

    @cached_property
    def of_device(self) -> bool:
        """Whether the compiler of a device wrote it: such a graph tells what is fused, and describes each tensor."""
        return any(node.ports_out or node.originals is not None for node in self.nodes)


class GraphSource(NamedTuple):
    """Which graphs know the operators of a format, as the format itself says.

    of_device  those of a device's compiler, which lie anywhere around the dump; else the framework's, which lie beside
               it. Names alone would not do: they would tell a reference what the device fused.
    own        (path, notes, context) → the graphs that a dump of the format holds itself; a broken one is a note
    """

    of_device: bool = False
    own: Optional[Callable[[Path, list[str], ReadContext], list[Graph]]] = None


def groups(graph: Graph) -> dict[Hashable, list[Node]]:
    """Nodes that together compute the same part of the unfused network, in order of execution.

    Those of one fusion in the unified buffer, of one L1 fusion, or with the same originals; all others are by
    themselves. Inserted nodes are in none.
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


def united(graph: Graph) -> list[Node]:
    """The operators that fusions in the unified buffer are about to make; each bears the names of all its parts."""
    parts = [nodes for nodes in groups(graph).values() if len(nodes) > 1 and nodes[0].scope]
    readers: dict[tuple[str, int], set[int]] = {}
    for node in graph.nodes if parts else ():
        for read in node.inputs:
            readers.setdefault(read, set()).add(node.scope)
    return [_united(nodes, readers) for nodes in parts]


def _united(nodes: Sequence[Node], readers: Mapping[tuple[str, int], set[int]]) -> Node:
    scope = nodes[0].scope
    written = [
        port._replace(origin_name=port.origin_name or node.name)
        for node in nodes
        for index, port in enumerate(node.ports_out)
        if readers.get((node.name, index), {0}) - {scope}
    ]
    originals = tuple(dict.fromkeys(name for node in nodes for name in node.originals or (node.name,)))
    return joined("".join(node.name for node in nodes), nodes, originals, tuple(written))


def joined(name: str, nodes: Sequence[Node], originals: tuple[str, ...], written: tuple[Port, ...]) -> Node:
    """Several nodes as one that reads what none of them wrote."""
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
