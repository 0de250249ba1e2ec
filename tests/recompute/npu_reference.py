"""Formulas of the vendor's own operators, in torch. Only child processes import this.

Source: torch_npu's documentation; the arithmetic of fast_gelu is the vendor's x sigmoid(1.702 x). UNVERIFIED on a
device.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from npucmp.recompute.arguments import NotInTable

Tensor = Any


def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt((x * x).mean(dims, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    x = x1 + x2
    y, rstd = npu_rms_norm(x, gamma, epsilon)
    return y, rstd, x


def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = x.chunk(2, dim)
    return torch.nn.functional.silu(a) * b


def npu_rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    if rotary_mode == "interleave":
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    else:
        a, b = x.chunk(2, -1)
        turned = torch.cat((-b, a), -1)
    return x * r1 + turned * r2


def npu_gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def fast_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def npu_scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False) -> Tensor:
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return torch.softmax((x * scale).masked_fill(mask.to(torch.bool), -10000.0), -1)


def npu_fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Optional[Tensor] = None,
    padding_mask: Optional[Tensor] = None, atten_mask: Optional[Tensor] = None, scale: float = 1.0,
    keep_prob: float = 1.0, *rest: Any, sparse_mode: int = 0, **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return attention, and the maximum and the sum of each row of scores, repeated 8 times."""
    if keep_prob != 1.0 or pse is not None or padding_mask is not None or rest or sparse_mode not in (0, 2, 3):
        raise NotInTable("attention with these arguments has no formula")
    q, k, v = (_heads(one, input_layout, n) for one, n in _heads_of(query, key, value, head_num, input_layout))
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.transpose(-1, -2)) * scale
    if sparse_mode in (2, 3):
        ahead = k.shape[2] - q.shape[2] if sparse_mode == 3 else 0
        atten_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + ahead)
    if atten_mask is not None:
        scores = scores.masked_fill(atten_mask.to(torch.bool), float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    out = (weights / total) @ v
    return _laid(out, input_layout), largest.expand(*largest.shape[:-1], 8), total.expand(*total.shape[:-1], 8)


def _heads_of(q: Tensor, k: Tensor, v: Tensor, heads: int, layout: str) -> list[tuple[Tensor, int]]:
    if layout in ("BSND", "BNSD"):
        return [(q, 0), (k, 0), (v, 0)]
    size = q.shape[-1] // heads
    return [(q, heads), (k, k.shape[-1] // size), (v, v.shape[-1] // size)]


def _heads(x: Tensor, layout: str, heads: int) -> Tensor:
    """Return a tensor as (batch, head, position, size)."""
    if layout == "BNSD":
        return x
    if layout == "SBH":
        x = x.transpose(0, 1)
    if layout != "BSND":
        x = x.unflatten(-1, (heads, -1))
    return x.transpose(1, 2)


def _laid(x: Tensor, layout: str) -> Tensor:
    if layout == "BNSD":
        return x
    x = x.transpose(1, 2)
    if layout == "BSND":
        return x
    x = x.flatten(-2)
    return x.transpose(0, 1) if layout == "SBH" else x


FORMULAS: dict[str, Callable[..., Any]] = {
    "npu_rms_norm": npu_rms_norm,
    "npu_add_rms_norm": npu_add_rms_norm,
    "npu_swiglu": npu_swiglu,
    "npu_rotary_mul": npu_rotary_mul,
    "npu_gelu": npu_gelu,
    "npu_fast_gelu": fast_gelu,
    "fast_gelu": fast_gelu,
    "npu_scaled_masked_softmax": npu_scaled_masked_softmax,
    "npu_fusion_attention": npu_fusion_attention,
}
