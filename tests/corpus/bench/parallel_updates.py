"""Gradients reduced over ranks, and the update of parameters, in whole or in shards of the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from tests.corpus.device import Array, rounded
from tests.corpus.parallel import collectives as among
from tests.corpus.tape import Session, Tape, Var
from tests.corpus.trace import Tensor

if TYPE_CHECKING:
    from tests.corpus.bench.parallel_networks import Bug, Plan
    from tests.corpus.networks import Weights

RATE = 0.3


class Updates:
    """The end of a step of all ranks."""

    session: Session
    plan: Plan
    bug: Bug
    layout: str
    weights: list[Weights]
    tapes: dict[int, Tape]
    known: dict[tuple[int, str], Var]
    whole: set[str]
    has: Any
    each: Any
    inside: Any

    def reduce(self) -> None:
        """Sums of gradients over ranks."""
        s, ranks = self.session, [*self.tapes]
        for name in sorted({name for _, name in s.weight_gradients}):
            parts = {r: s.weight_gradients[r, name] for r in ranks if (r, name) in s.weight_gradients}
            if len(parts) < 2:
                continue
            chosen, scope = name == f"layers.{self.bug.layer}.norm1.weight", f"gradients.{name}"
            of_sequence = self.layout == "sp2" and name in self.whole and not name.startswith("head.")
            if of_sequence and not (self.has("norm gradient not reduced over the sequence") and chosen):
                parts = among.all_reduce(s, ranks, parts, scope)
            if self.layout == "pp2" and self.plan.tied and not self.has("tied embedding not reduced over stages"):
                parts = among.all_reduce(s, ranks, parts, scope)
            if self.layout in ("dp2", "cp2"):
                if not (self.has("gradient of one parameter not reduced") and chosen):
                    parts = among.all_reduce(s, ranks, parts, scope)
                if not self.has("gradient not averaged"):
                    with self.inside(ranks, scope):
                        made = self.each(ranks, "div", {r: Var(one) for r, one in parts.items()}, 2.0)
                    parts = {r: one.tensor for r, one in made.items()}
            for rank, one in parts.items():
                s.weight_gradients[rank, name] = one

    def update(self) -> None:
        for rank, name in sorted(self.session.weight_gradients, key=lambda both: (both[1], both[0])):
            g = self.session.weight_gradients[rank, name]
            self.set(rank, name, self.stepped([rank], name, {rank: g}, {rank: self.known[rank, name].tensor})[rank])

    def stepped(self, ranks: Sequence[int], name: str, gradients: dict[int, Tensor], old: dict[int, Tensor]) -> Any:
        """Values that the optimizer writes for a parameter or a part of all of them."""
        if not self.plan.recorded:
            return {
                r: old[r].values - rounded(RATE * np.asarray(gradients[r].values, np.float64), "float32") for r in ranks
            }
        with self.inside(ranks, "optimizer"), self.inside(ranks, name):
            step = self.each(ranks, "mul", {r: Var(gradients[r]) for r in ranks}, RATE)
            free = {r: Var(Tensor(old[r].values, old[r].dtype, old[r].key)) for r in ranks}
            return {r: one.tensor.values for r, one in self.each(ranks, "sub", free, step).items()}

    def set(self, rank: int, name: str, values: Array) -> None:
        """Store the new part of a parameter, in every rank's whole weight."""
        values = rounded(np.asarray(values, np.float64), "float32")
        whole = self.weights[rank].values[name]
        if values.shape == whole.shape:
            self.weights[rank].values[name] = values
            return
        axis = next(k for k, (a, b) in enumerate(zip(values.shape, whole.shape)) if a != b)
        for weights in self.weights:
            parts = np.split(weights.values[name].copy(), 2, axis)
            parts[rank] = values
            weights.values[name] = np.concatenate(parts, axis)

    def update_shards(self) -> None:
        """ZeRO: the mean gradient, clipped by its norm, and the update, in a part on each rank."""
        s, ranks = self.session, [*self.tapes]
        names = sorted({name for _, name in s.weight_gradients})
        count = sum(self.weights[0].values[name].size for name in names)

        def flat(arrays: Sequence[Array]) -> Tensor:
            joined = np.concatenate([np.asarray(one, np.float32).reshape(-1) for one in arrays])
            return Tensor(np.concatenate([joined, np.zeros(count % 2, np.float32)]), "float32", s.key())

        with self.inside(ranks, "optimizer"):
            both = {r: flat([s.weight_gradients[r, name].values for name in names]) for r in ranks}
            parts = among.reduce_scatter(s, ranks, both, 0, "optimizer")
            mean = self.each(ranks, "div", {r: Var(one) for r, one in parts.items()}, 2.0)
            square = self.each(ranks, "sum", self.each(ranks, "mul", mean, mean), dim=0)
            if not self.has("norm for clipping of one rank"):
                made = among.all_reduce(s, ranks, {r: one.tensor for r, one in square.items()}, "optimizer")
                square = {r: Var(one) for r, one in made.items()}
            small = self.each(ranks, "mul", mean, self.each(ranks, "mul", self.each(ranks, "rsqrt", square), 0.5))
        weights = flat([self.known[0, name].tensor.values for name in names]).values
        old = {r: Tensor(np.split(weights, 2)[r].copy(), "float32", s.key()) for r in ranks}
        if self.has("shard of the optimizer shifted"):
            old = {r: Tensor(np.roll(one.values, 8), "float32", s.key()) for r, one in old.items()}
        new = self.stepped(ranks, "shard", {r: one.tensor for r, one in small.items()}, old)
        values = np.concatenate([np.asarray(new[r]) for r in ranks])[:count].astype(np.float64)
        place = 0
        for name in names:
            shape = self.weights[0].values[name].shape
            size = int(np.prod(shape))
            for rank in ranks:
                self.weights[rank].values[name] = values[place : place + size].reshape(shape).copy()
            place += size
