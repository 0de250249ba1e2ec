"""One training step of a rank: stages, micro batches, reduction of gradients, the optimizer."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.corpus.parallel.gloo import regions
from tests.corpus.parallel.gloo.head import Head
from tests.corpus.parallel.gloo.layers import Layer, VocabularyEmbedding
from tests.corpus.parallel.gloo.place import Place
from tests.corpus.parallel.gloo.sharded import FlatParameters, FlatUpdate
from tests.corpus.parallel.layout import positions

RATE = 0.5


class Stage(nn.Module):
    """The layers of a pipeline stage; all of them without pipeline parallelism."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        layout, d, own = place.layout, place.design, place.own("pp")
        self.place, self.is_first, self.is_last = place, own == 0, own == layout.pp - 1
        if self.is_first:
            self.embedding = VocabularyEmbedding(place)
        numbers = range(own * d.layers // layout.pp, (own + 1) * d.layers // layout.pp)
        self.layers = nn.ModuleList(Layer(place, f"layers.{number}") for number in numbers)
        if self.is_last:
            self.head = Head(place, self.embedding.weight if d.tied and self.is_first else None)
        if place.style.sharded == "fsdp":
            self.layers = nn.ModuleList(FlatParameters(place, one.scope, one) for one in self.layers)

    def forward(self, x: torch.Tensor, labels: Optional[torch.Tensor]) -> torch.Tensor:
        if self.is_first:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, labels) if self.is_last else x

    def paths(self) -> dict[str, nn.Parameter]:
        """Parameters by the path that the corpus names them."""
        found: dict[str, nn.Parameter] = {}
        for module in self.modules():
            scope = getattr(module, "scope", None) or getattr(module, "flat_scope", None)
            for name, one in module.named_parameters(recurse=False):
                if isinstance(module, VocabularyEmbedding):
                    scope = "embedding"
                elif isinstance(module, Head):
                    scope = "embedding" if self.place.design.tied else "head"
                found.setdefault(f"{scope}.{name}", one)
        return found


class Step:
    """One step on one rank."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.stage = Stage(place)
        self.loss: Optional[float] = None
        draw = np.random.RandomState([seed, 77])
        self.ids = draw.randint(0, place.design.words, (place.design.length + 1, place.design.batch))
        self._stale: Optional[torch.Tensor] = None

    def _local(self, values: Any, micro: int) -> torch.Tensor:
        place = self.place
        layout, data = place.layout, place.own("dp")
        if place.struck("same data", "data"):
            data = 0
        own = np.split(np.split(values, layout.dp, 1)[data], layout.micro, 1)[micro]
        places = positions(layout, place.rank, len(values))
        if place.fault.strikes("contiguous data", "data", None, 0):
            places = positions(layout._replace(zigzag=not layout.zigzag), place.rank, len(values))
        own = own[places]
        return torch.tensor(own.T.copy() if place.style.batch_first else own)

    def run(self) -> None:
        """One training step."""
        place = self.place
        self.ids_in, self.labels, self.loss, self._stale = self.ids[:-1], self.ids[1:], None, None
        done = []
        for micro in range(place.layout.micro):
            done.append(self._forward(micro))
            if not place.layout.ahead:
                self._backward(*done.pop())
        for both in done:
            self._backward(*both)
        with torch.no_grad():
            if place.style.sharded != "zero":
                self._reduce()
            self._update()
        for one in self.stage.parameters():
            one.grad = None
        place.step += 1

    def whole_loss(self) -> float:
        """The loss over all ranks."""
        both = torch.tensor([self.loss or 0.0, float(self.stage.is_last)], dtype=torch.float64)
        if dist.get_world_size() > 1:
            dist.all_reduce(both)
        return float(both[0] / both[1])

    def _shape(self) -> tuple[int, ...]:
        d, layout = self.place.design, self.place.layout
        length = d.length // layout.cp // (layout.tp if layout.sp else 1)
        batch = d.batch // layout.dp // layout.micro
        return (batch, length, d.width) if self.place.style.batch_first else (length, batch, d.width)

    def _peer(self, offset: int) -> int:
        return self.place.rank + offset * (self.place.layout.ranks // self.place.layout.pp)

    def _forward(self, micro: int) -> tuple[Optional[torch.Tensor], torch.Tensor]:
        stage, place = self.stage, self.place
        read: Optional[torch.Tensor] = None
        labels = self._local(self.labels, micro) if stage.is_last else None
        if stage.is_first:
            out = stage(self._local(self.ids_in, micro), labels)
        else:
            read = torch.empty(self._shape(), dtype=place.dtype)
            dist.recv(read, self._peer(-1))
            read.requires_grad_(True)
            out = stage(read, labels)
        if stage.is_last:
            self.loss = (self.loss or 0.0) + float(out.detach())
        else:
            sent = out.detach().contiguous()
            fault = place.fault.kind == "stale activation"
            wrong = (
                fault and (place.fault.rank is None or place.fault.rank == self._peer(1)) and self._stale is not None
            )
            dist.send(self._stale if wrong else sent, self._peer(1))
            self._stale = sent
        return read, out

    def _backward(self, read: Optional[torch.Tensor], out: torch.Tensor) -> None:
        stage = self.stage
        if stage.is_last:
            out.backward()
        else:
            arrived = torch.empty(self._shape(), dtype=self.place.dtype)
            dist.recv(arrived, self._peer(1))
            torch.autograd.backward(out, arrived)
        if read is not None:
            dist.send(read.grad.contiguous(), self._peer(-1))

    def _reduce(self) -> None:
        place, strikes = self.place, self.place.fault.strikes
        layout, count = place.layout, place.layout.dp * place.layout.cp
        flat = []
        for name, one in self.stage.paths().items():
            if one.grad is None:  # an expert without tokens
                one.grad = torch.zeros_like(one)
            if layout.sp and name in place.whole and not strikes("norm not reduced", name, None, place.step):
                one.grad = regions.all_reduce(one.grad, place.groups["tp",])
            tied = place.design.tied and name == "embedding.weight" and layout.pp > 1
            if tied and not strikes("tied not reduced", name, None, place.step):
                one.grad = regions.all_reduce(one.grad, place.groups["ends",])
            if count == 1 or name.endswith(".flat"):
                continue
            if name in place.experts and place.style.dispatch == "all_to_all":
                one.grad = one.grad / count
            elif place.style.in_bucket:
                flat.append((name, one))
            else:
                self._average([(name, one)])
        if flat:
            self._average(flat)

    def _average(self, parameters: list[tuple[str, nn.Parameter]]) -> None:
        """Average gradients over data- and context-parallel ranks, several at once."""
        place, strikes = self.place, self.place.fault.strikes
        some = [both for both in parameters if not strikes("gradient not reduced", both[0], None, place.step)]
        if not some:
            return
        grads = [one.grad for _, one in some if one.grad is not None]
        whole = torch.cat([one.reshape(-1) for one in grads]) if len(grads) > 1 else grads[0]
        whole = regions.all_reduce(whole, place.groups["cp", "dp"])
        pieces = torch.split(whole, [one.numel() for one in grads]) if len(grads) > 1 else [whole]
        count = place.layout.dp * place.layout.cp
        for (name, one), piece in zip(some, pieces):
            piece = piece.view(one.shape)
            one.grad = piece if strikes("undivided", name, None, place.step) else piece / count

    def _update(self) -> None:
        style, parameters = self.place.style, self.stage.paths()
        if style.sharded == "zero":
            FlatUpdate(self.place, RATE)(parameters)
            return
        kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        for name, one in parameters.items():
            with self.place.recorder.at(f"optimizer.{name}", "mul"):
                if style.optimizer == "plain":
                    one.sub_(one.grad * RATE)
                else:
                    kinds[style.optimizer]([one], lr=0.05, foreach=False).step()
