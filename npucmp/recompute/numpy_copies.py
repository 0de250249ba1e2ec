"""Formulas of operators that compute nothing: what they hand on must be equal to the last bit.

An index beyond what it reads is refused here: numpy would raise, or count from the end.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import numpy as np

from npucmp.model.dtypes import lookup
from npucmp.recompute.arguments import MissingTensor, RefusedRecord
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_inputs import Array, OperatorInputs, axis_of


def same(m: Steps, g: OperatorInputs) -> list[Any]:
    """The same elements one after the other, in another shape."""
    x = g.x(0)
    g.require(x.shape)
    return [x.reshape(g.shapes[0]) if g.shapes else x]


def cast(m: Steps, g: OperatorInputs) -> list[Any]:
    """To the recorded type: what a float is rounded to, error_budget.py knows; integers are cut toward zero."""
    return same(m, g)


def trans_data(m: Steps, g: OperatorInputs) -> list[Any]:
    """Another order in memory; where the logical order differs too, the axes are turned."""
    x = g.x(0)
    before, after = g.orders.get("input:0", ""), g.orders.get("output:0", "")
    if before != after and len(before) == x.ndim and sorted(before) == sorted(after):
        x = x.transpose([before.index(axis) for axis in after])
    elif g.shapes and x.shape != g.shapes[0]:
        raise MissingTensor("nothing tells the order of its axes")
    return [x]


def transpose(m: Steps, g: OperatorInputs) -> list[Any]:
    x = g.x(0)
    axes = g.constants(1, "perm")
    if axes is None:
        raise MissingTensor("the graph does not tell its permutation")
    if sorted(axes) != [*range(x.ndim)]:
        raise RefusedRecord(f"a permutation {list(axes)} of {x.ndim} axes")
    return [x.transpose(axes)]


def gather(m: Steps, g: OperatorInputs) -> list[Any]:
    x, index = g.x(0), g.x(1, "the indices")
    told = g.constants(2, "axis")
    axis = axis_of(told[0] if told else 0, x.ndim)
    if index.dtype.kind not in "iu" or (g.told("batch_dims") or 0) != 0:
        raise RefusedRecord("indices that are no integers, or batches of them")
    _require_inside(index, x.shape[axis])
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    g.require(shape)
    m.room(shape)
    return [np.take(x, index, axis=axis)]


def _require_inside(index: Array, size: int) -> None:
    if index.size and not (index.min() >= 0 and index.max() < size):
        raise RefusedRecord(f"an index beyond the {size} that there are")


def concat(m: Steps, g: OperatorInputs) -> list[Any]:
    """Along an axis: an attribute, or the last input (the first, in TensorFlow's older form)."""
    inputs = g.all
    told = g.integers("concat_dim", "axis")
    if told is None and len(inputs) > 1 and inputs[-1].dtype.kind in "iu" and inputs[-1].size == 1:
        told, inputs = (int(inputs[-1].reshape(-1)[0]),), inputs[:-1]
    if told is None or not inputs or not inputs[0].ndim:
        raise MissingTensor("nothing tells the axis that it joins along")
    axis = axis_of(told[0], inputs[0].ndim)
    rest = {(one.ndim, one.shape[:axis], one.shape[axis + 1 :]) for one in inputs}
    if len(rest) > 1:
        raise RefusedRecord("what it joins does not fit together")
    shape = (*inputs[0].shape[:axis], sum(one.shape[axis] for one in inputs), *inputs[0].shape[axis + 1 :])
    g.require(shape)
    m.room(shape)
    return [np.concatenate(inputs, axis=axis)]


def pack(m: Steps, g: OperatorInputs) -> list[Any]:
    inputs, told = g.all, g.integers("axis") or (0,)
    if not inputs or len({one.shape for one in inputs}) > 1:
        raise RefusedRecord("what it joins does not fit together")
    g.require((len(inputs), *inputs[0].shape))
    return [np.stack(inputs, axis=axis_of(told[0], inputs[0].ndim + 1))]


def split(m: Steps, g: OperatorInputs) -> list[Any]:
    """In equal parts, along an axis that is an attribute or TensorFlow's first input."""
    inputs = g.all
    told = g.integers("split_dim", "axis", "num_axes")
    if told is None and len(inputs) == 2 and inputs[0].dtype.kind in "iu" and inputs[0].size == 1:
        told, inputs = (int(inputs[0].reshape(-1)[0]),), inputs[1:]
    parts = g.integers("num_split", "N") or (len(g.shapes),)
    if told is None:
        raise MissingTensor("nothing tells the axis that it splits along")
    x = inputs[0]
    axis = axis_of(told[0], x.ndim)
    if not 0 < parts[0] <= x.shape[axis] or x.shape[axis] % parts[0]:
        raise RefusedRecord(f"{parts[0]} parts of {x.shape[axis]}")
    return np.split(x, parts[0], axis=axis)


def pad(m: Steps, g: OperatorInputs) -> list[Any]:
    x = g.x(0)
    told = g.constants(1, "paddings")
    if told is None:
        raise MissingTensor("the graph does not tell its paddings")
    if len(told) != 2 * x.ndim or any(one < 0 for one in told):
        raise RefusedRecord(f"paddings {list(told)} of {x.ndim} axes"[:80])
    pairs = [*zip(told[::2], told[1::2])]
    shape = [size + before + after for size, (before, after) in zip(x.shape, pairs)]
    g.require(shape)
    m.room(shape)
    value = _one(g.inputs.get(2), g.told("constant_values"))
    if g.word("mode").upper() not in ("", "CONSTANT"):
        raise RefusedRecord(f"padding by {g.word('mode')!r:.20}")
    return [np.pad(x, pairs, constant_values=value)]


def _one(array: Optional[Array], told: Any) -> float:
    value = float(array.reshape(-1)[0]) if array is not None and array.size == 1 else told
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def cut(m: Steps, g: OperatorInputs) -> list[Any]:
    """A slice: where it begins, and how large it is; -1 for the rest."""
    x = g.x(0)
    begin, size = g.constants(1, "begin"), g.constants(2, "size")
    if begin is None or size is None:
        raise MissingTensor("the graph does not tell what it cuts")
    if len(begin) != x.ndim or len(size) != x.ndim:
        raise RefusedRecord(f"a slice of {len(begin)} axes of {x.ndim}")
    sides = [n - at if length == -1 else length for n, at, length in zip(x.shape, begin, size)]
    if any(at < 0 or length < 0 or at + length > n for n, at, length in zip(x.shape, begin, sides)):
        raise RefusedRecord("a slice beyond what there is")
    return [x[tuple(slice(at, at + length) for at, length in zip(begin, sides))]]


def tile(m: Steps, g: OperatorInputs) -> list[Any]:
    x, times = g.x(0), g.constants(1, "multiples")
    if times is None:
        raise MissingTensor("the graph does not tell how often it repeats")
    if len(times) != x.ndim or any(one < 0 for one in times):
        raise RefusedRecord(f"{list(times)} times {x.ndim} axes"[:80])
    shape = [size * n for size, n in zip(x.shape, times)]
    g.require(shape)
    m.room(shape)
    return [np.tile(x, times)]


def broadcast(m: Steps, g: OperatorInputs) -> list[Any]:
    x, shape = g.x(0), g.shapes[0] if g.shapes else ()
    m.room(shape)
    return [np.broadcast_to(x, shape)]


def arg_extreme(name: str) -> Any:
    """Where the largest or smallest is; of equal ones anybody may be named."""

    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        x = g.x(0)
        told = g.constants(1, "dimension", "axis")
        axis = axis_of(told[0] if told else 0, x.ndim)
        if not x.shape[axis]:
            raise RefusedRecord("the largest of nothing")
        best = getattr(x, name)(axis=axis, keepdims=True)
        if np.any((x == best).sum(axis=axis) > 1):
            g.doubt("several elements are as large")
        return [getattr(x, f"arg{name}")(axis=axis)]

    return formula


def compared(function: Any) -> Any:
    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        a, b = g.x(0), g.x(1)
        shape = np.broadcast_shapes(a.shape, b.shape)
        g.require(shape)
        m.room(shape)
        return [function(a, b)]

    return formula


def where(m: Steps, g: OperatorInputs) -> list[Any]:
    condition, a, b = (g.x(at) for at in range(3))
    shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    g.require(shape)
    m.room(shape)
    return [np.where(condition.astype(bool), a, b)]


def clip(m: Steps, g: OperatorInputs) -> list[Any]:
    low, high = (_bound(g, place, name) for place, name in ((1, "min"), (2, "max")))
    return [np.clip(g.x(0), low, high)]


def _bound(g: OperatorInputs, place: int, name: str) -> Array:
    return g.inputs[place] if place in g.inputs else np.asarray(g.number(name))


def as_type(values: Array, dtype: str) -> Array:
    """What is recorded as integers or truths, of floats."""
    row = lookup(dtype)
    if row is None or row.kind not in "iub" or values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):
        return values != 0 if row.kind == "b" else np.trunc(values).astype(np.int64)


def shapes_fit(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes differ in axes of one element at most."""
    return [one for one in a if one != 1] == [one for one in b if one != 1]
