"""A mixture of experts in place of an MLP: its experts are split among ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.place import Place


class Expert(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        d = place.design
        self.place, self.scope = place, scope
        self.up = place.parameter(f"{scope}.up", (d.inner, d.width))
        self.down = place.parameter(f"{scope}.down", (d.width, d.inner))
        self.bias = place.parameter(f"{scope}.bias", (d.width,))
        place.experts |= {f"{scope}.up", f"{scope}.down", f"{scope}.bias"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, scope = self.place, self.scope
        with place.at(scope, "linear"):
            y = F.linear(x, self.up)
        with place.at(scope, "gelu"):
            y = F.gelu(y)
        bias = self.bias * 0.5 if place.struck("expert bias", scope) else self.bias
        with place.at(scope, "down"):
            return F.linear(y, self.down, bias)


class Experts(nn.Module):
    def __init__(self, place: Place, scope: str) -> None:
        super().__init__()
        self.place, self.scope = place, scope
        d, count = place.design, place.style.experts
        self.router = place.parameter(f"{scope}.router", (count, d.width), scale=1.0)
        numbers = place.owned_experts()
        if place.struck("expert order", scope):
            numbers = range(count - numbers.stop, count - numbers.start)
        self.experts = nn.ModuleList(Expert(place, f"{scope}.experts.{number}") for number in numbers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place, scope = self.place, self.scope
        flat = x.reshape(-1, x.shape[-1])
        with place.at(scope, "router"):
            logits = F.linear(flat, self.router)
        with place.at(scope, "gates"):
            gates, chosen = torch.topk(F.softmax(place.wide(logits), -1), place.style.choices, -1)
            if place.style.choices > 1 and not place.struck("gates not divided", scope):
                gates = gates / gates.sum(-1, keepdim=True)
            gates = gates.to(x.dtype)
        mixed = self._exchanged if place.style.dispatch == "all_to_all" else self._summed
        return mixed(flat, gates, chosen).reshape(x.shape)

    def _summed(self, flat: torch.Tensor, gates: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """All ranks have all tokens, and sum what their own experts make of them."""
        place, scope = self.place, self.scope
        group = place.groups.get(("ep",))
        if group is not None:
            is_reduced = not place.struck("backward not reduced", scope)
            flat = regions.Copy.apply(flat, group, is_reduced)
            gates = regions.Copy.apply(gates, group, not place.struck("router not reduced", scope))
        out = torch.zeros_like(flat)
        for number, expert in zip(place.owned_experts(), self.experts):
            rows, which = (chosen == number).nonzero(as_tuple=True)
            y = expert(flat[rows]) * gates[rows, which].unsqueeze(-1)
            with place.at(scope, "combine"):
                out = out.index_add(0, rows, y)
        if group is not None and not place.struck("not reduced", scope):
            out = regions.Reduce.apply(out, group)
        return out

    def _exchanged(self, flat: torch.Tensor, gates: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Tokens go to the rank of their expert and back."""
        place, scope, count = self.place, self.scope, self.place.style.experts
        group, choices = place.groups.get(("ep",)), place.style.choices
        order = torch.argsort(chosen.reshape(-1), stable=True)
        rows = order // choices
        sent = torch.bincount(chosen.reshape(-1), minlength=count)
        with place.at(scope, "permute"):
            x = flat[rows]
        if group is None:
            parts = [*torch.split(x, sent.tolist())]
        else:
            every = regions.all_gather(sent[None], group._replace(into_tensor=False), 0)
            own = place.owned_experts()
            given = [int(one.sum()) for one in sent.chunk(group.size)]
            sizes = every[:, own.start : own.stop]
            if place.struck("exchange order", scope):
                x = x.flip(0)
            x = regions.Exchange.apply(x, group, given, sizes.sum(1).tolist())
            pieces = [*torch.split(x, sizes.reshape(-1).tolist())]
            parts = [torch.cat(pieces[at :: len(own)]) for at in range(len(own))]
        made = [expert(part) for expert, part in zip(self.experts, parts)]
        if group is None:
            y = torch.cat(made)
        else:
            back = [torch.split(one, sizes[:, at].tolist()) for at, one in enumerate(made)]
            y = torch.cat([one[rank] for rank in range(group.size) for one in back])
            y = regions.Exchange.apply(y, group, sizes.sum(1).tolist(), given)
        with place.at(scope, "combine"):
            y = y * gates.reshape(-1)[order].unsqueeze(-1)
            return torch.zeros_like(flat).index_add(0, rows, y)
