"""Split a record of msprobe's dump.json into leaves by slot: tensors, and plain values, which are arguments.

A record holds trees of values under input_args, input_kwargs, output and parameters (forward), input and output
(backward), or parameter names (parameters_grad). A leaf is a tensor {"type", "dtype", "shape", …} or {"type", "value"};
in an object of a class (such as P2POp) each plain value is a leaf; a process group is the list of its ranks.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from npucmp.dump.readers.msprobe_names import MsprobeName
from npucmp.model import RankGroup

NESTING = 64
_TREES = (  # key in a record, prefix of its slots
    ("input_args", "input:"),
    ("input", "input:"),
    ("input_kwargs", "input:"),
    ("parameters", "param:"),
    ("output", "output:"),
)
_READ = tuple(key for key, word in _TREES if word != "output:")
_CLASS = ("class_type", "type")
_TEXTS = ("<U", ">U", "|S", "<S")
_PLAIN = {str, int, float, bool}

Leaves = list[tuple[str, dict[str, Any]]]


def is_tensor(leaf: Mapping[str, Any]) -> bool:
    """Return whether a leaf is a numeric tensor; msprobe describes arrays of text alike, but they are arguments."""
    return "dtype" in leaf and "shape" in leaf and str(leaf["dtype"])[:2] not in _TEXTS


def argument_of(leaf: Mapping[str, Any]) -> Any:
    """Return the value of a leaf that is not a tensor."""
    if "dtype" in leaf and "shape" in leaf:
        return f"text {leaf['dtype']} {leaf['shape']}"
    ranks = leaf.get("group_ranks")
    if isinstance(ranks, list) and all(type(one) is int for one in ranks):
        return RankGroup(ranks)
    return leaf.get("value", leaf.get("format"))


def reads_recorded(record: Any) -> bool:
    """Return whether a record has inputs; a backward record without requested gradients holds [null]."""
    if not isinstance(record, dict):
        return False
    trees = [record[key] for key in _READ if key in record]
    return trees.count([None]) < len(trees)


def leaves(record: Any, parts: MsprobeName) -> Leaves:
    """Return (slot, leaf) of a record: inputs, then parameters, then outputs."""
    found: Leaves = []
    if parts.kind.endswith(".debug"):
        _walk("output:", record, NESTING, found)
    elif not isinstance(record, dict):
        pass
    elif parts.kind.endswith(".parameters_grad"):
        for key, tree in record.items():
            single = isinstance(tree, list) and len(tree) == 1
            _walk(f"grad:{key}", tree[0] if single else tree, NESTING, found)
    else:
        for key, word in _TREES:
            if key in record:
                _walk(word, record[key], NESTING, found)
    return found


def _walk(slot: str, value: Any, depth: int, found: Leaves) -> None:
    """Collect the leaves of a tree of lists and objects; the path to a leaf is joined with dots."""
    if depth == 0:
        found.append((slot, {"type": "str", "value": f"nested deeper than {NESTING}, not read"}))
        return
    items: Any
    if isinstance(value, dict):
        if _is_leaf(value):
            found.append((slot, value))
            return
        items = value.items()
        found.extend(_values(slot, value))
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return
    start = slot if slot.endswith(":") else f"{slot}."
    for key, below in items:
        if depth > 1 and isinstance(below, dict) and _is_leaf(below):  # a shortcut for the usual case
            found.append((f"{start}{key}", below))
        else:
            _walk(f"{start}{key}", below, depth - 1, found)


def _values(slot: str, record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the plain values of an object of a class, such as "peer" of a P2POp."""
    of_class = any(type(record.get(key)) is str for key in _CLASS)
    for key, below in record.items() if of_class else ():
        if key not in _CLASS and (type(below) in _PLAIN or (isinstance(below, list) and {*map(type, below)} <= _PLAIN)):
            yield f"{slot}.{key}", {"type": type(below).__name__, "value": below}


def _is_leaf(value: dict[str, Any]) -> bool:
    return "type" in value and ("shape" in value or "value" in value or "format" in value or "group_ranks" in value)
