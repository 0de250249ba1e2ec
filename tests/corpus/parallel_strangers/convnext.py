"""A convolution network in training: grouped and depthwise convolutions, batch norm over ranks, response norms.

Images on ranks; groups of channels on ranks; rows of images and images on ranks. Steps scaled by the norms of layers.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import Copy, Gather, Sum, linear, shard, summed
from tests.corpus.parallel_strangers.world import Fault, Group, Layout, Rank, figures_around_update

CHANNELS, GROUPS, INNER, CLASSES, SIDE = 16, 4, 32, 7, 16
RATE, TRUST = 0.3, 0.05


class Rows(torch.autograd.Function):
    """Rows of an image with `count` rows of each neighbour; zeros beyond the image."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, count: int, fault: str) -> torch.Tensor:
        ctx.group, ctx.count, ctx.fault = group, count, fault
        above, below = Rows.swapped(x[:, :, :count], x[:, :, -count:], group)
        if fault == "narrow":  # all but the nearest row
            above[:, :, :-1], below[:, :, 1:] = 0.0, 0.0
        if fault == "edge":
            above, below = (x[:, :, :1].expand_as(above) if group.number == 0 else above), below
            below = x[:, :, -1:].expand_as(below) if group.number == group.size - 1 else below
        return torch.cat([above, x, below], 2)

    @staticmethod
    def swapped(up: torch.Tensor, down: torch.Tensor, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        above, below, work = torch.zeros_like(up).contiguous(), torch.zeros_like(down).contiguous(), []
        for at, sent, received in ((group.number - 1, up, above), (group.number + 1, down, below)):
            if 0 <= at < group.size:
                work += [dist.isend(sent.contiguous(), group.ranks[at]), dist.irecv(received, group.ranks[at])]
        for one in work:
            one.wait()
        return above, below

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        count = ctx.count
        own = grad[:, :, count:-count].clone()
        if ctx.fault != "backward":
            above, below = Rows.swapped(grad[:, :, :count], grad[:, :, -count:], ctx.group)
            own[:, :, :count] += above
            own[:, :, -count:] += below
        return own, None, None, None


class Part(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.tp, self.rows = rank, name, rank.group("tp"), rank.group("rows")

    def own(self, what: str, *shape: int, dim: Optional[int] = None, offset: float = 0.0, scale: float = 0.0) -> None:
        setattr(self, what, shard(self.rank, f"{self.name}.{what}", *shape, dim=dim, offset=offset, scale=scale))

    def place(self, what: str) -> Any:
        return self.rank.at(f"{self.name}.{what}")

    def hit(self, kind: str) -> bool:
        return self.rank.hit(kind, self.name)

    def copied(self, x: torch.Tensor) -> torch.Tensor:
        return Copy.apply(x, self.tp, not self.hit("backward_not_reduced")) if self.tp.size > 1 else x

    def over(self, x: torch.Tensor, *axes: str, both: bool = True) -> torch.Tensor:
        """A sum over the ranks along axes."""
        for axis in axes:
            if self.rank.size(axis) > 1:
                x = Sum.apply(x, self.rank.group(axis), both)
        return x


class Convolution(Part):
    """`dim`: of the weight, along which channels are split; a split input (1) makes a part of a sum."""

    def __init__(
        self, rank: Rank, name: str, inputs: int, size: int, dim: Optional[int] = None, groups: int = 1, stride: int = 1
    ) -> None:
        super().__init__(rank, name)
        self.dim, self.stride, self.halo = dim, stride, (size // 2 if stride == 1 else 0)
        self.groups = groups // self.tp.size if groups > 1 else 1
        self.own("weight", CHANNELS, inputs // groups, size, size, dim=dim, scale=0.5 if groups == CHANNELS else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, padding = self.rank, self.halo
        if self.rows.size > 1 and self.halo:
            fault = next((one for one in ("narrow", "edge", "backward") if self.hit(f"halo_{one}")), "")
            x = Rows.apply(x, self.rows, self.halo, fault)
            padding = (0, self.halo)
        with rank.at(self.name):
            if self.hit("coarse"):
                out = F.conv2d(x.bfloat16(), self.weight.bfloat16(), None, self.stride, padding, 1, self.groups).to(
                    x.dtype
                )
            else:
                out = F.conv2d(x, self.weight, None, self.stride, padding, 1, self.groups)
        if self.dim == 1 and self.tp.size > 1 and not self.hit("not_reduced"):
            out = Sum.apply(out, self.tp)
        return out


class BatchNorm(Part):
    """Means, then mean squares of what is left, over all images and rows."""

    def __init__(self, rank: Rank, name: str, dim: Optional[int] = None) -> None:
        super().__init__(rank, name)
        self.own("weight", CHANNELS, dim=dim, offset=1.0)
        self.own("bias", CHANNELS, dim=dim)
        self.running = torch.ones_like(self.weight.data)

    def _mean(self, x: torch.Tensor, what: str) -> torch.Tensor:
        axes = ("rows", "dp")
        if self.rank.hit("local", f"{self.name}.{what}"):
            axes = ()
        if self.rank.hit("images_only", f"{self.name}.{what}"):
            axes = ("dp",)
        with self.place(what):
            mean = x.mean((0, 2, 3), keepdim=True)
        total = self.over(mean, *axes, both=not self.rank.hit("backward_local", self.name))
        count = 1
        for axis in axes:
            count *= self.rank.size(axis)
        return total / count if count > 1 else total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self._mean(x, "mean")
        with self.place("centred"):
            x = x - mean
        with self.place("squared"):
            squares = x * x
        variance = self._mean(squares, "variance")
        with torch.no_grad(), self.place("running"):
            share = 0.5 if self.hit("other_momentum") else 0.1
            self.running = torch.lerp(self.running, variance.flatten(), share)
        with self.place("factor"):
            factor = torch.rsqrt(variance + 1e-5)
        with self.rank.at(self.name):
            return x * factor * self.weight[:, None, None] + self.bias[:, None, None]


class Bottleneck(Part):
    """Of a ResNeXt."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.conv1 = Convolution(rank, f"{name}.conv1", CHANNELS, 1, 0)
        self.conv2 = Convolution(rank, f"{name}.conv2", CHANNELS, 3, 0, GROUPS)
        self.conv3 = Convolution(rank, f"{name}.conv3", CHANNELS, 1, 1)
        self.bn1, self.bn2, self.bn3 = (
            BatchNorm(rank, f"{name}.bn{at}", dim) for at, dim in ((1, 0), (2, 0), (3, None))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(self.copied(x)))
        with self.place("relu1"):
            y = torch.relu(y)
        y = self.bn2(self.conv2(y))
        with self.place("relu2"):
            y = torch.relu(y)
        y = self.bn3(self.conv3(y))
        with self.place("added"):
            x = x + y
        with self.place("out"):
            return torch.relu(x)


class ConvNextBlock(Part):
    """Of the second version, with a norm of responses."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.dw = Convolution(rank, f"{name}.dw", CHANNELS, 5, 0, CHANNELS)
        self.own("norm", CHANNELS, offset=1.0)
        self.own("norm_bias", CHANNELS)
        self.own("pw1", INNER, CHANNELS, dim=0)
        self.own("pw1_bias", INNER, dim=0)
        self.own("response", INNER, dim=0, scale=0.5)
        self.own("response_bias", INNER, dim=0)
        self.own("pw2", CHANNELS, INNER, dim=1)
        self.own("pw2_bias", CHANNELS)
        self.own("gamma", CHANNELS, offset=0.5)

    def _depthwise(self, x: torch.Tensor) -> torch.Tensor:
        if self.tp.size == 1:
            return self.dw(x)
        own = self.copied(x).chunk(self.tp.size, 1)[self.tp.number]
        return Gather.apply(self.dw(own), self.tp, 1, False, self.hit("channels_rolled"))

    def _responded(self, x: torch.Tensor) -> torch.Tensor:
        dims = (0, 1, 2) if self.hit("response_of_all_images") else (1, 2)
        with self.place("squares"):
            squares = x.square().sum(dims, keepdim=True)
        if not self.hit("response_of_own_rows"):
            squares = self.over(squares, "rows")
        with self.place("lengths"):
            lengths = (squares + 1e-6).sqrt()
        with self.place("mean"):
            total = lengths.sum(-1, keepdim=True)
        if self.hit("response_of_own_channels"):
            mean = total / x.shape[-1]
        else:
            mean = self.over(total, "tp", both=not self.hit("response_backward")) / INNER
        with self.place("ratio"):
            ratio = lengths / (mean + 1e-6)
        with self.place("responded"):
            return x + self.response * (x * ratio) + self.response_bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, name, tp = self.rank, self.name, self.tp
        y = self._depthwise(x).permute(0, 2, 3, 1)
        with self.place("normed"):
            y = F.layer_norm(y, (CHANNELS,), self.norm, self.norm_bias, 0.2 if self.hit("other_eps") else 1e-6)
        y = linear(rank, f"{name}.pw1", f"{name}.pw1", Copy.apply(y, tp) if tp.size > 1 else y, self.pw1, self.pw1_bias)
        with self.place("gelu"):
            y = F.gelu(y)
        before = self.pw2_bias if self.hit("bias_everywhere") else None
        y = self.over(
            linear(rank, f"{name}.pw2", f"{name}.pw2", self._responded(y), self.pw2, before), "tp", both=False
        )
        if before is None:
            with self.place("pw2.bias"):
                y = y + self.pw2_bias
        with self.place("scaled"):
            y = y * self.gamma
        if self.hit("scaled_twice"):
            y = y * self.gamma
        with self.place("out"):
            return x + y.permute(0, 3, 1, 2)


class Network(Part):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "ends")
        self.stem = Convolution(rank, "stem", 3, 2, None, 1, 2)
        self.first, self.second = Bottleneck(rank, "blocks.0"), ConvNextBlock(rank, "blocks.1")
        self.down, self.third = Convolution(rank, "down", CHANNELS, 2, None, 1, 2), Bottleneck(rank, "blocks.2")
        self.own("head", CLASSES, CHANNELS)
        self.own("head_bias", CLASSES)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.third(self.down(self.second(self.first(self.stem(images)))))
        with self.place("pooled"):
            x = x.mean((2, 3))
        if not self.rank.hit("pool_local"):
            x = self.over(x, "rows", both=False) / self.rows.size if self.rows.size > 1 else x
        with self.place("head"):
            logits = F.linear(x, self.head, self.head_bias)
        with self.place("loss"):
            return F.cross_entropy(logits, labels, label_smoothing=0.0 if self.rank.hit("not_smoothed") else 0.1)


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model = rank, Network(rank)
        count, dp, rows = rank.settings["images"], rank.group("dp"), rank.group("rows")
        images, labels = rank.drawn("images", count, 3, SIDE, SIDE, scale=1.0), rank.integers("labels", CLASSES, count)
        size, height = count // dp.size, SIDE // rows.size
        own = 0 if rank.hit("same_images") else dp.number
        at = 0 if rank.hit("same_rows") else rows.number
        self.images = images[own * size : (own + 1) * size, :, at * height : (at + 1) * height].clone()
        self.labels = labels[own * size : (own + 1) * size]
        if rank.hit("labels_rolled"):
            self.labels = self.labels.roll(1)

    def _reduced(self, one: Any) -> torch.Tensor:
        """Summed over ranks of rows where rows are apart, averaged over ranks of images."""
        rank, grad, dp, rows = self.rank, one.grad, self.rank.group("dp"), self.rank.group("rows")
        if rank.hit("gradient_not_reduced", one.path):
            return grad
        if rows.size > 1 and not one.path.startswith("ends.") and not rank.hit("rows_not_summed", one.path):
            grad = summed(grad, rows)
        if rows.size > 1 and one.path.startswith("ends.") and rank.hit("ends_summed"):
            grad = summed(grad, rows)
        return summed(grad, dp) / (1 if rank.hit("undivided") else dp.size) if dp.size > 1 else grad

    @torch.no_grad()
    def _update(self) -> None:
        rank, tp, self.norm = self.rank, self.rank.group("tp"), 0.0
        for one in self.model.parameters():
            grad = self._reduced(one)
            with rank.at(f"squares.{one.path}"):
                squares = torch.stack([grad.square().sum(), one.square().sum()])
            if one.is_split and tp.size > 1 and not rank.hit("trust_local"):
                squares = summed(squares, tp)
            with rank.at(f"lengths.{one.path}"):
                lengths = squares.sqrt()
            self.norm += float(lengths[0])
            trust = TRUST * lengths[1] / (lengths[0] + 1e-3)
            with rank.at(f"trusted.{one.path}"):
                grad = grad * trust
            with rank.at(f"update.{one.path}"):
                one.copy_(one - grad * RATE * (2.0 if rank.hit("other_rate") else 1.0))
            one.grad = None

    def step(self) -> None:
        loss = self.model(self.images, self.labels)
        self.loss = float(loss.detach())
        loss.backward()
        self._update()

    def figures(self) -> list[float]:
        return figures_around_update(self)


_GRADIENTS = ("squares.*", "trusted.*")
_IMAGES = (
    Fault("local@blocks.0.bn2.mean", ("blocks.0.bn2.centred", "blocks.0.bn2.mean")),
    Fault("local@blocks.2.bn1.variance", ("blocks.2.bn1.running", "blocks.2.bn1.factor", "blocks.2.bn1.variance")),
    Fault("same_images", ("stem",), 2),
    Fault("backward_local@blocks.2.bn3", ("blocks.2.bn3.*:backward", "blocks.2.conv3:backward")),
    Fault("other_momentum@blocks.0.bn1", ("blocks.0.bn1.running",), 1),
    Fault("not_smoothed", ("ends.loss",), 1),
    Fault("gradient_not_reduced@blocks.1.dw.weight", ("squares.blocks.1.dw.weight", "trusted.blocks.1.dw.weight")),
    Fault("undivided", _GRADIENTS),
    Fault("coarse@blocks.1.pw1", ("blocks.1.pw1",), 0),
    Fault("stale@blocks.2.conv2.weight", ("blocks.2.conv2",), 1),
    Fault("response_of_all_images@blocks.1", ("blocks.1.squares", "blocks.1.lengths"), 2),
)
_GROUPS = (
    Fault("wrong_shard@blocks.0.conv2.weight", ("blocks.0.conv2",), 1),
    Fault("response_of_own_channels@blocks.1", ("blocks.1.mean", "blocks.1.ratio")),
    Fault("not_reduced@blocks.2.conv3", ("blocks.2.bn3.mean", "blocks.2.bn3.centred")),
    Fault("channels_rolled@blocks.1", ("blocks.1.normed", "blocks.1.dw")),
    Fault("backward_not_reduced@blocks.1", ("blocks.0.out:backward",)),
    Fault("trust_local", ("lengths.*",)),
    Fault("stale@blocks.0.bn1.weight", ("blocks.0.bn1",), 1),
    Fault("coarse@blocks.2.conv1", ("blocks.2.conv1",), 0),
    Fault("bias_everywhere@blocks.1", ("blocks.1.pw2", "blocks.1.pw2.bias", "blocks.1.scaled")),
    Fault("scaled_twice@blocks.1", ("blocks.1.scaled", "blocks.1.out"), 1),
    Fault(
        "response_backward@blocks.1", ("blocks.1.mean:backward", "blocks.1.lengths:backward", "blocks.1.ratio:backward")
    ),
)
_ROWS = (
    Fault("halo_narrow@blocks.1.dw", ("blocks.1.dw",)),
    Fault("images_only@blocks.0.bn1.mean", ("blocks.0.bn1.centred", "blocks.0.bn1.mean")),
    Fault("pool_local", ("ends.pooled", "ends.head")),
    Fault("halo_edge@blocks.0.conv2", ("blocks.0.conv2",), 1),
    Fault("response_of_own_rows@blocks.1", ("blocks.1.lengths", "blocks.1.squares")),
    Fault("same_rows", ("stem",), 1),
    Fault("rows_not_summed@blocks.2.conv1.weight", ("squares.blocks.2.conv1.weight", "trusted.blocks.2.conv1.weight")),
    Fault("halo_backward@blocks.2.conv2", ("blocks.2.conv2:backward", "blocks.2.relu1:backward")),
    Fault("stale@down.weight", ("down",), 3),
    Fault("coarse@blocks.1.dw", ("blocks.1.dw",), 2),
    Fault("ends_summed", ("squares.ends.*", "trusted.ends.*")),
)
LAYOUTS = {
    "dp3_images": Layout({"dp": 3}, {"images": 6, "seed": 101}, _IMAGES),
    "tp2_groups": Layout({"tp": 2}, {"images": 3, "seed": 102}, _GROUPS),
    "rows2_dp2": Layout({"rows": 2, "dp": 2}, {"images": 4, "seed": 103}, _ROWS),
}
