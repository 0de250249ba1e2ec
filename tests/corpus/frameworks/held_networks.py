"""Networks of the held suite in torch: no rule of npucmp is to be tuned on them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.corpus.frameworks.blocks import Attention, ConvNorm, Encoder, RMSNorm, causal

WIDTH, HEADS, VOCABULARY = 32, 4, 61


class Squeeze(nn.Module):
    """Scales channels by a function of their means."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.fc2(F.silu(self.fc1(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        inner = 4 * into
        self.expand = ConvNorm(into, inner, 1, act="silu")
        self.depth = ConvNorm(inner, inner, 3, stride, inner, act="silu")
        self.squeeze = Squeeze(inner)
        self.project = ConvNorm(inner, out, 1, act="")
        self.same = into == out and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.squeeze(self.depth(self.expand(x))))
        return y + x if self.same else y


class EfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 8, 3, 2, act="silu")
        self.blocks = nn.ModuleList([MBConv(8, 12, 1), MBConv(12, 12, 1), MBConv(12, 16, 2), MBConv(16, 16, 1)])
        self.top, self.head = ConvNorm(16, 40, 1, act="silu"), nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(F.adaptive_avg_pool2d(self.top(x), 1).flatten(1))


class T5Layer(nn.Module):
    """Attention without scale, with a bias by distance; in the decoder also attention of the encoder's states."""

    def __init__(self, crosses: bool):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attn = Attention(WIDTH, HEADS, bias=False, scaled=False)
        if crosses:
            self.norm3, self.cross = RMSNorm(WIDTH), Attention(WIDTH, HEADS, bias=False, scaled=False)
        self.wi, self.wo = nn.Linear(WIDTH, 3 * WIDTH, False), nn.Linear(3 * WIDTH, WIDTH, False)

    def forward(self, x, bias, memory=None):  # type: ignore[no-untyped-def]
        x = x + self.attn(self.norm1(x), bias)
        if memory is not None:
            x = x + self.cross(self.norm3(x), None, memory)
        return x + self.wo(F.relu(self.wi(self.norm2(x))))


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places_in, self.places_out = nn.Embedding(8, HEADS), nn.Embedding(8, HEADS)
        self.encoder = nn.ModuleList([T5Layer(False) for _ in range(2)])
        self.decoder = nn.ModuleList([T5Layer(True) for _ in range(2)])
        self.norm_in, self.norm_out = RMSNorm(WIDTH), RMSNorm(WIDTH)
        distance = torch.arange(12)[None] - torch.arange(12)[:, None]
        self.register_buffer("bucket", distance.clamp(-4, 3) + 4)
        self.register_buffer("mask", causal(12))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        bias = self.places_in(self.bucket).permute(2, 0, 1).unsqueeze(0)
        x = self.words(ids)
        for layer in self.encoder:
            x = layer(x, bias)
        memory = self.norm_in(x)
        bias = self.places_out(self.bucket).permute(2, 0, 1).unsqueeze(0) + self.mask
        y = self.words(torch.flip(ids, (1,)))
        for layer in self.decoder:
            y = layer(y, bias, memory)
        return F.linear(self.norm_out(y) * WIDTH**-0.5, self.words.weight)


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.token1, self.token2 = nn.Linear(16, 24), nn.Linear(24, 16)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.token2(F.gelu(self.token1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        x = x + y
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.ModuleList([MixerBlock() for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Gru(nn.Module):
    """A bidirectional gated layer written out, its states joined."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.xf, self.hf = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.xb, self.hb = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(2 * WIDTH, 7)

    def walk(self, x: torch.Tensor, times: list[int], by_x: nn.Module, by_h: nn.Module) -> list[torch.Tensor]:
        h = torch.zeros(x.shape[0], WIDTH)
        states = []
        for t in times:
            xr, xz, xn = torch.chunk(by_x(x[:, t]), 3, -1)
            hr, hz, hn = torch.chunk(by_h(h), 3, -1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = (1 - z) * n + z * h
            states.append(h)
        return states

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        ahead = self.walk(x, [0, 1, 2, 3], self.xf, self.hf)
        back = self.walk(x, [3, 2, 1, 0], self.xb, self.hb)[::-1]
        return self.head(torch.cat([torch.stack(ahead, 1), torch.stack(back, 1)], -1))


class Whisper(nn.Module):
    """Two convolutions over time, and an encoder of blocks with norms in front."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 20)
        self.conv1, self.conv2 = nn.Conv1d(20, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, 2, 1)
        self.places = nn.Parameter(torch.zeros(6, WIDTH))
        self.layers = nn.ModuleList([Encoder(WIDTH, HEADS) for _ in range(3)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids).transpose(1, 2)
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


HELD = {"efficientnet": EfficientNet, "t5": T5, "mixer": Mixer, "gru": Gru, "whisper": Whisper}
IMAGES = {"efficientnet", "mixer"}
