"""Modules of a GPT, split as Megatron splits them. Activations are (sequence, batch, width)."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.networks import Weights
from tests.corpus.parallel.faults import Fault
from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.record import Recorder
from tests.corpus.parallel.layout import Layout, part, positions
from tests.corpus.parallel.networks import Design

LOWEST = -10000.0


class Place:
    """What a module needs to know of its rank: layout, groups, weights, the fault."""

    def __init__(
        self, layout: Layout, rank: int, design: Design, seed: int, fault: Fault, dtype: torch.dtype, recorder: Recorder
    ) -> None:
        self.layout, self.rank, self.design, self.fault = layout, rank, design, fault
        self.weights, self.dtype, self.recorder = Weights(seed), dtype, recorder
        self.groups: dict[tuple[str, ...], Any] = {}
        self.whole: set[str] = set()  # parameters that all tensor ranks hold whole

    def make_groups(self) -> None:
        """All ranks make all groups, in one order."""
        for axes in (("tp",), ("cp",), ("dp",), ("cp", "dp"), ("pp",)):
            for ranks in sorted({tuple(self.layout.group(rank, *axes)) for rank in range(self.layout.ranks)}):
                group = dist.new_group(list(ranks))
                if self.rank in ranks:
                    self.groups[axes] = group
        stride = self.layout.ranks // self.layout.pp
        for first in range(stride if self.layout.pp > 1 else 0):
            ranks = (first, first + stride * (self.layout.pp - 1))
            group = dist.new_group(list(ranks))
            if self.rank in ranks:
                self.groups["ends",] = group
        pairs = [tuple(range(k, k + 2)) for k in range(0, self.layout.ranks, 2)] if self.layout.tp == 4 else []
        for ranks in pairs:
            group = dist.new_group(list(ranks))
            if self.rank in ranks:
                self.groups["pair",] = group

    def own(self, axis: str) -> int:
        return self.layout.at(self.rank, axis)

    def struck(self, kind: str, scope: str) -> bool:
        return self.fault.strikes(kind, scope, self.rank, 0)

    def at(self, scope: str, kind: str) -> Any:
        wrong = self.struck("wrong part", f"{scope}.{kind}")
        return self.recorder.at(scope, kind, self.fault.size if wrong else 0.0)

    def parameter(
        self, path: str, shape: Sequence[int], axis: Optional[int] = None, blocks: Sequence[int] = (),
        offset: float = 0.0, scale: float = 0.0,
    ) -> nn.Parameter:  # fmt: skip
        """A parameter; `axis`: along which tensor ranks split it, in these blocks."""
        scale = scale or (1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1)
        values = self.weights.get(path, tuple(shape), scale, offset)
        if axis is None:
            self.whole.add(path)
        else:
            number = self.own("tp")
            if self.fault.strikes("shard order", path, None, 0):
                number = (number + 1) % self.layout.tp
            if self.fault.strikes("blocks ignored", path.rpartition(".")[0], None, 0):
                blocks = ()
            values = part(values, axis, number, self.layout.tp, blocks)
        if self.fault.strikes("replica differs", path, self.rank, 0):
            signs = np.sign(np.cos(np.arange(values.size))).reshape(values.shape)
            values = values + self.fault.size * np.abs(values).mean() * signs
        return nn.Parameter(torch.tensor(values, dtype=torch.float32).to(self.dtype))

    # Regions of tensor parallelism

    def enter(self, x: torch.Tensor, scope: str) -> torch.Tensor:
        """From what all tensor ranks hold (sp: a part of the sequence each) to what column-parallel layers read."""
        if self.layout.tp == 1:
            return x
        is_reduced = not self.struck("backward not reduced", scope)
        if self.layout.sp:
            order = [*range(1, self.layout.tp), 0] if self.struck("gather order", scope) else None
            return regions.GatherSequence.apply(x, self.groups["tp",], 0, order, is_reduced)
        return regions.Copy.apply(x, self.groups["tp",], is_reduced)

    def leave(self, x: torch.Tensor, scope: str) -> torch.Tensor:
        """From partial sums to what all tensor ranks hold."""
        if self.layout.tp == 1:
            return x
        group = self.groups["tp",]
        if self.struck("wrong group", scope):
            axes = ("dp",) if self.layout.dp > 1 else ("cp",) if self.layout.cp > 1 else ("pair",)
            group = self.groups[axes]
        if self.layout.sp:
            return regions.ScatterSums.apply(x, group, 0)
        return x if self.struck("not reduced", scope) else regions.Reduce.apply(x, group)


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
        if not self.place.design.rms:
            with self.place.at(self.scope, "layer_norm"):
                return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        with self.place.recorder.at(self.scope, "rms_norm"):
            scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
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
        return [one.reshape(*one.shape[:2], -1, size).permute(1, 2, 0, 3) for one in parts]

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
            own = torch.arange(len(places)) if place.struck("wrong positions", scope) else places
            angle = own[:, None].double() * 100.0 ** -(torch.arange(0, self.size, 2).double() / self.size)
            wide = torch.cat([angle, angle], -1)
            cos, sin = wide.cos().to(x.dtype), wide.sin().to(x.dtype)
            q, k = self._rope(q, cos, sin), self._rope(k, cos, sin)
        k, v = self._whole_sequence(k), self._whole_sequence(v)
        if d.heads != d.keys:
            k, v = (one.repeat_interleave(d.heads // d.keys, 1) for one in (k, v))
        with place.at(scope, "matmul"):
            scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(self.size)
        own = torch.arange(len(places)) if place.struck("local mask", scope) else places
        mask = torch.arange(d.length)[None, :] > own[:, None]
        with place.at(scope, "masked_fill"):
            scores = scores.masked_fill(mask, LOWEST)
        with place.at(scope, "softmax"):
            weights = F.softmax(scores, -1)
        with place.at(scope, "matmul"):
            y = torch.matmul(weights, v)
        y = y.permute(2, 0, 1, 3)
        return self.proj(y.reshape(*y.shape[:2], -1))


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
                y = F.gelu(y)
        return self.down(y)


class Layer(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        self.place, self.scope = place, scope
        self.norm1, self.attention = Norm(place, f"{scope}.norm1"), Attention(place, scope)
        self.norm2 = Norm(place, f"{scope}.norm2")
        self.mlp = Mlp(place, scope)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.attention(self.norm1(x))
        with self.place.at(self.scope, "add"):
            x = x + h
        h = self.mlp(self.norm2(x))
        with self.place.at(self.scope, "add"):
            return x + h


class Head(nn.Module):
    """The last norm, logits by part of the vocabulary, and the loss."""

    def __init__(self, place: Place, table: Optional[nn.Parameter]) -> None:
        super().__init__()
        d = place.design
        self.place = place
        self.norm = Norm(place, "norm")
        name, scale = ("embedding", 1.0) if d.tied else ("head", 0.0)
        self.weight = (
            table if table is not None else place.parameter(f"{name}.weight", (d.words, d.width), 0, scale=scale)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        place = self.place
        x = place.enter(self.norm(x), "")
        with place.at("head", "linear"):
            logits = F.linear(x, self.weight)
        if place.design.parallel_loss:
            loss = self._by_parts(logits, labels)
        else:
            if place.layout.tp > 1:
                logits = regions.GatherParts.apply(logits, place.groups["tp",], 2)
            with place.at("loss", "cross_entropy"):
                loss = F.cross_entropy(logits.reshape(-1, place.design.words).float(), labels.reshape(-1))
        if place.layout.micro > 1 and not place.struck("micro undivided", "loss"):
            loss = loss / place.layout.micro
        return loss

    def _reduced(self, x: torch.Tensor, fault: str) -> torch.Tensor:
        if self.place.layout.tp == 1 or self.place.struck(fault, "loss"):
            return x
        return regions.Reduce.apply(x, self.place.groups["tp",])

    def _by_parts(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        place, d = self.place, self.place.design
        logits = logits.float()
        with place.at("loss", "amax"):
            most = torch.max(logits.detach(), -1)[0]
        if place.layout.tp > 1 and not place.struck("maximum not reduced", "loss"):
            most = regions.all_reduce(most, place.groups["tp",], dist.ReduceOp.MAX)
        with place.at("loss", "sub"):
            z = logits - most.unsqueeze(-1)
        count = d.words // place.layout.tp
        first = place.own("tp") * count
        if place.layout.tp > 1:
            mask = (labels < first) | (labels >= first + count)
            inside = labels.clone() - first
            inside[mask] = 0
        else:
            inside = labels
        picked = torch.gather(z, 2, inside.unsqueeze(-1))
        if place.layout.tp > 1:
            picked = picked.masked_fill(mask.unsqueeze(-1), 0.0)
        picked = self._reduced(picked, "picked not reduced")
        with place.at("loss", "exp"):
            e = torch.exp(z)
        with place.at("loss", "sum"):
            total = e.sum(-1, keepdim=True)
        total = self._reduced(total, "sum not reduced")
        with place.at("loss", "log"):
            total = torch.log(total)
        with place.at("loss", "sub"):
            loss = total - picked
        with place.at("loss", "mean"):
            return loss.mean()
