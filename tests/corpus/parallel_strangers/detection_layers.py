"""Parts of a detector: Swin's windows, a block over all tokens whose heads are exchanged, a decoder of queries."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.regions import Copy, Exchange, Gather, Sum, linear, shard
from tests.corpus.parallel_strangers.world import Rank, cut

WIDTH, HEADS, HEAD, INNER, WINDOW, QUERIES = 32, 4, 8, 64, 4, 6


class Part(nn.Module):
    """What the parts share: parameters by name, products and norms at places, sums over ranks of heads."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name

    def own(self, key: str, *shape: int, dim: Optional[int] = None, offset: float = 0.0, scale: float = 0.0) -> None:
        path = f"{self.name}.{key}"
        setattr(self, key, shard(self.rank, path, *shape, dim=dim, offset=offset, scale=scale))

    def own_norm(self, key: str, width: int = WIDTH) -> None:
        self.own(f"{key}_weight", width, offset=1.0)
        self.own(f"{key}_bias", width)

    def own_linear(self, key: str, out: int, inner: int, dim: Optional[int] = None, blocks: int = 1) -> None:
        """`blocks`: products of one input in one parameter, each of which is split."""
        self.own(f"{key}_weight", out, inner, dim=dim)
        self.own(f"{key}_bias", out, dim=0 if dim == 0 else None)
        tp = self.rank.group("tp")
        if blocks > 1 and tp.size > 1 and not self.rank.hit("not_by_blocks", f"{self.name}.{key}"):
            for kind, shape in (("weight", (out, inner)), ("bias", (out,))):
                whole = self.rank.drawn(f"{self.name}.{key}_{kind}", *shape).chunk(blocks)
                getattr(self, f"{key}_{kind}").data = torch.cat([cut(one, 0, tp.number, tp.size) for one in whole])

    def linear(self, x: torch.Tensor, key: str) -> torch.Tensor:
        name = f"{self.name}.{key}"
        return linear(self.rank, name, name, x, getattr(self, f"{key}_weight"), getattr(self, f"{key}_bias"))

    def row_linear(self, x: torch.Tensor, key: str) -> torch.Tensor:
        """A sum over ranks, with the bias behind it."""
        rank, tp, name = self.rank, self.rank.group("tp"), f"{self.name}.{key}"
        if tp.size == 1:
            return self.linear(x, key)
        bias = getattr(self, f"{key}_bias")
        everywhere = rank.hit("bias_everywhere", name)
        x = linear(rank, name, name, x, getattr(self, f"{key}_weight"), bias if everywhere else None)
        x = x if rank.hit("not_reduced", name) else Sum.apply(x, tp)
        return x if everywhere else x + bias

    def norm(self, x: torch.Tensor, key: str) -> torch.Tensor:
        eps = 1e-1 if self.rank.hit("other_eps", f"{self.name}.{key}") else 1e-5
        with self.rank.at(f"{self.name}.{key}"):
            return F.layer_norm(x, x.shape[-1:], getattr(self, f"{key}_weight"), getattr(self, f"{key}_bias"), eps)

    def copied(self, x: torch.Tensor, what: str) -> torch.Tensor:
        tp, sums = self.rank.group("tp"), not self.rank.hit("backward_not_reduced", f"{self.name}.{what}")
        return Copy.apply(x, tp, sums) if tp.size > 1 else x

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.copied(self.norm(x, "norm2"), "mlp"), "fc1")
        with self.rank.at(f"{self.name}.gelu"):
            y = F.gelu(y)
        y = self.row_linear(y, "fc2")
        with self.rank.at(f"{self.name}.out"):
            return x + y


class Block(Part):
    """Attention within windows, which may be shifted, with a table of biases; or over all tokens, without ("whole")."""

    def __init__(self, rank: Rank, name: str, shift: int = 0, is_whole: bool = False) -> None:
        super().__init__(rank, name)
        self.shift, self.is_whole = shift, is_whole
        self.own_norm("norm1")
        self.own_norm("norm2")
        self.own_linear("qkv", 3 * WIDTH, WIDTH, 0, 3)
        self.own_linear("proj", WIDTH, WIDTH, 1)
        self.own_linear("fc1", INNER, WIDTH, 0)
        self.own_linear("fc2", WIDTH, INNER, 1)
        if is_whole:
            return
        self.own("table", (2 * WINDOW - 1) ** 2, HEADS, dim=1, scale=0.5)
        grid = torch.stack(torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")).flatten(1)
        apart = grid[:, :, None] - grid[:, None, :] + WINDOW - 1
        self.index = (apart[0] * (2 * WINDOW - 1) + apart[1]).flatten()

    def _mask(self, height: int, width: int) -> torch.Tensor:
        areas = torch.zeros(1, height, width, 1)
        cuts = (slice(0, -WINDOW), slice(-WINDOW, -self.shift), slice(-self.shift, None))
        for number, (rows, columns) in enumerate((one, other) for one in cuts for other in cuts):
            areas[:, rows, columns] = number
        areas = self._windows(areas).squeeze(-1)
        return (areas[:, None, :] != areas[:, :, None]).to(self.rank.dtype) * -100.0

    @staticmethod
    def _windows(x: torch.Tensor) -> torch.Tensor:
        count, height, width, inner = x.shape
        x = x.view(count, height // WINDOW, WINDOW, width // WINDOW, WINDOW, inner)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, inner)

    def _in_windows(self, x: torch.Tensor) -> torch.Tensor:
        rank, name = self.rank, self.name
        count, height, width, _ = x.shape
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        qkv = self.linear(self._windows(x), "qkv")
        q, k, v = qkv.unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4).unbind(0)
        with rank.at(f"{name}.scores"):
            scores = q * HEAD**-0.5 @ k.transpose(-2, -1)
        bias = self.table[self.index].view(WINDOW**2, WINDOW**2, -1).permute(2, 0, 1)
        with rank.at(f"{name}.biased"):
            scores = scores + bias.unsqueeze(0)
        if self.shift and not rank.hit("mask_missing", name):
            mask = self._mask(height, width)
            with rank.at(f"{name}.masked"):
                scores = scores.view(count, len(mask), *scores.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
            scores = scores.flatten(0, 1)
        with rank.at(f"{name}.softmax"):
            coarse = rank.hit("coarse", f"{name}.softmax")
            probs = F.softmax(scores.bfloat16() if coarse else scores, dim=-1).to(x.dtype)
        out = self.row_linear((probs @ v).transpose(1, 2).flatten(2), "proj")
        out = out.view(count, height // WINDOW, width // WINDOW, WINDOW, WINDOW, WIDTH)
        out = out.permute(0, 1, 3, 2, 4, 5).reshape(count, height, width, WIDTH)
        return torch.roll(out, (self.shift, self.shift), (1, 2)) if self.shift else out

    def _over_all(self, x: torch.Tensor) -> torch.Tensor:
        rank, group = self.rank, self.rank.group("sp")
        parts: Any = self.linear(x, "qkv").unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4).unbind(0)
        if group.size > 1:
            parts = [Exchange.apply(one, group, 1, 2) for one in parts]
        with rank.at(f"{self.name}.attention"):
            out = F.scaled_dot_product_attention(*parts)
        if group.size > 1:
            out = Exchange.apply(out, group, 2, 1)
            if rank.hit("heads_order", self.name):
                out = torch.roll(out, HEADS // group.size, 1)
        return self.row_linear(out.transpose(1, 2).flatten(2), "proj")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.copied(self.norm(x, "norm1"), "attention")
        y = self._over_all(y) if self.is_whole else self._in_windows(y)
        with self.rank.at(f"{self.name}.attended"):
            x = x + y
        return self.mlp(x)


class Merging(Part):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "merge")
        self.own_norm("norm", 4 * WIDTH)
        self.own("reduction_weight", WIDTH, 4 * WIDTH)
        self.reduction_bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.linear(self.norm(torch.cat(corners, -1), "norm"), "reduction").flatten(1, 2)


class Decoder(Part):
    """Queries look at the memory, whose parts ranks of rows hold."""

    def __init__(self, rank: Rank, tokens: int) -> None:
        super().__init__(rank, "decoder")
        for key in ("norm1", "norm2", "norm3", "memory"):
            self.own_norm(key)
        self.own("queries", QUERIES, WIDTH, scale=1.0)
        self.own("places", tokens, WIDTH, scale=0.5)
        for key in ("q", "k", "v"):
            self.own_linear(key, WIDTH, WIDTH, 0)
        self.own_linear("proj", WIDTH, WIDTH, 1)
        self.own_linear("fc1", INNER, WIDTH, 0)
        self.own_linear("fc2", WIDTH, INNER, 1)

    def forward(self, memory: torch.Tensor, kept: Optional[torch.Tensor]) -> torch.Tensor:
        rank, sp = self.rank, self.rank.group("sp")
        memory = self.norm(memory, "memory")
        if sp.size > 1:
            memory = Gather.apply(memory, sp, 1, rank.hit("summed_again"), rank.hit("memory_rolled"))
        memory, x = self.copied(memory, "memory"), self.queries.expand(len(memory), -1, -1)
        q = self.linear(self.copied(self.norm(x, "norm1"), "queries"), "q")
        with rank.at("decoder.placed"):
            keys = memory + self.copied(self.places, "places")
        parts = (q, self.linear(keys, "k"), self.linear(memory, "v"))
        q, k, v = (one.unflatten(-1, (-1, HEAD)).transpose(1, 2) for one in parts)
        with rank.at("decoder.attention"):
            out = F.scaled_dot_product_attention(q, k, v)
        out = self.row_linear(out.transpose(1, 2).flatten(2), "proj")
        if kept is not None:
            with rank.at("decoder.dropout"):
                out = out * kept / 0.75
        with rank.at("decoder.attended"):
            x = x + out
        return self.norm(self.mlp(x), "norm3")
