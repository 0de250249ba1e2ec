"""Arguments of a function, from a recorded call, and the values of its tensors. The record is untrusted: arguments that
are not known to be harmless are refused, and a refusal affects this operator only.

The reader accepts null, booleans, numbers, slices, an ellipsis, sizes, known element types, words of the row's
vocabulary, and lists of these. The caller supplies tensors by slot. Arguments that depend on the environment (devices,
generators, streams, process groups) are dropped. A tensor has values only if its file matches the record.
"""

from __future__ import annotations

import math
import re
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers import header, values
from npucmp.errors import NpucmpError
from npucmp.measure.pairs import is_widened
from npucmp.model import Call, Payload, Slot, SpelledArgument, TensorRef, Tree
from npucmp.model.dtypes import DTYPES, canonical, numpy_dtype
from npucmp.recompute.table import CallRow

DEEP, LEAVES = 8, 256
INTEGERS = 1 << 31
_DROPPED_WORDS = frozenset("torch.device torch.Generator torch.memory_format torch.layout".split())
_DROPPED_KEYS = frozenset("device generator out memory_format layout pin_memory non_blocking inplace requires_grad "
                          "group async_op max_norm".split())  # fmt: skip
_EINSUM = re.compile(r"[A-Za-z,.> -]{1,200}")


class RefusedRecord(Exception):
    """A record that is not called. The message is the reason, `status` the status of its row."""

    status = "shape"


class MissingTensor(RefusedRecord):
    """A tensor without values."""

    status = "no data"


class CallTooLarge(RefusedRecord):
    """A call that needs more memory than a task may use."""

    status = "too large"


class NotInTable(RefusedRecord):
    """A function that is not in the table."""

    status = "not in table"


# errors of a recorded call: not every kernel supports every type and shape
CALL_ERRORS = (RefusedRecord, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError,
               RuntimeError, TypeError, ValueError)  # fmt: skip


class Arguments(NamedTuple):
    args: list[Any]
    kwargs: dict[str, Any]


def arguments_of(call: Call, row: CallRow, tensor: Callable[[str], Any], dtype: Callable[[str], Any]) -> Arguments:
    """Return the arguments. `tensor` returns the tensor of a slot, `dtype` the element type of a name. Raises
    RefusedRecord."""
    reader = _Reader(row, tensor, dtype)
    args = [reader.read(one, 0) for one in call.args]
    kwargs = {_key(key): reader.read(one, 0) for key, one in call.kwargs.items() if key not in _DROPPED_KEYS}
    return Arguments(args, {key: value for key, value in kwargs.items() if value is not _LEFT_OUT})


_LEFT_OUT = object()


class _Reader:
    def __init__(self, row: CallRow, tensor: Callable[[str], Any], dtype: Callable[[str], Any]) -> None:
        self._row, self._tensor, self._dtype = row, tensor, dtype
        self._leaves = 0

    def read(self, tree: Tree, depth: int) -> Any:
        self._leaves += 1
        if depth > DEEP or self._leaves > LEAVES:
            raise RefusedRecord(f"arguments are nested deeper than {DEEP} or more than {LEAVES}")
        if tree is None:
            return None
        if isinstance(tree, Slot):
            return self._tensor(tree.name)
        if isinstance(tree, SpelledArgument):
            return self._word(tree)
        if isinstance(tree, dict):
            raise RefusedRecord("an argument is an object")
        return tuple(self.read(one, depth + 1) for one in tree)

    def _word(self, word: SpelledArgument) -> Any:
        kind, value = word.kind, word.value
        if kind in ("int", "float", "bool") and not isinstance(value, str):
            return _number(kind, value)
        if kind == "NoneType" or (value is None and kind != "slice"):
            return None
        if kind in ("ellipsis", "Ellipsis"):
            return Ellipsis
        if kind == "slice" and isinstance(value, list) and len(value) == 3:
            return slice(*(None if one is None else _number("int", one) for one in value))
        if kind in ("torch.Size", "tuple", "list") and isinstance(value, list):
            return tuple(_number("int", one) for one in value)
        if kind in ("torch.dtype", "mindspore.dtype") or kind.endswith("type"):
            name = canonical(str(value))
            if name not in DTYPES:
                raise RefusedRecord(f"unknown element type {value!r:.40}")
            return self._dtype(name)
        if kind == "str" and isinstance(value, str):
            return self._text(value)
        if kind == "float" and value in ("inf", "-inf", "nan", "Infinity", "-Infinity", "NaN"):
            return float(value)
        if kind in _DROPPED_WORDS:
            return None
        raise RefusedRecord(f"unsupported argument of type {kind!r:.40}")

    def _text(self, value: str) -> str:
        is_einsum = self._row.call.endswith("einsum") and _EINSUM.fullmatch(value)
        if value in self._row.words or is_einsum:
            return value
        raise RefusedRecord(f"the word {value!r:.40} is not a choice of {self._row.call.rpartition('.')[2]}")


def _number(kind: str, value: Any) -> Any:
    if kind == "bool" and isinstance(value, bool):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RefusedRecord(f"invalid {kind} {value!r:.40}")
    if kind == "float":
        return float(value)
    if not math.isfinite(value) or abs(value) > INTEGERS or value != int(value):
        raise RefusedRecord(f"invalid integer {value!r:.40}")
    return int(value)


def _key(key: str) -> str:
    if not key.isidentifier() or len(key) > 40:
        raise RefusedRecord(f"invalid keyword {key!r:.40}")
    return key


def floats_in(tree: Any) -> list[float]:
    """Return the float scalars among arguments."""
    if isinstance(tree, float):
        return [tree]
    if isinstance(tree, Mapping):
        tree = [*tree.values()]
    return [one for part in tree for one in floats_in(part)] if isinstance(tree, (list, tuple)) else []


def slots_of(call: Call) -> list[Optional[str]]:
    """The tensors that a call returns, in order; None for any other value."""
    return [one.name if isinstance(one, Slot) else None for one in flat(call.outputs)]


def flat(tree: Sequence[Tree]) -> Iterator[Tree]:
    """Leaves of the values in a record, including nulls."""
    for one in tree:
        if isinstance(one, (list, dict)):
            yield from flat([*one.values()] if isinstance(one, dict) else one)
        else:
            yield one


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front. Raises RefusedRecord if it is out of range."""
    if not -rank <= axis < rank:
        raise RefusedRecord(f"the axis {axis} of {rank}")
    return axis % rank


READ_ERRORS = (NpucmpError, RefusedRecord, OSError, MemoryError)  # raised by reading the values of a tensor


def read(tensor: TensorRef, context: ReadContext) -> Any:
    """Return the values as an array of the logical shape."""
    payload = payload_of(tensor, context)
    found = [*values.blocks(payload, max(1, math.prod(payload.shape)), context=context)]
    array = found[0] if found else np.empty(0, numpy_dtype(payload.dtype))
    return array.reshape(tensor.shape)


def payload_of(tensor: TensorRef, context: ReadContext) -> Payload:
    """Return the place of the values. Raises RefusedRecord if it differs from the record, MissingTensor if there is
    none."""
    if tensor.problem:
        raise RefusedRecord(tensor.problem)
    if not tensor.file and tensor.payload is None:
        raise MissingTensor(f"the dump holds no values of {tensor.slot}")
    payload = tensor.payload or header(tensor.encoding, tensor.file, context)
    is_type = payload.dtype == tensor.dtype or is_widened(payload.dtype, tensor.dtype)
    if payload.shape != tensor.shape or not is_type:
        raise RefusedRecord(f"the file of {tensor.slot} holds {payload.dtype} {list(payload.shape)}")
    return payload
