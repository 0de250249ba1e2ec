"""Calls of PyTorch and of MindSpore's mint that numpy can replay, where torch is missing: forward, and simple ones.

A line per call: the line of numpy_table.py that it is, and what its arguments are called, in their order. Tensors among
them are the inputs of the formula, the others its attributes.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from npucmp.model import Call
from npucmp.model.dtypes import lookup, numpy_dtype
from npucmp.recompute.arguments import Missing, Refused, arguments_of
from npucmp.recompute.numpy_given import Array, Given, axis_of
from npucmp.recompute.numpy_table import Line, line_of
from npucmp.recompute.table import row_of
from npucmp.recompute.task import Task


class Called(NamedTuple):
    line: str
    names: str


_TWO = "a b"
CALLS = {
    "add": Called("Add", "a b alpha"), "sub": Called("Sub", "a b alpha"), "mul": Called("Mul", _TWO),
    "div": Called("Div", _TWO), "__add__": Called("Add", _TWO), "__radd__": Called("Add", _TWO),
    "__sub__": Called("Sub", _TWO), "__mul__": Called("Mul", _TWO), "__rmul__": Called("Mul", _TWO),
    "__truediv__": Called("Div", _TWO), "maximum": Called("Maximum", _TWO), "minimum": Called("Minimum", _TWO),
    "matmul": Called("BatchMatMul", _TWO), "bmm": Called("BatchMatMul", _TWO), "mm": Called("BatchMatMul", _TWO),
    "__matmul__": Called("BatchMatMul", _TWO), "linear": Called("BatchMatMul", "a b bias"),
    "relu": Called("Relu", "a"), "exp": Called("Exp", "a"), "log": Called("Log", "a"), "sqrt": Called("Sqrt", "a"),
    "rsqrt": Called("Rsqrt", "a"), "tanh": Called("Tanh", "a"), "sigmoid": Called("Sigmoid", "a"),
    "silu": Called("Swish", "a"), "erf": Called("Erf", "a"), "square": Called("Square", "a"),
    "abs": Called("Abs", "a"), "neg": Called("Neg", "a"), "gelu": Called("Gelu", "a approximate"),
    "softmax": Called("Softmax", "a axis"), "log_softmax": Called("LogSoftmax", "a axis"),
    "layer_norm": Called("LayerNorm", "a shape b c eps"),
    "sum": Called("ReduceSum", "a axes keepdims"), "mean": Called("ReduceMean", "a axes keepdims"),
    "reshape": Called("Reshape", "a *"), "view": Called("Reshape", "a *"), "flatten": Called("Reshape", "a *"),
    "contiguous": Called("Reshape", "a *"), "clone": Called("Reshape", "a *"), "unsqueeze": Called("Reshape", "a *"),
    "squeeze": Called("Reshape", "a *"), "transpose": Called("Transpose", "a first second"),
    "permute": Called("Transpose", "a perm"), "cat": Called("Concat", "several axis"),
}  # fmt: skip
_KEYWORDS = {"input": "a", "self": "a", "other": "b", "weight": "b", "dim": "axis", "dims": "perm",
             "tensors": "several", "normalized_shape": "shape", "mat2": "b", "keepdim": "keepdims"}  # fmt: skip
_PREFIXES = ("Functional", "Torch", "Tensor", "Mint", "MintFunctional")


def line_of_call(call: Call) -> Optional[Line]:
    """None for a call that is left to torch, or not known at all."""
    called = CALLS.get(call.name) if call.prefix in _PREFIXES and row_of(call) is not None else None
    return None if called is None else line_of(called.line)


def given_of_call(
    task: Task, shapes: tuple[tuple[int, ...], ...], low: str, tensor: Callable[[str], Array]
) -> tuple[Given, str]:
    """Inputs and attributes as a formula takes them, and what was done to them. Raises Refused for other arguments."""
    call, row = task.call, row_of(task.call)
    assert row is not None
    recorded = {one.slot: one for one in task.operator.tensors}

    def load(slot: str) -> Array:
        if slot not in recorded:
            raise Missing(f"the dump holds no {slot}")
        return tensor(slot)

    args, kwargs = arguments_of(call, row, load, lambda name: name)
    found = _named(CALLS[call.name], [*args], {_KEYWORDS.get(key, key): value for key, value in kwargs.items()})
    if found.pop("alpha", 1) != 1:
        raise Refused("a factor of the second operand")
    arrays = _arrays(found)
    treated = ""
    floats = [one.dtype for one in recorded.values() if one.slot.startswith("input") and _is_float(one.dtype)]
    if row.autocast and low and any(one not in ("float16", "bfloat16") for one in floats):
        treated = f"autocast {low}"
        arrays = [_rounded(one, low) for one in arrays]
    return Given(dict(enumerate(arrays)), _attributes(call.name, found, arrays), shapes, {}, "npy"), treated


def _named(called: Called, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = called.names.split()
    if names[-1] == "*":  # sizes, which the recorded shape tells
        names, args, kwargs = names[:-1], args[:1], {key: one for key, one in kwargs.items() if key == "a"}
    if names == ["a", "perm"] and len(args) > 2:
        args = [args[0], tuple(args[1:])]
    if len(args) > len(names):
        raise Refused("more arguments than numpy takes")
    found = {**dict(zip(names, args)), **kwargs}
    if "axes" in names and "axis" in found:
        found["axes"] = found.pop("axis")
    known = {*names, *({"dtype"} if found.get("dtype") is None else set())}
    if set(found) - known:
        raise Refused(f"an argument {min(set(found) - known)!r:.40} that numpy does not take")
    return {key: value for key, value in found.items() if value is not None}


def _arrays(found: dict[str, Any]) -> list[Array]:
    """Tensors in the order of a, b, c; numbers among operands as float32 holds them."""
    several = found.pop("several", None)
    if several is not None:
        if not isinstance(several, tuple) or not all(isinstance(one, np.ndarray) for one in several):
            raise Refused("no list of tensors")
        return [*several]
    arrays = []
    for name in ("a", "b", "c", "bias"):
        value = found.pop(name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = np.asarray(np.float64(np.float32(value)))
        if isinstance(value, np.ndarray):
            arrays.append(value)
        elif value is not None:
            raise Refused(f"the argument {name} is no tensor")
    return arrays


def _attributes(name: str, found: dict[str, Any], arrays: list[Array]) -> dict[str, Any]:
    told = {key: value for key, value in found.items() if key != "shape"}
    if name == "linear":
        told["transpose_b"] = True
    if name == "layer_norm":
        shape = found.get("shape", ())
        if len(arrays) != 3 or tuple(np.atleast_1d(shape)) != arrays[1].shape:
            raise Refused("a norm without weights and bias")
        told.setdefault("eps", 1e-5)
    if name == "gelu":
        told.setdefault("approximate", "none")
    if name == "transpose":
        rank = arrays[0].ndim
        perm = [*range(rank)]
        one, other = (axis_of(int(told.pop(key)), rank) for key in ("first", "second"))
        perm[one], perm[other] = perm[other], perm[one]
        told["perm"] = tuple(perm)
    if name == "cat":
        told.setdefault("axis", 0)
    if name in ("sum", "mean"):
        told.setdefault("axes", ())
    return told


def _is_float(name: str) -> bool:
    row = lookup(name)
    return row is not None and row.kind == "f"


def _rounded(one: Array, low: str) -> Array:
    return one.astype(numpy_dtype(low)).astype(np.float64) if one.dtype.kind == "f" else one
