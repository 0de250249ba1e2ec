"""A pickle interpreter that runs nothing: the opcodes that torch.save writes, on plain values.

A pickle is a program for a stack machine; its GLOBAL and REDUCE opcodes import and call what they name. Here a
name is looked up in the closed list below, and the result is a record. Values are None, bool, int,
float, text, tuple, list, dict and those records; no opcode can make another value.

    PROTO FRAME STOP                                  framing
    MARK TUPLE TUPLE1-3 EMPTY_TUPLE                   tuples
    EMPTY_LIST APPEND(S) EMPTY_DICT SETITEM(S)        containers; keys are text or integers
    BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET     memo
    BINUNICODE SHORT_BINUNICODE BININT BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE
    GLOBAL STACK_GLOBAL REDUCE BINPERSID              through the closed list
    BUILD                                             of an OrderedDict, ignored

Source: the pickletools module of CPython. Any other opcode is refused.

These names become plain records; nothing of torch is imported or called:

    torch FloatStorage … , torch.storage UntypedStorage  a storage class; the untyped one counts bytes
    torch float8_e4m3fn …                               a dtype
    torch._utils _rebuild_tensor_v2       (storage, offset, size, stride, requires_grad, hooks[, metadata])
    torch._utils _rebuild_tensor_v3       (storage, offset, size, stride, requires_grad, hooks, dtype[, metadata])
    torch._utils _rebuild_parameter       (tensor, requires_grad, hooks)
    torch_npu.utils.storage _rebuild_npu_tensor   (storage, offset, size, stride, requires_grad, hooks, NPU format)
    torch_npu.npu._format Format          (number), an enumeration of NPU formats
    collections OrderedDict               ()
    persistent id                         ('storage', class, key, location, elements[, None | (key, offset, size)])

Every other name is refused, except in checkpoints (opaque_pickle.py). Source: torch/_utils.py, torch/serialization.py,
torch_npu/utils/storage.py. torch_npu copies a tensor to the CPU before it is saved, so the NPU format does not
describe the bytes; UNVERIFIED against a file that was saved on an NPU.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import error as StructError
from struct import unpack_from
from typing import Any, Mapping, NamedTuple, Optional

from npucmp.dump.limits import Limits
from npucmp.model.dtypes import DTYPES

_LONGEST = 4096  # characters of the name of a tensor in a value


class RefusedPickle(Exception):
    """The reason why a pickle is not read; the caller knows the path."""


class AllowedName:
    """An allowed name; role is "storage", "dtype" or "call"."""

    __slots__ = ("name", "role")

    def __init__(self, role: str, name: str) -> None:
        self.role = role
        self.name = name


class Storage(NamedTuple):
    """A range of a storage: `size` bytes from byte `start` of the storage `key`, which has `whole` bytes."""

    dtype: str
    key: str
    whole: int
    start: int
    size: int


class PickledTensor(NamedTuple):
    """A view of a storage as described by the file; offset, shape and strides are not checked yet."""

    storage: Storage
    dtype: str
    offset: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]


_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_FOREIGN_DTYPES = "complex32 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
_CALLS = (
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter",
    "torch_npu.utils.storage._rebuild_npu_tensor", "torch_npu.npu._format.Format", "collections.OrderedDict",
)  # fmt: skip
WORDS = {f"torch.{name}Storage": AllowedName("storage", dtype) for name, dtype in _STORAGES.items()}
WORDS["torch.storage.UntypedStorage"] = AllowedName("storage", "uint8")  # counts bytes
WORDS.update({f"torch.{name}": AllowedName("dtype", name) for name in [*DTYPES, *_FOREIGN_DTYPES.split()]})
WORDS.update({name: AllowedName("call", name) for name in _CALLS})

_UNSUPPORTED = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantised tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor of the meta device, which has no values",
    "torch._utils._rebuild_parameter_with_state": "a parameter with Python attributes",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass",
    "torch._tensor._rebuild_from_type_v2": "a tensor subclass, or a tensor with Python attributes",
}


def find(module: object, name: object) -> AllowedName:
    """Return the record of an allowed name; Refused for any other, naming it."""
    full = f"{module}.{name}"[:200] if type(module) is str and type(name) is str else ""
    word = WORDS.get(full)
    if word is not None:
        return word
    if full in _UNSUPPORTED:
        raise RefusedPickle(f"unsupported: {_UNSUPPORTED[full]} ({full})")
    raise RefusedPickle(f"refused: the file wants to call {ascii(full)[1:-1]}")


def call(function: object, arguments: object) -> object:
    """Return the record that replaces a call of an allowed function."""
    if type(function) is not AllowedName or function.role != "call" or type(arguments) is not tuple:
        raise RefusedPickle("refused: the file wants to call something that is not a function")
    short = function.name.rsplit(".", 1)[1]
    if short == "OrderedDict" and not arguments:
        return {}
    if short == "Format" and len(arguments) == 1 and type(arguments[0]) is int:
        return arguments[0]
    if short == "_rebuild_parameter" and len(arguments) == 3 and type(arguments[0]) is PickledTensor:
        return arguments[0]
    if short == "_rebuild_tensor_v2" and len(arguments) in (6, 7):
        return _view(arguments, arguments[6:])
    if short == "_rebuild_npu_tensor" and len(arguments) == 7:
        return _view(arguments, ())
    if short == "_rebuild_tensor_v3" and len(arguments) in (7, 8):
        return _view(arguments, arguments[7:])._replace(dtype=_dtype(arguments[6]))
    raise RefusedPickle(f"refused: unknown arguments of {function.name}")


def _view(arguments: tuple[Any, ...], metadata: tuple[Any, ...]) -> PickledTensor:
    storage, offset, shape, strides = arguments[:4]
    if type(storage) is not Storage or type(shape) is not tuple or type(strides) is not tuple:
        raise RefusedPickle("a damaged pickle: a tensor without storage, size or stride")
    for facts in metadata:
        if facts is not None and type(facts) is not dict:
            raise RefusedPickle("a damaged pickle: metadata that is not a dict")
        lazy = [str(key)[:40] for key, value in (facts or {}).items() if value is not False]
        if lazy:  # the bytes are those of another tensor; torch applies conj or neg when it computes
            raise RefusedPickle(f"unsupported: a {ascii('/'.join(lazy))[1:-1]} view")
    return PickledTensor(storage, storage.dtype, offset, shape, strides)


def _dtype(word: object) -> str:
    if type(word) is not AllowedName or word.role != "dtype":
        raise RefusedPickle("a damaged pickle: an invalid dtype")
    return word.name


def storage(identity: object) -> Storage:
    """Return the storage of a persistent id, of the zip (5 items) or the legacy format (6)."""
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
        raise RefusedPickle("refused: a persistent id that is not a storage")
    kind, key, location, count = identity[1:5]
    if type(kind) is not AllowedName or kind.role != "storage" or type(location) is not str:
        raise RefusedPickle("a damaged pickle: a storage without class or location")
    if type(key) is not str or not (key.isascii() and key.isdigit()) or len(key) > 40:
        raise RefusedPickle("refused: a storage key that is not a number")
    itemsize = DTYPES[kind.name].itemsize
    start, size = 0, count
    if len(identity) == 6 and identity[5] is not None:
        _, start, size = identity[5]  # view key, offset and size in elements
    if not all(type(number) is int and number >= 0 for number in (count, start, size)) or start + size > count:
        raise RefusedPickle("a storage whose size is negative or whose view leaves it")
    return Storage(kind.name, key, count * itemsize, start * itemsize, size * itemsize)


def one_tensor(value: object) -> PickledTensor:
    """Return a tensor, alone or as saved by SGLang's dumper. RefusedPickle names the kind of any other value."""
    if type(value) is dict and value.keys() == {"value", "meta"}:
        value = value["value"]
    if type(value) is PickledTensor:
        return value
    if isinstance(value, (dict, list)) or type(value) is tuple:
        raise RefusedPickle(f"holds a {type(value).__name__} of {len(value)} entries, not one tensor")
    raise RefusedPickle(f"holds a {type(value).__name__}, not a tensor")


def holds_texts(value: object) -> bool:
    """Return whether a value, alone or as saved by SGLang's dumper, is a text or a list of texts."""
    if type(value) is dict and value.keys() == {"value", "meta"}:
        value = value["value"]
    texts = value if isinstance(value, list) or type(value) is tuple else [value]
    return bool(texts) and all(type(text) is str for text in texts)


def tensors_in(value: object, limits: Limits) -> dict[str, PickledTensor]:
    """Return the tensors in a value by their places in dicts, lists and tuples; "" if the value itself is a tensor.

    The objects of a pickle may contain themselves, or the same object thousands of times: steps, depth and names have
    limits.
    """
    if type(value) is dict and value.keys() == {"value", "meta"}:
        value = value["value"]
    found: dict[str, PickledTensor] = {}
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    for _ in range(limits.pickle_opcodes):
        if not waiting or len(waiting) > limits.pickle_opcodes:
            break
        name, one, depth = waiting.pop()
        if depth > limits.pickle_depth or len(name) > _LONGEST:
            raise RefusedPickle(limits.limit_message("levels of a pickle", "pickle_depth"))
        if type(one) is PickledTensor:
            found[name if name not in found else f"{name} ({len(found)})"] = one  # the keys 1 and "1"
        elif isinstance(one, (dict, list, tuple)):
            items = one.items() if isinstance(one, dict) else enumerate(one)
            inside = [
                (f"{name}.{key}" if name else str(key), item, depth + 1)
                for key, item in items
                if type(item) in (PickledTensor, dict, list, tuple)
            ]
            waiting.extend(reversed(inside))
    if waiting:
        raise RefusedPickle(limits.limit_message("parts of a value", "pickle_opcodes"))
    return found


class IncompletePickle(RefusedPickle):
    """An incomplete pickle, which may be complete if more of the file is read."""


def unpickle(
    data: bytes,
    start: int = 0,
    limits: Limits = Limits(),
    opcodes: Optional[Mapping[int, Callable[[Machine], object]]] = None,
) -> tuple[object, int]:
    """Return the value of the pickle at `start`, and the offset of its end. `opcodes` replaces the table of opcodes
    (opaque_pickle.py)."""
    opcodes = OPCODES if opcodes is None else opcodes
    machine = Machine(data, start, limits)
    try:
        for _ in range(limits.pickle_opcodes):
            code = data[machine.at]
            machine.at += 1
            if code == 0x2E:  # STOP
                if machine.marks or len(machine.stack) != 1:
                    raise RefusedPickle("a damaged pickle: it stops with a stack that is not one value")
                return machine.stack[0], machine.at
            handler = opcodes.get(code)
            if handler is None:
                raise RefusedPickle(f"refused: pickle opcode 0x{code:02x}, which torch.save does not write")
            handler(machine)
    except (IndexError, KeyError, TypeError, ValueError, StructError):
        # An empty stack, an unset memo slot, an argument beyond the end, bytes that are not text.
        raise IncompletePickle("a damaged pickle") from None
    raise RefusedPickle(limits.limit_message("opcodes of a pickle", "pickle_opcodes"))


class Machine:
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
            raise RefusedPickle(self.limits.limit_message("levels of a pickle", "pickle_depth"))
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


def _memo(machine: Machine, slot: int) -> None:
    machine.memo[slot] = machine.stack[-1]


def _binput(machine: Machine) -> None:  # inlined like the next two: they are half of all opcodes
    machine.memo[machine.data[machine.at]] = machine.stack[-1]
    machine.at += 1


def _binint1(machine: Machine) -> None:
    machine.stack.append(machine.data[machine.at])
    machine.at += 1


def _binunicode(machine: Machine) -> None:
    start = machine.at + 4
    end = machine.at = start + unpack_from("<I", machine.data, machine.at)[0]
    if end > len(machine.data):
        raise IndexError
    machine.stack.append(machine.data[start:end].decode("utf-8"))


OPCODES: dict[int, Callable[[Machine], object]] = {
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
