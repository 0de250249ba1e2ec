"""Modules of a GPT, split as Megatron splits them."""

from __future__ import annotations

import math
from typing import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.experts import Experts
from tests.corpus.parallel.gloo.place import Place
from tests.corpus.parallel.layout import positions

LOWEST = -10000.0


class Linear(nn.Module):
    """A column-parallel layer: the input is whole."""

    def __init__(self, place: Place, scope: str, width: int, inner: int, blocks: Sequence[int] = ()) -> None:
        super().__init__()
        self.place, self.scope = place, scope
        self.weight = place.parameter(f"{scope}.weight", (width, inner), 0, blocks)
        self.bias = place.parameter(f"{scope}.bias", (width,), 0, blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.place.at(self.scope, "linear"):
            return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """A row-parallel layer with its bias behind the reduction."""

    def __init__(self, place: Place, scope: str, width: int, inner: int) -> None:
        super().__init__()
        self.place, self.scope = place, scope
        self.weight = place.parameter(f"{scope}.weight", (width, inner), 1)
        self.bias = place.parameter(f"{scope}.bias", (width,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, scope = self.place, self.scope
        with place.at(scope, "linear"):
            y = F.linear(x, self.weight)
        if place.struck("bias per rank", scope):
            with place.at(scope, "add"):
                y = y + self.bias
            return place.leave(y, scope)
        y = place.leave(y, scope)
        with place.at(scope, "add"):
            return y + self.bias


class Norm(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        n = place.design.width
        self.place, self.scope = place, scope
        self.weight = place.parameter(f"{scope}.weight", (n,), offset=1.0)
        if not place.design.rms:
            self.bias = place.parameter(f"{scope}.bias", (n,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        times = 1e4 if self.place.struck("other eps", self.scope) else 1.0
        if not self.place.design.rms:
            with self.place.at(self.scope, "layer_norm"):
                return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5 * times)
        if self.place.style.fused_norm:
            with self.place.at(self.scope, "rms_norm"):
                return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6 * times)
        with self.place.recorder.at(self.scope, "rms_norm"):
            scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6 * times)
        with self.place.at(self.scope, "rms_norm"):
            return scaled * self.weight


class VocabularyEmbedding(nn.Module):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        d = place.design
        self.weight = place.parameter("embedding.weight", (d.words, d.width), 0, scale=1.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        place, d = self.place, self.place.design
        with place.at("embedding", "embedding"):
            if place.layout.tp == 1:
                return F.embedding(ids, self.weight)
            count = d.words // place.layout.tp
            first = place.own("tp") * count
            last = first + count - (count // 3 if place.struck("vocabulary edge", "embedding") else 0)
            mask = (ids < first) | (ids >= last)
            inside = ids.clone() - first
            inside[mask] = 0
            x = F.embedding(inside, self.weight)
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        return place.leave(x, "embedding")


class Attention(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        d = place.design
        self.place, self.scope, self.size = place, scope, d.width // d.heads
        widths = [d.heads * self.size, d.keys * self.size, d.keys * self.size]
        if d.fused:
            blocks = widths if d.fused == "blocks" else ()
            self.qkv = Linear(place, f"{scope}.qkv", sum(widths), d.width, blocks)
        else:
            names = ("query", "key", "value")
            self.query, self.key, self.value = (
                Linear(place, f"{scope}.{name}", width, d.width) for name, width in zip(names, widths)
            )
        self.proj = RowLinear(place, f"{scope}.proj", d.width, d.heads * self.size)

    def _split(self, x: torch.Tensor) -> list[torch.Tensor]:
        d, tp = self.place.design, self.place.layout.tp
        order = (0, 2, 1, 3) if self.place.style.batch_first else (1, 2, 0, 3)
        heads, keys, size = d.heads // tp, d.keys // tp, self.size
        if not d.fused:
            parts = [self.query(x), self.key(x), self.value(x)]
        elif d.fused == "blocks":
            parts = list(torch.split(self.qkv(x), [heads * size, keys * size, keys * size], -1))
        else:
            per = heads // keys
            mixed = self.qkv(x)
            mixed = mixed.view(*mixed.shape[:2], keys, (per + 2) * size)
            parts = list(torch.split(mixed, [per * size, size, size], -1))
        return [one.reshape(*one.shape[:2], -1, size).permute(*order) for one in parts]

    def _rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        with self.place.at(self.scope, "rope"):
            a, b = torch.chunk(x, 2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

    def _whole_sequence(self, x: torch.Tensor) -> torch.Tensor:
        place = self.place
        if place.layout.cp == 1:
            return x
        if place.struck("keys not gathered", self.scope):
            x = torch.cat([x] * place.layout.cp, 2)
        else:
            x = regions.GatherSequence.apply(x, place.groups["cp",], 2, None, True)
        length = place.design.length
        ranks = place.layout.group(place.rank, "cp")
        order = np.argsort(np.concatenate([positions(place.layout, rank, length) for rank in ranks]))
        return x[:, :, torch.tensor(order)] if place.layout.zigzag else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, d, scope = self.place, self.place.design, self.scope
        x = place.enter(x, scope)
        q, k, v = self._split(x)
        places = torch.tensor(positions(place.layout, place.rank, d.length))
        if d.rope:
            with place.at(scope, "rope"):
                own = torch.arange(len(places)) if place.struck("wrong positions", scope) else places
                angle = own[:, None].double() * 100.0 ** -(torch.arange(0, self.size, 2).double() / self.size)
                wide = torch.cat([angle, angle], -1)
                cos, sin = wide.cos().to(x.dtype), wide.sin().to(x.dtype)
            q, k = self._rope(q, cos, sin), self._rope(k, cos, sin)
        k, v = self._whole_sequence(k), self._whole_sequence(v)
        if d.heads != d.keys:
            k, v = (one.repeat_interleave(d.heads // d.keys, 1) for one in (k, v))
        y = self._attended(q, k, v, places)
        y = y.transpose(1, 2) if place.style.batch_first else y.permute(2, 0, 1, 3)
        return self.proj(y.reshape(*y.shape[:2], -1))

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        place, scope = self.place, self.scope
        if place.style.fused_attention:
            with place.at(scope, "softmax"):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with place.at(scope, "matmul"):
            scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(self.size)
        with place.at(scope, "masked_fill"):
            own = torch.arange(len(places)) if place.struck("local mask", scope) else places
            mask = torch.arange(place.design.length)[None, :] > own[:, None]
            scores = scores.masked_fill(mask, LOWEST)
        with place.at(scope, "softmax"):
            if place.struck("coarse softmax", scope):
                weights = F.softmax(scores.to(torch.bfloat16), -1).to(scores.dtype)
            else:
                weights = F.softmax(scores, -1)
        with place.at(scope, "matmul"):
            return torch.matmul(weights, v)


class Mlp(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        d = place.design
        self.place, self.scope = place, scope
        width = d.inner * (2 if d.gated else 1)
        self.up = Linear(place, f"{scope}.up", width, d.width, (d.inner, d.inner) if d.gated else ())
        self.down = RowLinear(place, f"{scope}.down", d.width, d.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, scope = self.place, self.scope
        y = self.up(place.enter(x, scope))
        if place.design.gated:
            gate, other = torch.chunk(y, 2, -1)
            with place.recorder.at(scope, "silu"):
                gate = F.silu(gate)
            with place.at(scope, "mul"):
                y = gate * other
        else:
            with place.at(scope, "gelu"):
                y = F.gelu(y, approximate="tanh" if place.struck("other activation", scope) else "none")
        return self.down(y)


class Layer(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        self.place, self.scope = place, scope
        self.norm1, self.attention = Norm(place, f"{scope}.norm1"), Attention(place, scope)
        self.norm2 = Norm(place, f"{scope}.norm2")
        self.mlp = Experts(place, scope) if place.style.experts else Mlp(place, scope)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention(self.norm1(x))
        with self.place.at(self.scope, "add"):
            x = x + h
        h = self.mlp(self.norm2(x))
        with self.place.at(self.scope, "add"):
            return x + h
