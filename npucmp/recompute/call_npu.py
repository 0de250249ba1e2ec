"""Formulas of the vendor's own operators, and of their gradients.

Source: torch_npu's documentation. UNVERIFIED on a device.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.recompute.arguments import NotInTable, RefusedRecord
from npucmp.recompute.call_inputs import CallInputs, Node, axis
from npucmp.recompute.call_norms import norm_back, statistics_of, weight_gradient
from npucmp.recompute.call_products import attention, attention_back, attention_scores
from npucmp.recompute.noisy_ops import Steps
from npucmp.recompute.numpy_formulas import sigmoid, softmax_of

GELU = 1.702  # fast gelu: x sigmoid(1.702 x): definition: torch_npu's documentation
MERGED, SEPARATE = ("BSH", "SBH"), ("BSND", "BNSD")  # layouts: heads merged into another axis, or on their own axis


def rms_norm(m: Steps, g: CallInputs, input: Array, gamma: Array, epsilon: float = 1e-6) -> Any:
    """Return the result, and the reciprocal rms of each row."""
    away, rstd = statistics_of(m, input, range(input.ndim - gamma.ndim, input.ndim), epsilon, is_centred=False)
    with m.outside():
        return m.mul(m.mul(away, rstd), gamma), rstd


def rms_norm_back(m: Steps, g: CallInputs, input: Array, gamma: Array, epsilon: float = 1e-6) -> list[Node]:
    start = input.ndim - gamma.ndim
    axes = range(start, input.ndim)
    with m.outside():
        away, rstd = statistics_of(m, input, axes, epsilon, is_centred=False)
    dx, products, _ = norm_back(m, g.dy, away, rstd, axes, gamma, is_centred=False)
    return [[dx, weight_gradient(m, products, gamma, range(start))]]


def add_rms_norm(m: Steps, g: CallInputs, x1: Array, x2: Array, gamma: Array, epsilon: float = 1e-6) -> Any:
    with m.outside():
        x = m.add(x1, x2)
    return (*rms_norm(m, g, x, gamma, epsilon), x)


def swiglu(m: Steps, g: CallInputs, input: Array, dim: int = -1) -> Any:
    a, b = _halves(input, dim)
    with m.outside():
        return m.mul(m.mul(a, sigmoid(m, a)), b)


def swiglu_back(m: Steps, g: CallInputs, input: Array, dim: int = -1) -> list[Node]:
    a, b = _halves(input, dim)
    share = sigmoid(m, a)
    with m.outside():
        slope = m.mul(share, m.add(1.0, m.mul(a, m.sub(1.0, share))))
        first, second = m.mul(m.mul(g.dy, b), slope), m.mul(g.dy, m.mul(a, share))
    return [[np.concatenate((first, second), axis(dim, input.ndim))]]


def _halves(x: Array, dim: int) -> tuple[Array, Array]:
    at = axis(dim, x.ndim)
    if x.shape[at] % 2:
        raise RefusedRecord(f"{x.shape[at]} elements have no halves")
    first, second = np.split(x, 2, at)
    return first, second


def rotary(m: Steps, g: CallInputs, input: Array, r1: Array, r2: Array, rotary_mode: str = "half") -> Any:
    with m.outside():
        return m.add(m.mul(input, r1), m.mul(_rotated(input, rotary_mode), r2))


def rotary_back(m: Steps, g: CallInputs, input: Array, r1: Array, r2: Array, rotary_mode: str = "half") -> list[Node]:
    """Return the gradient of the input. Cosines and sines are constants."""
    with m.outside():
        other = _rotated(m.mul(g.dy, r2), rotary_mode)
        return [[m.sub(m.mul(g.dy, r1), other), None, None]]


def _rotated(x: Array, mode: str) -> Array:
    """Rotate by a right angle: (a, b) becomes (-b, a), for halves or for neighbours."""
    if x.shape[-1] % 2:
        raise RefusedRecord(f"cannot rotate {x.shape[-1]} elements")
    if mode == "interleave":
        return np.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    first, second = np.split(x, 2, -1)
    return np.concatenate((-second, first), -1)


def fast_gelu(m: Steps, x: Any) -> Any:
    return m.mul(x, sigmoid(m, m.mul(GELU, x)))


def fast_gelu_slope(m: Steps, s: Any) -> Any:
    share = sigmoid(m, m.mul(GELU, s.x))
    return m.mul(share, m.add(1.0, m.mul(m.mul(GELU, s.x), m.sub(1.0, share))))


def scaled_masked_softmax(
    m: Steps, g: CallInputs, x: Array, mask: Array, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Any:
    hidden = _hidden(x, mask, fixed_triu_mask)
    return softmax_of(m, np.where(hidden, -10000.0, m.mul(x, scale)), (x.ndim - 1,))


def scaled_masked_softmax_back(
    m: Steps, g: CallInputs, x: Array, mask: Array, scale: float = 1.0, fixed_triu_mask: bool = False
) -> list[Node]:
    y, dy = g.y(m, lambda: scaled_masked_softmax(m, g, x, mask, scale, fixed_triu_mask)), g.dy
    with m.outside():
        inner = m.mul(y, m.sub(dy, m.sum(m.mul(y, dy), (x.ndim - 1,), keepdims=True)))
        return [[np.where(_hidden(x, mask, fixed_triu_mask), 0.0, m.mul(inner, scale)), None]]


def _hidden(x: Array, mask: Array, is_triangle: bool) -> Array:
    return np.triu(np.ones(x.shape[-2:], bool), 1) if is_triangle else mask.astype(bool)


def fusion_attention(
    m: Steps, g: CallInputs, query: Array, key: Array, value: Array, head_num: int, input_layout: str,
    pse: Optional[Array] = None, padding_mask: Optional[Array] = None, atten_mask: Optional[Array] = None,
    scale: float = 1.0, keep_prob: float = 1.0, *rest: Any, sparse_mode: int = 0, **more: Any,
) -> Any:  # fmt: skip
    """Compute attention, and the maximum and the sum of each row of scores, repeated 8 times."""
    q, k, v = _heads(query, key, value, head_num, input_layout)
    allowed = _allowed(q, k, (pse, padding_mask), atten_mask, keep_prob, rest, sparse_mode)
    out = _laid(attention(m, g, q, k, v, allowed, scale=scale, enable_gqa=True), input_layout)
    scores, _ = attention_scores(m, q, np.repeat(k, q.shape[1] // k.shape[1], axis=1), allowed, False, scale)
    largest = scores.max(axis=-1, keepdims=True)
    total = m.sum(m.exp(m.sub(scores, largest)), (scores.ndim - 1,), keepdims=True)
    return [out, *(np.broadcast_to(one, (*one.shape[:-1], 8)) for one in (largest, total))]


def fusion_attention_back(
    m: Steps, g: CallInputs, query: Array, key: Array, value: Array, head_num: int, input_layout: str,
    pse: Optional[Array] = None, padding_mask: Optional[Array] = None, atten_mask: Optional[Array] = None,
    scale: float = 1.0, keep_prob: float = 1.0, *rest: Any, sparse_mode: int = 0, **more: Any,
) -> list[Node]:  # fmt: skip
    q, k, v = _heads(query, key, value, head_num, input_layout)
    allowed = _allowed(q, k, (pse, padding_mask), atten_mask, keep_prob, rest, sparse_mode)
    incoming = CallInputs((), {}, gradients=(_split(g.dy, input_layout, head_num),))
    (found,) = attention_back(m, incoming, q, k, v, allowed, scale=scale, enable_gqa=True)
    return [[None if one is None else _laid(one, input_layout) for one in found]]


def _allowed(
    q: Array, k: Array, others: tuple[Any, ...], mask: Optional[Array], keep: float, rest: tuple[Any, ...], mode: int
) -> Optional[Array]:
    """Return the keys that each query reads. The vendor's mask marks those that it does not read."""
    if keep != 1.0 or any(one is not None for one in others) or rest or mode not in (0, 2, 3):
        raise NotInTable("attention with these arguments has no formula")
    if mode:
        ahead = k.shape[2] - q.shape[2] if mode == 3 else 0
        return np.tri(q.shape[2], k.shape[2], ahead, dtype=bool)
    return None if mask is None else np.logical_not(mask.astype(bool))


def _heads(q: Array, k: Array, v: Array, heads: int, layout: str) -> tuple[Array, Array, Array]:
    """Return tensors as (batch, head, position, size). A layout without a head axis gives the query `heads` heads, and
    keys and values as many heads of that size as fit."""
    if layout in SEPARATE:
        return _split(q, layout, 0), _split(k, layout, 0), _split(v, layout, 0)
    if layout not in MERGED or heads < 1 or q.shape[-1] % heads:
        raise RefusedRecord(f"{heads} heads do not fit {list(q.shape)} as {layout!r:.8}")
    few = k.shape[-1] // (q.shape[-1] // heads)
    return _split(q, layout, heads), _split(k, layout, few), _split(v, layout, few)


def _split(x: Array, layout: str, heads: int) -> Array:
    if layout == "BNSD":
        return x
    if layout in MERGED:
        x = x.swapaxes(0, 1) if layout == "SBH" else x
        x = x.reshape(*x.shape[:2], heads, -1)
    swapped: Array = x.swapaxes(1, 2)
    return swapped


def _laid(x: Array, layout: str) -> Array:
    if layout == "BNSD":
        return x
    x = x.swapaxes(1, 2)
    if layout == "BSND":
        return x
    x = x.reshape(*x.shape[:2], -1)
    return x.swapaxes(0, 1) if layout == "SBH" else x
