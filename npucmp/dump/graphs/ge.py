"""Read graphs of GE, the Ascend graph compiler: ge.proto.ModelDef as text (DUMP_GE_GRAPH) or JSON (atc --mode=1, 5).

    ModelDef          name · graph: the root, then its subgraphs · attr
    GraphDef          name · op
    OpDef             name · type · id: order of execution · input: "producer:output index", index -1 for a control
                      edge, "" for an optional input that is absent · attr · input_desc, output_desc
    TensorDescriptor  dtype · shape { dim } · layout · attr
    attr              key · value { s | i | b | list { s, i, … } }

    attributes of an op      _datadump_original_op_names (list s, empty for an inserted operator) ·
                             _datadump_is_multiop (b) · _L1_fusion_sub_graph_no (s) · pass_name (list s) ·
                             fusion_scope (i; those that share one above 0 become one operator at the end)
                             those of attributes.py
    of a descriptor          _datadump_origin_name (s) · _datadump_origin_output_index (i) ·
                             _datadump_origin_format, origin_format (s) · origin_shape (list i) ·
                             _fx_tensor_name (s), of TorchAir: "{operator of the FX graph}.OUTPUT.{index}"

JSON has the same names, maps as lists of {"key", "value"}, and null for attributes without a value. Both omit default
values: the first operator has no id. readers/textproto.py makes a tree of text, this module the same tree of JSON; one
builder reads both. Attributes that are not in the table are dropped while reading, because they are most of a file.
Source: ge_ir.proto of the public graph_metadef; descriptions of absent inputs from files of real compilations.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NoReturn, Optional, Sequence

from npucmp.dump.graphs import attributes
from npucmp.dump.graphs.graph import Graph, Node, Port
from npucmp.dump.limits import Limits
from npucmp.dump.readers.text import json_object, unlike
from npucmp.dump.readers.textproto import Message, integers, messages, texts
from npucmp.errors import DumpError

_ORIGINALS = "_datadump_original_op_names"
_MULTIOP = "_datadump_is_multiop"
_GROUP = "_L1_fusion_sub_graph_no"
_PASSES = "pass_name"
_SCOPE = "fusion_scope"
_ORIGIN_NAME = "_datadump_origin_name"
_ORIGIN_INDEX = "_datadump_origin_output_index"
_ORIGIN_LAYOUTS = ("_datadump_origin_format", "origin_format")
_ORIGIN_SHAPE = "origin_shape"
_FX_NAME = "_fx_tensor_name"
_FX = re.compile(r"(?P<name>.+)\.OUTPUT\.(?P<index>[0-9]{1,6})")
_WANTED = {
    _ORIGINALS, _MULTIOP, _GROUP, _SCOPE, _PASSES, _ORIGIN_NAME, _ORIGIN_INDEX, *_ORIGIN_LAYOUTS, _ORIGIN_SHAPE,
    _FX_NAME, *attributes.WANTED,
}  # fmt: skip
_ABSENT = "FORMAT_RESERVED"  # layout in the description of an absent input
_CONTROL = -1


def is_relevant(name: str, message: Message) -> bool:
    """Return whether any part of a message is kept; for textproto.parse."""
    if name != "attr" or any(isinstance(key, str) and key in _WANTED for key in message.get("key", ())):
        return True
    return attributes.is_relevant(message)


def from_json(text: str, path: object, limits: Limits = Limits()) -> Message:
    """Return the tree of a JSON text. Raises DumpError for anything but a JSON object."""
    held = 0

    def message(pairs: list[tuple[str, Any]]) -> Optional[Message]:
        nonlocal held
        found = unlike(pairs)
        if "value" in found and isinstance(found.get("key"), str) and found["key"] not in _WANTED:
            return None
        held += len(found)
        if held > limits.graph_values:
            raise DumpError(path, limits.limit_message("values", "graph_values"))
        return {name: values for name, values in ((name, _items_of(value)) for name, value in found.items()) if values}

    return json_object(text, path, "a graph", digits=40, object_pairs_hook=message, parse_constant=_constant)


def _items_of(value: Any) -> list[Any]:
    """Return the value of a field as a list, without nulls and dropped attributes."""
    return [_clean_text(one) for one in (value if isinstance(value, list) else [value]) if one is not None]


def _clean_text(value: Any) -> Any:
    """Return a text without lone surrogates (\\ud800), which JSON can spell but no report can write."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def ge_graphs(tree: Message, path: object) -> list[Graph]:
    """Return the graphs of a ModelDef in the order of the file. Raises DumpError for fields of another type."""
    try:
        return [_graph(one, str(path)) for one in messages(tree, "graph")]
    except ValueError as error:
        raise DumpError(path, f"not a GE graph: {error}") from None


def _graph(message: Message, path: str) -> Graph:
    nodes = sorted(map(_node, messages(message, "op")), key=lambda node: node.order)
    return Graph(path, _first(texts(message, "name"), ""), tuple(nodes))


def _node(op: Message) -> Node:
    found = _attributes(op)
    entries = [_entry(text) for text in texts(op, "input")]
    data = [entry for entry in entries if entry is None or entry[1] != _CONTROL]
    originals = found.get(_ORIGINALS)
    return Node(
        name=_first(texts(op, "name"), ""),
        op_type=_first(texts(op, "type"), ""),
        order=_first(integers(op, "id"), 0),
        inputs=tuple(entry for entry in data if entry is not None),
        controls=tuple(entry[0] for entry in entries if entry is not None and entry[1] == _CONTROL),
        originals=None if originals is None else tuple(dict.fromkeys(filter(None, _words(originals)))),
        passes=tuple(_words(found.get(_PASSES, {}))),
        is_multiop=bool(_first(integers(found.get(_MULTIOP, {}), "b"), False)),
        group=_first(_words(found.get(_GROUP, {})), ""),
        ports_in=_ports_in(data, messages(op, "input_desc")),
        ports_out=tuple(_port(one, index) for index, one in enumerate(messages(op, "output_desc"))),
        scope=max(0, _first(integers(found.get(_SCOPE, {}), "i"), 0)),
        attributes=_node_facts(found, entries),
    )


def _node_facts(found: Mapping[str, Message], entries: Sequence[Optional[tuple[str, int]]]) -> dict[str, Any]:
    """Return the kept attributes of an operator, and the names of its present inputs, in their order, as `inputs`."""
    values = {key: attributes.of_text(found[key]) for key in found if key in attributes.WANTED}
    values = {key: value for key, value in values.items() if value is not None}
    names, places = values.pop(attributes.NAMES, ()), values.pop(attributes.PLACES, ())
    if isinstance(names, tuple) and isinstance(places, tuple) and len(names) == len(places):
        there = [at for at, entry in enumerate(entries) if entry is None or entry[1] != _CONTROL]
        called = dict(zip(places, names))
        values["inputs"] = tuple(str(called.get(i, "")) for i, at in enumerate(there) if entries[at] is not None)
    return values


def _entry(text: str) -> Optional[tuple[str, int]]:
    """Return one edge; None for an absent input. A name may contain colons, so only the last one separates."""
    name, colon, index = text.rpartition(":")
    digits = index[1:] if index.startswith("-") else index
    if not text:
        return None
    if not colon or not name or not digits.isdecimal() or len(digits) > 9:
        raise ValueError(f"an input is not name:index but {text[:80]!r}")
    return name, int(index)


def _ports_in(data: list[Optional[tuple[str, int]]], descriptions: list[Message]) -> tuple[Port, ...]:
    """Return one port per present input. Absent inputs at the end may have a description but no entry."""
    ports = [_port(one, index) for index, one in enumerate(descriptions)]
    if len(data) == len(ports):
        return tuple(port for entry, port in zip(data, ports) if entry is not None)
    there = [port for port in ports if port.layout != _ABSENT]
    return tuple(there) if len(there) == sum(entry is not None for entry in data) else ()


def _port(description: Message, index: int) -> Port:
    attributes = _attributes(description)
    shape = tuple(integers(_first(messages(description, "shape"), {}), "dim"))
    layouts = [word for key in _ORIGIN_LAYOUTS for word in _words(attributes.get(key, {})) if word]
    of_fx = _FX.fullmatch(_first(_words(attributes.get(_FX_NAME, {})), ""))
    return Port(
        dtype=_first(texts(description, "dtype"), ""),
        layout=_first(texts(description, "layout"), ""),
        shape=shape,
        origin_layout=_first(layouts, ""),
        origin_shape=_origin_shape(attributes.get(_ORIGIN_SHAPE), shape),
        origin_name=of_fx["name"] if of_fx else _first(_words(attributes.get(_ORIGIN_NAME, {})), ""),
        origin_index=int(of_fx["index"]) if of_fx else _first(integers(attributes.get(_ORIGIN_INDEX, {}), "i"), index),
    )


def _origin_shape(value: Optional[Message], shape: tuple[int, ...]) -> Optional[tuple[int, ...]]:
    """Return the logical shape of a descriptor; None if unknown.

    An empty list is a scalar or a shape that was never set; it was never set if the stored tensor has more than 1
    element.
    """
    if value is None:
        return None
    found = tuple(dim for part in messages(value, "list") for dim in integers(part, "i"))
    return found if found or all(dim == 1 for dim in shape) else None


def _attributes(message: Message) -> dict[str, Message]:
    """Return the attributes that have a value."""
    found = {}
    for entry in messages(message, "attr"):
        value = messages(entry, "value")
        for key in texts(entry, "key") if value else ():
            found[key] = value[0]
    return found


def _words(value: Message) -> list[str]:
    """Return the texts of an attribute, whether it is a text or a list."""
    return [*texts(value, "s"), *(word for part in messages(value, "list") for word in texts(part, "s"))]


def _first(values: list[Any], default: Any) -> Any:
    return values[0] if values else default
