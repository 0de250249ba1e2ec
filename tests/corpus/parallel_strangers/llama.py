"""A LLaMA in training: tensor, data, context parallel, stages by turns, ZeRO-3."""

from __future__ import annotations

from typing import Iterator, Optional

import torch
import torch.distributed as dist
from torch import nn

from tests.corpus.parallel_strangers.llama_layers import HIDDEN, LENGTH, WORDS, Ends, Layer
from tests.corpus.parallel_strangers.regions import summed
from tests.corpus.parallel_strangers.world import Fault, Group, Layout, Rank, TrainingRun, gathered

PROMPT, RATE, MOST, DECAY = 3, 0.02, 0.3, 0.1
IN_STATISTICS = 2


class Model(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        pp, count = rank.group("pp"), rank.settings["layers"]
        mine = [*range(pp.number, count, pp.size)]  # by turns
        loaded = [number + pp.number * (count // pp.size) for number in range(len(mine))]
        if not rank.hit("layers_in_a_row"):
            loaded = mine
        self.ends = Ends(rank, pp.number == 0, pp.number == pp.size - 1)
        self.layers = nn.ModuleDict({str(one): Layer(rank, one, other) for one, other in zip(mine, loaded)})


class Optimizer:
    """The norm, then Adam; of flat buffers of which ranks keep a part ("flat"), or of each parameter."""

    def __init__(self, rank: Rank, model: nn.Module) -> None:
        self.rank, self.parameters = rank, [*model.parameters()]

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, bool]]:
        rank, dp = self.rank, self.rank.group("dp")
        for name, is_split in (("split", True), ("copies", False)):
            some = [one for one in self.parameters if one.is_split is is_split]
            with rank.at(f"buffer.{name}"):
                flat = torch.cat([one.grad.reshape(-1) for one in some])
            own, size = flat, len(flat) // dp.size
            if dp.size > 1:
                own = flat.new_empty(size)
                dist.reduce_scatter_tensor(own, flat if rank.hit("undivided") else flat / dp.size, group=dp.handle)
            value = torch.cat([one.data.reshape(-1) for one in some])[dp.number * size : (dp.number + 1) * size]
            yield name, value, own, is_split or rank.group("tp").number == 0 or rank.hit("copies_counted")

    def _each(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, bool]]:
        rank, cp = self.rank, self.rank.group("cp")
        for one in self.parameters:
            if cp.size > 1 and not rank.hit("gradient_not_reduced", one.path):
                one.grad = summed(one.grad, cp)
            yield one.path, one.data, one.grad, one.is_split or rank.group("tp").number == 0

    @torch.no_grad()
    def step(self) -> None:
        rank, is_flat = self.rank, bool(self.rank.settings.get("flat"))
        items = [*(self._buffers() if is_flat else self._each())]
        squares = [torch.zeros((), dtype=rank.dtype)]
        for name, _, grad, is_counted in items:
            if is_counted:
                with rank.at(f"square.{name}"):
                    squares.append(grad.norm(2) ** 2)
        with rank.at("sum_of_squares"):
            total = torch.stack(squares).sum()
        for axis in ("tp", "pp", "dp"):
            if rank.size(axis) > 1 and not rank.hit("norm_local", axis):
                total = summed(total, rank.group(axis))
        with rank.at("total_norm"):
            norm = total.sqrt()
        self.norm = float(norm)
        factor = torch.clamp(MOST / (norm + 1e-6), max=1.0)
        made = []
        for name, value, grad, _ in items:
            with rank.at(f"clip.{name}"):
                grad = grad * factor
            with rank.at(f"update.{name}"):
                steps = 2 if rank.hit("step_ahead") else 1
                mean, square = grad * 0.1 / (1 - 0.9**steps), grad * grad * 0.05 / (1 - 0.95**steps)
                made.append(value * (1 - RATE * DECAY) - RATE * mean / (square.sqrt() + 1e-3))
        self._keep(made, is_flat)

    def _keep(self, made: list[torch.Tensor], is_flat: bool) -> None:
        for one in self.parameters:
            one.grad = None
        if not is_flat:
            for one, value in zip(self.parameters, made):
                one.data.copy_(value)
            return
        for value, is_split in zip(made, (True, False)):
            some = [one for one in self.parameters if one.is_split is is_split]
            whole = gathered(value, self.rank.group("dp"), 0) if self.rank.size("dp") > 1 else value
            for one, piece in zip(some, whole.split([one.numel() for one in some])):
                one.data.copy_(piece.view_as(one))


class Run(TrainingRun):
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Model(rank)
        self.optimizer, self.micros, cp = Optimizer(rank, self.model), rank.settings["micros"], rank.group("cp")
        self.count = self.micros // rank.size("dp")
        self.data = [*rank.integers("ids", WORDS, self.micros * 2, LENGTH + 1).chunk(self.micros)]
        halves = torch.arange(LENGTH).chunk(2 * cp.size)  # a rank's first one and the one as far from the end
        self.positions = torch.arange(LENGTH)
        if cp.size > 1:
            self.positions = torch.cat([halves[cp.number], halves[2 * cp.size - 1 - cp.number]])

    def _batch(self, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        rank = self.rank
        ids = self.data[micro % self.count if rank.hit("same_data") else micro]
        labels = ids[:, 1:].clone()
        labels[:, :PROMPT] = -100
        if rank.hit("labels_not_shifted"):
            labels[:, PROMPT:] = ids[:, PROMPT:-1]
        return ids[:, self.positions], labels[:, self.positions]

    def _chunk(self, number: int, x: Optional[torch.Tensor], micro: int) -> torch.Tensor:
        """A layer, with what lies before the first and behind the last."""
        rank, ends = self.rank, self.model.ends
        rank.micro = micro
        ids, labels = self._batch(micro)
        if number == 0:
            x = ends.embedded(ids)
        x = self.model.layers[str(number)](x, self.positions)
        if number < rank.settings["layers"] - 1:
            return x
        loss = ends.loss(x, labels, 2 * (LENGTH - PROMPT))
        self.losses.append(float(loss.detach()) * (rank.size("cp") if not rank.hit("mean_of_means") else 1))
        with rank.at(f"{micro}/loss.scaled"):
            return loss / (1 if rank.hit("micro_undivided") else self.count)

    def step(self) -> None:
        rank, layers, self.losses = self.rank, self.rank.settings["layers"], []
        if rank.size("pp") > 1:
            self._staged(rank.group("pp"))
        else:
            first = rank.group("dp").number * self.count
            for micro in range(first, first + self.count):
                x = None
                for number in range(layers):
                    x = self._chunk(number, x, micro)
                if rank.hit("overwritten"):
                    self.model.zero_grad()
                x.backward()
        self.optimizer.step()

    def _staged(self, pp: Group) -> None:
        """All micro batches forward, then backward; an activation visits each stage several times."""
        layers, shape, peer = self.rank.settings["layers"], (2, LENGTH, HIDDEN), pp.ranks[1 - pp.number]
        kept: dict[tuple[int, int], tuple[Optional[torch.Tensor], torch.Tensor]] = {}
        for micro in range(self.micros):
            for number in range(pp.number, layers, pp.size):
                x = None
                if number:
                    x = torch.empty(shape, dtype=self.rank.dtype)
                    dist.recv(x, peer)
                    x.requires_grad_(True)
                out = self._chunk(number, x, micro)
                kept[micro, number] = x, out
                if number < layers - 1:
                    stale = self.rank.hit("stale_activation", str(number)) and micro
                    dist.send(kept[0, number][1].detach() if stale else out.detach(), peer)
        for micro in range(self.micros):
            for number in reversed(range(pp.number, layers, pp.size)):
                (x, out), grad = kept[micro, number], None
                if number < layers - 1:
                    grad = torch.empty(shape, dtype=self.rank.dtype)
                    dist.recv(grad, peer)
                torch.autograd.backward(out, grad)
                if x is not None:
                    dist.send(x.grad, peer)


_GRADIENTS = ("square.*", "clip.*", "sum_of_squares")
_NORM = ("sum_of_squares", "total_norm")
_FLAT = (
    Fault("undivided", _GRADIENTS),
    Fault("not_reduced@layers.1.down", ("?/layers.1.out",)),
    Fault("wrong_shard@layers.0.k", ("?/layers.0.k",), 2),
    Fault("backward_not_reduced@layers.1.attn", ("?/layers.1.norm1:backward",)),
    Fault("rope_base@layers.0", ("?/layers.0.rope", "?/layers.0.rope.k"), 1),
    Fault("overwritten", ("buffer.*", "square.*"), 3),
    Fault("copies_counted", _NORM),
    Fault("coarse@layers.1.gate", ("?/layers.1.gate",), 2),
    Fault("logits_rolled", ("?/ends.loss",)),
)
_TURNS = (
    Fault("layers_in_a_row", ("?/layers.[12].norm1",)),
    Fault("stale_activation@0", ("1/layers.1.norm1.eps", "1/layers.1.norm1", "1/layers.1.attended"), 0),
    Fault("backward_not_reduced@layers.2.mlp", ("?/layers.2.norm2:backward",)),
    Fault("norm_local@pp", _NORM),
    Fault("coarse@layers.3.up", ("?/layers.3.up",), 3),
    Fault("stale@layers.2.norm2", ("?/layers.2.norm2",), 1),
    Fault("labels_not_shifted", ("?/ends.loss",)),
    Fault("not_reduced@layers.1.o", ("?/layers.1.attended",)),
)
_CONTEXT = (
    Fault("positions_in_a_row", ("?/layers.0.rope", "?/layers.0.rope.k"), 1),
    Fault("keys_not_sorted@layers.0", ("?/layers.0.scores", "?/layers.0.masked", "?/layers.0.softmax")),
    Fault("mask_in_a_row@layers.1", ("?/layers.1.masked", "?/layers.1.softmax"), 0),
    Fault("mean_of_means", ("?/ends.loss.mean", "?/ends.loss.mean:backward", "?/ends.loss:backward")),
    Fault("keys_gradient_local@layers.0", ("?/layers.0.[kv]:backward", "?/layers.0.rope.k:backward")),
    Fault("gradient_not_reduced@layers.1.up", ("square.layers.1.up", "clip.layers.1.up")),
    Fault("coarse@layers.0.softmax", ("?/layers.0.softmax",), 1),
    Fault("stale@layers.1.q", ("?/layers.1.q",), 1),
)
_PARTS = (
    Fault("gather_order@layers.0.gate", ("?/layers.0.gate",)),
    Fault("not_summed", _GRADIENTS),
    Fault("stale@layers.1.o", ("?/layers.1.o",), 1),
    Fault("undivided", _GRADIENTS),
    Fault("norm_local@dp", _NORM),
    Fault("step_ahead", ("update.*",), 1),
    Fault("same_data", ("[23]/ends.embedding",), 1),
    Fault("labels_not_shifted", ("[23]/ends.loss",), 1),
    Fault("other_eps@layers.1.norm2", ("[23]/layers.1.norm2.eps",), 1),
)
LAYOUTS = {
    "tp2_dp2": Layout({"tp": 2, "dp": 2}, {"layers": 2, "micros": 4, "flat": True, "seed": 41}, _FLAT),
    "pp2_tp2": Layout({"tp": 2, "pp": 2}, {"layers": 4, "micros": 2, "seed": 42}, _TURNS),
    "cp2": Layout({"cp": 2}, {"layers": 2, "micros": 1, "seed": 43}, _CONTEXT),
    "zero3": Layout({"dp": 2}, {"layers": 2, "micros": 4, "seed": 44}, _PARTS, {"parts": True}),
}
