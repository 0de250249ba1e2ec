"""A vision transformer in training: uneven batches, a sequence in parts, parameters in flat parts."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.rings import Exchange, RingAttention, SumOverRanks
from tests.corpus.parallel_strangers.world import Fault, Group, Layout, Rank, figures_around_update, gathered

WIDTH, HEADS, INNER, CLASSES, SIDE, PATCH, BLOCKS = 32, 4, 64, 10, 16, 4, 2
TOKENS = (SIDE // PATCH) ** 2
RATE, MOST = 0.5, 0.2


def parameter(rank: Rank, name: str, *shape: int, offset: float = 0.0) -> nn.Parameter:
    values = rank.drawn(name, *shape, offset=offset)
    if rank.hit("stale", name):
        values = values + 0.05 * rank.drawn(f"{name}.older", *shape, scale=1.0)
    return nn.Parameter(values)


class Block(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        for what in ("norm1", "norm2"):
            setattr(self, f"{what}_weight", parameter(rank, f"{name}.{what}.weight", WIDTH, offset=1.0))
            setattr(self, f"{what}_bias", parameter(rank, f"{name}.{what}.bias", WIDTH))
        for what, out, inner in (
            ("qkv", 3 * WIDTH, WIDTH), ("proj", WIDTH, WIDTH), ("fc1", INNER, WIDTH), ("fc2", WIDTH, INNER)
        ):  # fmt: skip
            setattr(self, f"{what}_weight", parameter(rank, f"{name}.{what}.weight", out, inner))
            setattr(self, f"{what}_bias", parameter(rank, f"{name}.{what}.bias", out))

    def _linear(self, x: torch.Tensor, what: str) -> torch.Tensor:
        with self.rank.at(f"{self.name}.{what}"):
            return F.linear(x, getattr(self, f"{what}_weight"), getattr(self, f"{what}_bias"))

    def _norm(self, x: torch.Tensor, what: str) -> torch.Tensor:
        eps = 1e-1 if self.rank.hit("other_eps", f"{self.name}.{what}") else 1e-6
        with self.rank.at(f"{self.name}.{what}"):
            return F.layer_norm(x, (WIDTH,), getattr(self, f"{what}_weight"), getattr(self, f"{what}_bias"), eps)

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        batch, tokens, _ = x.shape
        qkv = self._linear(x, "qkv").reshape(batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        with rank.at(f"{self.name}.attention"):
            if rank.size("cp") == 1:
                out = F.scaled_dot_product_attention(q, k, v)
            elif rank.settings["attention"] == "ring":
                out = RingAttention.apply(q, k, v, rank, self.name)
            else:
                q, k, v = (Exchange.apply(one, rank, self.name, True) for one in (q, k, v))
                if rank.hit("values_are_keys", self.name):
                    v = k + 0.0 * v
                out = F.scaled_dot_product_attention(q, k, v)
                out = Exchange.apply(out, rank, self.name, False)
        return self._linear(out.transpose(1, 2).reshape(batch, tokens, WIDTH), "proj")

    def forward(self, x: torch.Tensor, kept: Optional[torch.Tensor]) -> torch.Tensor:
        with self.rank.at(f"{self.name}.attended"):
            x = x + self._attention(self._norm(x, "norm1"))
        y = self._linear(self._norm(x, "norm2"), "fc1")
        with self.rank.at(f"{self.name}.gelu"):
            y = F.gelu(y.bfloat16()).to(y.dtype) if self.rank.hit("coarse_gelu", self.name) else F.gelu(y)
        y = self._linear(y, "fc2")
        if kept is not None:
            with self.rank.at(f"{self.name}.path"):
                y = y * kept / 0.75
        return x + y


class GatherFlat(torch.autograd.Function):
    """A flat parameter of which each rank holds a part; its gradients are averaged and scattered."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, rank: Rank, name: str) -> torch.Tensor:
        ctx.rank, ctx.name = rank, name
        whole = gathered(part, rank.group("dp"), 0)
        return torch.roll(whole, len(part), 0) if rank.hit("gather_order", name) else whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        rank, group = ctx.rank, ctx.rank.group("dp")
        if not rank.hit("undivided"):
            grad = grad / group.size
        if rank.hit("not_summed"):
            return grad.chunk(group.size)[group.number], None, None
        own = grad.new_empty(len(grad) // group.size)
        dist.reduce_scatter_tensor(own, grad.contiguous(), group=group.handle)
        return own, None, None


class FlatUnit(nn.Module):
    """A block whose parameters are gathered before it runs."""

    def __init__(self, rank: Rank, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.rank, self.name, group = rank, name, rank.group("dp")
        named = [*inner.named_parameters()]
        self.shapes = [(key, value.shape) for key, value in named]
        flat = torch.cat([value.detach().reshape(-1) for _, value in named])
        flat = F.pad(flat, (0, -len(flat) % group.size))
        number = (group.number + 1) % group.size if rank.hit("wrong_shard", name) else group.number
        part = flat.chunk(group.size)[number].clone()
        self.flat = nn.Parameter(part * 0.9 if rank.hit("stale_shard", name) else part)
        for key, _ in named:
            delattr(inner, key)
        self.inner = inner

    def forward(self, *items: Any) -> Any:
        whole, first = GatherFlat.apply(self.flat, self.rank, self.name), 0
        for key, shape in self.shapes:
            setattr(self.inner, key, whole[first : first + shape.numel()].view(shape))
            first += shape.numel()
        return self.inner(*items)


class Stem(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank = rank
        self.weight = parameter(rank, "patches.weight", WIDTH, 3, PATCH, PATCH)
        self.bias = parameter(rank, "patches.bias", WIDTH)
        self.table = parameter(rank, "positions", TOKENS, WIDTH)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rank, group = self.rank, self.rank.group("cp")
        spread = 0.5 if rank.hit("images_not_normalised") else 0.25
        with rank.at("normalised"):
            images = (images - 0.5) / spread
        with rank.at("patches"):
            x = F.conv2d(images, self.weight, self.bias, stride=PATCH)
        x = x.flatten(2).transpose(1, 2)
        places = torch.arange(x.shape[1])
        if group.size > 1 and not rank.hit("positions_local"):
            places = places + group.number * x.shape[1]
        if rank.hit("positions_shifted"):
            places = (places + 1) % TOKENS
        with rank.at("positions"):
            return x + F.embedding(places, self.table)


class Top(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank = rank
        self.norm_weight, self.norm_bias = (
            parameter(rank, "norm.weight", WIDTH, offset=1.0),
            parameter(rank, "norm.bias", WIDTH),
        )
        self.weight, self.bias = parameter(rank, "head.weight", CLASSES, WIDTH), parameter(rank, "head.bias", CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rank, group = self.rank, self.rank.group("cp")
        with rank.at("norm"):
            x = F.layer_norm(x, (WIDTH,), self.norm_weight, self.norm_bias, 1e-6)
        with rank.at("pooled"):
            if group.size == 1:
                x = x.mean(dim=1)
            else:
                x = x.sum(dim=1) / (x.shape[1] if rank.hit("pooled_by_own_count") else TOKENS)
                if not rank.hit("pool_not_reduced"):
                    x = SumOverRanks.apply(x, group)
        with rank.at("head"):
            return F.linear(x, self.weight, self.bias)


class Transformer(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.stem = Stem(rank)
        self.blocks = nn.ModuleList(Block(rank, f"blocks.{number}") for number in range(BLOCKS))
        self.top = Top(rank)
        if rank.settings.get("flat"):
            self.stem = FlatUnit(rank, "stem", self.stem)
            self.blocks = nn.ModuleList(FlatUnit(rank, one.name, one) for one in self.blocks)
            self.top = FlatUnit(rank, "top", self.top)

    def forward(self, images: torch.Tensor, kept: Any) -> torch.Tensor:
        x = self.stem(images)
        for block, mask in zip(self.blocks, kept):
            x = block(x, mask)
        return self.top(x)


def _shares(count: int, ranks: int) -> list[int]:
    return [count // ranks + (number < count % ranks) for number in range(ranks)]


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.model = Transformer(rank)
        count, group, line = rank.settings["images"], rank.group("dp"), rank.group("cp")
        shares = _shares(count, group.size)
        own = 0 if rank.hit("same_images") else group.number
        first = sum(shares[:own])
        rows = slice(first, first + shares[group.number])
        images = 0.5 + 0.25 * rank.drawn("images", count, 3, SIDE, SIDE, scale=1.0)
        labels = rank.integers("labels", CLASSES, count)
        height = SIDE // line.size
        at = 0 if rank.hit("rows_of_another_rank") else line.number * height
        self.images, self.labels = images[rows, :, at : at + height].contiguous(), labels[rows]
        if rank.hit("labels_shifted"):
            self.labels = torch.roll(labels, 1, 0)[rows]
        if rank.hit("path_equal"):
            rows = slice(0, shares[group.number])
        self.kept: list[Optional[torch.Tensor]] = [None] * BLOCKS
        if rank.settings.get("path"):
            whole = [rank.drawn(f"path.{number}", count, 1, 1, scale=1.0) for number in range(BLOCKS)]
            self.kept = [(one[rows] > -0.67).to(rank.dtype) for one in whole]

    def _loss(self) -> torch.Tensor:
        rank = self.rank
        logits = self.model(self.images, self.kept)
        if not rank.settings.get("uneven"):
            with rank.at("loss"):
                return F.cross_entropy(logits, self.labels)
        with rank.at("loss"):
            loss = F.cross_entropy(logits, self.labels, reduction="sum")
        total, ranks = rank.settings["images"], rank.size("dp")
        with rank.at("loss.scaled"):
            return loss * (1.0 / len(self.labels) if rank.hit("mean_of_means") else ranks / total)

    def _reduced(self, group: Group) -> None:
        """Average the gradients over ranks, a bucket for each part of the network, the last part first."""
        for part in reversed([self.model.stem, *self.model.blocks, self.model.top]):
            if self.rank.hit("bucket_not_reduced", getattr(part, "name", "")):
                continue
            some = list(part.parameters())
            bucket = torch.cat([one.grad.reshape(-1) for one in some])
            dist.all_reduce(bucket, group=group.handle)
            if not self.rank.hit("undivided"):
                bucket.div_(group.size)
            if self.rank.hit("divided_twice"):
                bucket.div_(group.size)
            for one, piece in zip(some, torch.split(bucket, [one.numel() for one in some])):
                one.grad = piece.view_as(one)

    def step(self) -> None:
        rank = self.rank
        loss = self._loss()
        self.loss = float(loss.detach())
        loss.backward()
        axis = "cp" if rank.size("cp") > 1 else "dp"
        group, is_flat = rank.group(axis), bool(rank.settings.get("flat"))
        with torch.no_grad():
            if group.size > 1 and not is_flat:
                self._reduced(group)
            squares = []
            for name, one in self.model.named_parameters():
                with rank.at(f"square.{name}"):
                    squares.append(one.grad.pow(2).sum())
            with rank.at("sum_of_squares"):
                total = torch.stack(squares).sum()
            if is_flat and not rank.hit("norm_local"):
                dist.all_reduce(total, group=group.handle)
            with rank.at("total_norm"):
                norm = total.sqrt()
            with rank.at("clip"):
                factor = torch.clamp(MOST / (norm + 1e-6), max=1.0)
            self.norm = float(norm)
            for name, one in self.model.named_parameters():
                with rank.at(f"clip.{name}"):
                    grad = one.grad * factor
                with rank.at(f"update.{name}"):
                    one.sub_(grad * RATE)
                one.grad = None

    def figures(self) -> list[float]:
        return figures_around_update(self)


_GRADIENTS = ("square.*", "clip.*", "sum_of_squares")
_UNEVEN = (
    Fault("mean_of_means", ("loss.scaled", "loss.scaled:backward", "loss:backward")),
    Fault("bucket_not_reduced@blocks.1", ("square.blocks.1.*", "clip.blocks.1.*")),
    Fault("undivided", _GRADIENTS),
    Fault("same_images", ("normalised", "patches"), 1),
    Fault("stale@blocks.1.fc1.weight", ("blocks.1.fc1",), 2),
    Fault("labels_shifted", ("loss",), 1),
    Fault("path_equal", ("blocks.?.path",), 2),
    Fault("other_eps@blocks.0.norm2", ("blocks.0.norm2",), 1),
    Fault("images_not_normalised", ("normalised",), 2),
    Fault("divided_twice", _GRADIENTS),
    Fault("coarse_gelu@blocks.0", ("blocks.0.gelu",), 0),
    Fault("positions_shifted", ("positions",), 1),
)
_RING = (
    Fault("block_skipped@blocks.0", ("blocks.0.attention",), 1),
    Fault("not_rescaled@blocks.1", ("blocks.1.attention",)),
    Fault("positions_local", ("positions",), 1),
    Fault("own_block_again@blocks.0", ("blocks.0.attention",)),
    Fault("pool_not_reduced", ("pooled", "head")),
    Fault("pooled_by_own_count", ("pooled", "head")),
    Fault("keys_gradient_not_returned@blocks.1", ("blocks.1.attention:backward", "blocks.1.qkv:backward")),
    Fault("bucket_not_reduced@blocks.0", ("square.blocks.0.*", "clip.blocks.0.*")),
    Fault("undivided", _GRADIENTS),
    Fault("coarse_block@blocks.1", ("blocks.1.attention",), 0),
    Fault("unscaled_backward@blocks.0", ("blocks.0.attention:backward", "blocks.0.qkv:backward"), 1),
    Fault("rows_of_another_rank", ("normalised", "patches"), 1),
    Fault("stale@blocks.0.qkv.weight", ("blocks.0.qkv",), 1),
)
_HEADS = (
    Fault("heads_order@blocks.1", ("blocks.1.attention", "blocks.1.proj")),
    Fault("rows_order@blocks.0", ("blocks.0.attention", "blocks.0.proj")),
    Fault("values_are_keys@blocks.1", ("blocks.1.attention",), 2),
    Fault("positions_local", ("positions",), 3),
    Fault("pool_not_reduced", ("pooled", "head")),
    Fault("bucket_not_reduced@blocks.1", ("square.blocks.1.*", "clip.blocks.1.*")),
    Fault("undivided", _GRADIENTS),
    Fault("backward_order@blocks.1", ("blocks.1.attention:backward", "blocks.1.qkv:backward")),
    Fault("stale@blocks.0.fc2.weight", ("blocks.0.fc2",), 3),
    Fault("rows_of_another_rank", ("normalised", "patches"), 2),
    Fault("coarse_gelu@blocks.1", ("blocks.1.gelu",), 2),
    Fault("labels_shifted", ("loss",), 1),
)
_FLAT = (
    Fault("gather_order@blocks.1", ("blocks.1.norm1", "blocks.1.qkv")),
    Fault("same_images", ("normalised", "patches"), 1),
    Fault("stale_shard@blocks.0", ("blocks.0.proj", "blocks.0.norm2", "blocks.0.fc1"), 1),
    Fault("undivided", _GRADIENTS),
    Fault("wrong_shard@blocks.0", ("blocks.0.norm1", "blocks.0.qkv")),
    Fault("not_summed", _GRADIENTS),
    Fault("norm_local", ("sum_of_squares", "total_norm")),
    Fault("labels_shifted", ("loss",), 1),
    Fault("path_equal", ("blocks.?.path",), 1),
    Fault("other_eps@blocks.1.norm1", ("blocks.1.norm1",), 1),
    Fault("coarse_gelu@blocks.0", ("blocks.0.gelu",), 1),
    Fault("images_not_normalised", ("normalised",), 1),
)

LAYOUTS = {
    "dp3_uneven": Layout({"dp": 3}, {"images": 7, "uneven": True, "path": True, "seed": 21}, _UNEVEN),
    "cp2_ring": Layout({"cp": 2}, {"images": 3, "attention": "ring", "seed": 8}, _RING),
    "cp4_heads": Layout({"cp": 4}, {"images": 2, "attention": "exchange", "seed": 9}, _HEADS),
    "fsdp2": Layout({"dp": 2}, {"images": 6, "path": True, "seed": 22}, _FLAT, {"flat": True}),
}  # fmt: skip
