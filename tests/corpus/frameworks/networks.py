"""Networks of the open suite in torch: images (B, C, H, W) or tokens (B, S) in, one tensor out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.corpus.frameworks.blocks import Attention, ConvNorm, Encoder, GatedMlp, RMSNorm, causal

WIDTH, HEADS, VOCABULARY = 32, 4, 61


class Residual(nn.Module):
    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.a, self.b = ConvNorm(into, out, 3, stride), ConvNorm(out, out, 3, act="")
        self.short = ConvNorm(into, out, 1, stride, act="") if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.b(self.a(x))
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 16, 3)
        self.blocks = nn.ModuleList(
            [Residual(16, 16, 1), Residual(16, 24, 2), Residual(24, 24, 1), Residual(24, 32, 2)]
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 2)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Inverted(nn.Module):
    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.expand = ConvNorm(into, 3 * into, 1, act="relu6")
        self.depth = ConvNorm(3 * into, 3 * into, 3, stride, 3 * into, act="relu6")
        self.project = ConvNorm(3 * into, out, 1, act="")
        self.same = into == out and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.depth(self.expand(x)))
        return x + y if self.same else y


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 8, 3, 2, act="relu6")
        self.blocks = nn.ModuleList([Inverted(8, 12, 1), Inverted(12, 12, 1), Inverted(12, 16, 2), Inverted(16, 16, 1)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, 1e-12)
        self.layers = nn.ModuleList([Encoder(WIDTH, HEADS, False, 1e-12) for _ in range(3)])
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.register_buffer("seen", torch.cat([torch.ones(2, 9), torch.tensor([[1.0] * 3, [0.0] * 3])], 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (1.0 - self.seen[:, None, None, :]) * -10000.0
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def rotation(length: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin (length, width) of the rotary embedding."""
    angles = torch.outer(torch.arange(length).float(), 100.0 ** (-torch.arange(0, width, 2).float() / width))
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


class RotaryAttention(Attention):
    """Attention with rotary embeddings and shared key and value heads."""

    def __init__(self, width: int, heads: int, shared: int):
        super().__init__(width, heads, bias=False)
        self.shared = shared
        self.k, self.v = (nn.Linear(width, width * shared // heads, False) for _ in range(2))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x, mask, cos, sin):  # type: ignore[no-untyped-def,override]
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, length, self.shared, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.shared, -1).transpose(1, 2)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.shared, 1) for t in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5 + mask
        mixed = torch.matmul(F.softmax(scores, -1), v)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class LlamaLayer(nn.Module):
    def __init__(self, mlp: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attn, self.mlp = RotaryAttention(WIDTH, HEADS, 2), mlp

    def forward(self, x, mask, cos, sin):  # type: ignore[no-untyped-def]
        x = x + self.attn(self.norm1(x), mask, cos, sin)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([LlamaLayer(self.mlp()) for _ in range(3)])
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, False)
        cos, sin = rotation(12, WIDTH // HEADS)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("mask", causal(12))

    def mlp(self) -> nn.Module:
        return GatedMlp(WIDTH, 2 * WIDTH + 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, self.mask, self.cos, self.sin)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """Four gated experts, all computed, mixed by a softmax over the router's two best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, False)
        self.experts = nn.ModuleList([GatedMlp(WIDTH, 40) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = F.softmax(self.router(x), -1)
        second = torch.topk(shares, 2, -1)[0][..., 1:]
        shares = torch.where(shares >= second, shares, torch.zeros_like(shares))
        shares = shares / shares.sum(-1, keepdim=True)
        y = self.experts[0](x) * shares[..., 0:1]
        for k in range(1, 4):
            y = y + self.experts[k](x) * shares[..., k : k + 1]
        return y


class Moe(Llama):
    def mlp(self) -> nn.Module:
        return Experts()


class Lstm(nn.Module):
    """A recurrent layer, written out step by step, and a linear over its states."""

    gates = 4

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.x, self.h = nn.Linear(WIDTH, self.gates * WIDTH), nn.Linear(WIDTH, self.gates * WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 7)

    def step(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o = torch.chunk(self.x(x) + self.h(h), 4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        h = c = torch.zeros(x.shape[0], WIDTH)
        states = []
        for t in range(6):
            h, c = self.step(x[:, t], h, c)
            states.append(h)
        return self.head(self.norm(torch.stack(states, 1)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = ConvNorm(3, 8, 3), ConvNorm(8, 16, 3)
        self.middle = nn.Conv2d(16, 24, 3, padding=1)
        self.norm = nn.GroupNorm(4, 24)
        self.up1, self.up2 = ConvNorm(40, 16, 3), ConvNorm(24, 8, 3)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = F.silu(self.norm(self.middle(F.max_pool2d(b, 2))))
        y = self.up1(torch.cat([F.interpolate(c, scale_factor=2.0, mode="nearest"), b], 1))
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), a], 1))
        return self.last(y)


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 17, WIDTH))
        self.layers = nn.ModuleList([Encoder(WIDTH, HEADS) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class ConvNextBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.fc1, self.fc2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.gamma * self.fc2(F.gelu(self.fc1(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, 2)
        self.stage1 = nn.ModuleList([ConvNextBlock(16) for _ in range(2)])
        self.down = nn.Conv2d(16, 24, 2, 2)
        self.stage2 = nn.ModuleList([ConvNextBlock(24) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(24, 1e-6), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.stage1:
            x = block(x)
        x = self.down(x)
        for block in self.stage2:
            x = block(x)
        return self.head(self.norm(x.mean((-2, -1))))


class Conv1D(nn.Module):
    """GPT-2's linear, whose weight is (in, out)."""

    def __init__(self, into: int, out: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(into, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return y.view(x.shape[0], x.shape[1], -1)


class Gpt2Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)
        self.fc1, self.fc2 = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.view(x.shape[0], x.shape[1], HEADS, -1).permute(0, 2, 1, 3)
            for t in self.qkv(self.norm1(x)).split(WIDTH, 2)
        )
        scores = torch.matmul(q, k.transpose(-1, -2)) / (WIDTH // HEADS) ** 0.5
        scores = torch.where(seen, scores, torch.tensor(-3.4e38))
        mixed = torch.matmul(F.softmax(scores, -1), v).permute(0, 2, 1, 3)
        x = self.o(mixed.reshape(x.shape)) + x
        y = self.fc1(self.norm2(x))
        y = 0.5 * y * (1.0 + torch.tanh(0.7978845608 * (y + 0.044715 * torch.pow(y, 3.0))))
        return x + self.fc2(y)


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList([Gpt2Layer() for _ in range(3)])
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.tril(torch.ones(12, 12)).bool())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, self.seen)
        return F.linear(self.norm(x), self.words.weight)


OPEN = {
    "resnet": ResNet, "mobilenet": MobileNet, "bert": Bert, "llama": Llama, "moe": Moe, "lstm": Lstm, "unet": UNet,
    "vit": ViT, "convnext": ConvNext, "gpt2": Gpt2,
}  # fmt: skip
IMAGES = {"resnet", "mobilenet", "unet", "vit", "convnext", "efficientnet", "mixer"}
