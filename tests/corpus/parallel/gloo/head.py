"""The last norm, the logits, and the loss."""

from __future__ import annotations

from typing import Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.layers import Norm
from tests.corpus.parallel.gloo.place import Place


class Head(nn.Module):
    """The last norm, logits by part of the vocabulary, and the loss."""

    def __init__(self, place: Place, table: Optional[nn.Parameter]) -> None:
        super().__init__()
        d = place.design
        self.place = place
        self.norm = Norm(place, "norm")
        name, scale = ("embedding", 1.0) if d.tied else ("head", 0.0)
        self.weight = (
            table if table is not None else place.parameter(f"{name}.weight", (d.words, d.width), 0, scale=scale)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        place = self.place
        x = place.enter(self.norm(x), "")
        with place.at("head", "linear"):
            logits = F.linear(x, self.weight)
        if place.design.parallel_loss:
            loss = self._by_parts(logits, labels)
        else:
            if place.layout.tp > 1:
                logits = regions.GatherParts.apply(logits, place.groups["tp",], 2)
            with place.at("loss", "cross_entropy"):
                loss = F.cross_entropy(place.wide(logits.reshape(-1, place.design.words)), labels.reshape(-1))
        if place.layout.micro > 1 and not place.struck("micro undivided", "loss"):
            loss = loss / place.layout.micro
        return loss

    def _reduced(self, x: torch.Tensor, fault: str) -> torch.Tensor:
        if self.place.layout.tp == 1 or self.place.struck(fault, "loss"):
            return x
        return regions.Reduce.apply(x, self.place.groups["tp",])

    def _by_parts(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        place, d = self.place, self.place.design
        logits = place.wide(logits)
        with place.at("loss", "amax"):
            most = torch.max(logits.detach(), -1)[0]
        if place.layout.tp > 1 and not place.struck("maximum not reduced", "loss"):
            most = regions.all_reduce(most, place.groups["tp",], dist.ReduceOp.MAX)
        with place.at("loss", "sub"):
            z = logits - most.unsqueeze(-1)
        count = d.words // place.layout.tp
        first = place.own("tp") * count
        if place.layout.tp > 1:
            mask = (labels < first) | (labels >= first + count)
            inside = labels.clone() - first
            inside[mask] = 0
        else:
            inside = labels
        picked = torch.gather(z, 2, inside.unsqueeze(-1))
        if place.layout.tp > 1:
            picked = picked.masked_fill(mask.unsqueeze(-1), 0.0)
        picked = self._reduced(picked, "picked not reduced")
        with place.at("loss", "exp"):
            e = torch.exp(z)
        with place.at("loss", "sum"):
            total = e.sum(-1, keepdim=True)
        total = self._reduced(total, "sum not reduced")
        with place.at("loss", "log"):
            total = torch.log(total)
        with place.at("loss", "sub"):
            loss = total - picked
        with place.at("loss", "mean"):
            return loss.mean()
