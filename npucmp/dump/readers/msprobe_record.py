"""Read the records of msprobe's dump.json: their names, their leaves by slot, and the calls that they describe.

A record holds trees of values under input_args, input_kwargs, output and parameters (forward), input and output
(backward), or parameter names (parameters_grad). A leaf is a tensor {"type", "dtype", "shape", …} or {"type", "value"};
in an object of a class (such as P2POp) each plain value is a leaf; a process group is the list of its ranks.

A leaf that is no tensor is an argument. The Call of a record has nulls, types and keywords in their places. Source:
output of mindstudio-probe 26.2 and older; formats/msprobe.py has the grammar of records.

JSON readers keep only the last value of a key that occurs more than once in an object, so these keys are searched. If
no key repeats, the text has as many colons as its parsed tree has when written again. Both are counted without
looking at single keys, which costs a fraction of the parsing; a text is parsed again, key by key, only if they differ.

Names:  API     {api type}.{api name}.{call index}.{forward|backward}
        module  {Module|Cell}.{path}.{class}.{forward|backward}.{call index}
        grads   {Module|Cell}.{path}.{class}.parameters_grad[.{n}]
        debug   {user's name}.{count}.debug
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from msgspec import MsgspecError
from msgspec.json import Encoder

from npucmp.model import Call, RankGroup, Slot, SpelledArgument, Tree

PHASES = ("forward", "backward")


class MsprobeName(NamedTuple):
    """The parts of an operator's name; the module docstring has the grammar."""

    op_type: str
    kind: str
    phase: str
    call: str
    unique: bool


@lru_cache(maxsize=1 << 14)  # all ranks of a dump have the same names
def parse_msprobe_name(name: str) -> MsprobeName:
    """Split a name from the right: a module path may contain digits and dots."""
    head, *tail = name.rsplit(".", 2)
    if len(tail) == 2 and tail[1] in PHASES and tail[0].isdigit():
        return MsprobeName(head.rsplit(".", 1)[-1], f"{head}.{tail[1]}", tail[1], f"{head}.{tail[0]}", unique=False)
    if len(tail) == 2 and tail[0] in PHASES and tail[1].isdigit():
        return MsprobeName(head.rsplit(".", 1)[-1], f"{head}.{tail[0]}", tail[0], f"{head}.{tail[1]}", unique=True)
    for mark in (".parameters_grad", ".debug"):
        owner, found, number = name.rpartition(mark)
        if found and (not number or number[1:].isdigit()):
            kind = owner.rstrip(".0123456789") if mark == ".debug" else owner
            phase = "backward" if mark == ".parameters_grad" else ""
            return MsprobeName(kind.rsplit(".", 1)[-1], owner + mark, phase, owner, unique=True)
    return MsprobeName(name.rsplit(".", 1)[-1], name, "", name, unique=True)


@lru_cache(maxsize=1 << 14)
def module_path(parts: MsprobeName) -> str:
    """Return the module path, such as "Module.layers.0.fc1" for "Module.layers.0.fc1.Linear.forward.0"."""
    for mark in (".forward", ".backward", ".parameters_grad"):
        if parts.kind.endswith(mark):
            return parts.kind[: -len(mark)].rpartition(".")[0]
    return ""


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


def call_of(name: str, record: Any, framework: str = "pytorch") -> Call | None:
    """Return the call of a record; None for records of other kinds: gradients of parameters, tensors saved by a user.

    MindSpore's own functions share names with PyTorch's but have other arguments, so their prefix says "MindSpore". The
    functions of its mint have the arguments of PyTorch's.
    """
    parts = parse_msprobe_name(name)
    if not isinstance(record, dict) or parts.phase not in PHASES or parts.kind.endswith(".parameters_grad"):
        return None
    head = parts.kind.rpartition(".")[0]  # without the phase
    kwargs = _tree("input:", record.get("input_kwargs"), NESTING)
    prefix = head.partition(".")[0]
    own = framework == "mindspore" and not prefix.startswith("Mint")
    return Call(
        f"MindSpore.{prefix}" if own else prefix,
        parts.op_type,
        _items_of("input:", record.get("input_args", record.get("input"))),
        kwargs if isinstance(kwargs, dict) else {},
        _items_of("output:", record.get("output")),
    )


def _items_of(slot: str, value: Any) -> tuple[Tree, ...]:
    found = _tree(slot, value, NESTING)
    return tuple(found) if isinstance(found, list) else () if found is None else (found,)


def _tree(slot: str, value: Any, depth: int) -> Tree:
    """Return the tree of a value, with the same paths as formats/msprobe.py gives to the tensors."""
    start = slot if slot.endswith(":") else f"{slot}."
    if isinstance(value, dict):
        if "type" in value and ("shape" in value or "value" in value or "format" in value):
            return Slot(slot) if is_tensor(value) else SpelledArgument(str(value["type"]), argument_of(value))
        return {str(key): _tree(f"{start}{key}", below, depth - 1) for key, below in value.items()} if depth else None
    if isinstance(value, list):
        return [_tree(f"{start}{at}", below, depth - 1) for at, below in enumerate(value)] if depth else None
    return None


_LEVELS = 2  # of objects visited one by one, so that the whole text is not copied
_encode = Encoder().encode


class RepeatedKeys(dict[str, Any]):
    """An object with repeated keys, which `keys_repeated` names; the last value of each counts."""

    keys_repeated: tuple[str, ...] = ()


def may_repeat(text: bytes, tree: Any) -> bool:
    """Return whether keys may repeat in the JSON text of a tree; True also if the cheap count cannot decide."""
    if b"\\" in text and b"\\u003" in text:  # an escaped colon, in upper or lower case; most texts have no escapes
        return True
    try:
        return text.count(b":") != _colons(tree, _LEVELS)
    except (MsgspecError, ValueError, TypeError, OverflowError, RecursionError):  # lone surrogates, huge numbers
        return True


def _colons(tree: Any, levels: int) -> int:
    """Return the number of colons of a tree as JSON."""
    if levels and type(tree) is dict:
        return sum(1 + key.count(":") + _colons(value, levels - 1) for key, value in tree.items())
    return _encode(tree).count(b":")


def loads(text: str, parse_int: Callable[[str], Any]) -> Any:
    """Return the tree of a JSON text, with RepeatedKeys for each object with repeated keys, and for the outermost one:
    a tree without it has none."""
    found = json.loads(text, parse_int=parse_int, object_pairs_hook=_object)
    return RepeatedKeys(found) if type(found) is dict else found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    twice = dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    marked = RepeatedKeys(found)
    marked.keys_repeated = tuple(twice)
    return marked


def repeated_in(tree: Any) -> Iterator[RepeatedKeys]:
    """Yield the objects of a tree with repeated keys."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, RepeatedKeys):
            yield one
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
