"""Formulas of PyTorch's reductions, and of their gradients.

Source: PyTorch 2.x documentation; FunctionsManual.cpp (gradients of prod and of a norm).
"""

from __future__ import annotations

import math
from typing import Any, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.model.dtypes import ROUNDING
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, axes_of, axis
from npucmp.recompute.noisy_ops import Steps


def _with_axes(one: Array, axes: Sequence[int], rank: int) -> Array:
    """Return a result of a reduction with its axes restored."""
    return np.expand_dims(one, tuple(axes)) if one.ndim < rank else one


def logsumexp(m: Steps, g: CallInputs, input: Array, dim: Any, keepdim: bool = False) -> Any:
    axes = axes_of(dim, input.ndim)
    top = input.max(axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    found = m.add(m.log(m.sum(m.exp(m.sub(input, top)), axes, keepdims=True)), top)
    return found if keepdim else found.squeeze(axes)


def logsumexp_back(m: Steps, g: CallInputs, input: Array, dim: Any, keepdim: bool = False) -> list[Node]:
    axes = axes_of(dim, input.ndim)
    y = _with_axes(g.y(m, lambda: logsumexp(m, g, input, dim, keepdim)), axes, input.ndim)
    with m.outside():
        share = m.exp(m.sub(input, y))
    return [[m.mul(_with_axes(g.dy, axes, input.ndim), share)]]


def total(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.asarray(m.sum(_counted(input), axes_of(dim, input.ndim), keepdim))


def _counted(x: Array) -> Array:
    return x.astype(np.int64) if x.dtype.kind == "b" else x


def total_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> list[Node]:
    return [[np.broadcast_to(_with_axes(g.dy, axes_of(dim, input.ndim), input.ndim), input.shape)]]


def mean(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return np.asarray(m.mean(input, axes_of(dim, input.ndim), keepdim))


def mean_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> list[Node]:
    axes = axes_of(dim, input.ndim)
    count = math.prod(input.shape[one] for one in axes)
    return [[np.broadcast_to(m.div(_with_axes(g.dy, axes, input.ndim), float(max(1, count))), input.shape)]]


def _spread_of(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, float]:
    """Return the axes, and the number that is subtracted from the count of elements."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return dim, float(correction) if correction is not None else float(unbiased)


def _variance(m: Steps, x: Array, dim: Any, less: float, keepdim: bool) -> tuple[Any, Any, tuple[int, ...], float]:
    axes = axes_of(dim, x.ndim)
    count = max(0.0, math.prod(x.shape[one] for one in axes) - less)
    away = m.sub(x, m.mean(x, axes, keepdims=True))
    with np.errstate(all="ignore"):
        return m.div(m.sum(m.mul(away, away), axes, keepdim), np.float64(count)), away, axes, count


def variance(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> Any:  # fmt: skip
    dim, less = _spread_of(dim, unbiased, correction)
    return np.asarray(_variance(m, input, dim, less, keepdim)[0])


def variance_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> list[Node]:  # fmt: skip
    dim, less = _spread_of(dim, unbiased, correction)
    with m.outside():
        _, away, axes, count = _variance(m, input, dim, less, True)
        scale = m.mul(2.0 / count if count else math.inf, _with_axes(g.dy, axes, input.ndim))
    return [[m.mul(scale, away)]]


def deviation(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> Any:  # fmt: skip
    return m.sqrt(variance(m, g, input, dim, unbiased, keepdim, correction))


def deviation_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: Any = None,
) -> list[Node]:  # fmt: skip
    y = g.y(m, lambda: deviation(m, g, input, dim, unbiased, keepdim, correction))
    dim, less = _spread_of(dim, unbiased, correction)
    with m.outside():
        _, away, axes, count = _variance(m, input, dim, less, True)
        scale = m.div(_with_axes(g.dy, axes, input.ndim), m.mul(_with_axes(y, axes, input.ndim), count))
    return [[m.mul(scale, away)]]


def norm(
    m: Steps, g: CallInputs, input: Array, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    _require_euclidean(p)
    return np.asarray(m.sqrt(m.sum(m.mul(input, input), axes_of(dim, input.ndim), keepdim)))


def _require_euclidean(p: Any) -> None:
    if p not in (2, "fro", None):
        raise RefusedRecord(f"unsupported norm order {p!r:.20}")


def norm_back(
    m: Steps, g: CallInputs, input: Array, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> list[Node]:
    """Return the gradient. It is 0 where the norm is 0."""
    _require_euclidean(p)
    axes = axes_of(dim, input.ndim)
    y = _with_axes(g.y(m, lambda: norm(m, g, input, p, dim, keepdim)), axes, input.ndim)
    with m.outside(), np.errstate(all="ignore"):
        share = np.where(y == 0, 0.0, m.div(_with_axes(g.dy, axes, input.ndim), y))
    return [[m.mul(input, share)]]


def product(m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Multiply the elements. Some kernels store each partial product in the type of the output."""
    axes = axes_of(dim, input.ndim)
    count = math.prod(input.shape[one] for one in axes)
    found = np.prod(_counted(input), axis=axes, keepdims=keepdim)
    return np.asarray(m.rounded(found, ROUNDING * m.unit * math.sqrt(count) * np.abs(found)))


def product_back(
    m: Steps, g: CallInputs, input: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> list[Node]:
    """Return the product of the other elements: the result over each factor, or the product without the only zero."""
    axes = axes_of(dim, input.ndim)
    y = _with_axes(g.y(m, lambda: product(m, g, input, dim, keepdim)), axes, input.ndim)
    dy = _with_axes(g.dy, axes, input.ndim)
    is_zero = input == 0
    zeros = is_zero.sum(axis=axes, keepdims=True)
    with m.outside():
        found = np.where(zeros == 0, m.div(m.mul(dy, y), np.where(is_zero, 1.0, input)), 0.0)
        if np.any(zeros == 1):
            others = product(m, g, np.where(is_zero, 1.0, input), axes, True)
            found = np.where((zeros == 1) & is_zero, m.mul(dy, others), found)
    return [[m.rounded(found)]]


def cumsum_formula(m: Steps, g: CallInputs, input: Array, dim: Any, dtype: Any = None) -> Any:
    return m.contract(lambda one: np.cumsum(one, axis=axis(dim, input.ndim)), _counted(input))


def cumulated_back(m: Steps, g: CallInputs, input: Array, dim: Any, dtype: Any = None) -> list[Node]:
    at = axis(dim, input.ndim)
    return [[m.contract(lambda one: np.flip(np.cumsum(np.flip(one, at), axis=at), at), g.dy)]]
