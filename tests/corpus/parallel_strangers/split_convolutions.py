"""A convolution network in training: synchronised batch norm, channels or rows split among ranks, uneven batches."""

from __future__ import annotations

from typing import Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.synchronised import (
    EPS,
    Copied,
    SumOverRanks,
    SyncBatchNorm,
    WithHalo,
    normalised_by_parts,
)
from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, cut, figures_around_update

CHANNELS, SQUEEZED, CLASSES, SIDE, BLOCKS = 8, 4, 6, 8, 2
RATE, DECAY, MOST = 0.1, 0.01, 0.5


def own(rank: Rank, name: str, *shape: int, dim: Optional[int] = None, offset: float = 0.0) -> nn.Parameter:
    """A parameter; `dim`: along which it is split among ranks of channels."""
    values, group = rank.drawn(name, *shape, offset=offset), rank.group("tp")
    if rank.hit("stale", name):
        values = values * (1 + 0.1 * rank.drawn(f"{name}.older", *shape, scale=1.0))
    number = (group.number + 1) % group.size if rank.hit("wrong_shard", name) else group.number
    parameter = nn.Parameter(values if dim is None else cut(values, dim, number, group.size))
    parameter.is_split = dim is not None
    return parameter


class Convolution(nn.Module):
    """3 × 3, no bias; rows of neighbours are fetched where an image is split."""

    def __init__(self, rank: Rank, name: str, out: int, inner: int, dim: Optional[int] = None) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.weight = own(rank, f"{name}.weight", out, inner, 3, 3, dim=dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, padding = self.rank.group("rows"), (1, 1)
        if rows.size > 1:
            x, padding = WithHalo.apply(x, self.rank, self.name, rows), (0, 1)
        with self.rank.at(self.name):
            if self.rank.hit("coarse", self.name):
                return F.conv2d(x.bfloat16(), self.weight.bfloat16(), padding=padding).to(x.dtype)
            return F.conv2d(x, self.weight, padding=padding)


class BatchNorm(nn.Module):
    def __init__(self, rank: Rank, name: str, dim: Optional[int] = None) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.weight = own(rank, f"{name}.weight", CHANNELS, dim=dim, offset=1.0)
        self.bias = own(rank, f"{name}.bias", CHANNELS, dim=dim)
        self.register_buffer("running_mean", torch.zeros_like(self.weight))
        self.register_buffer("running_var", torch.ones_like(self.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        group = rank.group("rows") if rank.size("rows") > 1 else rank.group("dp")
        if rank.settings["norm"] == "parts":
            y, mean, var = normalised_by_parts(x, self.weight, self.bias, rank, self.name, group)
        elif group.size > 1:
            with rank.at(self.name):
                y, mean, var = SyncBatchNorm.apply(x, self.weight, self.bias, rank, self.name, group)
        else:
            eps = 1e-1 if rank.hit("other_eps", self.name) else EPS
            with rank.at(self.name):
                return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1, eps)
        with torch.no_grad():
            self.running_mean.mul_(0.9).add_(0.1 * mean)
            self.running_var.mul_(0.9).add_(0.1 * var)
        return y


class SqueezeExcite(nn.Module):
    """Its first product is a sum over the channels of all ranks, its second gives each its own."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.fc1_weight = own(rank, f"{name}.fc1.weight", SQUEEZED, CHANNELS, dim=1)
        self.fc1_bias = own(rank, f"{name}.fc1.bias", SQUEEZED)
        self.fc2_weight = own(rank, f"{name}.fc2.weight", CHANNELS, SQUEEZED, dim=0)
        self.fc2_bias = own(rank, f"{name}.fc2.bias", CHANNELS, dim=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, name, rows, group = self.rank, self.name, self.rank.group("rows"), self.rank.group("tp")
        with rank.at(f"{name}.squeezed"):
            if rows.size > 1 and not rank.hit("squeeze_local", name):
                y = SumOverRanks.apply(x.sum((2, 3)), rows, True) / (x.shape[2] * rows.size * x.shape[3])
            else:
                y = x.mean((2, 3))
        with rank.at(f"{name}.fc1"):
            y = F.linear(y, self.fc1_weight)
        if group.size > 1 and not rank.hit("squeeze_not_reduced", name):
            with rank.at(f"{name}.fc1.reduced"):
                y = SumOverRanks.apply(y, group, False)
                if rank.hit("squeeze_reduced_twice", name):
                    y = SumOverRanks.apply(y, group, False)
        with rank.at(f"{name}.fc1.bias"):
            y = y + self.fc1_bias
        with rank.at(f"{name}.hidden"):
            y = F.relu(y)
        if group.size > 1:
            y = Copied.apply(y, group, not rank.hit("excite_backward", name))
        with rank.at(f"{name}.fc2"):
            y = torch.sigmoid(F.linear(y, self.fc2_weight, self.fc2_bias))
        with rank.at(f"{name}.excited"):
            return x * y[:, :, None, None]


class Block(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.conv_a = Convolution(rank, f"{name}.conv_a", CHANNELS, CHANNELS, 0)
        self.bn1 = BatchNorm(rank, f"{name}.bn1", 0)
        self.excite = SqueezeExcite(rank, f"{name}.excite")
        self.conv_b = Convolution(rank, f"{name}.conv_b", CHANNELS, CHANNELS, 1)
        self.bias = own(rank, f"{name}.conv_b.bias", CHANNELS)
        self.bn2 = BatchNorm(rank, f"{name}.bn2")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, name, group = self.rank, self.name, self.rank.group("tp")
        y = Copied.apply(x, group, not rank.hit("backward_not_reduced", name)) if group.size > 1 else x
        y = self.conv_b(self.excite(F.relu(self.bn1(self.conv_a(y)))))
        everywhere = rank.hit("bias_everywhere", name)
        if everywhere:
            with rank.at(f"{name}.conv_b.bias"):
                y = y + self.bias[None, :, None, None]
        if group.size > 1 and not rank.hit("not_reduced", f"{name}.conv_b"):
            y = SumOverRanks.apply(y, group, False)
        if not everywhere:
            with rank.at(f"{name}.conv_b.bias"):
                y = y + self.bias[None, :, None, None]
        y = self.bn2(y)
        with rank.at(f"{name}.residual"):
            y = x + y
        with rank.at(f"{name}.out"):
            return F.relu(y)


class Network(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank = rank
        self.stem, self.bn = Convolution(rank, "stem", CHANNELS, 3), BatchNorm(rank, "bn")
        self.blocks = nn.ModuleList(Block(rank, f"blocks.{number}") for number in range(BLOCKS))
        self.weight, self.bias = own(rank, "head.weight", CLASSES, CHANNELS), own(rank, "head.bias", CLASSES)

    def forward(self, x: torch.Tensor, kept: Optional[torch.Tensor]) -> torch.Tensor:
        rank, rows = self.rank, self.rank.group("rows")
        x = F.relu(self.bn(self.stem(x)))
        for number, block in enumerate(self.blocks):
            x = block(x)
            with rank.at(f"halved.{number}"):
                x = F.avg_pool2d(x, 2)
        with rank.at("pooled"):
            if rows.size > 1:
                x = x.sum((2, 3)) / (x.shape[2] * (1 if rank.hit("pooled_by_own_count") else rows.size) * x.shape[3])
                if not rank.hit("pool_local"):
                    x = SumOverRanks.apply(x, rows, True)
            else:
                x = x.mean((2, 3))
        if kept is not None:
            with rank.at("dropout"):
                x = x * kept / 0.75
        with rank.at("head"):
            return F.linear(x, self.weight, self.bias)


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Network(rank)
        count, dp, rows = rank.settings["images"], rank.group("dp"), rank.group("rows")
        shares = [count // dp.size + (number < count % dp.size) for number in range(dp.size)]
        first = 0 if rank.hit("same_images") else sum(shares[: dp.number])
        mine = slice(first, first + shares[dp.number])
        images, labels = rank.drawn("images", count, 3, SIDE, SIDE, scale=1.0), rank.integers("labels", CLASSES, count)
        height = SIDE // rows.size
        at = 0 if rank.hit("rows_of_another_rank") else rows.number * height
        self.images, self.labels = images[mine, :, at : at + height].contiguous(), labels[mine]
        if rank.hit("images_flipped"):
            self.images = self.images.flip(3)
        if rank.hit("labels_shifted"):
            self.labels = torch.roll(labels, 1, 0)[mine]
        self.kept: Optional[torch.Tensor] = None
        if rank.settings.get("dropout"):
            whole = (rank.drawn("kept", count, CHANNELS, scale=1.0) > -0.67).to(rank.dtype)
            self.kept = whole[: shares[dp.number]] if rank.hit("dropout_equal") else whole[mine]

    def _loss(self) -> torch.Tensor:
        rank, total = self.rank, self.rank.settings["images"]
        logits = self.model(self.images, self.kept)
        if not rank.settings.get("uneven"):
            with rank.at("loss"):
                return F.cross_entropy(logits, self.labels, reduction="sum" if rank.hit("summed_loss") else "mean")
        with rank.at("loss"):
            losses = F.cross_entropy(logits, self.labels, reduction="none")
        with rank.at("loss.mean"):
            if rank.hit("mean_of_means"):
                return losses.mean()
            return losses.sum() * rank.size("dp") / total

    def _reduced(self) -> None:
        """Average the gradients over ranks that hold other images or rows, each parameter by itself."""
        axis = "rows" if self.rank.size("rows") > 1 else "dp"
        group = self.rank.group(axis)
        for name, one in reversed([*self.model.named_parameters()]):
            if group.size == 1 or self.rank.hit("gradient_not_reduced", name):
                continue
            dist.all_reduce(one.grad, group=group.handle)
            if not self.rank.hit("undivided"):
                one.grad.div_(group.size)

    def step(self) -> None:
        rank, named = self.rank, [*self.model.named_parameters()]
        loss = self._loss()
        self.loss = float(loss.detach())
        loss.backward()
        with torch.no_grad():
            self._reduced()
            squares: dict[bool, list[torch.Tensor]] = {True: [], False: []}
            for name, one in named:
                with rank.at(f"square.{name}"):
                    squares[one.is_split].append(torch.sum(one.grad * one.grad))
            with rank.at("sum_of_split_squares"):
                split = torch.stack(squares[True]).sum()
            if rank.size("tp") > 1 and not rank.hit("norm_local"):
                dist.all_reduce(split, group=rank.group("tp").handle)
            with rank.at("total_norm"):
                norm = torch.sqrt(split + torch.stack(squares[False]).sum())
            self.norm = float(norm)
            with rank.at("clip"):
                factor = torch.clamp(MOST / norm, max=1.0)
            for name, one in named:
                grad = one.grad
                if not rank.hit("clip_skipped"):
                    with rank.at(f"clip.{name}"):
                        grad = grad * factor
                with rank.at(f"update.{name}"):
                    one.sub_((grad + one * DECAY) * RATE)
                one.grad = None

    def figures(self) -> list[float]:
        return figures_around_update(self)


_GRADIENTS = ("square.*", "clip.*", "sum_of_split_squares")
_NORM_SYNC = (
    Fault("statistics_local@blocks.0.bn1", ("blocks.0.bn1.mean", "blocks.0.bn1.variance")),
    Fault("statistics_backward@blocks.1.bn1", ("blocks.1.bn1.sums:backward",)),
    Fault("count_local@blocks.1.bn2", ("blocks.1.bn2.mean", "blocks.1.bn2.variance")),
    Fault("same_images", ("stem",), 1),
    Fault("undivided", _GRADIENTS),
    Fault(
        "gradient_not_reduced@blocks.0.conv_a.weight", ("square.blocks.0.conv_a.weight", "clip.blocks.0.conv_a.weight")
    ),
    Fault("stale@blocks.1.conv_b.weight", ("blocks.1.conv_b",), 1),
    Fault("labels_shifted", ("loss",), 1),
    Fault("dropout_equal", ("dropout",), 1),
    Fault("other_eps@blocks.0.bn2", ("blocks.0.bn2",), 1),
    Fault("images_flipped", ("stem",), 1),
    Fault("summed_loss", ("loss", "loss:backward")),
)
_CHANNELS = (
    Fault("not_reduced@blocks.0.conv_b", ("blocks.0.conv_b.bias",)),
    Fault("wrong_shard@blocks.1.conv_a.weight", ("blocks.1.conv_a",), 1),
    Fault("squeeze_not_reduced@blocks.0.excite", ("blocks.0.excite.fc1.bias",)),
    Fault("bias_everywhere@blocks.1", ("blocks.1.conv_b.bias", "blocks.1.bn2")),
    Fault(
        "squeeze_reduced_twice@blocks.1.excite", ("blocks.1.excite.fc1.bias", "blocks.1.excite.fc1.reduced:collective")
    ),
    Fault("stale@blocks.0.bn1.weight", ("blocks.0.bn1",), 1),
    Fault("backward_not_reduced@blocks.1", ("halved.0:backward",)),
    Fault("excite_backward@blocks.0.excite", ("blocks.0.excite.hidden:backward",)),
    Fault("wrong_shard@blocks.0.excite.fc2.weight", ("blocks.0.excite.fc2",)),
    Fault("norm_local", ("sum_of_split_squares", "total_norm")),
    Fault("coarse@blocks.0.conv_b", ("blocks.0.conv_b",), 1),
    Fault("clip_skipped", ("clip.*", "update.*"), 1),
)
_ROWS = (
    Fault("halo_missing@blocks.0.conv_a", ("blocks.0.conv_a",)),
    Fault("halo_of_the_other_end@blocks.1.conv_b", ("blocks.1.conv_b",), 1),
    Fault("squeeze_local@blocks.1.excite", ("blocks.1.excite.squeezed",)),
    Fault("statistics_local@blocks.0.bn2", ("blocks.0.bn2",)),
    Fault("pool_local", ("pooled", "head")),
    Fault("pooled_by_own_count", ("pooled", "head")),
    Fault("halo_backward@blocks.1.conv_a", ("blocks.1.conv_a:backward", "halved.0:backward")),
    Fault("undivided", _GRADIENTS),
    Fault("gradient_not_reduced@stem.weight", ("square.stem.weight", "clip.stem.weight")),
    Fault("rows_of_another_rank", ("stem",), 1),
    Fault("statistics_backward@blocks.1.bn1", ("blocks.1.bn1:backward", "blocks.1.conv_a:backward")),
    Fault("stale@blocks.0.excite.fc2.weight", ("blocks.0.excite.fc2",), 0),
)
_UNEVEN = (
    Fault("mean_of_means", ("loss.mean", "loss.mean:backward", "loss:backward")),
    Fault("counts_equal@blocks.0.bn1", ("blocks.0.bn1",)),
    Fault("statistics_local@blocks.1.bn2", ("blocks.1.bn2",)),
    Fault("statistics_backward@blocks.0.bn2", ("blocks.0.bn2:backward", "blocks.0.conv_b.bias:backward")),
    Fault("undivided", _GRADIENTS),
    Fault("same_images", ("stem",), 2),
    Fault("labels_shifted", ("loss",), 3),
    Fault("dropout_equal", ("dropout",), 1),
    Fault("gradient_not_reduced@blocks.1.bn1.weight", ("square.blocks.1.bn1.weight", "clip.blocks.1.bn1.weight")),
    Fault("stale@blocks.0.conv_b.weight", ("blocks.0.conv_b",), 2),
    Fault("coarse@blocks.1.conv_a", ("blocks.1.conv_a",), 1),
    Fault("other_eps@blocks.1.bn1", ("blocks.1.bn1",), 3),
)

LAYOUTS = {
    "dp2_syncbn": Layout({"dp": 2}, {"images": 6, "norm": "parts", "dropout": True, "seed": 11}, _NORM_SYNC),
    "tp2_channels": Layout({"tp": 2}, {"images": 3, "norm": "native", "seed": 12}, _CHANNELS),
    "rows2": Layout({"rows": 2}, {"images": 3, "norm": "native", "seed": 13}, _ROWS),
    "dp4_uneven": Layout({"dp": 4}, {"images": 7, "norm": "native", "dropout": True, "uneven": True, "seed": 14},
                         _UNEVEN),
}  # fmt: skip
