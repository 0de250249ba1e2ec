"""Parts of networks in torch's spelling: attention, feed-forward, convolution with norm."""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F

MASKED = -1e4  # what the torch networks add to a masked score


def causal(length: int) -> torch.Tensor:
    """Return (length, length): 0 where a token sees, MASKED where it does not."""
    return torch.triu(torch.full((length, length), MASKED), 1)


class ConvNorm(nn.Module):
    """Convolution, batch norm and an activation ("relu", "relu6", "silu" or "")."""

    def __init__(self, into: int, out: int, size: int, stride: int = 1, groups: int = 1, act: str = "relu"):
        super().__init__()
        self.conv = nn.Conv2d(into, out, size, stride, size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(out)
        self.act = {"relu": nn.ReLU(), "relu6": nn.ReLU6(), "silu": nn.SiLU(), "": None}[act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.conv(x))
        return x if self.act is None else self.act(x)


class Attention(nn.Module):
    """Multi-head attention of (B, S, H); the mask (S, S) or (B, 1, 1, S) is added to the scores."""

    def __init__(self, width: int, heads: int, bias: bool = True, scaled: bool = True):
        super().__init__()
        self.heads, self.scaled = heads, scaled
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(
        self, x: torch.Tensor, mask: Optional[torch.Tensor] = None, memory: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        source = x if memory is None else memory
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        scores = torch.matmul(q, k.transpose(-1, -2))
        if self.scaled:
            scores = scores / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores + mask
        mixed = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.o(mixed.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class Mlp(nn.Module):
    """Two linears around gelu (erf, or its tanh form)."""

    def __init__(self, width: int, inner: int, approximate: str = "none"):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class RMSNorm(nn.Module):
    """x / rms(x) · weight, of primitive operators as transformers writes it."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class GatedMlp(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, inner, False),
            nn.Linear(width, inner, False),
            nn.Linear(inner, width, False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Encoder(nn.Module):
    """One block: attention and Mlp with residuals; norms before (`pre`) or after them."""

    def __init__(self, width: int, heads: int, pre: bool = True, eps: float = 1e-5):
        super().__init__()
        self.pre = pre
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn, self.mlp = Attention(width, heads), Mlp(width, 3 * width)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        if self.pre:
            x = x + self.attn(self.norm1(x), mask)
            return x + self.mlp(self.norm2(x))
        x = self.norm1(self.attn(x, mask) + x)
        return self.norm2(self.mlp(x) + x)
