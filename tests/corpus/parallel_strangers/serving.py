"""A language model at prefill, written with classes as vLLM has them: tensor parallel, experts apart or split.

Several requests lie behind one another in one batch of tokens. Layers 0 and 2 have an MLP, layer 1 experts.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, cut

HIDDEN, HEADS, HEAD, INNER, EXPERT_INNER, EXPERTS, CHOICES = 32, 8, 8, 48, 24, 4, 2
WORDS, PADDED = 120, 128
REQUESTS = (5, 7, 3)


def all_reduce(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    group = rank.group("tp")
    if group.size > 1:
        dist.all_reduce(x, group=group.handle)
    return x


class VocabParallelEmbedding(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, count = rank, PADDED // rank.size("tp")
        self.first, self.last = rank.group("tp").number * count, min((rank.group("tp").number + 1) * count, WORDS)
        whole = rank.drawn(name, PADDED, HIDDEN, scale=1.0)
        whole[WORDS:] = 0
        self.weight = nn.Parameter(cut(whole, 0, rank.group("tp").number, rank.size("tp")), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        if rank.size("tp") > 1:
            org_vocab_mask = (ids >= self.first) & (ids < self.last)
            valid_offset = self.first * org_vocab_mask
            if rank.hit("mask_not_offset"):
                valid_offset = valid_offset * 0 + (self.first - 1) * org_vocab_mask
            mask = ~org_vocab_mask
            ids = org_vocab_mask * (ids - valid_offset)
        with rank.at("embedding"):
            out = F.embedding(ids.long(), self.weight)
        if rank.size("tp") > 1:
            out.masked_fill_(mask.unsqueeze(-1), 0)
        with rank.at("embedding.reduced"):
            return out if rank.hit("embedding_not_reduced") else all_reduce(rank, out)


class ParallelLMHead(VocabParallelEmbedding):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rank, group = self.rank, self.rank.group("tp")
        with rank.at("head"):
            logits = F.linear(hidden, self.weight)
        with rank.at("head.gathered"):
            if group.size > 1:
                parts = logits.new_empty((group.size * len(logits), *logits.shape[1:]))
                dist.all_gather_into_tensor(parts, logits, group=group.handle)
                parts = parts.reshape(group.size, *logits.shape)
                if rank.hit("gather_order"):
                    parts = torch.roll(parts, 1, 0)
                parts = parts.movedim(0, logits.dim() - 1)
                logits = parts.reshape(*logits.shape[:-1], group.size * logits.shape[-1])
        return logits[..., :WORDS]


class RMSNorm(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.eps = rank, name, 1e-6
        weight = rank.drawn(name, HIDDEN, offset=1.0)
        if rank.hit("norm_stale", name):
            weight = torch.ones_like(weight)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(
        self, x: torch.Tensor, residual: Optional[torch.Tensor] = None
    ) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        if residual is not None:
            with self.rank.at(f"{self.name}.residual"):
                x = x + residual
            residual = x
        with self.rank.at(f"{self.name}.pow"):
            squares = x.pow(2)
        variance = squares.mean(dim=-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        with self.rank.at(f"{self.name}.weight"):
            return x * self.weight, residual


class QKVParallelLinear(nn.Module):
    """Key and value heads are replicated if there are more ranks than heads."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        size, number, keys = rank.size("tp"), rank.group("tp").number, rank.settings["keys"]
        self.heads, self.keys = HEADS // size, max(1, keys // size)
        replicas = max(1, size // keys)
        own = number // replicas
        if rank.hit("kv_replica", name):
            own = (own + 1) % min(size, keys)
        weights, biases = [], []
        for part, heads, at, count in (("q", HEADS, number, size), ("k", keys, own, size // replicas),
                                       ("v", keys, own, size // replicas)):  # fmt: skip
            weights.append(cut(rank.drawn(f"{name}.{part}", heads * HEAD, HIDDEN), 0, at, count))
            biases.append(cut(rank.drawn(f"{name}.{part}.bias", heads * HEAD, scale=0.2), 0, at, count))
        self.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
        self.bias = nn.Parameter(torch.cat(biases), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with self.rank.at(self.name):
            qkv = F.linear(x, self.weight, self.bias)
        return qkv.split([self.heads * HEAD, self.keys * HEAD, self.keys * HEAD], dim=-1)


class MergedColumnParallelLinear(nn.Module):
    def __init__(self, rank: Rank, name: str, inner: int) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        size, number = rank.size("tp"), rank.group("tp").number
        both = [rank.drawn(f"{name}.{part}", inner, HIDDEN) for part in ("gate", "up")]
        if rank.hit("not_by_blocks", name):
            weight = cut(torch.cat(both), 0, number, size)
        else:
            weight = torch.cat([cut(one, 0, number, size) for one in both])
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.rank.at(self.name):
            return F.linear(x, self.weight)


class SiluAndMul(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        d = x.shape[-1] // 2
        with self.rank.at(self.name):
            return F.silu(x[..., :d]) * x[..., d:]


class RowParallelLinear(nn.Module):
    """The bias is added by rank 0 before the reduction."""

    def __init__(self, rank: Rank, name: str, inner: int, reduces: bool = True) -> None:
        super().__init__()
        self.rank, self.name, self.reduces = rank, name, reduces
        number = rank.group("tp").number
        if rank.hit("wrong_shard", name):
            number = (number + 1) % rank.size("tp")
        self.weight = nn.Parameter(
            cut(rank.drawn(name, HIDDEN, inner), 1, number, rank.size("tp")), requires_grad=False
        )
        self.bias = nn.Parameter(rank.drawn(f"{name}.bias", HIDDEN, scale=0.3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        bias = None if rank.group("tp").number > 0 and not rank.hit("bias_everywhere", self.name) else self.bias
        with rank.at(self.name):
            out = F.linear(x, self.weight, bias)
        with rank.at(f"{self.name}.reduced"):
            if not self.reduces or rank.hit("not_reduced", self.name):
                return out
            return all_reduce(rank, out)


class Attention(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.qkv_proj = QKVParallelLinear(rank, f"{name}.qkv")
        self.o_proj = RowParallelLinear(rank, f"{name}.o_proj", HEADS * HEAD)
        angles = torch.arange(32.0)[:, None] / 100.0 ** (torch.arange(0, HEAD, 2) / HEAD)
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], -1).to(rank.dtype)

    def _rotated(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos_sin.index_select(0, positions).chunk(2, dim=-1)
        x = x.view(len(x), -1, HEAD)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        x1, x2 = torch.chunk(x, 2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def forward(self, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(x)
        with self.rank.at(f"{self.name}.rope"):
            shifted = positions + 1 if self.rank.hit("positions_shifted", self.name) else positions
            q = self._rotated(shifted, q)
        k = self._rotated(positions, k)
        v = v.view(len(v), -1, HEAD)
        scale = HEAD**-0.5 * (2.0 if self.rank.hit("other_scale", self.name) else 1.0)
        made, first = [], 0
        for number, length in enumerate(REQUESTS):
            rows = slice(first, first + length)
            first += length
            queries, keys, values = (one[rows].transpose(0, 1) for one in (q, k, v))
            keys, values = (one.repeat_interleave(len(queries) // len(keys), dim=0) for one in (keys, values))
            with self.rank.at(f"{self.name}.{number}.scores"):
                scores = torch.bmm(queries, keys.transpose(1, 2)) * scale
            mask = torch.triu(torch.full((length, length), float("-inf"), dtype=x.dtype), 1)
            weights = F.softmax(scores + mask, dim=-1)
            with self.rank.at(f"{self.name}.{number}.attended"):
                made.append(torch.bmm(weights, values).transpose(0, 1).reshape(length, -1))
        with self.rank.at(f"{self.name}.all_attended"):
            attended = torch.cat(made)
        return self.o_proj(attended)


class MLP(nn.Module):
    def __init__(self, rank: Rank, name: str, inner: int, reduces: bool = True) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(rank, f"{name}.gate_up", inner)
        self.act_fn = SiluAndMul(rank, f"{name}.act")
        self.down_proj = RowParallelLinear(rank, f"{name}.down", inner, reduces)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class FusedMoE(nn.Module):
    """Experts on their rank ("ep") or a part of each on every rank; the sum over ranks is taken by the caller."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        size, number = rank.size("tp"), rank.group("tp").number
        is_apart = rank.settings["experts"] == "apart"
        self.numbers = list(range(EXPERTS))
        if is_apart:
            self.numbers = self.numbers[number * EXPERTS // size : (number + 1) * EXPERTS // size]
        loaded = list(self.numbers)
        if rank.hit("experts_swapped", name):
            loaded[0], loaded[1] = loaded[1], loaded[0]
        first, second = [], []
        for expert in loaded:
            parts = [rank.drawn(f"{name}.{expert}.{part}", EXPERT_INNER, HIDDEN) for part in ("w1", "w3")]
            down = rank.drawn(f"{name}.{expert}.w2", HIDDEN, EXPERT_INNER)
            if not is_apart:
                parts, down = [cut(one, 0, number, size) for one in parts], cut(down, 1, number, size)
            first.append(torch.cat(parts))
            second.append(down)
        self.w13 = nn.Parameter(torch.stack(first), requires_grad=False)
        self.w2 = nn.Parameter(torch.stack(second), requires_grad=False)

    def forward(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        rank, name = self.rank, self.name
        with rank.at(f"{name}.softmax"):
            gates = F.softmax(logits, dim=-1)
        gates, chosen = torch.topk(gates, CHOICES, dim=-1)
        if not rank.hit("gates_not_divided", name):
            with rank.at(f"{name}.gates"):
                gates = gates / gates.sum(dim=-1, keepdim=True)
        made = torch.zeros_like(x)
        for at, expert in enumerate(self.numbers):
            if rank.settings["choice"] == "rows":
                rows, which = torch.where(chosen == expert)
                with rank.at(f"{name}.{expert}.rows"):
                    y = x[rows]
                with rank.at(f"{name}.{expert}.w13"):
                    y = F.linear(y, self.w13[at])
                y = F.silu(y[:, : y.shape[1] // 2]) * y[:, y.shape[1] // 2 :]
                y = F.linear(y, self.w2[at])
                with rank.at(f"{name}.{expert}.weighted"):
                    y = y * gates[rows, which].unsqueeze(-1)
                made.index_add_(0, rows, y)
            else:
                chooses = chosen == expert
                with rank.at(f"{name}.{expert}.weighted"):
                    weights = (gates * chooses).sum(dim=-1, keepdim=True)
                with rank.at(f"{name}.{expert}.w13"):
                    y = F.linear(x, self.w13[at])
                y = F.silu(y[:, : y.shape[1] // 2]) * y[:, y.shape[1] // 2 :]
                made = made + F.linear(y, self.w2[at]) * weights
        return made


class SparseMoeBlock(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        gate = rank.drawn(f"{name}.gate", EXPERTS, HIDDEN, scale=0.5)
        if rank.hit("router_stale", name):
            gate = gate + rank.drawn(f"{name}.older", EXPERTS, HIDDEN, scale=0.1)
        self.gate = nn.Parameter(gate, requires_grad=False)
        self.shared_gate = nn.Parameter(rank.drawn(f"{name}.shared_gate", 1, HIDDEN), requires_grad=False)
        self.shared_experts = MLP(rank, f"{name}.shared", INNER, rank.hit("shared_reduced_twice", name))
        self.experts = FusedMoE(rank, f"{name}.experts")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, name = self.rank, self.name
        shared = self.shared_experts(x)
        shared = torch.sigmoid(F.linear(x, self.shared_gate)) * shared
        with rank.at(f"{name}.router"):
            logits = F.linear(x, self.gate)
        routed = self.experts(x, logits)
        with rank.at(f"{name}.summed"):
            out = routed + shared
        with rank.at(f"{name}.reduced"):
            return out if rank.hit("not_reduced", name) else all_reduce(rank, out)


class DecoderLayer(nn.Module):
    def __init__(self, rank: Rank, name: str, is_mixture: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(rank, f"{name}.norm1")
        self.self_attn = Attention(rank, f"{name}.attn")
        self.post_attention_layernorm = RMSNorm(rank, f"{name}.norm2")
        self.mlp = SparseMoeBlock(rank, f"{name}.moe") if is_mixture else MLP(rank, f"{name}.mlp", INNER)

    def forward(
        self, positions: torch.Tensor, x: torch.Tensor, residual: Optional[torch.Tensor]
    ) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        if residual is None:
            residual, (x, _) = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(positions, x)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class Model(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank = rank
        self.embed_tokens = VocabParallelEmbedding(rank, "embed_tokens")
        self.layers = nn.ModuleList(DecoderLayer(rank, f"layers.{at}", at == 1) for at in range(3))
        self.norm = RMSNorm(rank, "norm")
        self.lm_head = ParallelLMHead(rank, "lm_head")

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        x, residual = self.embed_tokens(ids), None
        for layer in self.layers:
            x, residual = layer(positions, x, residual)
        x, _ = self.norm(x, residual)
        with self.rank.at("last_rows"):
            x = x.index_select(0, last)
        return self.lm_head(x)


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Model(rank)
        self.ids = rank.integers("ids", WORDS, sum(REQUESTS))
        self.positions = torch.cat([torch.arange(length) for length in REQUESTS])
        self.last = torch.cumsum(torch.tensor(REQUESTS), 0) - 1

    def step(self) -> None:
        with torch.no_grad():
            self.logits = self.model(self.ids, self.positions, self.last)
            with self.rank.at("sampled"):
                self.sampled = torch.log_softmax(self.logits, dim=-1).argmax(dim=-1)

    def figures(self) -> list[float]:
        return [float(one) for one in self.logits.double().reshape(-1)[:40]]


def _faults(layers: tuple[int, int], rank: int, is_apart: bool) -> tuple[Fault, ...]:
    """`layers`: with an MLP, where faults strike; `rank`: of faults of one rank."""
    one, two = (f"layers.{layer}" for layer in layers)
    moe = "layers.1.moe"
    swapped = [rank * EXPERTS // 2, rank * EXPERTS // 2 + 1] if is_apart else [0, 1]
    experts = tuple(f"{moe}.experts.{expert}.w13" for expert in swapped)
    reader = {0: "layers.1.norm1.residual", 2: "norm.residual"}
    return (
        Fault(f"not_reduced@{two}.attn.o_proj", (f"{two}.norm2.residual",)),
        Fault(f"wrong_shard@{one}.mlp.down", (f"{one}.mlp.down",), rank),
        Fault(f"kv_replica@{one}.attn.qkv", (f"{one}.attn.qkv",), rank),
        Fault("mask_not_offset", ("embedding", "embedding.reduced"), rank),
        Fault(f"not_by_blocks@{two}.mlp.gate_up", (f"{two}.mlp.gate_up", f"{two}.mlp.act")),
        Fault(f"bias_everywhere@{two}.mlp.down", (f"{two}.mlp.down", reader[layers[1]])),
        Fault(f"experts_swapped@{moe}.experts", experts, rank),
        Fault(
            f"shared_reduced_twice@{moe}",
            (f"{moe}.shared.down.reduced:collective", f"{moe}.summed", "layers.2.norm1.residual"),
        ),
        Fault(f"router_stale@{moe}", (f"{moe}.router",), rank),
        Fault(f"gates_not_divided@{moe}.experts", (f"{moe}.experts.gates", f"{moe}.experts.?.weighted"), rank),
        Fault(f"not_reduced@{moe}", ("layers.2.norm1.residual",)),
        Fault("gather_order", ("head.gathered",)),
        Fault(f"positions_shifted@{two}.attn", (f"{two}.attn.rope",), rank),
        Fault(f"other_scale@{one}.attn", tuple(f"{one}.attn.{at}.scores" for at in range(len(REQUESTS))), rank),
        Fault("norm_stale@layers.1.norm2", ("layers.1.norm2.weight",), rank),
        Fault("embedding_not_reduced", ("layers.0.norm1.pow", "layers.0.norm2.residual", "embedding.reduced")),
    )


def _some(faults: tuple[Fault, ...], *left_out: str) -> tuple[Fault, ...]:
    return tuple(fault for fault in faults if fault.kind.partition("@")[0] not in left_out)


LAYOUTS = {
    "tp2": Layout({"tp": 2}, {"keys": 2, "experts": "split", "choice": "dense", "seed": 1},
                  _some(_faults((0, 2), 1, False), "gather_order", "norm_stale", "kv_replica")),
    "tp4": Layout({"tp": 4}, {"keys": 2, "experts": "split", "choice": "dense", "seed": 2},
                  _some(_faults((2, 0), 2, False), "gates_not_divided", "embedding_not_reduced",
                        "positions_shifted")),
    "tp2_ep2": Layout({"tp": 2}, {"keys": 2, "experts": "apart", "choice": "rows", "seed": 3},
                      _some(_faults((0, 2), 1, True), "bias_everywhere", "other_scale", "wrong_shard")),
}  # fmt: skip
