"""A pickle interpreter that runs nothing: the opcodes that torch.save writes, on plain values.

A pickle is a program for a stack machine; its GLOBAL and REDUCE opcodes import and call what they name. Here a
name is looked up in the closed list of pickle_globals.py, and the result is a record. Values are None, bool, int,
float, text, tuple, list, dict and those records; no opcode can make another value.

    PROTO FRAME STOP                                  framing
    MARK TUPLE TUPLE1-3 EMPTY_TUPLE                   tuples
    EMPTY_LIST APPEND(S) EMPTY_DICT SETITEM(S)        containers; keys are text or integers
    BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET     memo
    BINUNICODE SHORT_BINUNICODE BININT BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE
    GLOBAL STACK_GLOBAL REDUCE BINPERSID              through pickle_globals.py
    BUILD                                             of an OrderedDict, ignored

Source: the pickletools module of CPython. Any other opcode is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as StructError
from struct import unpack_from
from typing import Any

from npucmp.dump.limits import Limits
from npucmp.dump.readers.pickle_globals import RefusedPickle, call, find, storage


class Damaged(RefusedPickle):
    """An incomplete pickle, which may be complete if more of the file is read."""


def unpickled(data: bytes, start: int = 0, limits: Limits = Limits()) -> tuple[object, int]:
    """Return the value of the pickle at `start`, and the offset of its end."""
    machine = _Machine(data, start, limits)
    try:
        for _ in range(limits.pickle_opcodes):
            code = data[machine.at]
            machine.at += 1
            if code == 0x2E:  # STOP
                if machine.marks or len(machine.stack) != 1:
                    raise RefusedPickle("a damaged pickle: it stops with a stack that is not one value")
                return machine.stack[0], machine.at
            handler = _OPCODES.get(code)
            if handler is None:
                raise RefusedPickle(f"refused: pickle opcode 0x{code:02x}, which torch.save does not write")
            handler(machine)
    except (IndexError, KeyError, TypeError, ValueError, StructError):
        # An empty stack, an unset memo slot, an argument beyond the end, bytes that are not text.
        raise Damaged("a damaged pickle") from None
    raise RefusedPickle(limits.beyond("opcodes of a pickle", "pickle_opcodes"))


class _Machine:
    """The state between two opcodes. A MARK saves and replaces the stack, so that no opcode can pop through it."""

    __slots__ = ("at", "data", "limits", "marks", "memo", "stack")

    def __init__(self, data: bytes, at: int, limits: Limits) -> None:
        self.data = data
        self.at = at
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.limits = limits

    def take(self, length: int) -> bytes:
        piece = self.data[self.at : self.at + length]
        if len(piece) != length:
            raise IndexError
        self.at += length
        return piece

    def byte(self) -> int:
        at = self.at
        self.at = at + 1
        return self.data[at]

    def number(self, length: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(length), "little", signed=signed)

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode("utf-8")
        self.at = end + 1
        return text

    def push(self, value: object) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        if len(self.marks) >= self.limits.pickle_depth:
            raise RefusedPickle(self.limits.beyond("levels of a pickle", "pickle_depth"))
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def last(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise IndexError
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise RefusedPickle("a damaged pickle: it appends to something that is not a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise RefusedPickle("a damaged pickle: it sets an entry of something that is not a dict")
        for key, value in zip(items[::2], items[1::2]):
            if type(key) not in (str, int):  # the hash of a deeply nested tuple recurses in C
                raise RefusedPickle(f"a dict with a key of type {type(key).__name__}")
            target[key] = value

    def build(self) -> None:
        """Drop the state of an OrderedDict, such as _metadata of a state dict; no caller reads it."""
        self.stack.pop()
        if type(self.stack[-1]) is not dict:
            raise RefusedPickle("refused: the file wants to set the state of an object")


def _memo(machine: _Machine, slot: int) -> None:
    machine.memo[slot] = machine.stack[-1]


def _binput(machine: _Machine) -> None:  # inlined like the next two: they are half of all opcodes
    machine.memo[machine.data[machine.at]] = machine.stack[-1]
    machine.at += 1


def _binint1(machine: _Machine) -> None:
    machine.stack.append(machine.data[machine.at])
    machine.at += 1


def _binunicode(machine: _Machine) -> None:
    start = machine.at + 4
    end = machine.at = start + unpack_from("<I", machine.data, machine.at)[0]
    if end > len(machine.data):
        raise IndexError
    machine.stack.append(machine.data[start:end].decode("utf-8"))


_OPCODES: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    ord("c"): lambda m: m.push(find(m.line(), m.line())),  # GLOBAL
    0x93: lambda m: m.push(find(*m.last(2))),  # STACK_GLOBAL
    ord("q"): _binput,  # BINPUT
    ord("r"): lambda m: _memo(m, m.number(4)),  # LONG_BINPUT
    0x94: lambda m: _memo(m, len(m.memo)),  # MEMOIZE
    ord("h"): lambda m: m.push(m.memo[m.byte()]),  # BINGET
    ord("j"): lambda m: m.push(m.memo[m.number(4)]),  # LONG_BINGET
    ord("("): lambda m: m.mark(),  # MARK
    ord("t"): lambda m: m.push(tuple(m.since_mark())),  # TUPLE
    0x85: lambda m: m.push(m.last(1)),  # TUPLE1
    0x86: lambda m: m.push(m.last(2)),  # TUPLE2
    0x87: lambda m: m.push(m.last(3)),  # TUPLE3
    ord(")"): lambda m: m.push(()),  # EMPTY_TUPLE
    ord("]"): lambda m: m.push([]),  # EMPTY_LIST
    ord("}"): lambda m: m.push({}),  # EMPTY_DICT
    ord("a"): lambda m: m.append([m.stack.pop()]),  # APPEND
    ord("e"): lambda m: m.append(m.since_mark()),  # APPENDS
    ord("s"): lambda m: m.set_items(list(m.last(2))),  # SETITEM
    ord("u"): lambda m: m.set_items(m.since_mark()),  # SETITEMS
    ord("X"): _binunicode,  # BINUNICODE
    0x8C: lambda m: m.push(m.take(m.byte()).decode("utf-8")),  # SHORT_BINUNICODE
    ord("J"): lambda m: m.push(m.number(4, signed=True)),  # BININT
    ord("K"): _binint1,  # BININT1
    ord("M"): lambda m: m.push(m.number(2)),  # BININT2
    0x8A: lambda m: m.push(m.number(m.byte(), signed=True)),  # LONG1
    ord("G"): lambda m: m.push(unpack_from(">d", m.take(8))[0]),  # BINFLOAT
    ord("N"): lambda m: m.push(None),  # NONE
    0x88: lambda m: m.push(True),  # NEWTRUE
    0x89: lambda m: m.push(False),  # NEWFALSE
    ord("Q"): lambda m: m.push(storage(m.stack.pop())),  # BINPERSID
    ord("R"): lambda m: m.push(call(*m.last(2))),  # REDUCE
    ord("b"): lambda m: m.build(),  # BUILD
}
