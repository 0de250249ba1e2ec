"""Formulas of operators that copy or select elements: results must be equal to the last bit.

An index out of range is refused here: numpy would raise, or count from the end.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import MissingTensor, RefusedRecord, axis_of
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_inputs import OperatorInputs


def same(m: Steps, g: OperatorInputs) -> list[Any]:
    """Return the same elements in the same order, in another shape."""
    x = g.x(0)
    g.require(x.shape)
    return [x.reshape(g.shapes[0]) if g.shapes else x]


def cast(m: Steps, g: OperatorInputs) -> list[Any]:
    """Cast to the recorded type: error_budget.py rounds floats; integers are truncated toward zero."""
    return same(m, g)


def trans_data(m: Steps, g: OperatorInputs) -> list[Any]:
    """Change the order in memory; if the logical order differs too, transpose the axes."""
    x = g.x(0)
    before, after = g.orders.get("input:0", ""), g.orders.get("output:0", "")
    if before != after and len(before) == x.ndim and sorted(before) == sorted(after):
        x = x.transpose([before.index(axis) for axis in after])
    elif g.shapes and x.shape != g.shapes[0]:
        raise MissingTensor("the order of its axes is unknown")
    return [x]


def transpose(m: Steps, g: OperatorInputs) -> list[Any]:
    x = g.x(0)
    axes = g.constants(1, "perm")
    if axes is None:
        raise MissingTensor("the graph has no permutation for it")
    if sorted(axes) != [*range(x.ndim)]:
        raise RefusedRecord(f"a permutation {list(axes)} of {x.ndim} axes")
    return [x.transpose(axes)]


def gather(m: Steps, g: OperatorInputs) -> list[Any]:
    x, index = g.x(0), g.x(1, "the indices")
    declared = g.constants(2, "axis")
    axis = axis_of(declared[0] if declared else 0, x.ndim)
    if index.dtype.kind not in "iu" or (g.attribute("batch_dims") or 0) != 0:
        raise RefusedRecord("its indices are batched, or are no integers")
    _require_inside(index, x.shape[axis])
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    g.require(shape)
    m.room(shape)
    return [np.take(x, index, axis=axis)]


def _require_inside(index: Array, size: int) -> None:
    if index.size and not (index.min() >= 0 and index.max() < size):
        raise RefusedRecord(f"an index is out of range for size {size}")


def concat(m: Steps, g: OperatorInputs) -> list[Any]:
    """Concatenate along an axis, which is an attribute or the last input (the first, in TensorFlow's older form)."""
    inputs = g.all
    declared = g.integers("concat_dim", "axis")
    if declared is None and len(inputs) > 1 and inputs[-1].dtype.kind in "iu" and inputs[-1].size == 1:
        declared, inputs = (int(inputs[-1].reshape(-1)[0]),), inputs[:-1]
    if declared is None or not inputs or not inputs[0].ndim:
        raise MissingTensor("the axis of the concatenation is unknown")
    axis = axis_of(declared[0], inputs[0].ndim)
    rest = {(one.ndim, one.shape[:axis], one.shape[axis + 1 :]) for one in inputs}
    if len(rest) > 1:
        raise RefusedRecord("the shapes of its inputs do not match")
    shape = (*inputs[0].shape[:axis], sum(one.shape[axis] for one in inputs), *inputs[0].shape[axis + 1 :])
    g.require(shape)
    m.room(shape)
    return [np.concatenate(inputs, axis=axis)]


def pack(m: Steps, g: OperatorInputs) -> list[Any]:
    inputs, declared = g.all, g.integers("axis") or (0,)
    if not inputs or len({one.shape for one in inputs}) > 1:
        raise RefusedRecord("the shapes of its inputs do not match")
    g.require((len(inputs), *inputs[0].shape))
    return [np.stack(inputs, axis=axis_of(declared[0], inputs[0].ndim + 1))]


def split(m: Steps, g: OperatorInputs) -> list[Any]:
    """Split into equal parts along an axis, which is an attribute or TensorFlow's first input."""
    inputs = g.all
    declared = g.integers("split_dim", "axis", "num_axes")
    if declared is None and len(inputs) == 2 and inputs[0].dtype.kind in "iu" and inputs[0].size == 1:
        declared, inputs = (int(inputs[0].reshape(-1)[0]),), inputs[1:]
    parts = g.integers("num_split", "N") or (len(g.shapes),)
    if declared is None:
        raise MissingTensor("the axis of the split is unknown")
    x = inputs[0]
    axis = axis_of(declared[0], x.ndim)
    if not 0 < parts[0] <= x.shape[axis] or x.shape[axis] % parts[0]:
        raise RefusedRecord(f"{parts[0]} parts of {x.shape[axis]}")
    return np.split(x, parts[0], axis=axis)


def pad(m: Steps, g: OperatorInputs) -> list[Any]:
    x = g.x(0)
    declared = g.constants(1, "paddings")
    if declared is None:
        raise MissingTensor("the graph has no paddings for it")
    if len(declared) != 2 * x.ndim or any(one < 0 for one in declared):
        raise RefusedRecord(f"paddings {list(declared)} of {x.ndim} axes"[:80])
    pairs = [*zip(declared[::2], declared[1::2])]
    shape = [size + before + after for size, (before, after) in zip(x.shape, pairs)]
    g.require(shape)
    m.room(shape)
    value = _one(g.inputs.get(2), g.attribute("constant_values"))
    if g.word("mode").upper() not in ("", "CONSTANT"):
        raise RefusedRecord(f"padding by {g.word('mode')!r:.20}")
    return [np.pad(x, pairs, constant_values=value)]


def _one(array: Optional[Array], declared: Any) -> float:
    value = float(array.reshape(-1)[0]) if array is not None and array.size == 1 else declared
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def cut(m: Steps, g: OperatorInputs) -> list[Any]:
    """Take a slice by begin and size; -1 for the rest of an axis."""
    x = g.x(0)
    begin, size = g.constants(1, "begin"), g.constants(2, "size")
    if begin is None or size is None:
        raise MissingTensor("the graph has no begin or size for its slice")
    if len(begin) != x.ndim or len(size) != x.ndim:
        raise RefusedRecord(f"a slice of {len(begin)} axes of {x.ndim}")
    sides = [n - at if length == -1 else length for n, at, length in zip(x.shape, begin, size)]
    if any(at < 0 or length < 0 or at + length > n for n, at, length in zip(x.shape, begin, sides)):
        raise RefusedRecord("the slice is out of range")
    return [x[tuple(slice(at, at + length) for at, length in zip(begin, sides))]]


def tile(m: Steps, g: OperatorInputs) -> list[Any]:
    x, times = g.x(0), g.constants(1, "multiples")
    if times is None:
        raise MissingTensor("the graph has no multiples for it")
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
    """The formula of the index of the maximum or minimum; among equal elements any index is valid."""

    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        x = g.x(0)
        declared = g.constants(1, "dimension", "axis")
        axis = axis_of(declared[0] if declared else 0, x.ndim)
        if not x.shape[axis]:
            raise RefusedRecord("its axis has no elements")
        best = getattr(x, name)(axis=axis, keepdims=True)
        if np.any((x == best).sum(axis=axis) > 1):
            g.doubt("several elements equal the extreme value")
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
