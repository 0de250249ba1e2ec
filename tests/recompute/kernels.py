"""What a device would compute, in numpy alone: other orders of sums and other formulas than torch's, rounded once.

None of them is the kernel of an engine, so that a replay that only repeats itself is found out.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

F32 = np.float32


def bfloat16(x: Any) -> Any:
    """Rounded to bfloat16, as float32 (.npy has no bfloat16)."""
    return np.asarray(x, F32).astype(ml_dtypes.bfloat16).astype(F32)


def matmul(a: Any, b: Any, block: int = 1, into: Any = F32) -> Any:
    """Products added one block of k after the other, in float32 (or coarser)."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), into)
    for start in range(0, a.shape[-1], block):
        part = a[..., start : start + block].astype(F32) @ b[..., start : start + block, :].astype(F32)
        total = (total + part.astype(into)).astype(into)
    return total.astype(F32)


def sum_in_order(x: Any, into: Any = F32) -> Any:
    """Along the last axis, one after the other."""
    total = np.zeros(x.shape[:-1], into)
    for at in range(x.shape[-1]):
        total = (total + x[..., at].astype(into)).astype(into)
    return total


def exp(x: Any) -> Any:
    """2^n by a polynomial of degree 6 in float32, as a device without libm."""
    scaled = x.astype(F32) * F32(1.4426950408889634)
    whole = np.rint(scaled)
    t = ((x.astype(F32) - whole * F32(0.693359375)) + whole * F32(2.12194440e-4)).astype(F32)
    found = F32(1 / 720)
    for factor in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        found = (found * t + F32(factor)).astype(F32)
    return np.ldexp(found, whole.astype(int)).astype(F32)


def softmax(x: Any, exponential: Any = exp) -> Any:
    """With sums in blocks of 16."""
    weights = exponential((x - x.max(-1, keepdims=True)).astype(F32)).astype(F32)
    blocks = [sum_in_order(weights[..., at : at + 16]) for at in range(0, x.shape[-1], 16)]
    total = blocks[0]
    for one in blocks[1:]:
        total = (total + one).astype(F32)
    return (weights / total[..., None]).astype(F32)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """Two passes, sums in order."""
    n = F32(x.shape[-1])
    mean = (sum_in_order(x.astype(F32)) / n).astype(F32)[..., None]
    away = (x.astype(F32) - mean).astype(F32)
    var = (sum_in_order((away * away).astype(F32)) / n).astype(F32)[..., None]
    return ((away / np.sqrt(var + F32(eps))).astype(F32) * weight + bias).astype(F32)


def gelu(x: Any) -> Any:
    """erf by the rational function of Abramowitz and Stegun 7.1.26 (1.5e-7), in float64 but for that."""
    z = np.abs(x.astype(float)) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1 - poly * np.exp(-z * z))
    return (0.5 * x * (1 + erf)).astype(F32)


def silu(x: Any) -> Any:
    return (x / (F32(1) + exp(-x))).astype(F32)


def attention(q: Any, k: Any, v: Any, block: int = 8) -> Any:
    """Online softmax: block by block with a running maximum, in float32."""
    scale = F32(1 / np.sqrt(q.shape[-1]))
    largest = np.full((*q.shape[:-1], 1), -np.inf, F32)
    total, out = np.zeros((*q.shape[:-1], 1), F32), np.zeros((*q.shape[:-1], v.shape[-1]), F32)
    for at in range(0, k.shape[-2], block):
        scores = matmul(q, np.swapaxes(k[..., at : at + block, :], -1, -2)) * scale
        above = np.maximum(largest, scores.max(-1, keepdims=True))
        weights, shrink = exp(scores - above), exp(np.maximum(largest - above, F32(-80)))
        total = (total * shrink + weights.sum(-1, keepdims=True)).astype(F32)
        out = (out * shrink + matmul(weights, v[..., at : at + block, :])).astype(F32)
        largest = above
    return (out / total).astype(F32)


def conv2d(x: Any, weight: Any) -> Any:
    """3 x 3, padding 1: products added tap by tap, channel by channel."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    high, wide = x.shape[2:]
    out = np.zeros((x.shape[0], weight.shape[0], high, wide), F32)
    for channel in range(x.shape[1]):
        for row in range(3):
            for column in range(3):
                window = padded[:, channel, row : row + high, column : column + wide]
                tap = weight[:, channel, row, column]
                out = (out + window[:, None] * tap[None, :, None, None]).astype(F32)
    return out


def hf32(x: Any) -> Any:
    """Rounded to 11 bits of mantissa, as the products of HF32."""
    bits = np.asarray(x, F32).view(np.uint32)
    return ((bits + np.uint32(1 << 11)) & np.uint32(0xFFFFF000)).view(F32)
