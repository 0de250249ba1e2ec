"""A training step as Megatron has it: micro batches, main gradients, ZeRO-1, norm of gradients, pipeline."""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist
from torch import nn

from tests.corpus.parallel_strangers.megatron_layers import (
    HIDDEN,
    LENGTH,
    WORDS,
    Embedding,
    Head,
    Layer,
    all_reduced,
    reduce_scattered,
)
from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, TrainingRun, gathered

RATE, MOST, BETA1, BETA2 = 0.02, 0.3, 0.9, 0.95


class Stage(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank, (stages, own) = rank, (rank.size("pp"), rank.group("pp").number)
        self.is_first, self.is_last = own == 0, own == stages - 1
        count = rank.settings["layers"] // stages
        if self.is_first:
            self.embedding = Embedding(rank)
        self.layers = nn.ModuleList(Layer(rank, own * count + at) for at in range(count))
        if self.is_last:
            tied = self.embedding.word if self.is_first and rank.settings.get("tied") else None
            self.head = Head(rank, tied)
        self.second_positions = rank.drawn("embedding.position", LENGTH, HIDDEN)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        if self.is_first:
            x = self.embedding(x)
        elif rank.hit("positions_again"):
            x = x + self.second_positions.unsqueeze(1)
        for number, layer in enumerate(self.layers):
            if number == 1 and self.is_first and rank.hit("layer_skipped"):
                continue
            x = layer(x)
            if number == 1 and self.is_first and rank.hit("layer_twice"):
                x = layer(x)
        return self.head(x, labels) if self.is_last else x


class Optimizer:
    """Main gradients, their reduction, their norm, Adam; `is_flat`: on a rank's part of one buffer (ZeRO-1)."""

    def __init__(self, rank: Rank, model: nn.Module) -> None:
        self.rank, self.parameters = rank, [*model.parameters()]
        self.is_flat = bool(rank.settings.get("zero"))
        total = sum(one.numel() for one in self.parameters)
        self.padded = -(-total // 4) * 4
        self.buffer = torch.zeros(self.padded, dtype=rank.dtype)
        first = 0
        for one in self.parameters:
            one.main_grad = self.buffer[first : first + one.numel()].view(one.shape)
            one.register_post_accumulate_grad_hook(self._accumulate)
            first += one.numel()
        group = rank.group("dp")
        self.share = self.padded // group.size
        own = (group.number + 1) % group.size if rank.hit("shard_order") else group.number
        self.slice = slice(own * self.share, (own + 1) * self.share)
        with torch.no_grad():
            flat = torch.cat([one.reshape(-1) for one in self.parameters] + [self.buffer[total:]])
        self.main = flat[self.slice].clone()

    def _accumulate(self, parameter: Any) -> None:
        rank = self.rank
        with torch.no_grad(), rank.at(f"{rank.micro}/main_grad.{parameter.path}"):
            if rank.hit("overwritten"):
                parameter.main_grad.copy_(parameter.grad)
            else:
                parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self._reduce()
        squares, grads = [], [*self._grads()]
        for name, grad, is_counted in grads:
            if is_counted:
                with self.rank.at(f"square.{name}"):
                    squares.append(torch.norm(grad, 2) ** 2)
        with self.rank.at("sum_of_squares"):
            total = torch.stack(squares).sum()
        for axis in ("tp", "dp", "pp"):
            if self.rank.size(axis) > 1 and (axis != "dp" or self.is_flat) and not self.rank.hit("norm_local"):
                all_reduced(total, self.rank.group(axis))
        with self.rank.at("total_norm"):
            norm = torch.sqrt(total)
        self.norm = float(norm)
        with self.rank.at("clip"):
            most = 2 * MOST if self.rank.hit("other_clip") else MOST
            coefficient = torch.clamp(most / (norm + 1e-6), max=1.0)
        for name, grad, _ in grads:
            if not self.rank.hit("clip_skipped"):
                with self.rank.at(f"clip.{name}"):
                    grad.mul_(coefficient)
        self._update()

    def _reduce(self) -> None:
        rank, dp = self.rank, self.rank.group("dp")
        if dp.size > 1:
            if not rank.hit("undivided"):
                self.buffer.mul_(1.0 / dp.size)
            if rank.hit("not_summed"):
                self.grad_part = self.buffer.chunk(dp.size)[dp.number].clone()
            else:
                self.grad_part = reduce_scattered(self.buffer, dp)
        else:
            self.grad_part = self.buffer
        tp = rank.group("tp")
        if tp.size > 1 and not rank.hit("norm_grads_not_reduced"):
            some = [one.main_grad for one in self.parameters if one.is_by_sequence]
            whole = all_reduced(torch.cat([one.reshape(-1) for one in some]), tp)
            for one, piece in zip(some, torch.split(whole, [one.numel() for one in some])):
                one.copy_(piece.view_as(one))
        pp = rank.group("pp")
        if pp.size > 1 and rank.settings.get("tied") and not rank.hit("tied_not_reduced"):
            tables = [one for one in self.parameters if one.path == "embedding.word"]
            all_reduced(tables[0].main_grad, pp)

    def _grads(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Gradients, and whether this rank counts them for the norm."""
        first, dp = 0, self.rank.group("dp")
        left = dp.number * self.share
        for one in self.parameters:
            start, end = max(first - left, 0), min(first + one.numel() - left, self.share)
            first += one.numel()
            is_counted = one.is_split or self.rank.group("tp").number == 0 or self.rank.hit("replicas_counted")
            if getattr(one, "is_copy", False) and not self.rank.hit("replicas_counted"):
                is_counted = False
            if not self.is_flat:
                yield one.path, one.main_grad, is_counted
            elif start < end:
                yield one.path, self.grad_part[start:end], is_counted

    def _adam(self, name: str, value: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        with self.rank.at(f"update.{name}"):
            steps = 2 if self.rank.hit("step_ahead") else 1
            mean, square = grad * (1 - BETA1), grad * grad * (1 - BETA2)
            step = (mean / (1 - BETA1**steps)) / (torch.sqrt(square / (1 - BETA2**steps)) + 1e-3)
            return value - step * RATE

    def _update(self) -> None:
        dp = self.rank.group("dp")
        if not self.is_flat:
            for one in self.parameters:
                one.data.copy_(self._adam(one.path, one.data, one.main_grad))
            return
        whole = self._adam("flat", self.main, self.grad_part)
        if dp.size > 1:
            whole = gathered(whole, dp, 0)
        first = 0
        for one in self.parameters:
            one.data.copy_(whole[first : first + one.numel()].view(one.shape))
            first += one.numel()


class Run(TrainingRun):
    def __init__(self, rank: Rank) -> None:
        self.rank, rank.micro = rank, 0
        self.model = Stage(rank)
        self.optimizer = Optimizer(rank, self.model)
        self.all_micros = rank.settings["micros"]
        self.count = self.all_micros // rank.size("dp")
        ids = rank.integers("ids", WORDS, self.all_micros * rank.settings["batch"], LENGTH + 1)
        self.data = [*ids.chunk(self.all_micros)]
        self.sent: dict[int, torch.Tensor] = {}

    def _data(self, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
        rank = self.rank
        if rank.hit("same_data"):
            micro = micro % self.count
        ids = self.data[micro]
        inputs, labels = ids[:, :-1], ids[:, 1:]
        if rank.hit("labels_of_the_next_micro_batch"):
            labels = self.data[(micro + 1) % self.all_micros][:, 1:]
        if rank.hit("labels_shifted"):
            labels = torch.roll(labels, 1, 1)
        return inputs, labels.transpose(0, 1).contiguous()

    def _forward(self, micro: int, x: Optional[torch.Tensor]) -> torch.Tensor:
        self.rank.micro = micro
        inputs, labels = self._data(micro)
        out = self.model(inputs if x is None else x, labels)
        if self.model.is_last:
            self.losses.append(float(out.detach()))
            if not self.rank.hit("micro_undivided"):
                with self.rank.at(f"{micro}/loss.scaled"):
                    out = out / self.count
        return out

    def step(self) -> None:
        self.losses: list[float] = []
        if self.rank.size("pp") > 1:
            self._pipelined()
        else:
            first = self.rank.group("dp").number * self.count
            for micro in range(first, first + self.count):
                self._forward(micro, None).backward()
        self.optimizer.step()

    def _exchange(self, sent: Optional[torch.Tensor], receives: bool, shape: tuple[int, ...]) -> Optional[torch.Tensor]:
        """To and from the other stage, at once."""
        peer, received = 1 - self.rank.number, None
        work = []
        if sent is not None:
            work.append(dist.isend(sent, peer))
        if receives:
            received = torch.empty(shape, dtype=self.rank.dtype)
            work.append(dist.irecv(received, peer))
        for one in work:
            one.wait()
        return received

    def _pipelined(self) -> None:
        """One forward, one backward: the first stage is a micro batch ahead."""
        rank, count = self.rank, self.count
        shape = (LENGTH, rank.settings["batch"], HIDDEN)
        if self.model.is_first:
            waiting = []
            for micro in range(count):
                waiting.append(self._forward(micro, None))
                sent = waiting[-1].detach()
                self.sent[micro] = sent
                if micro == 2 and rank.hit("stale_activation"):
                    sent = self.sent[1]
                grad = self._exchange(sent, micro > 0, shape)
                if grad is not None:
                    self._backward(micro - 1, waiting.pop(0), grad)
            self._backward(count - 1, waiting.pop(0), self._exchange(None, True, shape))
            return
        x = self._exchange(None, True, shape)
        back: dict[int, torch.Tensor] = {}
        for micro in range(count):
            x = x.requires_grad_(True)
            self._forward(micro, x).backward()
            back[micro] = x.grad.detach()
            sent = back[1] if micro == 2 and rank.hit("stale_gradient") else back[micro]
            x = self._exchange(sent, micro + 1 < count, shape)

    def _backward(self, micro: int, out: torch.Tensor, grad: Optional[torch.Tensor]) -> None:
        self.rank.micro = micro
        torch.autograd.backward(out, grad)


_BY_SEQUENCE = ("*norm*", "*proj.bias", "*fc2.bias")
_SEQUENCE = (
    Fault("norm_grads_not_reduced", tuple(f"{what}.{of}" for what in ("square", "clip") for of in _BY_SEQUENCE)),
    Fault("not_reduced@layers.0.attn.proj", ("?/layers.0.attn.proj.bias",)),
    Fault("wrong_shard@layers.0.attn.qkv.weight", ("?/layers.0.attn.qkv",), 1),
    Fault("bias_everywhere@layers.1.mlp.fc2", ("?/layers.1.mlp.fc2.bias", "?/layers.1.mlp.fc2.dropout")),
    Fault("target_not_offset", ("?/loss.target", "?/loss.predicted", "?/loss.predicted.reduced", "?/loss.log"), 1),
    Fault("sum_exp_not_reduced", ("?/loss.log",)),
    Fault("dgrad_not_reduced@layers.1.attn.qkv", ("?/layers.1.norm1:backward",)),
    Fault("norm_local", ("sum_of_squares", "total_norm")),
    Fault("replicas_counted", ("sum_of_squares", "total_norm")),
    Fault("dropout_equal@layers.0.mlp.fc2", ("?/layers.0.mlp.fc2.dropout",), 1),
    Fault("clip_skipped", ("clip.*", "update.*"), 1),
    Fault("stale@layers.1.norm2.weight", ("?/layers.1.norm2",), 1),
    Fault("coarse_softmax@layers.0.attn", ("?/layers.0.attn.softmax",), 1),
    Fault("gather_order@layers.0.mlp.fc1", ("?/layers.0.mlp.fc1",)),
)
_ZERO = (
    Fault("micro_undivided", ("?/loss.scaled", "?/loss.scaled:backward", "?/loss.mean:backward")),
    Fault("undivided", ("square.*", "clip.*", "sum_of_squares")),
    Fault("same_data", ("[23]/embedding", "[23]/embedding.positions"), 1),
    Fault("overwritten", ("3/main_grad.*", "square.*"), 1),
    Fault("norm_local", ("sum_of_squares", "total_norm")),
    Fault("shard_order", ("update.flat",)),
    Fault("coarse_softmax@layers.0.attn", ("[23]/layers.0.attn.softmax",), 1),
    Fault("step_ahead", ("update.flat",), 1),
    Fault("labels_shifted", ("[23]/loss.target", "[23]/loss.predicted"), 1),
    Fault("not_summed", ("square.*", "clip.*", "sum_of_squares")),
    Fault("other_clip", ("clip", "clip.*"), 1),
    Fault("stale@layers.1.attn.qkv.weight", ("[23]/layers.1.attn.qkv",), 1),
)
_BORDER = ("?/layers.2.norm1", "?/layers.2.attn.proj.residual")
_STAGES = (
    Fault("stale_activation", ("2/layers.2.norm1", "2/layers.2.attn.proj.residual"), 0),
    Fault("layer_twice", (*_BORDER, "?/layers.1.norm1", "?/layers.1.attn.proj.residual"), 0),
    Fault("layers_by_local_number", ("?/layers.2.norm1",), 1),
    Fault("micro_undivided", ("?/loss.scaled", "?/loss.scaled:backward", "?/loss.mean:backward"), 1),
    Fault("layer_skipped", (*_BORDER, "?/layers.1.*"), 0),
    Fault("norm_local", ("sum_of_squares", "total_norm")),
    Fault("tied_not_reduced", ("square.embedding.word", "clip.embedding.word")),
    Fault("replicas_counted", ("sum_of_squares", "total_norm")),
    Fault(
        "overwritten",
        (
            "[123]/main_grad.layers.[23].*",
            "[123]/main_grad.final_norm.*",
            "square.layers.[23].*",
            "square.final_norm.*",
        ),
        1,
    ),
    Fault("positions_again", _BORDER, 1),
    Fault("labels_of_the_next_micro_batch", ("?/loss.target", "?/loss.predicted"), 1),
    Fault("stale_gradient", ("2/layers.1.mlp.fc2.residual:backward", "2/layers.1.mlp.fc2.bias:backward"), 1),
    Fault("clip_skipped", ("clip.*", "update.*"), 1),
)

LAYOUTS = {
    "tp2_sp": Layout({"tp": 2}, {"layers": 2, "micros": 2, "batch": 1, "tied": True, "dropout": 0.1, "seed": 4},
                     _SEQUENCE),
    "dp2_zero1": Layout({"dp": 2}, {"layers": 2, "micros": 4, "batch": 1, "zero": True, "seed": 5}, _ZERO),
    "pp2": Layout({"pp": 2}, {"layers": 4, "micros": 4, "batch": 1, "tied": True, "seed": 6}, _STAGES),
}  # fmt: skip
