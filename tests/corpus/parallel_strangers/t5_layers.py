"""Parts of a T5: relative biases by head, gated MLPs, attention over the encoder, a loss over a split vocabulary."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import Copy, Sum, shard
from tests.corpus.parallel_strangers.world import Rank, cut

HIDDEN, HEADS, HEAD, INNER, WORDS, ENCODED, DECODED, LAYERS, REACH = 32, 4, 8, 48, 64, 9, 7, 2, 4


class AddedIntoMain(torch.autograd.Function):
    """A linear whose backward pass adds the gradient of its weight into the main gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: nn.Parameter, rank: Rank, name: str, micro: int) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rank, ctx.name, ctx.micro = rank, name, micro
        if rank.hit("coarse", name):
            return torch.matmul(x.bfloat16(), weight.t().bfloat16()).to(x.dtype)
        return torch.matmul(x, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        with ctx.rank.at(f"{ctx.micro}/wgrad.{ctx.name}"):
            if ctx.rank.hit("overwrites"):
                torch.mm(grad.flatten(0, 1).t(), x.flatten(0, 1), out=weight.main_grad)
            else:
                weight.main_grad.addmm_(grad.flatten(0, 1).t(), x.flatten(0, 1))
        return grad.matmul(weight), None, None, None, None


class Part(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.tp = rank, name, rank.group("tp")

    def place(self, what: str) -> str:
        return f"{self.rank.micro}/{self.name}.{what}"

    def own(self, what: str, *shape: int, dim: Optional[int] = None, offset: float = 0.0, scale: float = 0.0) -> None:
        setattr(self, what, shard(self.rank, f"{self.name}.{what}", *shape, dim=dim, offset=offset, scale=scale))

    def join(self, what: str, *names: str) -> None:
        """One weight of several, split by each."""
        parts = []
        for one in names:
            whole = self.rank.drawn(f"{self.name}.{one}", HEADS * HEAD if "w" not in one else INNER, HIDDEN)
            parts.append(cut(whole, 0, self.tp.number, self.tp.size))
        weight = nn.Parameter(torch.cat(parts))
        weight.path, weight.is_split = f"{self.name}.{what}", True
        setattr(self, what, weight)

    def linear(self, x: torch.Tensor, what: str) -> torch.Tensor:
        with self.rank.at(self.place(what)):
            return AddedIntoMain.apply(x, getattr(self, what), self.rank, f"{self.name}.{what}", self.rank.micro)

    def copied(self, x: torch.Tensor, what: str) -> torch.Tensor:
        sums = not self.rank.hit("backward_not_reduced", f"{self.name}.{what}")
        return Copy.apply(x, self.tp, sums) if self.tp.size > 1 else x

    def reduced(self, x: torch.Tensor, what: str) -> torch.Tensor:
        is_split = self.tp.size > 1 and not self.rank.hit("not_reduced", f"{self.name}.{what}")
        return Sum.apply(x, self.tp) if is_split else x

    def normed(self, x: torch.Tensor, what: str) -> torch.Tensor:
        with self.rank.at(self.place(f"{what}.factor")):
            factor = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        with self.rank.at(self.place(what)):
            return x * factor * getattr(self, what)

    def added(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Drop out by a mask that goes with the micro batch."""
        rank = self.rank
        if rank.settings.get("dropout"):
            micro = rank.micro % 2 if rank.hit("dropout_equal") else rank.micro
            kept = (rank.drawn(f"{self.name}.{micro}.kept", *out.shape, scale=1.0) > -1.2).to(rank.dtype)
            with rank.at(self.place("dropout")):
                out = out * kept / 0.88
        with rank.at(self.place("added")):
            return x + out


class Words(Part):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "words")
        self.table = shard(rank, "words", WORDS, HIDDEN, scale=1.0, dim=0)

    def forward(self, ids: torch.Tensor, of: str) -> torch.Tensor:
        rank, count = self.rank, len(self.table)
        outside = None
        if self.tp.size > 1:
            first = self.tp.number * count
            outside = (ids < first) | (ids >= first + count)
            ids = ids.clone() - first
            ids[outside] = 0
        with rank.at(f"{rank.micro}/{of}.words"):
            x = F.embedding(ids, self.table)
        if outside is not None:
            x = Sum.apply(x.masked_fill(outside.unsqueeze(-1), 0.0), self.tp)
        return x


class Bias(Part):
    def __init__(self, rank: Rank, name: str, is_causal: bool) -> None:
        super().__init__(rank, name)
        self.is_causal, self.table = is_causal, shard(rank, f"{name}.bias", 2 * REACH + 1, HEADS, dim=1, scale=0.7)

    def forward(self, length: int) -> torch.Tensor:
        apart = torch.arange(length)[None] - torch.arange(length)[:, None]
        with self.rank.at(self.place("bias")):
            bias = F.embedding(apart.clamp(-REACH, REACH) + REACH, self.table)
        return bias.permute(2, 0, 1).unsqueeze(0)


class Attention(Part):
    def __init__(self, rank: Rank, name: str, is_cross: bool = False) -> None:
        super().__init__(rank, name)
        self.is_cross = is_cross
        self.own("norm", HIDDEN, offset=1.0)
        if is_cross:
            self.own("q", HEADS * HEAD, HIDDEN, dim=0)
            self.join("kv", "k", "v")
        else:
            self.join("qkv", "q", "k", "v")
        self.own("o", HIDDEN, HEADS * HEAD, dim=1)

    def forward(
        self,
        x: torch.Tensor,
        hidden: torch.Tensor,
        bias: Optional[torch.Tensor],
        encoded: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """`hidden`: where scores are masked, [texts, 1, queries or 1, keys]."""
        rank = self.rank
        y = self.normed(x, "norm")
        if self.is_cross:
            q = self.linear(self.copied(y, "q"), "q")
            k, v = self.linear(self.copied(encoded, "kv"), "kv").chunk(2, -1)
        else:
            q, k, v = self.linear(self.copied(y, "qkv"), "qkv").chunk(3, -1)
        q, k, v = (one.unflatten(-1, (-1, HEAD)).permute(1, 2, 0, 3) for one in (q, k, v))
        with rank.at(self.place("scores")):
            scores = torch.matmul(q, k.transpose(2, 3)) * 0.5
        if bias is not None:
            with rank.at(self.place("biased")):
                scores = scores + bias
        if not rank.hit("not_masked", self.name) and not rank.hit("padding_read", self.name):
            with rank.at(self.place("masked")):
                scores = scores.masked_fill(hidden, -10000.0)
        with rank.at(self.place("softmax")):
            is_coarse = rank.hit("coarse", f"{self.name}.softmax")
            weights = torch.softmax(scores.bfloat16() if is_coarse else scores, -1).to(x.dtype)
        with rank.at(self.place("attended")):
            out = torch.matmul(weights, v).permute(2, 0, 1, 3).flatten(2)
        return self.added(x, self.reduced(self.linear(out, "o"), "o"))


class MLP(Part):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.own("norm", HIDDEN, offset=1.0)
        self.join("wi", "w0", "w1")
        self.own("wo", HIDDEN, INNER, dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.linear(self.copied(self.normed(x, "norm"), "wi"), "wi").chunk(2, -1)
        with self.rank.at(self.place("act")):
            y = F.gelu(gate) * up
        return self.added(x, self.reduced(self.linear(y, "wo"), "wo"))


class Encoder(Part):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "enc")
        self.bias = Bias(rank, "enc", False)
        self.attentions = nn.ModuleList(Attention(rank, f"enc.{number}.self") for number in range(LAYERS))
        self.mlps = nn.ModuleList(MLP(rank, f"enc.{number}.mlp") for number in range(LAYERS))
        self.own("final", HIDDEN, offset=1.0)

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        hidden, bias = padded.t()[:, None, None], self.bias(len(x))
        for attention, mlp in zip(self.attentions, self.mlps):
            for _ in range(2 if self.rank.hit("layer_twice", mlp.name[:5]) else 1):
                x = mlp(attention(x, hidden, bias))
        return self.normed(x, "final")


class Decoder(Part):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "dec")
        self.bias = Bias(rank, "dec", True)
        self.attentions = nn.ModuleList(Attention(rank, f"dec.{number}.self") for number in range(LAYERS))
        self.crosses = nn.ModuleList(Attention(rank, f"dec.{number}.cross", True) for number in range(LAYERS))
        self.mlps = nn.ModuleList(MLP(rank, f"dec.{number}.mlp") for number in range(LAYERS))
        self.own("final", HIDDEN, offset=1.0)
        self.own("head", WORDS, HIDDEN, dim=0)

    def forward(
        self, x: torch.Tensor, encoded: torch.Tensor, padded: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor
    ) -> torch.Tensor:
        hidden, bias = torch.ones(len(x), len(x)).triu(1).bool()[None, None], self.bias(len(x))
        for attention, cross, mlp in zip(self.attentions, self.crosses, self.mlps):
            x = cross(attention(x, hidden, bias), padded.t()[:, None, None], None, encoded)
            x = mlp(x)
        losses = self._losses(self.linear(self.copied(self.normed(x, "final"), "head"), "head"), labels)
        counted = counted.to(self.rank.dtype)
        with self.rank.at(f"{self.rank.micro}/loss"):
            return (losses * counted).sum() / counted.sum()

    def _losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rank, tp, micro = self.rank, self.tp, self.rank.micro
        with rank.at(f"{micro}/loss.max"):
            most = logits.detach().amax(-1)
        if tp.size > 1 and not rank.hit("max_local"):
            most = most.clone()
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=tp.handle)
        with rank.at(f"{micro}/loss.shifted"):
            logits = logits - most.unsqueeze(-1)
        first, count = tp.number * logits.shape[-1], logits.shape[-1]
        outside = (labels < first) | (labels >= first + count)
        local = (labels - first + (1 if rank.hit("target_off") else 0)).masked_fill(outside, 0).clamp(max=count - 1)
        with rank.at(f"{micro}/loss.target"):
            picked = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1)
        with rank.at(f"{micro}/loss.picked"):
            picked = picked.masked_fill(outside, 0.0)
        with rank.at(f"{micro}/loss.exp"):
            exponents = logits.exp()
        with rank.at(f"{micro}/loss.sum_exp"):
            total = exponents.sum(-1)
        if tp.size > 1:
            picked, total = Sum.apply(picked, tp), Sum.apply(total, tp)
        with rank.at(f"{micro}/loss.log"):
            return total.log() - picked
