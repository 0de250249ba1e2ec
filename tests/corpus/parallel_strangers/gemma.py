"""A Gemma-like language model with experts, prefill and a step of decoding out of a paged cache, with vLLM's classes.

Norms around attention and MLP, norms of each head's queries and keys, partial rotary, scores and logits capped. Layer 1
has a window and experts.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import shard
from tests.corpus.parallel_strangers.world import Fault, Group, Layout, Rank, cut

HIDDEN, HEADS, KEYS, HEAD, ROTARY, INNER, EXPERTS, CHOICES, EXPERT_INNER = 32, 4, 2, 16, 8, 48, 4, 2, 16
WORDS, PADDED, LAYERS, BLOCK, BLOCKS, WINDOW, CAP, LAST_CAP = 90, 96, 3, 4, 8, 4, 3.0, 4.0
REQUESTS, TABLES = (6, 4, 7), ((3, 0), (5, 1), (2, 6))  # lengths; blocks of the cache that hold them
SPLITS = (2, 1)  # layers of each stage


def all_reduce(rank: Rank, x: torch.Tensor, what: str) -> torch.Tensor:
    group = rank.group("tp")
    if group.size > 1 and not rank.hit("not_reduced", what):
        dist.all_reduce(x, group=group.handle)
        if rank.hit("averaged", what):
            x /= group.size
        if rank.hit("reduced_twice", what):
            dist.all_reduce(x, group=group.handle)
    return x


def apply(rank: Rank, place: str, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with rank.at(place):
        if rank.hit("coarse", place.partition("/")[2]):
            return F.linear(x.bfloat16(), weight.bfloat16()).to(x.dtype)
        return F.linear(x, weight)


class Module(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.tp = rank, name, rank.group("tp")

    def at(self, what: str = "") -> str:
        return f"{self.rank.micro}/{self.name}{what}"


class VocabParallelEmbedding(Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.weight = shard(rank, name, PADDED, HIDDEN, dim=0, scale=1.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rank, count = self.rank, PADDED // self.tp.size
        if self.tp.size > 1:
            first = self.tp.number * count
            inside = torch.logical_and(ids >= first, ids < first + count)
            ids = torch.where(inside, ids - first, 0)
        with rank.at(self.at()):
            x = F.embedding(ids, self.weight)
        if self.tp.size > 1:
            x = all_reduce(rank, torch.where(inside.unsqueeze(-1), x, 0.0), self.name)
        with rank.at(self.at(".scaled")):
            return x * (1.0 if rank.hit("not_scaled") else HIDDEN**0.5)


class GemmaRMSNorm(Module):
    def __init__(self, rank: Rank, name: str, size: int = HIDDEN) -> None:
        super().__init__(rank, name)
        self.weight = shard(rank, name, size, scale=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        with rank.at(self.at(".squares")):
            squares = x.pow(2)
        variance = squares.mean(-1, keepdim=True)
        with rank.at(self.at(".factor")):
            factor = torch.rsqrt(variance + (0.3 if rank.hit("other_eps", self.name) else 1e-6))
        with rank.at(self.at()):
            return x * factor * (1.0 + self.weight)


class QKVParallelLinear(Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        size, number = self.tp.size, self.tp.number
        replicas = max(1, size // KEYS)
        own = number % KEYS if rank.hit("replica", name) else number // replicas
        parts = [cut(rank.drawn(f"{name}.q", HEADS * HEAD, HIDDEN), 0, number, size)]
        parts += [cut(rank.drawn(f"{name}.{one}", KEYS * HEAD, HIDDEN), 0, own, size // replicas) for one in "kv"]
        self.weight = nn.Parameter(torch.cat(parts))
        self.sizes = [len(one) for one in parts]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = apply(self.rank, self.at(), x, self.weight).split(self.sizes, -1)
        return q.unflatten(-1, (-1, HEAD)), k.unflatten(-1, (-1, HEAD)), v.unflatten(-1, (-1, HEAD))


class MergedColumnParallelLinear(Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        both = [rank.drawn(f"{name}.{one}", INNER, HIDDEN) for one in ("gate", "up")]
        if rank.hit("not_by_blocks", name):
            both = [torch.cat(both)]
        self.weight = nn.Parameter(torch.cat([cut(one, 0, self.tp.number, self.tp.size) for one in both]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return apply(self.rank, self.at(), x, self.weight)


class RowParallelLinear(Module):
    def __init__(self, rank: Rank, name: str, inner: int) -> None:
        super().__init__(rank, name)
        self.weight = shard(rank, name, HIDDEN, inner, dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return all_reduce(self.rank, apply(self.rank, self.at(), x, self.weight), self.name)


class MLP(Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.gate_up_proj = MergedColumnParallelLinear(rank, f"{name}.gate_up")
        self.down_proj = RowParallelLinear(rank, f"{name}.down", INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        with self.rank.at(self.at(".act")):
            x = F.gelu(gate, approximate="tanh") * up
        return self.down_proj(x)


class FusedMoE(Module):
    """All of a rank's experts over all tokens at once; a rank has some experts ("apart") or a part of each."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.gate = shard(rank, f"{name}.gate", EXPERTS, HIDDEN, scale=0.4)
        first = [rank.drawn(f"{name}.{one}", EXPERTS, EXPERT_INNER, HIDDEN, scale=0.2) for one in ("w1", "w3")]
        last = rank.drawn(f"{name}.w2", EXPERTS, HIDDEN, EXPERT_INNER, scale=0.3)
        self.is_apart, number, size = rank.settings["apart"], self.tp.number, self.tp.size
        dims = (0, 0) if self.is_apart else (1, 2)
        if rank.hit("experts_reversed", name):
            last = last.flip(0)
        self.w13 = nn.Parameter(torch.cat([cut(one, dims[0], number, size) for one in first], 1))
        self.w2 = nn.Parameter(cut(last, dims[1], number, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        probabilities = torch.softmax(apply(rank, self.at(".gate"), x, self.gate), -1)
        with rank.at(self.at(".topk")):
            weights, chosen = torch.topk(probabilities, 1 if rank.hit("one_choice", self.name) else CHOICES)
        if not rank.hit("not_divided", self.name):
            with rank.at(self.at(".divided")):
                weights = weights / weights.sum(-1, keepdim=True)
        with rank.at(self.at(".spread")):
            spread = torch.zeros_like(probabilities).scatter(1, chosen, weights)
        if self.is_apart:
            count = EXPERTS // self.tp.size
            first = self.tp.number * count
            if rank.hit("other_experts", self.name):
                first = (first + count) % EXPERTS
            spread = spread[:, first : first + count]
        with rank.at(self.at(".w13")):
            y = torch.bmm(x.expand(len(self.w13), -1, -1), self.w13.transpose(1, 2))
        gate, up = y.chunk(2, -1)
        with rank.at(self.at(".act")):
            y = F.silu(gate) * up
        with rank.at(self.at(".w2")):
            y = torch.bmm(y, self.w2.transpose(1, 2))
        with rank.at(self.at(".weighted")):
            y = y * spread.t().unsqueeze(-1)
        with rank.at(self.at(".summed")):
            y = y.sum(0)
        return all_reduce(rank, y, self.name)


class Attention(Module):
    def __init__(self, rank: Rank, name: str, window: int) -> None:
        super().__init__(rank, name)
        self.window, self.qkv_proj = window, QKVParallelLinear(rank, f"{name}.qkv")
        self.q_norm, self.k_norm = (GemmaRMSNorm(rank, f"{name}.{one}_norm", HEAD) for one in "qk")
        self.o_proj = RowParallelLinear(rank, f"{name}.o", HEADS * HEAD)
        keys = self.qkv_proj.sizes[1] // HEAD
        self.cache = torch.zeros(2, BLOCKS, BLOCK, keys, HEAD, dtype=rank.dtype)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        size = HEAD if self.rank.hit("rotary_whole", self.name) else ROTARY
        angles = positions[:, None].to(x.dtype) * 50.0 ** (-torch.arange(0, size, 2).to(x.dtype) / size)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        first, second = x[..., :size].chunk(2, -1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        return torch.cat([turned, x[..., size:]], -1)

    def _read(self, number: int, length: int) -> torch.Tensor:
        blocks = torch.tensor(TABLES[number])
        return self.cache[:, blocks].flatten(1, 2)[:, :length]

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, lengths: list[int]
    ) -> torch.Tensor:
        rank = self.rank
        q, k, v = self.qkv_proj(x)
        q, own = self.q_norm(q), positions
        if not rank.hit("keys_not_normed", self.name):
            k = self.k_norm(k)
        if rank.hit("positions_behind") and rank.micro == 1:
            own = positions - 1
        with rank.at(self.at(".rope")):
            q = self._rotated(q, own)
        with rank.at(self.at(".rope.k")):
            k = self._rotated(k, own)
        with rank.at(self.at(".cache")):
            self.cache.flatten(1, 2)[:, slots] = torch.stack([k, v])
        made, counts = [], [len(x) // len(lengths)] * len(lengths) if rank.micro else lengths
        for number, (queries, length) in enumerate(zip(q.split(counts), lengths)):
            with rank.at(self.at(f".{number}.read")):
                keys, values = self._read(number, length)
            keys, values = (
                one.repeat_interleave(queries.shape[1] // one.shape[1], 1).transpose(0, 1) for one in (keys, values)
            )
            with rank.at(self.at(f".{number}.scores")):
                scores = torch.matmul(queries.transpose(0, 1) * HEAD**-0.5, keys.transpose(1, 2))
            if not rank.hit("not_capped", self.name):
                with rank.at(self.at(f".{number}.capped")):
                    scores = torch.tanh(scores / CAP) * CAP
            at = torch.arange(length - len(queries), length)[:, None] - torch.arange(length)
            window = self.window - rank.hit("window_short", self.name)
            with rank.at(self.at(f".{number}.masked")):
                scores = scores.masked_fill((at < 0) | (at >= window), float("-inf"))
            with rank.at(self.at(f".{number}.softmax")):
                is_coarse = rank.hit("coarse", f"{self.name}.softmax")
                weights = torch.softmax(scores.bfloat16() if is_coarse else scores, -1).to(x.dtype)
            with rank.at(self.at(f".{number}.attended")):
                made.append(torch.matmul(weights, values).transpose(0, 1).flatten(1))
        return self.o_proj(torch.cat(made))


class DecoderLayer(Module):
    def __init__(self, rank: Rank, number: int) -> None:
        super().__init__(rank, f"layers.{number}")
        self.norms = nn.ModuleList(GemmaRMSNorm(rank, f"{self.name}.norm{at}") for at in range(4))
        self.self_attn = Attention(rank, f"{self.name}.attn", WINDOW if number == 1 else 1000)
        self.mlp = FusedMoE(rank, f"{self.name}.moe") if number == 1 else MLP(rank, f"{self.name}.mlp")

    def forward(self, x: torch.Tensor, *where: object) -> torch.Tensor:
        before, behind, before_mlp, behind_mlp = self.norms
        out = behind(self.self_attn(before(x), *where))
        with self.rank.at(self.at(".attended")):
            x = x + out
        out = behind_mlp(self.mlp(before_mlp(x)))
        with self.rank.at(self.at(".out")):
            return x + out


class LogitsProcessor(Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "head")
        self.norm, self.weight = GemmaRMSNorm(rank, "norm"), shard(rank, "head", PADDED, HIDDEN, dim=0)

    def forward(self, x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        x = self.norm(x)
        with rank.at(self.at(".last")):
            x = x[last - 1 if rank.hit("last_but_one") else last]
        logits = apply(rank, self.at(), x, self.weight)
        if self.tp.size > 1:
            parts = [torch.empty_like(logits) for _ in range(self.tp.size)]
            dist.all_gather(parts, logits, group=self.tp.handle)
            logits = torch.cat(parts[::-1] if rank.hit("parts_reversed") else parts, -1)
        with rank.at(self.at(".words")):
            logits = logits[:, :WORDS]
        if rank.hit("logits_not_capped"):
            return logits
        with rank.at(self.at(".capped")):
            return torch.tanh(logits / LAST_CAP) * LAST_CAP


class Model(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank, pp, self.pp_tp = rank, rank.group("pp"), rank.group("tp")
        first = 0 if pp.number == 0 else SPLITS[0]
        count = LAYERS if pp.size == 1 else SPLITS[pp.number]
        if pp.number == 0:
            self.embed_tokens = VocabParallelEmbedding(rank, "embed")
        self.layers = nn.ModuleDict({str(at): DecoderLayer(rank, at) for at in range(first, first + count)})
        if pp.number == pp.size - 1:
            self.logits = LogitsProcessor(rank)

    def _sent(self, x: torch.Tensor, pp: Group) -> None:
        """Each rank of a stage sends its part, as the next stage gathers the parts."""
        dist.send(cut(x.reshape(-1), 0, self.pp_tp.number, self.pp_tp.size), pp.ranks[1])

    def _received(self, count: int, pp: Group) -> torch.Tensor:
        own = torch.empty(count * HIDDEN // self.pp_tp.size, dtype=self.rank.dtype)
        dist.recv(own, pp.ranks[0])
        parts = [torch.empty_like(own) for _ in range(self.pp_tp.size)]
        dist.all_gather(parts, own, group=self.pp_tp.handle)
        return torch.cat(parts[::-1] if self.rank.hit("halves_swapped") else parts).view(count, HIDDEN)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, lengths: list[int], last: torch.Tensor
    ) -> torch.Tensor:
        pp = self.rank.group("pp")
        x = self.embed_tokens(ids) if pp.number == 0 else self._received(len(ids), pp)
        for number, layer in self.layers.items():
            if not self.rank.hit("skipped", f"layers.{number}"):
                x = layer(x, positions, slots, lengths)
        if pp.number < pp.size - 1:
            self._sent(x, pp)
            return x.new_empty(len(last), WORDS)
        return self.logits(x, last)


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Model(rank)
        self.ids = rank.integers("ids", WORDS, sum(REQUESTS))

    def _slots(self, number: int, positions: torch.Tensor) -> torch.Tensor:
        table = TABLES[number]
        if self.rank.hit("blocks_shared") and number == 1:
            table = (TABLES[0][0], table[1])  # writes over what request 0 has there
        with self.rank.at("slots"):
            return torch.tensor(table)[positions // BLOCK] * BLOCK + positions % BLOCK

    @torch.no_grad()
    def step(self) -> None:
        rank, lengths = self.rank, list(REQUESTS)
        positions = [torch.arange(length) for length in lengths]
        slots = torch.cat([self._slots(number, own) for number, own in enumerate(positions)])
        rank.micro = 0
        logits = self.model(self.ids, torch.cat(positions), slots, lengths, torch.tensor(lengths).cumsum(0) - 1)
        with rank.at("sampled"):
            sampled = logits.argmax(-1)
        if rank.size("pp") > 1:
            dist.broadcast(sampled, rank.group("pp").ranks[1], group=rank.group("pp").handle)
        if rank.hit("tokens_rolled"):
            sampled = torch.roll(sampled, 1, 0)
        rank.micro, behind = 1, torch.tensor(lengths)
        slots = torch.cat([self._slots(number, behind[number : number + 1]) for number in range(len(lengths))])
        last = torch.arange(len(lengths))
        self.logits = self.model(sampled, behind, slots, [one + 1 for one in lengths], last)

    def figures(self) -> list[float]:
        logits, pp = self.logits.contiguous(), self.rank.group("pp")
        if pp.size > 1:
            dist.broadcast(logits, pp.ranks[1], group=pp.handle)
        return [float(one) for one in logits.double().reshape(-1)[:60]]


_SPLIT = (
    Fault("not_reduced@layers.0.mlp.down", ("?/layers.0.norm3.squares", "?/layers.0.norm3")),
    Fault("stale@layers.1.attn.q_norm", ("?/layers.1.attn.q_norm",), 1),
    Fault("not_capped@layers.2.attn", ("?/layers.2.attn.?.capped", "?/layers.2.attn.?.masked"), 0),
    Fault("blocks_shared", ("slots", "?/layers.0.attn.cache", "?/layers.0.attn.?.read", "?/layers.0.attn.?.scores"), 1),
    Fault("rotary_whole@layers.0.attn", ("?/layers.0.attn.rope", "?/layers.0.attn.rope.k"), 1),
    Fault("positions_behind", ("1/layers.0.attn.rope", "1/layers.0.attn.rope.k"), 0),
    Fault("wrong_shard@layers.2.attn.o", ("?/layers.2.attn.o",), 1),
    Fault("not_scaled", ("?/embed.scaled",)),
    Fault("not_divided@layers.1.moe", ("?/layers.1.moe.divided", "?/layers.1.moe.spread"), 0),
    Fault("coarse@layers.1.attn.softmax", ("?/layers.1.attn.?.softmax",), 1),
    Fault("logits_not_capped", ("?/head.capped", "sampled"), 1),
)
_APART = (
    Fault("replica@layers.1.attn.qkv", ("?/layers.1.attn.qkv",), 1),
    Fault("other_experts@layers.1.moe", ("?/layers.1.moe.weighted",), 2),
    Fault("averaged@embed", ("?/embed.scaled", "?/embed")),
    Fault("window_short@layers.1.attn", ("?/layers.1.attn.?.masked", "?/layers.1.attn.?.softmax"), 3),
    Fault("stale@layers.1.moe.gate", ("?/layers.1.moe.gate",), 1),
    Fault("one_choice@layers.1.moe", ("?/layers.1.moe.topk", "?/layers.1.moe.divided"), 2),
    Fault("not_reduced@layers.1.moe", ("?/layers.1.norm3.squares", "?/layers.1.norm3")),
    Fault("not_by_blocks@layers.2.mlp.gate_up", ("?/layers.2.mlp.gate_up", "?/layers.2.mlp.act")),
    Fault("parts_reversed", ("?/head", "?/head.words", "?/head.capped")),
    Fault("stale@layers.2.norm0", ("?/layers.2.norm0",), 3),
    Fault("wrong_shard@layers.0.mlp.down", ("?/layers.0.mlp.down",), 2),
)
_STAGES = (
    Fault("halves_swapped", ("?/layers.2.norm0.squares", "?/layers.2.norm0", "?/layers.1.out", "?/layers.2.attended")),
    Fault("keys_not_normed@layers.2.attn", ("?/layers.2.attn.k_norm*", "?/layers.2.attn.rope.k"), 3),
    Fault("not_reduced@layers.2.attn.o", ("?/layers.2.norm1.squares", "?/layers.2.norm1")),
    Fault("skipped@layers.1", ("?/layers.1.*", "?/layers.2.norm0.squares", "?/layers.2.attended")),
    Fault("last_but_one", ("?/head.last",)),
    Fault("coarse@layers.0.mlp.gate_up", ("?/layers.0.mlp.gate_up",), 0),
    Fault("other_eps@norm", ("?/norm.factor",), 2),
    Fault("not_capped@layers.1.attn", ("?/layers.1.attn.?.capped", "?/layers.1.attn.?.masked"), 1),
    Fault("tokens_rolled", ("1/embed",)),
    Fault("wrong_shard@head", ("?/head",), 3),
    Fault("experts_reversed@layers.1.moe", ("?/layers.1.moe.w2",), 1),
)
LAYOUTS = {
    "tp2": Layout({"tp": 2}, {"apart": False, "seed": 71}, _SPLIT),
    "tp4_ep4": Layout({"tp": 4}, {"apart": True, "seed": 72}, _APART),
    "tp2_pp2": Layout({"tp": 2, "pp": 2}, {"apart": False, "seed": 73}, _STAGES),
}
