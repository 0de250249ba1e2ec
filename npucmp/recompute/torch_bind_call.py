"""Make one recorded call in torch on the CPU, in float64. Only child processes import this.

Before any value is read, the call is made on meta tensors, which have shapes but no values: it must give the recorded
shapes, and its intermediate tensors must fit into memory. The function called is the function of npucmp's table.
"""

from __future__ import annotations

import math
from functools import cache
from operator import attrgetter
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from npucmp.dump.limits import ReadContext
from npucmp.model import Call, Operator, SpelledArgument, TensorRef
from npucmp.model.dtypes import canonical, lookup, unit_of
from npucmp.recompute.arguments import (
    CALL_ERRORS,
    Arguments,
    CallTooLarge,
    MissingTensor,
    NotInTable,
    RefusedRecord,
    arguments_of,
    floats_in,  # fmt: skip
    read,
    slots_of,
)
from npucmp.recompute.rounding_noise import map_tensors
from npucmp.recompute.table import ROUNDED_ONCE, CallRow
from npucmp.recompute.task import first_line

DTYPES = {
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
    "uint8": torch.uint8, "float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
    "bfloat16": torch.bfloat16, "complex64": torch.complex64, "complex128": torch.complex128,
}  # fmt: skip
ANY = 1 << 62  # bytes: no limit, to check only the shapes of a call
SIZED = frozenset(["interpolate"])  # their scalars give the size of the result, which torch computes in float64
NARROW: dict[str, Callable[[float], Any]] = {
    "float64": float, "float32": np.float32, "float16": np.float16,
    "bfloat16": lambda value: torch.tensor(value, dtype=torch.bfloat16).item(),
}  # fmt: skip
CLONED = ("batch_norm", "instance_norm")  # write running statistics


class Bound(NamedTuple):
    """A call that can be made: arguments in float64, their recorded types, and the rounding of autocast (`treated`).

    unit is the round-off of the outputs' type, accumulator the round-off of sums, slots the returned tensors, in order.
    is_rounded_once: the result is one correctly rounded operation on recorded values (False with scalars that float32
    does not represent). `recorded_scalars` gives the recorded value of each rounded scalar.
    """

    row: CallRow
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    dtypes: dict[str, str]
    slots: list[Optional[str]]
    unit: float
    accumulator: float
    low: str  # the 16-bit type to which autocast rounds inputs, or of the outputs
    treated: str
    is_rounded_once: bool
    recorded_scalars: dict[float, float]

    def call(self, arguments: Optional[Arguments] = None) -> list[Any]:
        """Make the call; return its results as a flat list."""
        args, kwargs = arguments or Arguments(self.args, self.kwargs)
        results = called(self.row, self.function, args, kwargs)
        return [one.to(torch.float64) if _is_narrow(one) else one for one in results]

    def with_scalars(self, to: Callable[[float], Any]) -> Arguments:
        """Arguments with float scalars rounded by `to` from their recorded values."""
        recorded = self.recorded_scalars
        args, kwargs = rounded_scalars([self.args, self.kwargs], lambda one: to(recorded.get(one, one)))
        return Arguments(args, kwargs)


def bind(operator: Operator, call: Call, row: CallRow, context: ReadContext, memory: int) -> Bound:
    """Bind a call to all its values. Raises RefusedRecord, and the errors of the readers."""
    require(operator, call, row, memory)
    return bound_with(operator, call, row, lambda one: load(one, context))


def require(operator: Operator, call: Call, row: CallRow, memory: int) -> None:
    """Raise RefusedRecord if a call does not give the recorded shapes, or needs more memory."""
    tensors = {one.slot: one for one in operator.tensors}
    shapes = arguments_of(call, row, lambda slot: _meta(_of(tensors, slot)), _wide_dtype)
    check(row, function_of(row), shapes, [tensors.get(slot or "") for slot in slots_of(call)], memory)


def bound_with(operator: Operator, call: Call, row: CallRow, values_of: Callable[[TensorRef], Any]) -> Bound:
    """Bind a call to the values that `values_of` returns for each tensor."""
    tensors = {one.slot: one for one in operator.tensors}
    slots, function = slots_of(call), function_of(row)
    loaded: dict[str, Any] = {}

    def tensor(slot: str) -> Any:
        if slot not in loaded:
            loaded[slot] = values_of(_of(tensors, slot))
        return loaded[slot]

    args, kwargs = arguments_of(call, row, tensor, _wide_dtype)
    inputs = [tensors[slot].dtype for slot in loaded]
    outputs = [tensors[slot].dtype for slot in slots if slot in tensors]
    unit = max((unit_of(one) for one in outputs), default=0.0)
    low = next((one for one in outputs if one in ("float16", "bfloat16")), "")
    floats = [one for one in inputs if unit_of(one)]
    accumulator = 2.0**-53 if floats and set(floats) == {"float64"} else 2.0**-24
    treated = ""
    if row.autocast and low and any(unit_of(one) < unit_of(low) for one in floats):
        treated = f"autocast {low}"
        args, kwargs = map_tensors([args, kwargs], lambda one: one.to(DTYPES[low]).to(torch.float64))
    name = row.call.rpartition(".")[2]
    plain = all(float(np.float32(one)) == one for one in floats_in([args, kwargs]))
    once = plain and (name in ROUNDED_ONCE or name.rstrip("_") in ROUNDED_ONCE)
    cast = _cast_of(call, row)
    if unit_of(cast) > 0 and any(unit_of(one) < unit_of(cast) for one in floats):
        args, kwargs = map_tensors([args, kwargs], lambda one: one.to(DTYPES[cast]).to(torch.float64))
    scalars: dict[float, float] = {}
    if name not in SIZED and unit != 2.0**-53:
        to = NARROW[_type_of_scalars(floats) if unit == 0 else "float32"]

        def rounded(value: float) -> float:
            narrow = float(to(value))
            scalars[narrow] = value
            return narrow

        args, kwargs = rounded_scalars(args, rounded), rounded_scalars(kwargs, rounded)
    dtypes = {slot: tensors[slot].dtype for slot in loaded}
    return Bound(row, function, _list(args), kwargs, dtypes, slots, unit, accumulator, low, treated, once, scalars)


def _type_of_scalars(floats: list[str]) -> str:
    """The type to which a comparison rounds Python floats: the type of its widest float tensor, else float32."""
    return min(floats, key=unit_of, default="float32")


def _cast_of(call: Call, row: CallRow) -> str:
    """The element type that the keyword dtype names, "" for none: a sum, a mean or a softmax casts its input first."""
    word = call.kwargs.get("dtype")
    is_cast = isinstance(word, SpelledArgument) and row.kind in ("sum", "noise")
    return canonical(str(word.value)) if is_cast and isinstance(word, SpelledArgument) else ""


def _is_narrow(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.is_floating_point() and one.dtype != torch.float64


def called(row: CallRow, function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """Results as a flat list; the function writes into copies only."""
    name = row.call.rpartition(".")[2]
    if row.inplace or name in CLONED or any(one is True for one in args):
        args, kwargs = mapped_any([_list(args), kwargs], torch.clone)
    if name == "embedding" and len(args) > 3:
        args = [*args[:3], None, *args[4:]]  # max_norm: the weight was written to before it was recorded
    result = function(*args, **kwargs)
    if result is None and row.inplace:
        result = args[0]
    return tree_flatten(result)[0] if not isinstance(result, torch.Tensor) else [result]


def mapped_any(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each tensor among the arguments, of any type."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped_any(one, change) for key, one in tree.items()}
    return type(tree)(mapped_any(one, change) for one in tree) if type(tree) in (list, tuple) else tree


def rounded_scalars(tree: Any, to: Callable[[float], Any]) -> Any:
    """Round the finite Python floats of a tree to the type that a kernel receives."""
    if isinstance(tree, float) and math.isfinite(tree):
        with np.errstate(over="ignore"):
            return float(to(tree))
    if isinstance(tree, dict):
        return {key: rounded_scalars(one, to) for key, one in tree.items()}
    return type(tree)(rounded_scalars(one, to) for one in tree) if type(tree) in (list, tuple) else tree


@cache
def function_of(row: CallRow) -> Callable[..., Any]:
    """The function that npucmp's table names. Attention is computed by its formula: fused CPU kernels hide their steps.
    Raises NotInTable if this torch lacks the function."""
    if row.kind == "npu":
        from npucmp.recompute import npu_formulas

        return npu_formulas.FORMULAS[row.call]
    try:
        function: Callable[..., Any] = attrgetter(row.call)(torch)
    except AttributeError:
        raise NotInTable(f"this torch has no {row.call}") from None
    return _by_formula(function) if row.call.endswith("scaled_dot_product_attention") else function


def _by_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        raise NotInTable("attention needs torch 2.3 or newer") from None

    def attention(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel([SDPBackend.MATH]):
            return function(*args, **kwargs)

    return attention


def check(
    row: CallRow, function: Callable[..., Any], shapes: Arguments, outputs: list[Optional[TensorRef]], memory: int
) -> None:
    """Make the call on meta tensors. Raises RefusedRecord for other shapes, TooLarge if it needs too much memory."""
    mode = _Counted(memory)
    try:
        with mode, torch.no_grad():
            found = called(row, function, *shapes)
    except RefusedRecord:
        raise
    except NotImplementedError:
        raise RefusedRecord("the shape of the result depends on values") from None
    except CALL_ERRORS as error:
        raise RefusedRecord(f"torch rejects the recorded arguments: {first_line(error)}") from None
    made = [tuple(one.shape) for one in found if isinstance(one, torch.Tensor)]
    wanted = [one.shape for one in outputs if one is not None]
    if made[: len(wanted)] != wanted:
        raise RefusedRecord(f"the call gives {made[:3]}, recorded is {wanted[:3]}")


class _Counted(TorchDispatchMode):  # type: ignore[misc]
    """Add up the bytes that aten calls allocate. Raises TooLarge above the limit."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        size = sum(one.numel() * 8 for one in tree_flatten(out)[0] if isinstance(one, torch.Tensor) and not _view(func))
        self._left -= size
        if self._left < 0:
            raise CallTooLarge("replaying it takes more memory than --limit-memory allows")
        return out


def _view(func: Any) -> bool:
    return bool(func.is_view)


def load(tensor: TensorRef, context: ReadContext) -> Any:
    """Read floats as float64, complex numbers as complex128, all other types unchanged."""
    return widen_values(read(tensor, context), tensor)


def widen_values(array: Any, tensor: TensorRef) -> Any:
    """Convert values to the type of the computation."""
    kind = array.dtype.kind
    if kind == "c":
        return torch.from_numpy(array.astype(np.complex128))
    if kind in "biu" and tensor.dtype in DTYPES:
        return torch.from_numpy(np.array(array))
    if kind in "iu":
        return torch.from_numpy(array.astype(np.int64))
    return torch.from_numpy(array.astype(np.float64))


def _of(tensors: dict[str, TensorRef], slot: str) -> TensorRef:
    if slot not in tensors:
        raise MissingTensor(f"the dump holds no {slot}")
    return tensors[slot]


def _meta(tensor: TensorRef) -> Any:
    row = lookup(tensor.dtype)
    if row is None:
        raise RefusedRecord(f"{tensor.slot} has the unsupported type {tensor.dtype!r:.40}")
    dtype = {"f": torch.float64, "c": torch.complex128}.get(row.kind, DTYPES.get(tensor.dtype, torch.int64))
    return torch.empty(tensor.shape, dtype=dtype, device="meta")


def _wide_dtype(name: str) -> Any:
    row = lookup(name)
    if row is not None and row.kind in "fc":
        return torch.float64 if row.kind == "f" else torch.complex128
    if name not in DTYPES:
        raise RefusedRecord(f"the element type {name!r:.40} is not supported")
    return DTYPES[name]


def _list(args: Any) -> list[Any]:
    return [*args]
