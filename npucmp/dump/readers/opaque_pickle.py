"""Pickles of checkpoints, which name classes that npucmp does not know: settings, optimizers, random states.

An unknown class becomes an `OpaqueClass`, and an object of it an `OpaqueObject` with its arguments and its state, both
plain values. Nothing is imported or called. The opcodes are those of inert_pickle.py, and:

    NEWOBJ NEWOBJ_EX REDUCE BUILD                     of unknown classes
    EMPTY_SET ADDITEMS FROZENSET                      sets, as lists
    BINBYTES SHORT_BINBYTES BINBYTES8 LONG4 POP DUP   of settings and random states

Source: the pickletools module of CPython.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from npucmp.dump.readers.inert_pickle import OPCODES, AllowedName, Machine, RefusedPickle, call, find

_LONGEST = 200  # characters of a class name that are kept
_UNKNOWN = "refused"


class OpaqueClass:
    """The name of a class or function that npucmp does not know."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class OpaqueObject:
    """An object of an unknown class: the arguments it was made of, and its state; its entries are not kept. Objects are
    keys by identity."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None


def _find(module: object, name: object) -> object:
    try:
        return find(module, name)
    except RefusedPickle as refused:
        if not str(refused).startswith(_UNKNOWN) or type(module) is not str or type(name) is not str:
            raise
        return OpaqueClass(f"{module}.{name}"[:_LONGEST])


def _call(function: object, arguments: object) -> object:
    if isinstance(function, AllowedName) and function.role == "call":
        return call(function, arguments)
    name = function.name if isinstance(function, (OpaqueClass, AllowedName)) else ""
    return OpaqueObject(name, arguments if type(arguments) is tuple else ())


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    one = machine.stack[-1]
    if isinstance(one, OpaqueObject):
        one.state = state


def _set_items(machine: Machine, items: list[Any]) -> None:
    """Set the entries of a dict; a key that is neither text nor an integer is kept if it is an opaque object."""
    target = machine.stack[-1]
    if type(target) is dict:
        target.update(
            (key, value) for key, value in zip(items[::2], items[1::2]) if isinstance(key, (str, int, OpaqueObject))
        )


def _append(machine: Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is list:
        target.extend(items)


def _reduce(machine: Machine) -> None:
    function, arguments = machine.last(2)
    machine.push(_call(function, arguments))


def _new_object_ex(machine: Machine) -> None:
    kind, arguments, _ = machine.last(3)
    machine.push(_call(kind, arguments))


def _bytes(width: int) -> Callable[[Machine], object]:
    return lambda machine: machine.push(machine.take(machine.number(width)))


def _duplicate(machine: Machine) -> None:
    machine.push(machine.stack[-1])


def _append_one(machine: Machine) -> None:
    item = machine.stack.pop()
    _append(machine, [item])


def _append_marked(machine: Machine) -> None:
    items = machine.since_mark()
    _append(machine, items)


def _set_one(machine: Machine) -> None:
    items = machine.last(2)
    _set_items(machine, [*items])


def _set_marked(machine: Machine) -> None:
    items = machine.since_mark()
    _set_items(machine, items)


OPAQUE_OPCODES: Mapping[int, Callable[[Machine], object]] = {
    **OPCODES,
    ord("c"): lambda m: m.push(_find(m.line(), m.line())),  # GLOBAL
    0x93: lambda m: m.push(_find(*m.last(2))),  # STACK_GLOBAL
    ord("R"): _reduce,
    0x81: _reduce,  # NEWOBJ
    0x92: _new_object_ex,  # NEWOBJ_EX
    ord("b"): _build,
    ord("s"): _set_one,
    ord("u"): _set_marked,
    ord("a"): _append_one,
    ord("e"): _append_marked,
    0x8F: lambda m: m.push([]),  # EMPTY_SET
    0x90: _append_marked,  # ADDITEMS
    0x91: lambda m: m.push(m.since_mark()),  # FROZENSET
    ord("B"): _bytes(4),  # BINBYTES
    ord("C"): _bytes(1),  # SHORT_BINBYTES
    0x8E: _bytes(8),  # BINBYTES8
    0x8B: lambda m: m.push(m.number(m.number(4), signed=True)),  # LONG4
    ord("0"): lambda m: m.stack.pop(),  # POP
    ord("2"): _duplicate,  # DUP
}
