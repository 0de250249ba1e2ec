"""A CLIP in training: an image tower with a class token, a causal text tower, a loss over the features of all ranks."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import Copy, Gather, Sum, linear, shard
from tests.corpus.parallel_strangers.world import Fault, Group, Layout, Rank, cut, figures_around_update

WIDTH, HEADS, INNER, SIDE, PATCH, WORDS, TOKENS, SHARED, BLOCKS = 32, 4, 64, 12, 4, 50, 7, 24, 2
PATCHES = (SIDE // PATCH) ** 2
RATE, DECAY = 0.01, 0.2


class Part(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name, self.tp = rank, name, rank.group("tp")

    def own(self, what: str, *shape: int, dim: Optional[int] = None, offset: float = 0.0, scale: float = 0.0) -> None:
        setattr(self, what, shard(self.rank, f"{self.name}.{what}", *shape, dim=dim, offset=offset, scale=scale))

    def place(self, what: str) -> Any:
        return self.rank.at(f"{self.name}.{what}")

    def hit(self, kind: str, what: str = "") -> bool:
        return self.rank.hit(kind, f"{self.name}.{what}" if what else self.name)


class LayerNorm(Part):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.own("weight", WIDTH, offset=1.0)
        self.own("bias", WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.rank.at(self.name):
            return F.layer_norm(x, (WIDTH,), self.weight, self.bias, 0.1 if self.hit("other_eps") else 1e-5)


class Block(Part):
    def __init__(self, rank: Rank, name: str, is_causal: bool) -> None:
        super().__init__(rank, name)
        self.is_causal = is_causal
        self.norm1, self.norm2 = LayerNorm(rank, f"{name}.norm1"), LayerNorm(rank, f"{name}.norm2")
        size, number = self.tp.size, self.tp.number
        if self.hit("other_heads"):
            number = (number + 1) % size
        parts = [cut(rank.drawn(f"{name}.{one}", WIDTH, WIDTH), 0, number, size) for one in "qkv"]
        biases = [cut(rank.drawn(f"{name}.{one}.bias", WIDTH), 0, number, size) for one in "qkv"]
        self.qkv, self.qkv_bias = nn.Parameter(torch.cat(parts)), nn.Parameter(torch.cat(biases))
        self.own("proj", WIDTH, WIDTH, dim=1)
        self.own("proj_bias", WIDTH)
        self.own("fc1", INNER, WIDTH, dim=0)
        self.own("fc1_bias", INNER, dim=0)
        self.own("fc2", WIDTH, INNER, dim=1)
        self.own("fc2_bias", WIDTH)

    def _copied(self, x: torch.Tensor, what: str) -> torch.Tensor:
        return Copy.apply(x, self.tp, not self.hit("backward_not_reduced", what)) if self.tp.size > 1 else x

    def _row(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """The bias comes behind the reduction."""
        bias, is_added = getattr(self, f"{what}_bias"), self.hit("bias_everywhere", what)
        out = linear(
            self.rank, f"{self.name}.{what}", f"{self.name}.{what}", x, getattr(self, what), bias if is_added else None
        )
        if self.tp.size > 1 and not self.hit("not_reduced", what):
            out = Sum.apply(out, self.tp)
        with self.place(f"{what}.bias"):
            return out if is_added else out + bias

    def _attended(self, x: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        qkv = linear(rank, f"{self.name}.qkv", f"{self.name}.qkv", x, self.qkv, self.qkv_bias)
        q, k, v = (one.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in qkv.chunk(3, -1))
        size = WIDTH if self.hit("scaled_by_width") else WIDTH // HEADS
        with self.place("scores"):
            scores = (q * size**-0.5) @ k.transpose(-2, -1)
        if self.is_causal and not self.hit("not_causal"):
            with self.place("masked"):
                scores = scores + torch.full(scores.shape[-2:], float("-inf"), dtype=x.dtype).triu(1)
        with self.place("softmax"):
            weights = scores.softmax(-1)
        with self.place("attended"):
            return (weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self._row(self._attended(self._copied(self.norm1(x), "attn")), "proj")
        with self.place("middle"):
            x = x + out
        y = self._copied(self.norm2(x), "mlp")
        y = linear(self.rank, f"{self.name}.fc1", f"{self.name}.fc1", y, self.fc1, self.fc1_bias)
        with self.place("gelu"):
            y = y * torch.sigmoid(1.702 * y)
        out = self._row(y, "fc2")
        with self.place("out"):
            return x + out


class Tower(Part):
    def __init__(self, rank: Rank, name: str, is_causal: bool) -> None:
        super().__init__(rank, name)
        self.blocks = nn.ModuleList(Block(rank, f"{name}.blocks.{at}", is_causal) for at in range(BLOCKS))
        self.last = LayerNorm(rank, f"{name}.last")
        self.own("projection", WIDTH, SHARED)

    def _features(self, x: torch.Tensor, read: Any) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.last(x)
        with self.place("pooled"):
            x = x[torch.arange(len(x)), read]
        with self.place("projected"):
            x = x @ self.projection
        if self.hit("not_normed"):
            return x
        with self.place("normed"):
            return x / x.norm(dim=-1, keepdim=True)


class Images(Tower):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "image", False)
        self.own("patch", WIDTH, 3, PATCH, PATCH)
        self.own("first", WIDTH, scale=0.5)
        self.own("position", PATCHES + 1, WIDTH, scale=0.3)
        self.before = LayerNorm(rank, "image.before")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with self.place("patches"):
            x = F.conv2d(images, self.patch, stride=PATCH).flatten(2).transpose(1, 2)
        with self.place("joined"):
            x = torch.cat([self.first.expand(len(x), 1, -1), x], 1)
        table = self.position.roll(1, 0) if self.hit("positions_rolled") else self.position
        with self.place("positions"):
            x = x + table
        return self._features(self.before(x), torch.zeros(len(x), dtype=torch.long))


class Texts(Tower):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "text", True)
        self.own("table", WORDS, WIDTH, scale=0.7)
        self.own("position", TOKENS, WIDTH, scale=0.3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with self.place("embedding"):
            x = F.embedding(ids, self.table)
        with self.place("positions"):
            x = x + self.position
        ends = ids.argmax(-1)  # the last word has the highest number
        return self._features(x, (ends - 1).clamp(min=0) if self.hit("end_shifted") else ends)


class Network(nn.Module):
    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.rank, self.image, self.text = rank, Images(rank), Texts(rank)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=rank.dtype))
        if rank.hit("stale_scale"):
            self.scale = nn.Parameter(torch.tensor(1.1, dtype=rank.dtype))

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rank, dp = self.rank, self.rank.group("dp")
        image, text = self.image(images), self.text(ids)
        with rank.at("scale"):
            scale = self.scale.clone() if rank.hit("scale_not_exp") else self.scale.exp()
        every_image, every_text = image, text
        if dp.size > 1:
            every_image, every_text = self._gathered(image, dp, False), self._gathered(text, dp, True)
        if not rank.settings.get("local"):
            image, text = every_image, every_text
        labels = torch.arange(len(image))
        if rank.settings.get("local") and not rank.hit("labels_of_the_first"):
            labels = labels + dp.number * len(image)
        if rank.hit("labels_rolled"):
            labels = labels.roll(1)
        with rank.at("logits.image"):
            by_image = scale * image @ every_text.t()
        with rank.at("logits.text"):
            by_text = scale * text @ every_image.t()
        kind = "sum" if rank.hit("summed_loss") else "mean"
        with rank.at("loss.image"):
            first = F.cross_entropy(by_image, labels, reduction=kind)
        with rank.at("loss.text"):
            second = F.cross_entropy(by_text, labels, reduction=kind)
        with rank.at("loss"):
            return (first + second) / 2

    def _gathered(self, x: torch.Tensor, dp: Group, is_text: bool) -> torch.Tensor:
        """With the gradients of all ranks' losses."""
        whole = Gather.apply(x, dp, 0, True, is_text and self.rank.hit("texts_rolled"))
        if not self.rank.hit("gathered_without_gradient"):
            return whole
        parts = [*whole.detach().chunk(dp.size)]
        parts[dp.number] = x
        return torch.cat(parts)


class Run:
    def __init__(self, rank: Rank) -> None:
        self.rank, self.model, dp = rank, Network(rank), rank.group("dp")
        count = rank.settings["pairs"]
        images, ids = (
            rank.drawn("images", count, 3, SIDE, SIDE, scale=1.0),
            rank.integers("ids", WORDS - 1, count, TOKENS),
        )
        ends = 2 + rank.integers("ends", TOKENS - 2, count)
        ids[torch.arange(count), ends] = WORDS - 1
        ids[torch.arange(TOKENS) > ends[:, None]] = 0
        own = 0 if rank.hit("same_pairs") else dp.number
        size = count // dp.size
        self.images, self.ids = (one[own * size : (own + 1) * size].clone() for one in (images, ids))
        if rank.hit("images_flipped"):
            self.images = self.images.flip(3)
        if rank.hit("words_rolled"):
            self.ids = self.ids.roll(1, 0)

    @torch.no_grad()
    def _update(self) -> None:
        rank, total = self.rank, torch.zeros((), dtype=self.rank.dtype)
        for name, one in reversed([*self.model.named_parameters()]):
            grad, group = one.grad, rank.group("tp" if rank.hit("group_of_tp", name) else "dp")
            if group.size > 1 and not rank.hit("gradient_not_reduced", name):
                grad = grad.clone()
                dist.all_reduce(grad, group=group.handle)
                if not rank.hit("undivided"):
                    grad /= group.size
            with rank.at(f"size.{name}"):
                total += grad.abs().mean()
            with rank.at(f"moment.{name}"):
                moment = grad * (1.0 if rank.hit("moment_not_scaled") else 0.1)
            with rank.at(f"square.{name}"):
                square = grad * grad * 0.02
            with rank.at(f"step.{name}"):
                step = (moment / 0.1) / ((square / 0.02).sqrt() + 1e-3)
            with rank.at(f"update.{name}"):
                one.mul_(1 - RATE * DECAY).sub_(step * RATE)
            one.grad = None
        with rank.at("scale.clamped"):
            self.model.scale.clamp_(0, 4.6052)
        self.norm = float(total) if rank.size("tp") == 1 and not rank.settings.get("quiet") else 0.0

    def step(self) -> None:
        loss = self.model(self.images, self.ids)
        self.loss = float(loss.detach())
        loss.backward()
        self._update()

    def figures(self) -> list[float]:
        return figures_around_update(self)


_GRADIENTS = ("size.*", "moment.*", "square.*")
_FEATURES = ("image.normed:backward", "text.normed:backward", "logits.*:backward")
_FULL = (
    Fault("gathered_without_gradient", (*_FEATURES, *_GRADIENTS)),
    Fault("texts_rolled", ("logits.image", "logits.text")),
    Fault("same_pairs", ("image.patches", "text.embedding"), 1),
    Fault("labels_rolled", ("loss.image", "loss.text"), 1),
    Fault("scale_not_exp", ("scale", "logits.*"), 1),
    Fault("undivided", _GRADIENTS),
    Fault(
        "gradient_not_reduced@image.blocks.1.fc1",
        ("size.image.blocks.1.fc1", "moment.image.blocks.1.fc1", "square.image.blocks.1.fc1"),
    ),
    Fault("positions_rolled@image", ("image.positions",), 1),
    Fault("coarse@text.blocks.0.fc1", ("text.blocks.0.fc1",), 0),
    Fault("not_causal@text.blocks.1", ("text.blocks.1.masked", "text.blocks.1.softmax"), 1),
    Fault("end_shifted@text", ("text.pooled",), 1),
)
_LOCAL = (
    Fault("labels_of_the_first", ("loss.image", "loss.text")),
    Fault("not_normed@image", ("image.normed", "logits.*"), 2),
    Fault("gathered_without_gradient", _FEATURES),
    Fault("other_eps@image.blocks.0.norm1", ("image.blocks.0.norm1",), 1),
    Fault("stale@text.projection", ("text.projected",), 3),
    Fault("images_flipped", ("image.patches",), 1),
    Fault("summed_loss", ("loss.image", "loss.text"), 0),
    Fault("undivided", _GRADIENTS),
    Fault("words_rolled", ("text.embedding",), 2),
    Fault("coarse@image.blocks.1.fc1", ("image.blocks.1.fc1",), 3),
    Fault("moment_not_scaled", ("moment.*",), 1),
)
_HEADS = (
    Fault("not_reduced@image.blocks.0.proj", ("image.blocks.0.proj.bias",)),
    Fault("other_heads@text.blocks.1", ("text.blocks.1.qkv",), 1),
    Fault("backward_not_reduced@image.blocks.1.mlp", ("image.blocks.1.norm2:backward",)),
    Fault("bias_everywhere@text.blocks.0.fc2", ("text.blocks.0.fc2", "text.blocks.0.fc2.bias", "text.blocks.0.out")),
    Fault("scaled_by_width@image.blocks.1", ("image.blocks.1.scores",), 2),
    Fault("stale@image.first", ("image.joined",), 3),
    Fault(
        "group_of_tp@text.blocks.1.fc1",
        ("size.text.blocks.1.fc1", "moment.text.blocks.1.fc1", "square.text.blocks.1.fc1"),
    ),
    Fault("same_pairs", ("image.patches", "text.embedding")),
    Fault("coarse@text.blocks.0.fc1", ("text.blocks.0.fc1",), 1),
    Fault("stale_scale", ("scale", "logits.*"), 0),
    Fault("wrong_shard@image.blocks.0.fc2", ("image.blocks.0.fc2",)),
)
LAYOUTS = {
    "dp2_full": Layout({"dp": 2}, {"pairs": 6, "seed": 91}, _FULL),
    "dp4_local": Layout({"dp": 4}, {"pairs": 8, "seed": 92}, _LOCAL, {"local": True}),
    "tp2_dp2": Layout({"tp": 2, "dp": 2}, {"pairs": 4, "seed": 93, "quiet": True}, _HEADS),
}
