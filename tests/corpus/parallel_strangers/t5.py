"""A T5 in training as Megatron has it: encoder and decoder, weight gradients added into main gradients, a loss scale.

Tensor and data parallel; a flat optimizer over data parallel; the encoder on one stage, the decoder on the other.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist
from torch import nn

from tests.corpus.parallel_strangers.regions import summed
from tests.corpus.parallel_strangers.t5_layers import DECODED, ENCODED, HIDDEN, WORDS, Decoder, Encoder, Words
from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, TrainingRun, gathered

RATE, MOST, SCALE, PAD = 0.02, 0.5, 256.0, 64


class Model(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        pp = rank.group("pp")
        self.words = Words(rank)
        if pp.number == 0:
            self.encoder = Encoder(rank)
        if pp.number == pp.size - 1:
            self.decoder = Decoder(rank)


class Optimizer:
    """Unscaled gradients, their norm, Adam; of each parameter or of a rank's part of one buffer ("flat")."""

    def __init__(self, rank: Rank, model: nn.Module) -> None:
        self.rank, self.parameters, self.is_flat = rank, [*model.parameters()], bool(rank.settings.get("flat"))
        self.size = -(-sum(one.numel() for one in self.parameters) // (PAD * rank.size("dp"))) * PAD
        self.grads = torch.zeros(self.size * rank.size("dp"), dtype=rank.dtype)
        first = 0
        for one in self.parameters:
            one.main_grad = self.grads[first : first + one.numel()].view_as(one)
            first += one.numel()
        self.end = first
        for one in self.parameters:
            one.register_post_accumulate_grad_hook(self._accumulate)

    def _accumulate(self, parameter: Any) -> None:
        """Add what the backward pass did not add by itself."""
        if parameter.grad is None:
            return
        with torch.no_grad(), self.rank.at(f"{self.rank.micro}/grad.{parameter.path}"):
            parameter.main_grad.add_(parameter.grad)
        parameter.grad = None

    def _items(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, bool]]:
        """What is updated: its name, values, gradients, whether this rank counts it in the norm."""
        rank, dp, tp, pp = self.rank, *(self.rank.group(axis) for axis in ("dp", "tp", "pp"))
        if not self.is_flat:
            for one in self.parameters:
                grad = one.main_grad
                if one.path == "words" and pp.size > 1 and not rank.hit("tied_not_reduced"):
                    grad = summed(grad, pp)
                if rank.hit("copies_summed") and not one.is_split:
                    grad = summed(grad, tp)
                if dp.size > 1:
                    grad = summed(grad, dp) / (1 if rank.hit("undivided") else dp.size)
                counted = (one.is_split or tp.number == 0) and (
                    one.path != "words" or pp.number == 0 or rank.hit("tied_counted")
                )
                yield one.path, one.data, grad, counted
            return
        if rank.hit("padding_not_zero"):
            self.grads[self.end :] = 20.0
        own = self.grads
        if dp.size > 1:
            own = self.grads.new_empty(self.size)
            dist.reduce_scatter_tensor(
                own, self.grads if rank.hit("undivided") else self.grads / dp.size, group=dp.handle
            )
        values = torch.cat([one.data.reshape(-1) for one in self.parameters])
        values = torch.cat([values, values.new_zeros(len(self.grads) - len(values))])
        yield "flat", values[dp.number * self.size : (dp.number + 1) * self.size], own, True

    @torch.no_grad()
    def step(self) -> None:
        rank, items, squares, lost = self.rank, [], [], []
        for name, value, grad, counted in self._items():
            if not rank.hit("not_unscaled"):
                with rank.at(f"unscaled.{name}"):
                    grad = grad * (1.0 / SCALE)
            lost.append(torch.isfinite(grad).all().logical_not().to(rank.dtype))
            items.append((name, value, grad))
            if counted:
                with rank.at(f"square.{name}"):
                    squares.append(torch.linalg.vector_norm(grad).square())
        found = torch.stack(lost).amax()
        with rank.at("sum_of_squares"):
            total = torch.stack(squares).sum()
        for axis in ("tp", "pp", "dp"):
            group = rank.group(axis)
            if group.size == 1 or (axis == "dp" and not self.is_flat):
                continue
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group.handle)
            if not rank.hit("norm_local", axis):
                total = summed(total, group)
        with rank.at("total_norm"):
            norm = total.sqrt()
        self.norm = float(norm)
        factor = torch.clamp(MOST / (norm + 1e-6), max=1.0) * (1 - found)
        made = []
        for name, value, grad in items:
            if not rank.hit("clip_skipped"):
                with rank.at(f"clip.{name}"):
                    grad = grad * factor
            with rank.at(f"update.{name}"):
                steps = 3 if rank.hit("steps_ahead") else 1
                mean, square = grad * 0.1 / (1 - 0.9**steps), grad.square() * 0.01 / (1 - 0.99**steps)
                made.append(torch.addcdiv(value, mean, square.sqrt() + 1e-2, value=-RATE))
        self._keep(made)

    def _keep(self, made: list[torch.Tensor]) -> None:
        if self.is_flat:
            whole = gathered(made[0], self.rank.group("dp"), 0) if self.rank.size("dp") > 1 else made[0]
            made = [*whole[: self.end].split([one.numel() for one in self.parameters])]
        for one, value in zip(self.parameters, made):
            one.data.copy_(value.view_as(one))
        self.grads.zero_()


class Run(TrainingRun):
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Model(rank)
        self.optimizer, self.micros = Optimizer(rank, self.model), rank.settings["micros"]
        self.count = self.micros // rank.size("dp")
        self.sources = rank.integers("sources", WORDS, self.micros, ENCODED, 2)
        self.targets = rank.integers("targets", WORDS, self.micros, DECODED + 1, 2)
        lengths = 4 + rank.integers("lengths", ENCODED - 3, self.micros, 2)
        self.padded = torch.arange(ENCODED)[None, :, None] >= lengths[:, None]  # micro batches, tokens, texts
        self.masked = (
            torch.arange(DECODED)[None, :, None] >= 3 + rank.integers("most", DECODED - 2, self.micros, 2)[:, None]
        )

    def _encoded(self, micro: int) -> torch.Tensor:
        rank = self.rank
        rank.micro = micro
        read = micro % self.count if rank.hit("same_data") else micro
        x = self.model.words(self.sources[read], "enc")
        return self.model.encoder(x, self.padded[read])

    def _loss(self, micro: int, encoded: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        rank.micro = micro
        read = micro % self.count if rank.hit("same_data") else micro
        inputs, labels = self.targets[read, :-1], self.targets[read, 1:]
        if rank.hit("labels_of_the_next"):
            labels = self.targets[(read + 1) % self.micros, 1:]
        if rank.hit("labels_not_shifted"):
            labels = inputs
        x = self.model.words(inputs, "dec")
        loss = self.model.decoder(x, encoded, self.padded[read], labels, ~self.masked[read])
        self.losses.append(float(loss.detach()))
        with rank.at(f"{micro}/loss.scaled"):
            return (
                loss
                * (SCALE * (2.0 if rank.hit("other_scale") else 1.0))
                / (1 if rank.hit("micro_undivided") else self.count)
            )

    def step(self) -> None:
        rank, self.losses = self.rank, []
        if rank.size("pp") > 1:
            self._staged()
        else:
            first = rank.group("dp").number * self.count
            for micro in range(first, first + self.count):
                self._loss(micro, self._encoded(micro)).backward()
        self.optimizer.step()

    def _staged(self) -> None:
        pp = self.rank.group("pp")
        peer, kept = pp.ranks[1 - pp.number], []
        if pp.number == 1:
            for micro in range(self.micros):
                encoded = torch.empty((ENCODED, 2, HIDDEN), dtype=self.rank.dtype)
                dist.recv(encoded, peer)
                encoded.requires_grad_(True)
                self._loss(micro, encoded).backward()
                kept.append(encoded.grad)
                dist.send(kept[0] if self.rank.hit("stale_gradient") else encoded.grad, peer)
            return
        warm: Optional[torch.Tensor] = None
        sent: list[torch.Tensor] = []
        work: list[Any] = []
        for micro in range(self.micros + 1):  # a forward pass ahead
            out = None
            if micro < self.micros:
                out = self._encoded(micro)
                kept.append(out)
                sent.append((kept[0] if self.rank.hit("stale_activation") else out).detach())
                work.append(dist.isend(sent[-1], peer))
            if warm is not None:
                grad = torch.empty_like(warm)
                dist.recv(grad, peer)
                self.rank.micro = micro - 1
                warm.backward(grad)
            warm = out
        for one in work:
            one.wait()


_GRADIENTS = ("unscaled.*", "square.*", "clip.*", "sum_of_squares")
_NORM = ("sum_of_squares", "total_norm")
_LOSS = ("?/loss.target", "?/loss.picked", "?/loss.log", "?/loss")
_HEADS = (
    Fault("wrong_shard@enc.bias", ("?/enc.bias", "?/enc.0.self.biased"), 1),
    Fault("backward_not_reduced@dec.1.cross.kv", ("?/enc.final:backward", "?/dec.1.cross.kv:backward")),
    Fault("not_unscaled", ("unscaled.*", "square.*"), 3),
    Fault("max_local", ("?/loss.shifted", "?/loss.exp", "?/loss.sum_exp", "?/loss.log", "?/loss.max")),
    Fault("target_off", _LOSS, 1),
    Fault("norm_local@tp", _NORM),
    Fault("undivided", _GRADIENTS),
    Fault("copies_summed", ("unscaled.*norm*", "square.*norm*", "unscaled.*final", "square.*final", "clip.*norm*")),
    Fault("coarse@enc.0.mlp.wo", ("?/enc.0.mlp.wo",), 2),
    Fault("not_masked@dec.0.self", ("?/dec.0.self.masked", "?/dec.0.self.softmax"), 0),
    Fault("not_reduced@dec.0.mlp.wo", ("?/dec.0.mlp.added",)),
)
_FLAT = (
    Fault("overwrites", ("3/wgrad.*", "3/dec.*.w?:backward", "unscaled.flat", "square.flat"), 1),
    Fault("same_data", ("[23]/enc.words",), 1),
    Fault("padding_not_zero", _GRADIENTS, 1),
    Fault("norm_local@dp", _NORM),
    Fault("undivided", _GRADIENTS),
    Fault("other_scale", ("[23]/loss.scaled",), 1),
    Fault("micro_undivided", ("?/loss.scaled", "?/loss.scaled:backward", "?/loss:backward")),
    Fault("stale@dec.1.cross.q", ("[23]/dec.1.cross.q",), 1),
    Fault("labels_not_shifted", ("[23]/loss.target", "[23]/loss.picked"), 1),
    Fault("steps_ahead", ("update.flat",), 1),
    Fault("coarse@dec.0.mlp.wi", ("[01]/dec.0.mlp.wi",), 0),
    Fault("dropout_equal", ("[23]/*.dropout",), 1),
)
_STAGES = (
    Fault("stale_gradient", ("1/enc.final:backward",), 1),
    Fault("tied_not_reduced", ("unscaled.words", "square.words", "clip.words")),
    Fault("stale@dec.bias", ("?/dec.bias", "?/dec.0.self.biased"), 1),
    Fault("padding_read@dec.0.cross", ("?/dec.0.cross.masked", "?/dec.0.cross.softmax"), 1),
    Fault("norm_local@pp", _NORM),
    Fault("tied_counted", _NORM),
    Fault("coarse@enc.1.self.softmax", ("?/enc.1.self.softmax",), 0),
    Fault("stale_activation", ("1/dec.0.cross.kv", "1/dec.1.cross.kv"), 0),
    Fault("clip_skipped", ("clip.*", "update.*"), 1),
    Fault("labels_of_the_next", ("?/loss.target", "?/loss.picked"), 1),
    Fault("layer_twice@enc.1", ("?/enc.1.self.norm.factor", "?/enc.1.*", "?/enc.final.factor"), 0),
)
LAYOUTS = {
    "tp2_dp2": Layout({"tp": 2, "dp": 2}, {"micros": 2, "seed": 81}, _HEADS),
    "dp2_fused": Layout({"dp": 2}, {"micros": 4, "flat": True, "dropout": True, "seed": 82}, _FLAT),
    "pp2_split": Layout({"pp": 2}, {"micros": 2, "seed": 83}, _STAGES),
}
