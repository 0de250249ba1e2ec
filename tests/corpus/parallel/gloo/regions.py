"""Collectives with their gradients, as Megatron has them: each names a forward and a backward of one region."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

Group = Any


def all_reduce(x: torch.Tensor, group: Group, op: Any = None) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x, op=op or dist.ReduceOp.SUM, group=group)
    return x


def all_gather(x: torch.Tensor, group: Group, dim: int, order: Optional[list[int]] = None) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    if order:
        parts = [parts[at] for at in order]
    return torch.cat(parts, dim).contiguous()


def reduce_scatter(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    parts = [one.contiguous() for one in x.chunk(dist.get_world_size(group), dim)]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts, group=group)
    return out


def own_part(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


class Copy(torch.autograd.Function):
    """What all ranks hold, read by each for its own part: the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, is_reduced: bool) -> torch.Tensor:
        ctx.group, ctx.is_reduced = group, is_reduced
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return all_reduce(grad, ctx.group) if ctx.is_reduced else grad, None, None


class Reduce(torch.autograd.Function):
    """The sum of what each rank has a term of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class GatherSequence(torch.autograd.Function):
    """All of a sequence of which each rank holds a part: the gradients are summed, and scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int, order: Any, is_reduced: bool) -> torch.Tensor:
        ctx.group, ctx.dim, ctx.is_reduced = group, dim, is_reduced
        return all_gather(x, group, dim, order)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        back = reduce_scatter if ctx.is_reduced else own_part
        return back(grad, ctx.group, ctx.dim), None, None, None, None


class ScatterSums(torch.autograd.Function):
    """A part of the sum of what each rank has a term of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return reduce_scatter(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return all_gather(grad, ctx.group, ctx.dim), None, None


class GatherParts(torch.autograd.Function):
    """All of a tensor of which each rank holds a part, used alike by all: the gradient is each rank's part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gather(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_part(grad, ctx.group, ctx.dim), None, None


class Exchange(torch.autograd.Function):
    """Rows to and from the ranks of a group: `sent` and `received` rows by rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        out = grad.new_empty((sum(ctx.sent), *grad.shape[1:]))
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return out, None, None, None
