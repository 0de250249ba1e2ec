"""Read the graph of an ONNX model from the protobuf wire format, without the onnx package.

    ModelProto      ir_version 1 · graph 7
    GraphProto      node 1 · initializer 5 · input 11 · sparse_initializer 15
    NodeProto       input 1 · output 2 · name 3 · op_type 4 · attribute 5
    AttributeProto  name 1 · f 2 · i 3 · s 4 · floats 7 · ints 8
    TensorProto     name 8 (of an initializer; its values are skipped)

A node without a name has that of its first output. Inputs of the graph are nodes of type Placeholder, initializers of
type Const, as in a GraphDef. The graphs inside If, Loop and Scan are skipped.
Source: onnx.proto of ONNX.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from npucmp.dump.graphs import attributes
from npucmp.dump.graphs.graph import Graph, Node, in_topological_order
from npucmp.dump.readers.protobuf import Cursor, WireField, to_signed
from npucmp.errors import DumpError

HEAD = re.compile(rb"\x08[\x01-\x40][\x12\x1a\x22\x28\x32\x3a\x42]")  # ir_version, then a field of ModelProto
_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _SPARSE = 1, 5, 11, 15
_READS, _WRITES, _NAME, _OP, _ATTRIBUTE = 1, 2, 3, 4, 5
_TENSOR_NAME, _VALUES = 8, 1
_F, _I, _S, _FLOATS, _INTS = 2, 3, 4, 7, 8


class _Raw(NamedTuple):
    """A NodeProto with the fields of the file."""

    name: str
    op: str
    reads: Sequence[str]
    writes: Sequence[str]
    attributes: dict[str, Any]


def from_wire(cursor: Cursor, start: int, end: int, path: object) -> Graph:
    """Return the graph of the ModelProto between two positions of a file. Raises DumpError for other content."""
    graphs = [field for field in cursor.fields(start, end) if field.number == _GRAPH and field.wire == 2]
    if not graphs:
        raise DumpError(path, "not an ONNX model: it has no graph")
    raw = []
    for field in cursor.fields(graphs[-1].start, graphs[-1].end):
        if field.wire != 2:
            continue
        if field.number == _NODE:
            raw.append(_raw(cursor, field))
        elif field.number == _INPUT:
            name = _text(cursor, field, 1)
            raw.append(_Raw(name, "Placeholder", (), (name,), {}))
        elif field.number in (_INITIALIZER, _SPARSE):
            name = _initializer_name(cursor, field)
            raw.append(_Raw(name, "Const", (), (name,), {}))
    return _graph(raw, str(path))


def _raw(cursor: Cursor, node: WireField) -> _Raw:
    words: dict[int, list[str]] = {_READS: [], _WRITES: [], _NAME: [""], _OP: [""]}
    found: dict[str, Any] = {}
    for field in cursor.fields(node.start, node.end):
        if field.number in words and field.wire == 2:
            words[field.number].append(cursor.text(field))
        elif field.number == _ATTRIBUTE and field.wire == 2:
            with suppress(DumpError):  # attributes are optional: malformed ones are skipped
                found.update(_attribute(cursor, field))
    written = next(filter(None, words[_WRITES]), "")
    return _Raw(words[_NAME][-1] or written, words[_OP][-1], words[_READS], words[_WRITES], found)


def _attribute(cursor: Cursor, entry: WireField) -> dict[str, Any]:
    """Return one attribute, {} if it is not kept."""
    name = _text(cursor, entry, 1)
    if name not in attributes.WANTED:
        return {}
    single: list[Any] = []
    several: list[Any] = []
    for field in cursor.fields(entry.start, entry.end):
        if field.number in (_F, _FLOATS) and field.wire in (2, 5):
            values = _floats(cursor, field)
            (single if field.number == _F else several).extend(values)
        elif field.number in (_I, _INTS) and field.wire in (0, 2) and field.end - field.start <= attributes.MOST * 10:
            (single if field.number == _I else several).extend(map(to_signed, cursor.numbers(field)))
        elif field.number == _S and field.wire == 2 and field.end - field.start <= attributes.LONGEST:
            single.append(cursor.text(field))
    if len(several) > attributes.MOST or not (single or several):
        return {}
    return {name: tuple(several) if several else single[-1]}


def _floats(cursor: Cursor, field: WireField) -> list[float]:
    size = 4 if field.wire == 5 else field.end - field.start
    if size % 4 or size > 4 * attributes.MOST:
        return []
    return [*struct.unpack(f"<{size // 4}f", cursor.bytes(field.start, size))]


def _text(cursor: Cursor, message: WireField, number: int) -> str:
    fields = cursor.fields(message.start, message.end)
    return next((cursor.text(field) for field in fields if field.number == number and field.wire == 2), "")


def _initializer_name(cursor: Cursor, field: WireField) -> str:
    if field.number == _INITIALIZER:
        return _text(cursor, field, _TENSOR_NAME)
    inner = (part for part in cursor.fields(field.start, field.end) if part.number == _VALUES and part.wire == 2)
    return next((_text(cursor, part, _TENSOR_NAME) for part in inner), "")


def _graph(raw: Sequence[_Raw], path: str) -> Graph:
    computed = {written for node in raw if node.op != "Placeholder" for written in node.writes}
    named = [node for node in raw if node.name and (node.op != "Placeholder" or node.name not in computed)]
    writers: dict[str, tuple[str, int]] = {}
    for node in named:
        for index, written in enumerate(node.writes):
            if written:
                writers.setdefault(written, (node.name, index))
    nodes = [
        Node(
            node.name,
            node.op,
            inputs=tuple(writers.get(read, (read, 0)) for read in node.reads if read),
            attributes=node.attributes,
            outputs=tuple(node.writes),
        )
        for node in named
    ]
    return Graph(path, "", tuple(in_topological_order(nodes)))
