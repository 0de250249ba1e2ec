"""Modules of a GPT as Megatron writes them: regions, linear layers with gradients of their own, the parallel loss."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel_strangers.world import Group, Rank, cut, gathered

HIDDEN, HEADS, QUERY_GROUPS, INNER, WORDS, LENGTH = 32, 4, 2, 64, 64, 8
HEAD = HIDDEN // HEADS


def reduce_scattered(x: torch.Tensor, group: Group) -> torch.Tensor:
    out = x.new_empty((len(x) // group.size, *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group.handle)
    return out


def all_reduced(x: torch.Tensor, group: Group, op: Any = None) -> torch.Tensor:
    dist.all_reduce(x, op=op or dist.ReduceOp.SUM, group=group.handle)
    return x


class ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return all_reduced(x.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class ScatterToSequence(torch.autograd.Function):
    """A part of the sequence of a tensor that all ranks hold."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.chunk(group.size, 0)[group.number].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, ctx.group, 0), None


class ReduceScatterToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, is_reduced: bool) -> torch.Tensor:
        ctx.group = group
        return reduce_scattered(x, group) if is_reduced else x.chunk(group.size, 0)[group.number].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, ctx.group, 0), None, None


class LinearWithOwnGradients(torch.autograd.Function):
    """A product whose input is gathered along the sequence, forward and backward, under sequence parallel."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, rank: Rank, name: str, gathers: bool
    ) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.rank, ctx.micro, ctx.name, ctx.has_bias, ctx.gathers = rank, rank.micro, name, bias is not None, gathers
        total = LinearWithOwnGradients.whole(x, rank, name) if gathers else x
        with rank.at(f"{rank.micro}/{name}"):
            out = torch.matmul(total, weight.t())
            return out if bias is None else out + bias

    @staticmethod
    def whole(x: torch.Tensor, rank: Rank, name: str) -> torch.Tensor:
        total = gathered(x, rank.group("tp"), 0)
        return torch.roll(total, len(x), 0) if rank.hit("gather_order", name) else total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rank, group = ctx.rank, ctx.rank.group("tp")
        total = LinearWithOwnGradients.whole(x, rank, ctx.name) if ctx.gathers else x
        with rank.at(f"{ctx.micro}/{ctx.name}.dgrad"):
            grad_input = grad.matmul(weight)
        if ctx.gathers and rank.hit("dgrad_not_reduced", ctx.name):
            grad_input = grad_input.chunk(group.size, 0)[group.number].contiguous()
        elif ctx.gathers:
            grad_input = reduce_scattered(grad_input, group)
        flat = grad.reshape(-1, grad.shape[-1])
        with rank.at(f"{ctx.micro}/{ctx.name}.wgrad"):
            grad_weight = flat.t().matmul(total.reshape(-1, total.shape[-1]))
        return grad_input, grad_weight, flat.sum(dim=0) if ctx.has_bias else None, None, None, None


class Parameters(nn.Module):
    """A module whose parameters know whether ranks hold parts of them, and whether their gradients are sums over the
    sequence."""

    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name

    def own(
        self, name: str, *shape: int, dim: Optional[int] = None, is_by_sequence: bool = False, offset: float = 0.0
    ) -> nn.Parameter:
        rank, loaded = self.rank, name
        if rank.hit("layers_by_local_number") and name.startswith("layers."):
            number = int(name.split(".")[1]) % (rank.settings["layers"] // rank.size("pp"))
            loaded = ".".join(["layers", str(number), *name.split(".")[2:]])
        whole = rank.drawn(loaded, *shape, offset=offset, scale=0.3 if len(shape) == 1 else 0.0)
        if rank.hit("stale", name):
            whole = whole * (1 + 0.1 * rank.drawn(f"{name}.older", *shape, scale=1.0))
        number = rank.group("tp").number
        if rank.hit("wrong_shard", name):
            number = (number + 1) % rank.size("tp")
        parameter = nn.Parameter(whole if dim is None else cut(whole, dim, number, rank.size("tp")))
        parameter.path, parameter.is_split, parameter.is_by_sequence = name, dim is not None, is_by_sequence
        return parameter


class Norm(Parameters):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__(rank, name)
        self.weight = self.own(f"{name}.weight", HIDDEN, is_by_sequence=True, offset=1.0)
        self.bias = self.own(f"{name}.bias", HIDDEN, is_by_sequence=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.rank.at(f"{self.rank.micro}/{self.name}"):
            return F.layer_norm(x, (HIDDEN,), self.weight, self.bias, 1e-5)


class ColumnParallelLinear(Parameters):
    def __init__(self, rank: Rank, name: str, inner: int) -> None:
        super().__init__(rank, name)
        self.weight = self.own(f"{name}.weight", inner, HIDDEN, dim=0)
        self.bias = self.own(f"{name}.bias", inner, dim=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gathers = self.rank.size("tp") > 1
        return LinearWithOwnGradients.apply(x, self.weight, self.bias, self.rank, self.name, gathers)


class RowParallelLinear(Parameters):
    """The bias is left to the caller."""

    def __init__(self, rank: Rank, name: str, inner: int) -> None:
        super().__init__(rank, name)
        self.weight = self.own(f"{name}.weight", HIDDEN, inner, dim=1)
        self.bias = self.own(f"{name}.bias", HIDDEN, is_by_sequence=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        rank = self.rank
        out, bias = LinearWithOwnGradients.apply(x, self.weight, None, rank, self.name, False), self.bias
        if rank.hit("bias_everywhere", self.name):
            with rank.at(f"{rank.micro}/{self.name}.bias"):
                out, bias = out + self.bias, None
        if rank.size("tp") > 1:
            out = ReduceScatterToSequence.apply(out, rank.group("tp"), not rank.hit("not_reduced", self.name))
        return out, bias


class Attention(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.linear_qkv = ColumnParallelLinear(rank, f"{name}.qkv", (HEADS + 2 * QUERY_GROUPS) * HEAD)
        self.linear_proj = RowParallelLinear(rank, f"{name}.proj", HIDDEN)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        rank, place = self.rank, f"{self.rank.micro}/{self.name}"
        mixed, per = self.linear_qkv(x), HEADS // QUERY_GROUPS
        mixed = mixed.view(*mixed.shape[:2], -1, (per + 2) * HEAD)
        query, key, value = torch.split(mixed, [per * HEAD, HEAD, HEAD], dim=3)
        query = query.reshape(*query.shape[:2], -1, HEAD)
        key, value = key.repeat_interleave(per, dim=2), value.repeat_interleave(per, dim=2)
        length, batch, heads, _ = query.shape
        query, key, value = (one.reshape(length, batch * heads, HEAD).transpose(0, 1) for one in (query, key, value))
        zeros = torch.zeros(batch * heads, length, length, dtype=x.dtype)
        with rank.at(f"{place}.scores"):
            scores = torch.baddbmm(zeros, query, key.transpose(1, 2), beta=0.0, alpha=1.0 / math.sqrt(HEAD))
        scores = scores.view(batch, heads, length, length)
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -10000.0)
        with rank.at(f"{place}.softmax"):
            if rank.hit("coarse_softmax", self.name):
                probs = torch.softmax(scores.bfloat16(), dim=-1).to(scores.dtype)
            else:
                probs = torch.softmax(scores, dim=-1)
        context = torch.bmm(probs.view(batch * heads, length, length), value)
        return self.linear_proj(context.transpose(0, 1).reshape(length, batch, heads * HEAD))


class MLP(nn.Module):
    def __init__(self, rank: Rank, name: str) -> None:
        super().__init__()
        self.rank, self.name = rank, name
        self.linear_fc1 = ColumnParallelLinear(rank, f"{name}.fc1", INNER)
        self.linear_fc2 = RowParallelLinear(rank, f"{name}.fc2", INNER)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
        x = self.linear_fc1(x)
        with self.rank.at(f"{self.rank.micro}/{self.name}.gelu"):
            x = F.gelu(x, approximate="tanh")
        return self.linear_fc2(x)


class Layer(nn.Module):
    def __init__(self, rank: Rank, number: int) -> None:
        super().__init__()
        self.rank, self.name = rank, f"layers.{number}"
        self.input_layernorm = Norm(rank, f"{self.name}.norm1")
        self.self_attention = Attention(rank, f"{self.name}.attn")
        self.pre_mlp_layernorm = Norm(rank, f"{self.name}.norm2")
        self.mlp = MLP(rank, f"{self.name}.mlp")

    def _bias_dropout_add(self, both: tuple[torch.Tensor, Optional[torch.Tensor]], x: torch.Tensor, of: str) -> Any:
        rank, (out, bias), name = self.rank, both, f"{self.name}.{of}"
        if bias is not None:
            with rank.at(f"{rank.micro}/{name}.bias"):
                out = out + bias
        share = rank.settings.get("dropout", 0.0)
        if share:
            length = len(out) * rank.size("tp")
            keep = rank.drawn(f"{rank.micro}/{name}.kept", length, *out.shape[1:], scale=1.0) > -1.3
            own = 0 if rank.hit("dropout_equal", name) else rank.group("tp").number
            with rank.at(f"{rank.micro}/{name}.dropout"):
                out = out * keep[own * len(out) : (own + 1) * len(out)] / (1.0 - share)
        with rank.at(f"{rank.micro}/{name}.residual"):
            return x + out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._bias_dropout_add(self.self_attention(self.input_layernorm(x)), x, "attn.proj")
        return self._bias_dropout_add(self.mlp(self.pre_mlp_layernorm(x)), x, "mlp.fc2")


class Embedding(Parameters):
    def __init__(self, rank: Rank) -> None:
        super().__init__(rank, "embedding")
        self.word = self.own("embedding.word", WORDS, HIDDEN, dim=0)
        self.position = self.own("embedding.position", LENGTH, HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rank, group = self.rank, self.rank.group("tp")
        count = len(self.word)
        first = group.number * count
        inside = ids
        if group.size > 1:
            mask = (ids < first) | (ids >= first + count)
            inside = ids.clone() - first
            inside[mask] = 0
        with rank.at(f"{rank.micro}/embedding"):
            x = self.word[inside]
        if group.size > 1:
            x[mask, :] = 0.0
            x = ReduceFromRegion.apply(x, group)
        with rank.at(f"{rank.micro}/embedding.positions"):
            x = x + F.embedding(torch.arange(ids.shape[1]).unsqueeze(0), self.position)
        x = x.transpose(0, 1).contiguous()
        return ScatterToSequence.apply(x, group) if group.size > 1 else x


class VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, rank: Rank) -> torch.Tensor:
        group, place = rank.group("tp"), f"{rank.micro}/loss"
        most = torch.max(logits, dim=-1)[0]
        all_reduced(most, group, dist.ReduceOp.MAX)
        with rank.at(f"{place}.centred"):
            logits = logits - most.unsqueeze(dim=-1)
        count = logits.shape[-1]
        first = 0 if rank.hit("target_not_offset") else group.number * count
        with rank.at(f"{place}.target"):
            mask = (target < group.number * count) | (target >= (group.number + 1) * count)
            masked_target = target.clone() - first
            masked_target[mask] = 0
        masked_target = masked_target.clamp(max=count - 1).view(-1)
        rows = torch.arange(len(masked_target))
        with rank.at(f"{place}.predicted"):
            predicted = logits.view(-1, count)[rows, masked_target].clone().view_as(target)
            predicted[mask] = 0.0
        with rank.at(f"{place}.predicted.reduced"):
            all_reduced(predicted, group)
        exp_logits = torch.exp(logits)
        sum_exp = exp_logits.sum(dim=-1)
        if not rank.hit("sum_exp_not_reduced"):
            all_reduced(sum_exp, group)
        with rank.at(f"{place}.log"):
            loss = torch.log(sum_exp) - predicted
        exp_logits = exp_logits / sum_exp.unsqueeze(dim=-1)
        ctx.save_for_backward(exp_logits, mask, masked_target, rows)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        softmax, mask, masked_target, rows = ctx.saved_tensors
        grad_input = softmax.clone()
        grad_input.view(-1, softmax.shape[-1])[rows, masked_target] -= 1.0 - mask.view(-1).to(grad.dtype)
        return grad_input.mul_(grad.unsqueeze(dim=-1)), None, None


class Head(Parameters):
    def __init__(self, rank: Rank, tied: Optional[nn.Parameter]) -> None:
        super().__init__(rank, "head")
        self.final_layernorm = Norm(rank, "final_norm")
        if tied is None:  # a copy of the first stage's table, or a table of its own
            name = "embedding.word" if rank.settings.get("tied") else "head.weight"
            tied = self.own(name, WORDS, HIDDEN, dim=0)
            tied.is_copy = bool(rank.settings.get("tied"))
        self.weight = tied

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rank = self.rank
        x = self.final_layernorm(x)
        logits = LinearWithOwnGradients.apply(x, self.weight, None, rank, "head", rank.size("tp") > 1)
        losses = VocabParallelCrossEntropy.apply(
            logits.float() if rank.dtype == torch.bfloat16 else logits, labels, rank
        )
        kept = torch.ones_like(losses)
        kept[-1] = 0.0
        with rank.at(f"{rank.micro}/loss.mean"):
            return torch.sum(losses.view(-1) * kept.view(-1)) / kept.sum()
