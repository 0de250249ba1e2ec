"""A denoising UNet in training: synchronised batch norm, rows of an image with halos, output channels on ranks."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import Copy, Gather, Halo, Sum, shard, summed
from tests.corpus.parallel_strangers.world import Fault, Layout, Rank, figures_around_update

WIDTH, BUNCHES, SIDE, EPS = 8, 4, 16, 1e-5
RATE, MOST = 0.5, 0.3
IN_STATISTICS = 2


class Convolution(nn.Module):
    """Ranks of channels make a part of its output each; rows of neighbours come where an image is split."""

    def __init__(self, rank: Rank, name: str, inner: int, out: int, kernel: int = 3, kind: str = "") -> None:
        super().__init__()
        self.rank, self.name, self.kind, self.is_split = rank, name, kind, out % 2 == 0
        shape, dim = ((inner, out), 1) if kind == "up" else ((out, inner), 0)
        scale = 1.0 / (inner * kernel**2) ** 0.5
        self.weight = shard(rank, name, *shape, kernel, kernel, dim=dim if self.is_split else None, scale=scale)
        self.bias = shard(rank, f"{name}.bias", out, dim=0 if self.is_split else None)

    def _made(self, x: torch.Tensor) -> torch.Tensor:
        rank, name, rows, padding = self.rank, self.name, self.rank.group("rows"), (1, 1)
        if rows.size > 1:
            faults = [one for one in ("zeros", "sides", "backward") if rank.hit(f"halo_{one}", name)]
            x = Halo.apply(x, rows, "".join(faults))
            padding = (3, 1) if self.kind == "up" else (0, 1)
        with rank.at(name):
            if self.kind == "up":
                return F.conv_transpose2d(x, self.weight, self.bias, stride=2, padding=padding)
            stride = 2 if self.kind == "down" else 1
            if rank.hit("coarse", name):
                halves = (one.bfloat16() for one in (x, self.weight, self.bias))
                return F.conv2d(*halves, stride=stride, padding=padding).to(x.dtype)
            return F.conv2d(x, self.weight, self.bias, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, tp = self.rank, self.rank.group("tp")
        if tp.size == 1 or not self.is_split:
            return self._made(x)
        out = self._made(Copy.apply(x, tp, not rank.hit("backward_not_reduced", self.name)))
        return Gather.apply(out, tp, 1, rank.hit("summed_again", self.name), rank.hit("channels_rolled", self.name))


class Norm(nn.Module):
    """Over a batch or over bunches of channels; its sums go over the ranks that hold other images or rows."""

    def __init__(self, rank: Rank, name: str, width: int, kind: str) -> None:
        super().__init__()
        self.rank, self.name, self.kind = rank, name, kind
        self.weight, self.bias = shard(rank, name, width, offset=1.0), shard(rank, f"{name}.bias", width)
        self.register_buffer("running_mean", torch.zeros(width, dtype=rank.dtype))
        self.register_buffer("running_var", torch.ones(width, dtype=rank.dtype))

    def _over_ranks(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        rank, group = self.rank, self.rank.group("rows" if self.rank.size("rows") > 1 else "dp")
        count, width, height, length = x.shape
        bunches = width if self.kind == "batch" else BUNCHES
        parts = x.reshape(count, bunches, -1)
        dims = (0, 2) if self.kind == "batch" else (2,)
        number = torch.tensor([float(parts[:, :1].numel() / (1 if self.kind == "batch" else count))], dtype=x.dtype)
        sums = torch.cat([parts.sum(dims).flatten(), (parts * parts).sum(dims).flatten(), number])
        if not rank.hit("statistics_local", self.name):
            sums = Sum.apply(sums, group, True)
        mean, square = (sums[:-1] / sums[-1]).chunk(2)
        factor = torch.rsqrt(square - mean * mean + eps)
        shape = (1, bunches, 1) if self.kind == "batch" else (count, bunches, 1)
        out = ((parts - mean.view(shape)) * factor.view(shape)).view(count, width, height, length)
        return out * self.weight[:, None, None] + self.bias[:, None, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        eps = 1e-1 if rank.hit("other_eps", self.name) else EPS
        is_whole = rank.size("rows") == 1 and (rank.size("dp") == 1 or self.kind == "group")
        with rank.at(self.name):
            if not is_whole:
                return self._over_ranks(x, eps)
            if self.kind == "group":
                return F.group_norm(x, BUNCHES, self.weight, self.bias, eps)
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1, eps)


class Residual(nn.Module):
    def __init__(self, rank: Rank, name: str, width: int, kind: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.norm1, self.norm2 = (Norm(rank, f"{name}.norm{number}", width, kind) for number in (1, 2))
        self.conv1, self.conv2 = (Convolution(rank, f"{name}.conv{number}", width, width) for number in (1, 2))
        self.time = shard(rank, f"{name}.time", width, WIDTH)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        rank, name = self.rank, self.name
        y = self.conv1(F.silu(self.norm1(x)))
        with rank.at(f"{name}.timed"):
            y = y + F.linear(time, self.time)[:, :, None, None]
        y = self.norm2(y)
        with rank.at(f"{name}.act2"):
            y = F.silu(y)
        y = self.conv2(y)
        with rank.at(f"{name}.residual"):
            return x + y


class UNet(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank = rank
        self.time1, self.time2 = (shard(rank, f"time{number}", WIDTH, WIDTH) for number in (1, 2))
        self.stem = Convolution(rank, "stem", 3, WIDTH)
        self.enc = Residual(rank, "enc", WIDTH, rank.settings["norm"])
        self.down = Convolution(rank, "down", WIDTH, 2 * WIDTH, 4, "down")
        self.mid = Residual(rank, "mid", 2 * WIDTH, "group")
        self.up = Convolution(rank, "up", 2 * WIDTH, WIDTH, 4, "up")
        self.join = Convolution(rank, "join", 2 * WIDTH, WIDTH)
        self.norm, self.out = Norm(rank, "norm", WIDTH, "group"), Convolution(rank, "out", WIDTH, 3)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        rates = 20.0 ** -(torch.arange(WIDTH // 2).to(x.dtype) / (WIDTH // 2))
        with rank.at("time"):
            angles = steps[:, None].to(x.dtype) * rates[None]
        time = torch.cat([angles.sin(), angles.cos()], dim=-1)
        time = F.silu(F.linear(F.silu(F.linear(time, self.time1)), self.time2))
        first = self.stem(x)
        skip = self.enc(first, time)
        y = self.up(self.mid(self.down(skip), time))
        with rank.at("joined"):
            y = torch.cat([y, first if rank.hit("skip_of_the_stem") else skip], dim=1)
        return self.out(F.silu(self.norm(self.join(y))))


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, UNet(rank)
        count, dp, rows = rank.settings["images"], rank.group("dp"), rank.group("rows")
        share, height = count // dp.size, SIDE // rows.size
        top = 0 if rank.hit("rows_of_another") else rows.number * height

        def mine(x: torch.Tensor, fault: str = "") -> torch.Tensor:
            first = 0 if fault and rank.hit(fault) else dp.number * share
            return x[first : first + share]

        self.images = mine(rank.drawn("images", count, 3, SIDE, SIDE, scale=1.0))[:, :, top : top + height]
        at = rows.number * height
        noise = rank.drawn("noise", count, 3, SIDE, SIDE, scale=1.0)
        self.noise = mine(noise, "noise_equal")[:, :, at : at + height].contiguous()
        self.steps = mine(rank.integers("steps", 20, count), "steps_equal")
        self.average = [one.detach().clone() for one in self.model.parameters()]

    def _loss(self) -> torch.Tensor:
        rank = self.rank
        with rank.at("kept"):
            kept = (torch.cos(self.steps * 0.07) ** 2).to(rank.dtype)[:, None, None, None]
        with rank.at("noisy"):
            noisy = kept.sqrt() * self.images + (1 - kept).sqrt() * self.noise
        made = self.model(noisy, self.steps)
        with rank.at("loss"):
            if rank.size("rows") == 1 or rank.hit("mean_of_rows"):
                return F.mse_loss(made, self.noise)
            return F.mse_loss(made, self.noise, reduction="sum") / (made.numel() * rank.size("rows"))

    def _reduced(self, name: str, grad: torch.Tensor) -> torch.Tensor:
        """Averaged over ranks of images, summed over ranks of rows."""
        rank, dp, rows = self.rank, self.rank.group("dp"), self.rank.group("rows")
        if rank.hit("not_summed", name.partition(".")[0]):
            return grad
        if dp.size > 1:
            grad = summed(grad, dp) / (1 if rank.hit("undivided") else dp.size)
        return summed(grad, rows) if rows.size > 1 else grad

    @torch.no_grad()
    def _update(self) -> None:
        rank, tp = self.rank, self.rank.group("tp")
        parameters = [*self.model.parameters()]
        grads = [self._reduced(one.path, one.grad) for one in parameters]
        norms: dict[bool, list[Any]] = {True: [], False: []}
        for one, grad in zip(parameters, grads):
            with rank.at(f"norm.{one.path}"):
                norms[one.is_split].append(torch.norm(grad, 2))
        with rank.at("norm_of_split"):
            split = torch.norm(torch.stack(norms[True]), 2) ** 2
        if tp.size > 1 and not rank.hit("norm_local"):
            split = summed(split, tp)
        with rank.at("total_norm"):
            norm = torch.sqrt(split + torch.norm(torch.stack(norms[False]), 2) ** 2)
        self.norm = float(norm)
        factor = torch.clamp(MOST / (norm + 1e-6), max=1.0)
        for number, (one, grad) in enumerate(zip(parameters, grads)):
            with rank.at(f"clip.{one.path}"):
                grad = grad * factor
            with rank.at(f"update.{one.path}"):
                value = one.data - grad * RATE
            with rank.at(f"average.{one.path}"):
                self.average[number] = self.average[number] * 0.9 + value * 0.1
            one.data.copy_(value)
            one.grad = None

    def step(self) -> None:
        loss: Optional[torch.Tensor] = self._loss()
        self.loss = float(loss.detach()) * self.rank.size("rows")
        loss.backward()
        self._update()

    def figures(self) -> list[float]:
        return figures_around_update(self)


_IMAGES = (
    Fault("statistics_local@enc.norm1", ("enc.norm1",)),
    Fault("noise_equal", ("noisy",), 1),
    Fault("undivided", ("norm.*", "clip.*", "norm_of_split")),
    Fault("stale@down", ("down",), 1),
    Fault("steps_equal", ("time", "kept"), 1),
    Fault("other_eps@mid.norm2", ("mid.norm2",), 1),
    Fault("coarse@enc.conv1", ("enc.conv1",), 0),
    Fault("not_summed@up", ("norm.up*", "clip.up*")),
)
_ROWS = (
    Fault("halo_zeros@enc.conv1", ("enc.conv1",)),
    Fault("statistics_local@mid.norm1", ("mid.norm1",)),
    Fault("halo_sides@up", ("up",), 1),
    Fault("halo_backward@mid.conv1", ("mid.conv1:backward",)),
    Fault("mean_of_rows", ("loss", "loss:backward")),
    Fault("rows_of_another", ("noisy",), 1),
    Fault("not_summed@stem", ("norm.stem*", "clip.stem*")),
    Fault("halo_zeros@down", ("down",)),
)
_CHANNELS = (
    Fault("channels_rolled@mid.conv1", ("mid.conv1", "mid.timed")),
    Fault("backward_not_reduced@enc.conv2", ("enc.act2:backward",)),
    Fault("wrong_shard@up", ("up",), 1),
    Fault("stale@mid.conv2", ("mid.conv2",), 0),
    Fault("norm_local", ("norm_of_split", "total_norm")),
    Fault("skip_of_the_stem", ("joined",)),
    Fault("summed_again@down", ("down:backward",)),
    Fault("coarse@out", ("out",), 1),
)
LAYOUTS = {
    "dp2_sync": Layout({"dp": 2}, {"images": 4, "norm": "batch", "seed": 61}, _IMAGES),
    "rows2": Layout({"rows": 2}, {"images": 2, "norm": "group", "seed": 62}, _ROWS),
    "channels2": Layout({"tp": 2}, {"images": 2, "norm": "batch", "seed": 63}, _CHANNELS),
}
