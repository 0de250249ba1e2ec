"""Parts of a LLaMA: rotary, grouped queries over a sequence in parts, SwiGLU; parameters whole or in flat parts."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import Copy, Gather, Sum, linear, shard
from tests.corpus.parallel_strangers.world import Rank, gathered

HIDDEN, HEADS, KEYS, HEAD, INNER, WORDS, LENGTH = 32, 4, 2, 8, 48, 64, 8


class GatherPart(torch.autograd.Function):
    """A parameter of which each rank holds a flat part, as ZeRO-3 has it."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, rank: Rank, path: str) -> torch.Tensor:
        ctx.rank = rank
        whole = gathered(part, rank.group("dp"), 0)
        return torch.roll(whole, len(part), 0) if rank.hit("gather_order", path) else whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        rank, group = ctx.rank, ctx.rank.group("dp")
        grad = grad.contiguous() if rank.hit("undivided") else grad / group.size
        if rank.hit("not_summed"):
            return grad.chunk(group.size)[group.number].clone(), None, None
        own = grad.new_empty(len(grad) // group.size)
        dist.reduce_scatter_tensor(own, grad, group=group.handle)
        return own, None, None


class Weights(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.shapes = rank, name, {}

    def own(self, key: str, *shape: int, dim: Optional[int] = None, offset: float = 0.0, scale: float = 0.0) -> None:
        one, group = (
            shard(self.rank, f"{self.name}.{key}", *shape, dim=dim, offset=offset, scale=scale),
            self.rank.group("dp"),
        )
        if self.rank.settings.get("parts"):
            self.shapes[key], path = one.shape, one.path
            one = nn.Parameter(one.data.reshape(-1).chunk(group.size)[group.number].clone())
            one.path, one.is_split = path, True
        setattr(self, key, one)

    def whole(self, key: str) -> torch.Tensor:
        one = getattr(self, key)
        return GatherPart.apply(one, self.rank, one.path).view(self.shapes[key]) if key in self.shapes else one

    def place(self, key: str) -> str:
        return f"{self.rank.micro}/{self.name}.{key}"

    def linear(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return linear(self.rank, self.place(key), f"{self.name}.{key}", x, self.whole(key))

    def norm(self, x: torch.Tensor, key: str) -> torch.Tensor:
        eps = 1e-1 if self.rank.hit("other_eps", f"{self.name}.{key}") else 1e-5
        with self.rank.at(self.place(f"{key}.eps")):
            factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        x = x * factor
        weight = self.whole(key)
        with self.rank.at(self.place(key)):
            return weight * x

    def copied(self, x: torch.Tensor, what: str) -> torch.Tensor:
        tp = self.rank.group("tp")
        sums = not self.rank.hit("backward_not_reduced", f"{self.name}.{what}")
        return Copy.apply(x, tp, sums) if tp.size > 1 else x

    def reduced(self, x: torch.Tensor, what: str) -> torch.Tensor:
        if self.rank.size("tp") == 1 or self.rank.hit("not_reduced", f"{self.name}.{what}"):
            return x
        return Sum.apply(x, self.rank.group("tp"))


class Layer(Weights):
    def __init__(self, rank: Rank, number: int, loaded: int) -> None:
        super().__init__(rank, f"layers.{loaded}")
        self.own("norm1", HIDDEN, offset=1.0)
        self.own("norm2", HIDDEN, offset=1.0)
        for key, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS)):
            self.own(key, heads * HEAD, HIDDEN, dim=0)
        self.own("o", HIDDEN, HEADS * HEAD, dim=1)
        self.own("gate", INNER, HIDDEN, dim=0)
        self.own("up", INNER, HIDDEN, dim=0)
        self.own("down", HIDDEN, INNER, dim=1)
        self.name = f"layers.{number}"

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        base = 500.0 if self.rank.hit("rope_base", self.name) else 100.0
        angles = positions[:, None].to(x.dtype) * base ** (-torch.arange(0, HEAD, 2).to(x.dtype) / HEAD)
        angles = torch.cat([angles, angles], -1).unsqueeze(1)
        cos, sin, half = angles.cos(), angles.sin(), torch.cat([-x[..., HEAD // 2 :], x[..., : HEAD // 2]], -1)
        return x * cos + half * sin

    def _attended(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rank, cp = self.rank, self.rank.group("cp")
        q, k, v = (self.linear(x, key).unflatten(-1, (-1, HEAD)) for key in "qkv")
        turned = positions
        if rank.hit("positions_in_a_row") or rank.hit("mask_in_a_row", self.name):
            turned = cp.number * len(positions) + torch.arange(len(positions))
        with rank.at(self.place("rope")):
            q = self._rotated(q, turned if rank.hit("positions_in_a_row") else positions)
        with rank.at(self.place("rope.k")):
            k = self._rotated(k, turned if rank.hit("positions_in_a_row") else positions)
        key_positions, sums = positions, not rank.hit("keys_gradient_local", self.name)
        if cp.size > 1:
            key_positions = gathered(positions, cp, 0)
            k, v = (Gather.apply(one, cp, 1, sums) for one in (k, v))
            if not rank.hit("keys_not_sorted", self.name):
                order = key_positions.argsort()
                k, v = k.index_select(1, order), v.index_select(1, order)
            key_positions = torch.arange(LENGTH)
        k, v = (one.repeat_interleave(HEADS // KEYS, dim=2) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        with rank.at(self.place("scores")):
            scores = torch.matmul(q, k.transpose(2, 3)) / HEAD**0.5
        rows = turned if rank.hit("mask_in_a_row", self.name) else positions
        with rank.at(self.place("masked")):
            scores = scores.masked_fill(key_positions[None, :] > rows[:, None], torch.finfo(x.dtype).min)
        with rank.at(self.place("softmax")):
            if rank.hit("coarse", f"{self.name}.softmax"):
                probs = torch.softmax(scores.bfloat16(), -1).to(x.dtype)
            else:
                probs = torch.softmax(scores, -1)
        return self.linear(torch.matmul(probs, v).transpose(1, 2).flatten(2), "o")

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = self.reduced(self._attended(self.copied(self.norm(x, "norm1"), "attn"), positions), "o")
        with self.rank.at(self.place("attended")):
            x = x + out
        y = self.copied(self.norm(x, "norm2"), "mlp")
        gate, up = self.linear(y, "gate"), self.linear(y, "up")
        with self.rank.at(self.place("act")):
            y = F.silu(gate) * up
        out = self.reduced(self.linear(y, "down"), "down")
        with self.rank.at(self.place("out")):
            return x + out


class Ends(Weights):
    """The table of words, the last norm, the head, the loss."""

    def __init__(self, rank: Rank, has_first: bool, has_last: bool) -> None:
        super().__init__(rank, "ends")
        if has_first:
            self.own("table", WORDS, HIDDEN, scale=1.0)
        if has_last:
            self.own("final", HIDDEN, offset=1.0)
            self.own("head", WORDS, HIDDEN, dim=0)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        with self.rank.at(self.place("embedding")):
            return F.embedding(ids, self.whole("table"))

    def loss(self, x: torch.Tensor, labels: torch.Tensor, total: int) -> torch.Tensor:
        logits, tp = self.linear(self.copied(self.norm(x, "final"), "head"), "head"), self.rank.group("tp")
        if tp.size > 1:
            logits = Gather.apply(logits, tp, 2, False, self.rank.hit("logits_rolled"))
        with self.rank.at(self.place("loss")):
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        total = int((labels != -100).sum()) if self.rank.hit("mean_of_means") else total
        with self.rank.at(self.place("loss.mean")):
            return loss / total
