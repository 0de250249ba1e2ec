"""Parts of a DeepSeek-like model: latent attention, an MLP, experts beside shared ones.

`moe`: how ranks hold experts and pass tokens: a part of each expert ("inner"), whole experts for replicated tokens
("apart"), for tokens gathered over ranks of requests ("gather"), or for tokens sent to their rank and back
("exchange").
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import linear, shard, summed
from tests.corpus.parallel_strangers.world import Rank, cut, gathered

HIDDEN, HEADS, LATENT_Q, LATENT_KV, NOPE, ROPE, VALUE = 32, 4, 20, 16, 8, 4, 8
INNER, EXPERT_INNER, EXPERTS, BUNCHES, CHOICES, ROUTED_SCALE = 48, 16, 8, 4, 2, 2.5
EPS = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, rank: Rank, name: str, width: int = HIDDEN) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.weight = shard(rank, name, width, offset=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = 1e-1 if self.rank.hit("other_eps", self.name) else EPS
        with self.rank.at(self.name):
            return F.rms_norm(x, (x.shape[-1],), self.weight, eps)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours turned, as DeepSeek has it."""
    angles = positions[:, None, None].to(x.dtype) * 50.0 ** (-torch.arange(0, ROPE, 2).to(x.dtype) / ROPE)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


class LatentAttention(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.heads = rank, name, HEADS // rank.size("tp")
        self.q_a = shard(rank, f"{name}.q_a", LATENT_Q, HIDDEN)
        self.q_norm = RMSNorm(rank, f"{name}.q_norm", LATENT_Q)
        self.q_b = shard(rank, f"{name}.q_b", HEADS * (NOPE + ROPE), LATENT_Q, dim=0)
        self.kv_a = shard(rank, f"{name}.kv_a", LATENT_KV + ROPE, HIDDEN)
        self.kv_norm = RMSNorm(rank, f"{name}.kv_norm", LATENT_KV)
        self.kv_b = shard(rank, f"{name}.kv_b", HEADS * (NOPE + VALUE), LATENT_KV, dim=0)
        self.o_proj = shard(rank, f"{name}.o_proj", HIDDEN, HEADS * VALUE, dim=1)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        rank, name = self.rank, self.name
        q = self.q_norm(linear(rank, f"{name}.q_a", f"{name}.q_a", x, self.q_a))
        q = linear(rank, f"{name}.q_b", f"{name}.q_b", q, self.q_b).view(len(x), self.heads, NOPE + ROPE)
        q_nope, q_pe = q.split([NOPE, ROPE], dim=-1)
        latent = linear(rank, f"{name}.kv_a", f"{name}.kv_a", x, self.kv_a)
        kv, k_pe = latent.split([LATENT_KV, ROPE], dim=-1)
        kv = linear(rank, f"{name}.kv_b", f"{name}.kv_b", self.kv_norm(kv), self.kv_b)
        k_nope, v = kv.view(len(x), self.heads, NOPE + VALUE).split([NOPE, VALUE], dim=-1)
        with rank.at(f"{name}.rope"):
            k_pe = rotated(k_pe.unsqueeze(1), positions + 1 if rank.hit("positions_shifted", name) else positions)
        q = torch.cat([q_nope, rotated(q_pe, positions)], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, self.heads, -1)], dim=-1)
        scale = NOPE**-0.5 if rank.hit("other_scale", name) else (NOPE + ROPE) ** -0.5
        made = []
        for one_q, one_k, one_v in zip(q.split(lengths), k.split(lengths), v.split(lengths)):
            one_q, one_k, one_v = (part.transpose(0, 1).unsqueeze(0) for part in (one_q, one_k, one_v))
            with rank.at(f"{name}.attended"):
                out = F.scaled_dot_product_attention(one_q, one_k, one_v, is_causal=True, scale=scale)
            made.append(out.squeeze(0).transpose(0, 1).flatten(1))
        out = linear(rank, f"{name}.o_proj", f"{name}.o_proj", torch.cat(made), self.o_proj)
        if rank.size("tp") > 1 and not rank.hit("not_reduced", f"{name}.o_proj"):
            out = summed(out, rank.group("tp"))
        return out


class MLP(nn.Module):
    def __init__(self, rank: Rank, name: str, reduces: bool = True) -> None:
        super().__init__()
        self.rank, self.name, self.reduces = rank, name, reduces
        both = [shard(rank, f"{name}.{part}", INNER, HIDDEN, dim=0).data for part in ("gate", "up")]
        self.gate_up = nn.Parameter(torch.cat(both))
        self.down = shard(rank, f"{name}.down", HIDDEN, INNER, dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, name = self.rank, self.name
        gate, up = linear(rank, f"{name}.gate_up", f"{name}.gate_up", x, self.gate_up).chunk(2, dim=-1)
        with rank.at(f"{name}.act"):
            x = F.silu(gate) * up
        x = linear(rank, f"{name}.down", f"{name}.down", x, self.down)
        with rank.at(f"{name}.reduced"):
            if self.reduces and rank.size("tp") > 1:
                x = summed(x, rank.group("tp"))
        return x


class Mixture(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.mode = rank, name, rank.settings["moe"]
        self.gate = shard(rank, f"{name}.gate", EXPERTS, HIDDEN, scale=0.5)
        self.bias = nn.Parameter(rank.drawn(f"{name}.bias", EXPERTS, scale=0.3))
        self.shared = MLP(rank, f"{name}.shared", rank.hit("shared_reduced", name))
        tp, dp = rank.group("tp"), rank.group("dp")
        places = {"inner": (0, 1), "apart": (tp.number, tp.size), "gather": (rank.number, tp.size * dp.size)}
        number, count = places.get(self.mode, (dp.number, dp.size))
        self.numbers = [*range(number * EXPERTS // count, (number + 1) * EXPERTS // count)]
        loaded = self.numbers[::-1] if rank.hit("experts_reversed", name) else self.numbers
        first, second = [], []
        for expert in loaded:
            parts = [rank.drawn(f"{name}.{expert}.{part}", EXPERT_INNER, HIDDEN) for part in ("w1", "w3")]
            down = rank.drawn(f"{name}.{expert}.w2", HIDDEN, EXPERT_INNER)
            if self.mode == "inner":
                parts, down = [cut(one, 0, tp.number, tp.size) for one in parts], cut(down, 1, tp.number, tp.size)
            first.append(torch.cat(parts))
            second.append(down)
        self.w13, self.w2 = nn.Parameter(torch.stack(first)), nn.Parameter(torch.stack(second))

    def _routed(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rank, name = self.rank, self.name
        with rank.at(f"{name}.scores"):
            scores = logits.sigmoid()
        with rank.at(f"{name}.choice"):
            choice = scores if rank.hit("bias_missing", name) else scores + self.bias
        with rank.at(f"{name}.bunches"):
            bunches = choice.view(len(choice), BUNCHES, -1).sum(dim=-1)
        best = torch.topk(bunches, k=2, dim=-1)[1]
        mask = torch.zeros_like(bunches).scatter_(1, best, 1).unsqueeze(-1).expand(-1, -1, EXPERTS // BUNCHES)
        choice = choice.masked_fill(~mask.reshape(len(choice), -1).bool(), 0.0)
        chosen = torch.topk(choice, k=CHOICES, dim=-1)[1]
        weights = scores.gather(1, chosen)
        with rank.at(f"{name}.weights"):
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
            return weights if rank.hit("not_scaled", name) else weights * ROUTED_SCALE, chosen

    def _expert(self, at: int, x: torch.Tensor) -> torch.Tensor:
        with self.rank.at(f"{self.name}.{self.numbers[at]}.w13"):
            gate, up = F.linear(x, self.w13[at]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.w2[at])

    def _looped(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(x)
        for at, expert in enumerate(self.numbers):
            token, slot = torch.where(chosen == expert)
            if len(token):
                made.index_add_(0, token, self._expert(at, x[token]) * weights[token, slot].unsqueeze(-1))
        return made

    def _sorted(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """As DeepSeek's own `moe_infer`."""
        rank, name, group = self.rank, self.name, self.rank.group("dp")
        counts = chosen.new_zeros((len(chosen), EXPERTS)).scatter_(1, chosen, 1).sum(dim=0)
        order = chosen.view(-1).argsort(stable=True)
        with rank.at(f"{name}.sorted"):
            tokens = x[torch.div(order, CHOICES, rounding_mode="floor")]
        shape, is_apart = tokens.shape, group.size > 1
        if is_apart:
            per_rank = counts.view(group.size, -1).sum(dim=1).tolist()
            received = torch.empty_like(counts)
            dist.all_to_all_single(received, counts, group=group.handle)
            splits = received.view(group.size, -1).sum(dim=1).tolist()
            came = tokens.new_empty(sum(splits), HIDDEN)
            dist.all_to_all_single(came, tokens, splits, per_rank, group=group.handle)
            local = np.repeat(np.arange(len(received)) % len(self.numbers), received.numpy())
            inner = torch.from_numpy(local.argsort(kind="stable"))
            tokens, counts = came[inner], received.view(group.size, -1).sum(dim=0)
        made, first = [], 0
        for at, count in enumerate(counts.tolist()):
            if count:
                made.append(self._expert(at, tokens[first : first + count]))
                if rank.hit("dropped", name):
                    made[-1][-1] = 0.0
            first += count
        with rank.at(f"{name}.outs"):
            outs = torch.cat(made)
        if is_apart:
            back = torch.empty_like(outs)
            if rank.hit("not_unsorted", name):
                back = outs.clone()
            else:
                back[inner] = outs
            outs = outs.new_empty(shape)
            dist.all_to_all_single(outs, back, per_rank, splits, group=group.handle)
        made = torch.empty_like(outs)
        made[order] = outs
        with rank.at(f"{name}.weighted"):
            if rank.hit("not_weighted", name):
                weights = torch.full_like(weights, ROUTED_SCALE / CHOICES)
            return made.view(*chosen.shape, -1).mul(weights.unsqueeze(-1)).sum(dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, name, tp, dp = self.rank, self.name, self.rank.group("tp"), self.rank.group("dp")
        shared = self.shared(x)
        logits = linear(rank, f"{name}.router", f"{name}.router", x, self.gate)
        is_gathered = self.mode == "gather" and dp.size > 1
        if is_gathered:
            x, logits = gathered(x, dp, 0), gathered(logits, dp, 0)
            if rank.hit("logits_order", name):
                logits = torch.roll(logits, len(shared), 0)
        weights, chosen = self._routed(logits)
        form = self._sorted if self.mode in ("inner", "exchange") else self._looped
        out = form(x, weights, chosen)
        if is_gathered and rank.hit("not_scattered", name):
            out = cut(out, 0, dp.number, dp.size)
        elif is_gathered:
            own = torch.empty_like(shared)
            dist.reduce_scatter_tensor(own, out, group=dp.handle)
            out = own
        with rank.at(f"{name}.summed"):
            out = out + shared
        with rank.at(f"{name}.reduced"):
            for _ in range(2 if rank.hit("reduced_twice", name) else 1):
                if tp.size > 1 and not rank.hit("not_reduced", name):
                    out = summed(out, tp)
        return out
