"""Resolve the names in a pickle of torch.save to plain records; nothing of torch is imported or called.

    torch FloatStorage … , torch.storage UntypedStorage  a storage class; the untyped one counts bytes
    torch float8_e4m3fn …                               a dtype
    torch._utils _rebuild_tensor_v2       (storage, offset, size, stride, requires_grad, hooks[, metadata])
    torch._utils _rebuild_tensor_v3       (storage, offset, size, stride, requires_grad, hooks, dtype[, metadata])
    torch._utils _rebuild_parameter       (tensor, requires_grad, hooks)
    torch_npu.utils.storage _rebuild_npu_tensor   (storage, offset, size, stride, requires_grad, hooks, NPU format)
    torch_npu.npu._format Format          (number), an enumeration of NPU formats
    collections OrderedDict               ()
    persistent id                         ('storage', class, key, location, elements[, None | (key, offset, size)])

Every other name is refused. Source: torch/_utils.py, torch/serialization.py, torch_npu/utils/storage.py. torch_npu
copies a tensor to the CPU before it is saved, so the NPU format does not describe the bytes; UNVERIFIED against a
file that was saved on an NPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
            raise RefusedPickle(limits.beyond("levels of a pickle", "pickle_depth"))
        if type(one) is PickledTensor:
            found[name if name not in found else f"{name} ({len(found)})"] = one  # the keys 1 and "1"
        elif isinstance(one, (dict, list, tuple)):
            items = one.items() if isinstance(one, dict) else enumerate(one)
            inside = [(f"{name}.{key}" if name else str(key), item, depth + 1) for key, item in items if _holds(item)]
            waiting.extend(reversed(inside))
    if waiting:
        raise RefusedPickle(limits.beyond("parts of a value", "pickle_opcodes"))
    return found


def _holds(item: object) -> bool:
    """Return whether an item is a tensor or may contain one."""
    return type(item) in (PickledTensor, dict, list, tuple)
