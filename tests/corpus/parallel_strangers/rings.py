"""Attention over a sequence of which each rank holds a part: by a ring of blocks, or by an exchange of heads."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from tests.corpus.parallel_strangers.world import Group, Rank


def _passed_on(x: torch.Tensor, group: Group) -> torch.Tensor:
    """What the rank before this one holds."""
    received = torch.empty_like(x)
    work = [
        dist.isend(x, group.ranks[(group.number + 1) % group.size], group=group.handle),
        dist.irecv(received, group.ranks[(group.number - 1) % group.size], group=group.handle),
    ]
    for one in work:
        one.wait()
    return received


class RingAttention(torch.autograd.Function):
    """softmax(q kᵀ) v by blocks of keys that go round; keys and values travel in one buffer."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: Rank, name: str) -> torch.Tensor:
        group, scale = rank.group("cp"), 1.0 / math.sqrt(q.shape[-1])
        both, out, lse = torch.stack([k, v]), None, None
        for turn in range(group.size):
            keys, values = both[0], both[1]
            if not (turn and rank.hit("block_skipped", name)):
                scores = torch.matmul(q, keys.transpose(-2, -1)) * scale
                if rank.hit("coarse_block", name):
                    scores = scores.to(torch.bfloat16).to(q.dtype)
                block_lse = torch.logsumexp(scores, dim=-1, keepdim=True)
                block_out = torch.matmul(torch.exp(scores - block_lse), values)
                if out is None:
                    out, lse = block_out, block_lse
                else:
                    new_lse = torch.logaddexp(lse, block_lse)
                    rescaled = out if rank.hit("not_rescaled", name) else torch.exp(lse - new_lse) * out
                    out = rescaled + torch.exp(block_lse - new_lse) * block_out
                    lse = new_lse
            if turn + 1 < group.size and not rank.hit("own_block_again", name):
                both = _passed_on(both, group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rank, ctx.name, ctx.scale = rank, name, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        rank, group, scale = ctx.rank, ctx.rank.group("cp"), ctx.scale
        both, grad_q = torch.stack([k, v]), torch.zeros_like(q)
        grad_both = torch.zeros_like(both)
        delta = (grad * out).sum(dim=-1, keepdim=True)
        for turn in range(group.size):
            keys, values = both[0], both[1]
            probs = torch.exp(torch.matmul(q, keys.transpose(-2, -1)) * scale - lse)
            grad_scores = probs * (torch.matmul(grad, values.transpose(-2, -1)) - delta) * scale
            grad_q = grad_q + torch.matmul(grad_scores, keys)
            if not (turn and rank.hit("keys_gradient_not_returned", ctx.name)):
                part = torch.stack(
                    [torch.matmul(grad_scores.transpose(-2, -1), q), torch.matmul(probs.transpose(-2, -1), grad)]
                )
                grad_both = grad_both + part
            if turn + 1 < group.size:
                both = _passed_on(both, group)
            grad_both = _passed_on(grad_both, group)
        if rank.hit("unscaled_backward", ctx.name):
            grad_q = grad_q / scale
        return grad_q, grad_both[0], grad_both[1], None, None


class Exchange(torch.autograd.Function):
    """From (batch, all heads, own rows, width) to (batch, own heads, all rows, width), or back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rank: Rank, name: str, to_heads: bool) -> torch.Tensor:
        ctx.rank, ctx.name, ctx.to_heads = rank, name, to_heads
        return Exchange.moved(x, rank, to_heads, rank.hit("heads_order" if not to_heads else "rows_order", name))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        is_wrong = ctx.to_heads and ctx.rank.hit("backward_order", ctx.name)
        return Exchange.moved(grad, ctx.rank, not ctx.to_heads, is_wrong), None, None, None

    @staticmethod
    def moved(x: torch.Tensor, rank: Rank, to_heads: bool, is_wrong: bool) -> torch.Tensor:
        group = rank.group("cp")
        split, joined = (1, 2) if to_heads else (2, 1)
        sent = torch.stack([part.contiguous() for part in x.chunk(group.size, split)])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group.handle)
        if is_wrong:
            received = torch.roll(received, 1, 0)
        return torch.cat([*received], dim=joined)


class SumOverRanks(torch.autograd.Function):
    """A sum over ranks, whose gradient is summed over ranks too, as torch.distributed.nn has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group.handle)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group.handle)
        return grad, None
