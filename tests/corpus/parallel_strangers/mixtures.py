"""A DeepSeek-like model at prefill, served by SGLang's and vLLM's schemes: layer 0 has an MLP, 1 and 2 experts."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.mixture_layers import HIDDEN, MLP, LatentAttention, Mixture, RMSNorm
from tests.corpus.parallel_strangers.regions import linear, shard, summed
from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, gathered

WORDS, PADDED, LAYERS = 101, 112, 3
IN_STATISTICS = 2


class Layer(nn.Module):
    def __init__(self, rank: Rank, number: int) -> None:
        super().__init__()
        self.rank, self.name = rank, f"layers.{number}"
        self.norm1, self.attn = RMSNorm(rank, f"{self.name}.norm1"), LatentAttention(rank, f"{self.name}.attn")
        self.norm2 = RMSNorm(rank, f"{self.name}.norm2")
        self.mlp = Mixture(rank, f"{self.name}.moe") if number else MLP(rank, f"{self.name}.mlp")

    def forward(self, x: torch.Tensor, positions: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        out = self.attn(self.norm1(x), positions, lengths)
        with self.rank.at(f"{self.name}.attended"):
            x = x + out
        out = self.mlp(self.norm2(x))
        with self.rank.at(f"{self.name}.out"):
            return x + out


class Model(nn.Module):
    """The vocabulary is padded; ranks hold parts of the padded one."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank = rank
        self.table = shard(rank, "table", PADDED, HIDDEN, dim=0, scale=1.0)
        self.layers = nn.ModuleList(Layer(rank, number) for number in range(LAYERS))
        self.norm = RMSNorm(rank, "norm")
        self.head = shard(rank, "head", PADDED, HIDDEN, dim=0)

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        rank, tp = self.rank, self.rank.group("tp")
        if tp.size == 1:
            with rank.at("embedding"):
                return F.embedding(ids, self.table)
        first = tp.number * len(self.table)
        outside = (ids < first) | (ids >= min(first + len(self.table), WORDS))
        local = ids - (max(first - 1, 0) if rank.hit("wrong_offset") else first)
        with rank.at("embedding"):
            x = F.embedding(local.masked_fill(outside, 0).clamp(max=len(self.table) - 1), self.table)
        x = x.masked_fill(outside.unsqueeze(-1), 0.0)
        with rank.at("embedding.reduced"):
            return x if rank.hit("embedding_not_reduced") else summed(x, tp)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        rank, x = self.rank, self._embedded(ids)
        for layer in self.layers:
            x = layer(x, positions, lengths)
        with rank.at("last"):
            x = self.norm(x)[torch.tensor(lengths).cumsum(0) - 1]
        logits = linear(rank, "logits", "logits", x, self.head)
        with rank.at("logits.gathered"):
            if rank.size("tp") > 1:
                whole = gathered(logits, rank.group("tp"), -1)
                logits = torch.roll(whole, logits.shape[-1], -1) if rank.hit("logits_rolled") else whole
        return logits[..., :WORDS]


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Model(rank)
        lengths, dp = rank.settings["lengths"], rank.group("dp")
        own, count = 0 if rank.hit("requests_same") else dp.number, len(lengths) // dp.size
        ids = rank.integers("ids", WORDS, sum(lengths)).split(lengths)
        self.rows = slice(dp.number * count, (dp.number + 1) * count)
        mine = ids[own * count : (own + 1) * count]
        self.ids, self.lengths = torch.cat(mine), [len(one) for one in mine]
        begin = sum(lengths[: self.rows.start]) if rank.hit("positions_go_on") else 0
        self.positions = torch.cat([begin + torch.arange(length) for length in self.lengths])

    def step(self) -> None:
        with torch.no_grad():
            self.logits = self.model(self.ids, self.positions, self.lengths)
            with self.rank.at("sampled"):
                self.sampled = torch.softmax(self.logits, dim=-1).argmax(dim=-1)

    def figures(self) -> list[float]:
        whole = torch.zeros(len(self.rank.settings["lengths"]), WORDS, dtype=torch.float64)
        whole[self.rows] = self.logits.double()
        dist.all_reduce(whole, group=self.rank.group("dp").handle)
        return [float(one) for one in whole[:, :12].reshape(-1)]


def _experts(name: str, *numbers: int) -> tuple[str, ...]:
    """Some of them; an expert may have no tokens."""
    return (f"{name}.[{''.join(map(str, numbers))}].w13",)


_MOE = "layers.1.moe"
_INNER = (
    Fault("not_reduced@layers.0.attn.o_proj", ("layers.0.attended",)),
    Fault(f"shared_reduced@{_MOE}", (f"{_MOE}.shared.reduced:collective", f"{_MOE}.summed", "layers.1.out")),
    Fault("wrong_shard@layers.1.attn.q_b", ("layers.1.attn.q_b",), 1),
    Fault("stale@layers.0.attn.kv_a", ("layers.0.attn.kv_a",), 1),
    Fault("positions_shifted@layers.1.attn", ("layers.1.attn.rope",), 0),
    Fault(f"bias_missing@{_MOE}", (f"{_MOE}.choice", f"{_MOE}.bunches"), 1),
    Fault(f"coarse@{_MOE}.shared.gate_up", (f"{_MOE}.shared.gate_up",), 1),
    Fault("wrong_offset", ("embedding",), 1),
)
_APART = (
    Fault(f"experts_reversed@{_MOE}", _experts(_MOE, 6, 7), 3),
    Fault("not_reduced@layers.2.moe", ("layers.2.out",)),
    Fault(f"not_scaled@{_MOE}", (f"{_MOE}.weights",)),
    Fault("logits_rolled", ("logits.gathered",)),
    Fault("other_eps@layers.0.attn.kv_norm", ("layers.0.attn.kv_norm",), 3),
    Fault("wrong_shard@layers.2.attn.o_proj", ("layers.2.attn.o_proj",), 1),
    Fault(f"stale@{_MOE}.gate", (f"{_MOE}.router",), 2),
    Fault("other_scale@layers.1.attn", ("layers.1.attn.attended",)),
)
_GATHER = (
    Fault(f"not_scattered@{_MOE}", (f"{_MOE}.summed",)),
    Fault(f"logits_order@{_MOE}", (f"{_MOE}.scores",)),
    Fault(f"experts_reversed@{_MOE}", _experts(_MOE, 6, 7), 3),
    Fault("reduced_twice@layers.2.moe", ("layers.2.out", "layers.2.moe.reduced:collective")),
    Fault("stale@layers.1.attn.kv_b", ("layers.1.attn.kv_b",), 2),
    Fault("positions_go_on", ("layers.0.attn.rope",)),
    Fault("embedding_not_reduced", ("layers.0.norm1", "layers.0.attended")),
    Fault("coarse@layers.0.mlp.down", ("layers.0.mlp.down",), 1),
)
_EXCHANGE = (
    Fault(f"not_unsorted@{_MOE}", (f"{_MOE}.weighted",)),
    Fault(f"experts_reversed@{_MOE}", _experts(_MOE, 4, 5, 6, 7), 1),
    Fault(f"not_weighted@{_MOE}", (f"{_MOE}.weighted",), 0),
    Fault("stale@layers.2.moe.shared.down", ("layers.2.moe.shared.down",), 1),
    Fault("dropped@layers.2.moe", ("layers.2.moe.outs", "layers.2.moe.weighted"), 1),
    Fault(f"coarse@{_MOE}.router", (f"{_MOE}.router",), 0),
    Fault("requests_same", ("embedding",), 1),
    Fault("other_eps@layers.2.norm1", ("layers.2.norm1",), 1),
)
_EVEN = [6, 4, 3, 7]
LAYOUTS = {
    "tp2": Layout({"tp": 2}, {"moe": "inner", "lengths": [5, 7, 3], "seed": 31}, _INNER),
    "tp4_ep4": Layout({"tp": 4}, {"moe": "apart", "lengths": [6, 2, 5], "seed": 32}, _APART),
    "tp2_dp2_ep4": Layout({"tp": 2, "dp": 2}, {"moe": "gather", "lengths": _EVEN, "seed": 33}, _GATHER),
    "dp2_ep2": Layout({"dp": 2}, {"moe": "exchange", "lengths": [6, 5, 4, 3], "seed": 34}, _EXCHANGE),
}
