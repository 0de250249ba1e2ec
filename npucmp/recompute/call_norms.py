"""Formulas of PyTorch's norms and of softmax, and of their gradients.

Source: PyTorch 2.x documentation; derivatives.yaml lists the tensors that autograd saves.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, axis, tensor
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_formulas import log_softmax_of, rsqrt, softmax_of

# norms: statistics over `axes`; weight and bias have a shape that can be broadcast


def statistics_of(m: Steps, x: Array, axes: Sequence[int], eps: float, is_centred: bool = True) -> tuple[Any, Any]:
    """Return the deviations from the mean, and the reciprocal of their rms."""
    away = m.sub(x, m.mean(x, axes, keepdims=True)) if is_centred else x
    return away, rsqrt(m, m.add(m.mean(m.mul(away, away), axes, keepdims=True), eps))


def _affine(m: Steps, x: Any, weight: Optional[Array], bias: Optional[Array]) -> Any:
    x = x if weight is None else m.mul(x, weight)
    return x if bias is None else m.add(x, bias)


def norm_back(
    m: Steps, dy: Array, away: Any, rstd: Any, axes: Sequence[int], weight: Optional[Array], is_centred: bool = True
) -> tuple[Any, Any, Any]:
    """Return the gradient of the input, and the terms that the gradients of weight and bias are sums of."""
    with m.outside():
        normed = m.mul(away, rstd)
        scaled = dy if weight is None else m.mul(dy, weight)
        along = m.mul(normed, m.mean(m.mul(scaled, normed), axes, keepdims=True))
        inner = m.sub(m.sub(scaled, m.mean(scaled, axes, keepdims=True)), along) if is_centred else m.sub(scaled, along)
        products = m.mul(dy, normed)
    return m.mul(rstd, inner), products, dy


def weight_gradient(m: Steps, one: Any, like: Optional[Array], axes: Sequence[int]) -> Any:
    """Return a gradient of weight or bias. Some kernels add it in the type of the output."""
    return None if like is None else m.sum(one, axes, coarse=True).reshape(like.shape)


def _rows_and_axes(x: Array, normalized_shape: Any) -> tuple[list[int], list[int]]:
    shape = normalized_shape if isinstance(normalized_shape, tuple) else (normalized_shape,)
    start = x.ndim - len(shape)
    if start < 0 or x.shape[start:] != shape:
        raise RefusedRecord(f"a norm of {list(shape)} does not fit {list(x.shape)}"[:80])
    return [*range(start)], [*range(start, x.ndim)]


def layer_norm(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    _, axes = _rows_and_axes(input, normalized_shape)
    away, rstd = statistics_of(m, input, axes, eps)
    return _affine(m, m.mul(away, rstd), weight, bias)


def layer_norm_back(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> list[Node]:  # fmt: skip
    rows, axes = _rows_and_axes(input, normalized_shape)
    with m.outside():
        away, rstd = statistics_of(m, input, axes, eps)
    dx, products, dy = norm_back(m, g.dy, away, rstd, axes, weight)
    return [[dx, weight_gradient(m, products, weight, rows), weight_gradient(m, dy, bias, rows)]]


def rms_norm(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    eps: Optional[float] = None,
) -> Any:  # fmt: skip
    """Compute the norm. Some devices use several kernels: each result has the type of the output."""
    _, axes = _rows_and_axes(input, normalized_shape)
    with m.outside():
        away, rstd = statistics_of(m, input, axes, _epsilon(g, eps), is_centred=False)
        if weight is not None:
            return m.mul(m.mul(away, rstd), weight)
    return m.mul(away, rstd)


def _epsilon(g: CallInputs, eps: Optional[float]) -> float:
    if eps is None:
        g.doubt("eps is not recorded; that of float32 was used")
        return 2.0**-23
    return eps


def rms_norm_back(
    m: Steps, g: CallInputs, input: Array, normalized_shape: Any, weight: Optional[Array] = None,
    eps: Optional[float] = None,
) -> list[Node]:  # fmt: skip
    rows, axes = _rows_and_axes(input, normalized_shape)
    with m.outside():
        away, rstd = statistics_of(m, input, axes, _epsilon(g, eps), is_centred=False)
    dx, products, dy = norm_back(m, g.dy, away, rstd, axes, weight, is_centred=False)
    dw = weight_gradient(m, products, weight, rows)
    return [[dx, dw], *([[m.mul(dy, weight), dw]] if weight is not None else [])]


def _channels(x: Array) -> tuple[list[int], list[int]]:
    """Return the axes of a norm over images, and the shape of weights."""
    if x.ndim < 2:
        raise RefusedRecord("the images have no channels")
    return [0, *range(2, x.ndim)], [-1 if at == 1 else 1 for at in range(x.ndim)]


def _shaped(one: Optional[Array], shape: Sequence[int]) -> Optional[Array]:
    return None if one is None else one.reshape(shape)


def batch_norm(
    m: Steps, g: CallInputs, input: Array, running_mean: Optional[Array], running_var: Optional[Array],
    weight: Optional[Array] = None, bias: Optional[Array] = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Compute the norm. Some kernels fold it into a factor and an offset: steps are those of an accumulator."""
    axes, shape = _channels(input)
    if training:
        away, rstd = statistics_of(m, input, axes, eps)
    else:
        mean, variance = (tensor(one, "a running statistic").reshape(shape) for one in (running_mean, running_var))
        away, rstd = m.sub(input, mean), rsqrt(m, m.add(variance, eps))
    factor = rstd if weight is None else m.mul(rstd, weight.reshape(shape))
    return _affine(m, m.mul(away, factor), None, _shaped(bias, shape))


def batch_norm_back(
    m: Steps, g: CallInputs, input: Array, running_mean: Optional[Array], running_var: Optional[Array],
    weight: Optional[Array] = None, bias: Optional[Array] = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> list[Node]:  # fmt: skip
    axes, shape = _channels(input)
    scale = _shaped(weight, shape)
    if training:
        with m.outside():
            away, rstd = statistics_of(m, input, axes, eps)
        dx, products, dy = norm_back(m, g.dy, away, rstd, axes, scale)
    else:
        mean, variance = (tensor(one, "a running statistic").reshape(shape) for one in (running_mean, running_var))
        with m.outside():
            rstd, dy = rsqrt(m, m.add(variance, eps)), g.dy
            products = m.mul(m.mul(m.sub(input, mean), rstd), dy)
            factor = rstd if scale is None else m.mul(rstd, scale)
        dx = m.mul(dy, factor)
    found = [dx, weight_gradient(m, products, weight, axes), weight_gradient(m, dy, bias, axes)]
    return [[found[0], None, None, *found[1:]], found]


def group_norm(
    m: Steps, g: CallInputs, input: Array, num_groups: int, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5,
) -> Any:  # fmt: skip
    x, axes, shape = _groups(input, num_groups)
    away, rstd = statistics_of(m, x, axes, eps)
    return _affine(m, m.mul(away, rstd).reshape(input.shape), _shaped(weight, shape), _shaped(bias, shape))


def _groups(x: Array, groups: int) -> tuple[Array, list[int], list[int]]:
    _, shape = _channels(x)
    if not isinstance(groups, int) or groups < 1 or x.shape[1] % groups:
        raise RefusedRecord(f"{groups!r:.20} groups do not fit {x.shape[1]} channels")
    return x.reshape(x.shape[0], groups, -1), [2], shape


def group_norm_back(
    m: Steps, g: CallInputs, input: Array, num_groups: int, weight: Optional[Array] = None,
    bias: Optional[Array] = None, eps: float = 1e-5,
) -> list[Node]:  # fmt: skip
    x, axes, shape = _groups(input, num_groups)
    with m.outside():
        away, rstd = statistics_of(m, x, axes, eps)
    flat = g.dy.reshape(x.shape)
    scale = None
    if weight is not None:
        scale = np.broadcast_to(weight.reshape(shape), input.shape).reshape(x.shape)
    dx, products, dy = norm_back(m, flat, away, rstd, axes, scale)
    rows, _ = _channels(input)
    return [[dx.reshape(input.shape), weight_gradient(m, products.reshape(input.shape), weight, rows),
             weight_gradient(m, dy.reshape(input.shape), bias, rows)]]  # fmt: skip


# softmax


def softmax(m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return softmax_of(m, input, (_axis(dim, input),))


def _axis(dim: Any, x: Array) -> int:
    if dim is None:
        raise RefusedRecord("the axis is unknown")
    return axis(dim, x.ndim)


def softmax_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> list[Node]:
    along = (_axis(dim, input),)
    y, dy = g.y(m, lambda: softmax_of(m, input, along)), g.dy
    with m.outside():
        inner = m.sub(dy, m.sum(m.mul(y, dy), along, keepdims=True))
    return [[m.mul(y, inner)]]


def log_softmax(m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return log_softmax_of(m, input, (_axis(dim, input),))


def log_softmax_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> list[Node]:
    along = (_axis(dim, input),)
    y, dy = g.y(m, lambda: log_softmax_of(m, input, along)), g.dy
    with m.outside():
        share = m.mul(m.exp(y), m.sum(dy, along, keepdims=True))
    return [[m.sub(dy, share)]]
