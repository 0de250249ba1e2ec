"""What a network does between ranks, with gradients; parameters of which a rank loads its part."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.world import Group, Rank, cut, gathered


def shard(
    rank: Rank,
    name: str,
    *shape: int,
    dim: Optional[int] = None,
    axis: str = "tp",
    scale: float = 0.0,
    offset: float = 0.0,
) -> nn.Parameter:
    """A parameter; `dim`: along which the ranks of an axis hold parts."""
    whole, group = rank.drawn(name, *shape, scale=scale, offset=offset), rank.group(axis)
    if rank.hit("stale", name):
        whole = whole * (1 + 0.1 * rank.drawn(f"{name}.older", *shape, scale=1.0))
    number = (group.number + 1) % group.size if rank.hit("wrong_shard", name) else group.number
    parameter = nn.Parameter(whole if dim is None else cut(whole, dim, number, group.size))
    parameter.path, parameter.is_split = name, dim is not None
    return parameter


def linear(rank: Rank, place: str, name: str, x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    with rank.at(place):
        if rank.hit("coarse", name):
            out = F.linear(x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16())
            return out.to(x.dtype)
        return F.linear(x, weight, bias)


def summed(x: torch.Tensor, group: Group) -> torch.Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group.handle)
    return x


class Sum(torch.autograd.Function):
    """A sum over ranks; `both`: of the gradients too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, both: bool = False) -> torch.Tensor:
        ctx.group, ctx.both = group, both
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return summed(grad, ctx.group) if ctx.both else grad, None, None


class Copy(torch.autograd.Function):
    """The same tensor on all ranks, each of which makes a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sums: bool = True) -> torch.Tensor:
        ctx.group, ctx.sums = group, sums
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return summed(grad, ctx.group) if ctx.sums else grad, None, None


class Gather(torch.autograd.Function):
    """The parts of all ranks; `sums`: each rank makes a part of the gradient of the whole."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: Group, dim: int, sums: bool = False, rolls: bool = False
    ) -> torch.Tensor:
        ctx.group, ctx.dim, ctx.sums = group, dim, sums
        whole = gathered(x, group, dim)
        return torch.roll(whole, x.shape[dim], dim) if rolls else whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        group = ctx.group
        parts = [one.contiguous() for one in grad.chunk(group.size, ctx.dim)]
        if not ctx.sums:
            return parts[group.number], None, None, None, None
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=group.handle)
        return own, None, None, None, None


def exchanged(x: torch.Tensor, group: Group, split: int, join: int) -> torch.Tensor:
    """Give each rank its part along one axis; join the parts that come along another."""
    sent = torch.stack(x.chunk(group.size, split)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.handle)
    return torch.cat(received.unbind(0), join)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, split: int, join: int) -> torch.Tensor:
        ctx.group, ctx.split, ctx.join = group, split, join
        return exchanged(x, group, split, join)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return exchanged(grad, ctx.group, ctx.join, ctx.split), None, None, None


class Halo(torch.autograd.Function):
    """Rows of an image with one row of each neighbour, zeros at the borders."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, fault: str = "") -> torch.Tensor:
        ctx.group, ctx.fault = group, fault
        above, below = Halo.swapped(x[:, :, :1], x[:, :, -1:], group)
        if fault == "sides":
            above, below = below, above
        if fault == "zeros":
            above, below = torch.zeros_like(above), torch.zeros_like(below)
        return torch.cat([above, x, below], 2)

    @staticmethod
    def swapped(first: torch.Tensor, last: torch.Tensor, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Send the first row up and the last one down; what comes from above and below."""
        above, below, work = torch.zeros_like(first), torch.zeros_like(last), []
        if group.number > 0:
            peer = group.ranks[group.number - 1]
            work += [dist.isend(first.contiguous(), peer), dist.irecv(above, peer)]
        if group.number < group.size - 1:
            peer = group.ranks[group.number + 1]
            work += [dist.isend(last.contiguous(), peer), dist.irecv(below, peer)]
        for one in work:
            one.wait()
        return above, below

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        own = grad[:, :, 1:-1].clone()
        if ctx.fault != "backward":
            above, below = Halo.swapped(grad[:, :, :1], grad[:, :, -1:], ctx.group)
            own[:, :, :1] += above
            own[:, :, -1:] += below
        return own, None, None
