"""Formulas of operators: sums of products, functions of elements, reductions; numpy_norms.py has norms and losses.

Each takes Steps, which do the arithmetic, and OperatorInputs, and returns its results in order; None for an
unknown result. Source: prototypes and documentation of TensorFlow (raw_ops), MindSpore (ops.operations), GE (op_proto).
"""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import RefusedRecord, axis_of
from npucmp.recompute.noisy_ops import Alternatives, Steps

if TYPE_CHECKING:
    from npucmp.recompute.numpy_inputs import OperatorInputs

Formula = Callable[[Steps, "OperatorInputs"], "list[Any]"]
ROOT_2, ROOT_2_PI = math.sqrt(2), math.sqrt(2 / math.pi)


# products


def matmul(m: Steps, g: OperatorInputs) -> list[Any]:
    """Multiply matrices; an input with more dimensions is flattened to two, as MindSpore dumps the producer's shape."""
    a, b = (one.reshape(one.shape[0], -1) if one.ndim > 2 else one for one in (g.x(0), g.x(1)))
    return _product(m, g, a, b)


def batch_matmul(m: Steps, g: OperatorInputs) -> list[Any]:
    return _product(m, g, g.x(0), g.x(1))


def _product(m: Steps, g: OperatorInputs, a: Array, b: Array) -> list[Any]:
    if a.ndim < 2 or b.ndim < 2:
        raise RefusedRecord(f"a product of {list(a.shape)} and {list(b.shape)}")
    turned = []
    for one, place, names in ((a, 2, ("transpose_a", "transpose_x1", "adj_x", "adj_x1")),
                              (b, 3, ("transpose_b", "transpose_x2", "adj_y", "adj_x2"))):  # fmt: skip
        declared = g.inputs.get(place)
        is_turned = (
            bool(declared) if declared is not None and declared.dtype == bool and not declared.shape else g.flag(*names)
        )
        turned.append(one.swapaxes(-1, -2) if is_turned else one)
    a, b = turned
    if a.shape[-1] != b.shape[-2]:
        raise RefusedRecord(f"a product of {list(a.shape)} and {list(b.shape)}")
    g.require((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
    out = m.matmul(a, b)
    bias = g.optional(2, "bias")
    return [m.add(out, bias) if bias is not None and bias.dtype.kind == "f" else out]


def fully_connected(m: Steps, g: OperatorInputs) -> list[Any]:
    """Multiply by weights stored as rows, or as columns if `transpose` is set."""
    x, w = g.x(0), g.x(1, "the weights")
    axis = axis_of(int(g.number("axis", usual=1)), x.ndim)
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    w = w.reshape(w.shape[0], -1)
    w = w if g.flag("transpose") else w.T
    if flat.shape[1] != w.shape[0]:
        raise RefusedRecord(f"a product of {list(flat.shape)} and {list(w.shape)}")
    g.require((flat.shape[0], w.shape[1]))
    out, bias = m.matmul(flat, w), g.optional(2, "b", "bias")
    out = m.add(out, bias.reshape(1, -1)) if bias is not None else out
    return [out.reshape(g.shapes[0]) if g.shapes else out]


# functions of one or two operands


def pair(step: str) -> Formula:
    """The formula of a step with two broadcast operands."""

    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        a, b = g.x(0), g.x(1)
        g.require(np.broadcast_shapes(a.shape, b.shape))
        return [getattr(m, step)(a, b)]

    return formula


def squared_difference(m: Steps, g: OperatorInputs) -> list[Any]:
    a, b = g.x(0), g.x(1)
    g.require(np.broadcast_shapes(a.shape, b.shape))
    away = m.sub(a, b)
    return [m.mul(away, away)]


def selection(function: Callable[[Any, Any], Any]) -> Formula:
    """The formula that selects elements of two operands, without rounding."""

    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        a, b = g.x(0), g.x(1)
        shape = np.broadcast_shapes(a.shape, b.shape)
        g.require(shape)
        m.room(shape)
        return [function(a, b)]

    return formula


def elementwise(function: Callable[[Steps, Any], Any]) -> Formula:
    """The formula of an elementwise function of one input, in steps."""
    return lambda m, g: [function(m, g.x(0))]


def sigmoid(m: Steps, x: Any) -> Any:
    return m.div(1.0, m.add(1.0, m.exp(-x)))


def rsqrt(m: Steps, x: Any) -> Any:
    return m.div(1.0, m.sqrt(x))


def bias_add(m: Steps, g: OperatorInputs) -> list[Any]:
    """Add a bias along the channels: the last axis, unless the order of axes differs."""
    x, bias = g.x(0), g.x(1, "the bias")
    channel = channel_of(g, x) if x.ndim > 2 else x.ndim - 1
    if bias.size != x.shape[channel]:
        raise RefusedRecord(f"a bias of {bias.size} for {list(x.shape)}")
    return [m.add(x, bias.reshape([-1 if axis == channel else 1 for axis in range(x.ndim)]))]


def channel_of(g: OperatorInputs, x: Array) -> int:
    place = g.order(x.ndim).find("C")
    if place < 0:
        raise RefusedRecord("the axis of its channels is unknown")
    return place


def eltwise(m: Steps, g: OperatorInputs) -> list[Any]:
    """Mode 0 is the product, 1 the sum, 2 the maximum."""
    mode, inputs = g.number("mode", usual=1.0), g.all
    coefficients = g.attribute("coeff") or ()
    if mode not in (0, 1, 2) or not inputs or any(one.shape != inputs[0].shape for one in inputs):
        raise RefusedRecord(f"the mode {mode:g} of {len(inputs)} inputs")
    if mode == 1 and isinstance(coefficients, tuple) and any(one != 1 for one in coefficients):
        if len(coefficients) != len(inputs):
            raise RefusedRecord("the number of coefficients differs from the number of inputs")
        inputs = [m.mul(one, float(c)) for one, c in zip(inputs, coefficients)]
    return [reduce((m.mul, m.add, np.maximum)[int(mode)], inputs)]


def add_n(m: Steps, g: OperatorInputs) -> list[Any]:
    return [reduce(m.add, g.all)]


def leaky_relu(m: Steps, g: OperatorInputs) -> list[Any]:
    x, slope = g.x(0), g.number("negative_slope", "alpha", usual=0.0)
    return [np.where(x > 0, x, m.mul(x, np.float64(np.float32(slope)))) if slope else np.maximum(x, 0)]


def relu_grad(m: Steps, g: OperatorInputs) -> list[Any]:
    dy, x = g.x(0, "the gradient"), g.x(1, "the input or output of the activation")
    if dy.size != x.size:
        raise RefusedRecord(f"a gradient of {list(dy.shape)} for {list(x.shape)}")
    return [np.where(x.reshape(dy.shape) > 0, dy, 0.0).reshape(g.shapes[0] if g.shapes else x.shape)]


def gelu(m: Steps, g: OperatorInputs) -> list[Any]:
    """Compute GELU by erf and by tanh: frameworks use the same name for both."""
    x, word = g.x(0), g.word("approximate")
    return [
        gelu_of(m, x, word)
        if word in ("none", "tanh")
        else Alternatives([gelu_of(m, x, "tanh"), gelu_of(m, x, "none")])
    ]


def gelu_of(m: Steps, x: Any, approximate: str) -> Any:
    if approximate == "none":
        return m.mul(m.mul(0.5, x), m.add(1.0, m.erf(m.div(x, ROOT_2))))
    inner = m.mul(ROOT_2_PI, m.add(x, m.mul(0.044715, m.mul(x, m.mul(x, x)))))
    return m.mul(m.mul(0.5, x), m.add(1.0, m.tanh(inner)))


# reductions over axes


def axes_of(g: OperatorInputs, x: Array, place: int = 1) -> tuple[int, ...]:
    """The axes of a reduction, from attributes or inputs, else derived from the recorded shape."""
    declared = g.constants(place, "axes", "axis")
    if declared is not None:
        return tuple(sorted({axis_of(axis, x.ndim) for axis in declared})) or tuple(range(x.ndim))
    out = g.shapes[0] if g.shapes else ()
    if len(out) == x.ndim:
        return tuple(axis for axis in range(x.ndim) if out[axis] != x.shape[axis])
    left, at = [], 0
    for axis, size in enumerate(x.shape):
        if at < len(out) and size == out[at]:
            at += 1
        else:
            left.append(axis)
    g.doubt("the graph has no axes for it")
    if at < len(out):
        raise RefusedRecord("no choice of axes gives the recorded shape")
    return tuple(left)


def reduction(step: str) -> Formula:
    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        x = g.x(0)
        out = getattr(m, step)(x, axes_of(g, x))
        return [np.asarray(out)]

    return formula


def extreme(function: Callable[..., Any]) -> Formula:
    """The formula of a maximum or minimum along axes, without rounding."""

    def formula(m: Steps, g: OperatorInputs) -> list[Any]:
        x = g.x(0)
        return [np.asarray(function(x, axis=axes_of(g, x)))]

    return formula


def bias_add_grad(m: Steps, g: OperatorInputs) -> list[Any]:
    dy = g.x(0)
    channel = channel_of(g, dy) if dy.ndim > 2 else dy.ndim - 1
    g.require((dy.shape[channel],))
    return [m.sum(dy, [axis for axis in range(dy.ndim) if axis != channel])]


def _softmax_axis(g: OperatorInputs, x: Array) -> tuple[int, ...]:
    g.expect("axes", "axis")
    declared = g.integers("axes", "axis") or (-1,)
    return tuple(axis_of(axis, x.ndim) for axis in declared)


def softmax_of(m: Steps, x: Array, axes: tuple[int, ...]) -> Any:
    powers = m.exp(m.sub(x, x.max(axis=axes, keepdims=True, initial=-np.inf)))
    return m.div(powers, m.sum(powers, axes, keepdims=True))


def softmax(m: Steps, g: OperatorInputs) -> list[Any]:
    x = g.x(0)
    return [softmax_of(m, x, _softmax_axis(g, x))]


def log_softmax_of(m: Steps, x: Array, axes: tuple[int, ...]) -> Any:
    shifted = m.sub(x, x.max(axis=axes, keepdims=True, initial=-np.inf))
    return m.sub(shifted, m.log(m.sum(m.exp(shifted), axes, keepdims=True)))


def log_softmax(m: Steps, g: OperatorInputs) -> list[Any]:
    x = g.x(0)
    return [log_softmax_of(m, x, _softmax_axis(g, x))]


def softmax_grad(m: Steps, g: OperatorInputs) -> list[Any]:
    """The gradient of softmax, from its output and the incoming gradient."""
    y, dy = g.x(0), g.x(1)
    axes = _softmax_axis(g, y)
    with m.outside():
        return [m.mul(y, m.sub(dy, m.sum(m.mul(y, dy), axes, keepdims=True)))]
