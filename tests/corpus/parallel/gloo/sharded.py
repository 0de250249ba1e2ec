"""Optimizer state and parameters that data-parallel ranks hold in flat parts."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import nn

from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.place import Place


def flattened(tensors: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """Tensors in a row, padded to a multiple of a number of ranks."""
    flat = torch.cat([one.reshape(-1) for one in tensors])
    rest = -flat.numel() % size
    return torch.cat([flat, flat.new_zeros(rest)]) if rest else flat


def shaped(flat: torch.Tensor, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Tensors of given shapes out of a row of their elements."""
    counts = [shape.numel() for shape in shapes]
    pieces = torch.split(flat[: sum(counts)], counts)
    return [piece.view(shape) for piece, shape in zip(pieces, shapes)]


class FlatUpdate:
    """An update of which each data-parallel rank computes a part (ZeRO-1)."""

    def __init__(self, place: Place, rate: float) -> None:
        self.place, self.rate = place, rate

    def __call__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        place, every = self.place, [*parameters.values()]
        group = place.groups["dp",] if place.layout.dp > 1 else None
        size = group.size if group is not None else 1
        grads = flattened([one.grad for one in every if one.grad is not None], size)
        old = flattened([one.detach() for one in every], size)
        if group is not None:
            own = slice(group.number * len(old) // size, (group.number + 1) * len(old) // size)
            if place.struck("shard order", "zero"):
                grads = grads.flip(0)
            grads, part = regions.reduce_scatter(grads, group, 0), old[own]
            grads = grads if place.struck("undivided", "zero") else grads / size
        else:
            part = old
        with place.recorder.at("optimizer", "mul"):
            new = part - grads * self.rate
        if group is not None:
            if place.struck("shard stale", "zero"):
                new = part.clone()
            if place.struck("shard not gathered", "zero"):
                whole = old.clone()
                whole[own] = new
            else:
                whole = regions.all_gather(new, group, 0)
        else:
            whole = new
        with place.recorder.at("optimizer", "shaped"):
            for one, value in zip(every, shaped(whole, [one.shape for one in every])):
                one.data.copy_(value)


class FlatParameters(nn.Module):
    """A module whose parameters are gathered before it runs (FSDP)."""

    def __init__(self, place: Place, scope: str, inner: nn.Module) -> None:
        super().__init__()
        self.place, self.flat_scope = place, scope
        self.owners: list[tuple[nn.Module, str]] = []
        tensors = []
        for module in inner.modules():
            for name, one in [*module.named_parameters(recurse=False)]:
                self.owners.append((module, name))
                tensors.append(one.detach())
                del module._parameters[name]
        self.shapes = [one.shape for one in tensors]
        self.group = place.groups["dp",] if place.layout.dp > 1 else None
        flat = flattened(tensors, place.layout.dp)
        number = self.group.number if self.group is not None else 0
        if place.struck("shard order", scope):
            number = (number + 1) % place.layout.dp
        self.flat = nn.Parameter(flat.chunk(place.layout.dp)[number].clone())
        self.inner = inner

    def forward(self, *items: Any) -> Any:
        place, scope, whole = self.place, self.flat_scope, self.flat
        if self.group is not None:
            order = [*range(1, self.group.size), 0] if place.struck("gather order", scope) else None
            divides = not place.struck("undivided", scope)
            whole = regions.GatherFlat.apply(whole, self.group, divides, order)
            if place.struck("shard stale", scope):
                whole = whole.clone()
                whole[: len(whole) // self.group.size] *= 0.9
        with place.recorder.at(scope, "shaped"):
            tensors = shaped(whole, self.shapes)
        for (module, name), one in zip(self.owners, tensors):
            setattr(module, name, one)
        return self.inner(*items)
