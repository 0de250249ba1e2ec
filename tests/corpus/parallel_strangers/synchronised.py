"""Batch norm over ranks, regions of split channels, rows of an image on other ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tests.corpus.parallel_strangers.world import Group, Rank, gathered

EPS = 1e-5


class SumOverRanks(torch.autograd.Function):
    """A sum over ranks; its gradient is summed too, or handed on."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sums_gradient: bool) -> torch.Tensor:
        ctx.group, ctx.sums_gradient = group, sums_gradient
        x = x.clone()
        dist.all_reduce(x, group=group.handle)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.sums_gradient:
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group.handle)
        return grad, None, None


class Copied(torch.autograd.Function):
    """What all ranks hold, read by each for its own channels: the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, is_reduced: bool) -> torch.Tensor:
        ctx.group, ctx.is_reduced = group, is_reduced
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.is_reduced:
            grad = grad.clone()
            dist.all_reduce(grad, group=ctx.group.handle)
        return grad, None, None


class SyncBatchNorm(torch.autograd.Function):
    """As torch.nn.SyncBatchNorm: means, variances and counts are gathered; two sums are reduced backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, rank: Rank, name: str, group: Group
    ) -> Any:
        dims, channels = (0, 2, 3), x.shape[1]
        mean, var = x.mean(dims), x.var(dims, unbiased=False)
        count = mean.new_full((1,), x.numel() // channels)
        every = gathered(torch.cat([mean, var, count])[None], group, 0)
        if rank.hit("statistics_local", name):
            every = every[group.number : group.number + 1]
        means, variances, counts = torch.split(every, [channels, channels, 1], dim=1)
        if rank.hit("counts_equal", name):
            counts = torch.ones_like(counts)
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        var = ((variances + (means - mean) ** 2) * counts).sum(0) / total
        scale = torch.rsqrt(var + (1e-1 if rank.hit("other_eps", name) else EPS))
        ctx.save_for_backward(x, weight, mean, scale, total)
        ctx.rank, ctx.name, ctx.group = rank, name, group
        shape = (1, -1, 1, 1)
        y = (x - mean.view(shape)) * (scale * weight).view(shape) + bias.view(shape)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        x, weight, mean, scale, total = ctx.saved_tensors
        shape, dims = (1, -1, 1, 1), (0, 2, 3)
        centred = x - mean.view(shape)
        sum_grad, sum_product = grad.sum(dims), (grad * centred).sum(dims)
        grad_weight, grad_bias = sum_product * scale, sum_grad
        sums = torch.cat([sum_grad, sum_product])
        if not ctx.rank.hit("statistics_backward", ctx.name):
            dist.all_reduce(sums, group=ctx.group.handle)
        sum_grad, sum_product = sums.chunk(2)
        inner = grad - (sum_grad / total).view(shape) - centred * (scale**2 * sum_product / total).view(shape)
        return inner * (scale * weight).view(shape), grad_weight, grad_bias, None, None, None


def normalised_by_parts(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, rank: Rank, name: str, group: Group
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm from sums, which are reduced over ranks."""
    shape, channels = (1, -1, 1, 1), x.shape[1]
    with rank.at(f"{name}.sums"):
        sums = torch.cat([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3)), x.new_full((1,), x.numel() // channels)])
    is_local = rank.hit("statistics_local", name)
    if group.size > 1 and not is_local:
        own = sums[-1]
        sums = SumOverRanks.apply(sums, group, not rank.hit("statistics_backward", name))
        count = own if rank.hit("count_local", name) else sums[-1]
    else:
        count = sums[-1]
    with rank.at(f"{name}.mean"):
        mean = sums[:channels] / count
    with rank.at(f"{name}.variance"):
        var = sums[channels:-1] / count - mean * mean
    with rank.at(name):
        scale = torch.rsqrt(var + (1e-1 if rank.hit("other_eps", name) else EPS))
        y = (x - mean.view(shape)) * (scale * weight).view(shape) + bias.view(shape)
    return y, mean, var


class WithHalo(torch.autograd.Function):
    """Rows of an image with a row of each neighbour; zeros beyond the image."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rank: Rank, name: str, group: Group) -> torch.Tensor:
        ctx.rank, ctx.name, ctx.group = rank, name, group
        if rank.hit("halo_missing", name):
            return F.pad(x, (0, 0, 1, 1))
        ends = (x[:, :, -1:], x[:, :, :1]) if rank.hit("halo_of_the_other_end", name) else (x[:, :, :1], x[:, :, -1:])
        above, below = WithHalo.exchanged(*ends, group)
        return torch.cat([above, x, below], dim=2)

    @staticmethod
    def exchanged(up: torch.Tensor, down: torch.Tensor, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Send `up` to the rank above and `down` to that below; return what these two sent."""
        above, below, work = torch.zeros_like(up).contiguous(), torch.zeros_like(down).contiguous(), []
        for number, sent, received in ((group.number - 1, up, above), (group.number + 1, down, below)):
            if 0 <= number < group.size:
                peer = group.ranks[number]
                work += [dist.isend(sent.contiguous(), peer, group=group.handle),
                         dist.irecv(received, peer, group=group.handle)]  # fmt: skip
        for one in work:
            one.wait()
        return above, below

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        own = grad[:, :, 1:-1].clone()
        if not ctx.rank.hit("halo_backward", ctx.name):
            above, below = WithHalo.exchanged(grad[:, :, :1], grad[:, :, -1:], ctx.group)
            own[:, :, :1] += above
            own[:, :, -1:] += below
        return own, None, None, None
