"""Read graphs of TensorFlow: a GraphDef as text (graph.pbtxt) or in wire format (graph.pb, the Event of a tfdbg dump).

    GraphDef  node 1
    NodeDef   name 1 · op 2 · input 3: "producer", "producer:output index", "^producer" for a control edge ·
              attr 5: key 1 · value 2, see attributes.py

A GraphDef has no order of execution: nodes get a topological order, with ties in the order of the file.
Nodes that tfdbg inserted are removed: each watched output passes through "__copy_{producer}_{output index}" (op Copy
or CopyHost) to its readers, and "__dbg_…" (op Debug…) writes it.
Source: graph.proto and node_def.proto of TensorFlow; the names of tfdbg from a graph that it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from npucmp.dump.graphs import attributes
from npucmp.dump.graphs.graph import Graph, Node, in_topological_order
from npucmp.dump.readers.protobuf import Cursor, WireField
from npucmp.dump.readers.textproto import Message, messages, texts
from npucmp.errors import DumpError

_NODE = 1
_NAME, _OP, _INPUT, _ATTR = 1, 2, 3, 5
_KEY, _VALUE = 1, 2
_HOPS = 8  # copies of copies; tfdbg makes none, but a malformed file may hold copies that form a cycle


class _Raw(NamedTuple):
    """A NodeDef with the fields of the file."""

    name: str
    op: str
    inputs: Sequence[str]
    attributes: Mapping[str, Any]


def graphdef_graphs(tree: Message, path: object) -> list[Graph]:
    """Return the graph of a GraphDef. Raises DumpError for fields of another type."""
    try:
        return [_graph([_raw(node) for node in messages(tree, "node")], str(path))]
    except ValueError as error:
        raise DumpError(path, f"not a GraphDef: {error}") from None


def from_wire(cursor: Cursor, start: int, end: int, path: object) -> Graph:
    """Return the graph of the GraphDef between two positions of a file. Raises DumpError for other content."""
    nodes = (field for field in cursor.fields(start, end) if field.number == _NODE and field.wire == 2)
    return _graph([_raw_of_wire(cursor, node.start, node.end) for node in nodes], str(path))


def _raw(node: Message) -> _Raw:
    name, op = ("".join(texts(node, field)[-1:]) for field in ("name", "op"))
    return _Raw(name, op, texts(node, "input"), _attributes(node))


def _attributes(node: Message) -> dict[str, Any]:
    """Return the attributes of a node. Attributes are optional: malformed ones are skipped."""
    found = {}
    for entry in node.get("attr", ()):
        with suppress(ValueError, AttributeError):  # AttributeError: not a message
            keys, values = texts(entry, "key"), messages(entry, "value")
            value = attributes.of_text(values[0]) if keys and values else None
            if value is not None:
                found[keys[0]] = value
    return found


def _raw_of_wire(cursor: Cursor, start: int, end: int) -> _Raw:
    attributes_found: dict[str, Any] = {}
    words: dict[int, list[str]] = {_NAME: [""], _OP: [""], _INPUT: []}
    for field in cursor.fields(start, end):
        if field.number in words and field.wire == 2:
            words[field.number].append(cursor.text(field))
        elif field.number == _ATTR and field.wire == 2:
            with suppress(DumpError):  # skip malformed attributes, as in _told
                attributes_found.update(_attribute(cursor, field))
    return _Raw(words[_NAME][-1], words[_OP][-1], words[_INPUT], attributes_found)


def _attribute(cursor: Cursor, entry: WireField) -> dict[str, Any]:
    """Return one entry of the attribute map, {} if it is not kept."""
    parts = {field.number: field for field in cursor.fields(entry.start, entry.end) if field.wire == 2}
    key = cursor.text(parts[_KEY]) if _KEY in parts and _VALUE in parts else ""
    if key not in attributes.WANTED and key != attributes.VALUE:
        return {}
    value = attributes.of_wire(cursor, parts[_VALUE])
    return {} if value is None else {key: value}


def _graph(raw: Sequence[_Raw], path: str) -> Graph:
    copies = {
        node.name: _data(node.inputs)[:1]
        for node in raw
        if node.op in ("Copy", "CopyHost") and node.name.startswith("__copy_")
    }
    debug = {node.name for node in raw if node.op.startswith("Debug") and node.name.startswith("__dbg_")}
    computing = [node for node in raw if node.name not in copies and node.name not in debug]
    nodes = [_node(node, copies, debug) for node in computing]
    return Graph(path, "", tuple(in_topological_order(nodes)))


def _node(node: _Raw, copies: Mapping[str, Sequence[tuple[str, int]]], debug: set[str]) -> Node:
    read = (_source(one, copies) for one in _data(node.inputs))
    before = (_source((name[1:], 0), copies)[0] for name in node.inputs if name.startswith("^"))
    controls = dict.fromkeys(name for name in before if name not in debug)
    return Node(node.name, node.op, inputs=tuple(read), controls=tuple(controls), attributes=node.attributes)


def _data(inputs: Iterable[str]) -> list[tuple[str, int]]:
    found = []
    for text in inputs:
        name, _, index = text.rpartition(":")
        if not text or text.startswith("^"):
            continue
        found.append((name, int(index)) if name and index.isdecimal() and len(index) < 10 else (text, 0))
    return found


def _source(read: tuple[str, int], copies: Mapping[str, Sequence[tuple[str, int]]]) -> tuple[str, int]:
    """Return the original tensor of a copy."""
    for _ in range(_HOPS):
        if not copies.get(read[0]):
            break
        read = copies[read[0]][0]
    return read
