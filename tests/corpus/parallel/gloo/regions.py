"""Collectives with their gradients, as Megatron has them: each names a forward and a backward of one region."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist


class Group(NamedTuple):
    """Ranks that communicate, and how: into one tensor or a list of tensors, in place or into a copy."""

    handle: Any
    size: int
    number: int  # of this rank in the group
    into_tensor: bool = False
    in_place: bool = False


def all_reduce(x: torch.Tensor, group: Group, op: Any = None) -> torch.Tensor:
    x = x.contiguous() if group.in_place else x.clone()
    dist.all_reduce(x, op=op or dist.ReduceOp.SUM, group=group.handle)
    return x


def all_gather(x: torch.Tensor, group: Group, dim: int, order: Optional[Sequence[int]] = None) -> torch.Tensor:
    """The parts of all ranks along a dimension; `order`: a wrong one."""
    if group.into_tensor and not order:
        out = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(out, x.contiguous(), group=group.handle)
        return out if dim == 0 else torch.cat(out.chunk(group.size, 0), dim)
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size)]
    dist.all_gather(parts, x.contiguous(), group=group.handle)
    if order:
        parts = [parts[at] for at in order]
    return torch.cat(parts, dim).contiguous()


def reduce_scatter(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    if group.into_tensor:
        x = x if dim == 0 else torch.cat(x.chunk(group.size, dim), 0)
        out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group.handle)
        return out
    parts = [one.contiguous() for one in x.chunk(group.size, dim)]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts, group=group.handle)
    return out


def own_part(x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
    return x.chunk(group.size, dim)[group.number].contiguous()


class Copy(torch.autograd.Function):
    """A tensor that all ranks hold, read by each for its own part: the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, is_reduced: bool) -> torch.Tensor:
        ctx.group, ctx.is_reduced = group, is_reduced
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return all_reduce(grad, ctx.group) if ctx.is_reduced else grad, None, None


class Reduce(torch.autograd.Function):
    """The sum of a tensor of which each rank has a term."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        if group.in_place:
            ctx.mark_dirty(x)
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class GatherSequence(torch.autograd.Function):
    """A whole sequence of which each rank holds a part: the gradients are summed, and scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int, order: Any, is_reduced: bool) -> torch.Tensor:
        ctx.group, ctx.dim, ctx.is_reduced = group, dim, is_reduced
        return all_gather(x, group, dim, order)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        back = reduce_scatter if ctx.is_reduced else own_part
        return back(grad, ctx.group, ctx.dim), None, None, None, None


class ScatterSums(torch.autograd.Function):
    """A part of the sum of a tensor of which each rank has a term."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return reduce_scatter(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return all_gather(grad, ctx.group, ctx.dim), None, None


class GatherParts(torch.autograd.Function):
    """A whole tensor of which each rank holds a part, used alike by all: the gradient is each rank's part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, dim: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gather(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_part(grad, ctx.group, ctx.dim), None, None


class GatherFlat(torch.autograd.Function):
    """A flat parameter of which each rank holds a part: the gradients are averaged, and scattered. `order`: a wrong
    one of the parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, divides: bool, order: Any) -> torch.Tensor:
        ctx.group, ctx.divides = group, divides
        return all_gather(x, group, 0, order) if group.size > 1 else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.group.size > 1:
            grad = reduce_scatter(grad, ctx.group, 0)
            grad = grad / ctx.group.size if ctx.divides else grad
        return grad, None, None, None


class Exchange(torch.autograd.Function):
    """Rows to and from the ranks of a group: `sent` and `received` rows by rank."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group.handle)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        out = grad.new_empty((sum(ctx.sent), *grad.shape[1:]))
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received, group=ctx.group.handle)
        return out, None, None, None
