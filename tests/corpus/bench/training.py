"""Steps of training on one rank, with the habits of a training script that can be wrong.

The kinds are those that TrainCheck (OSDI 2025) and reports of users know: a gradient that is kept, a parameter that no
optimizer has, a mode, a reduction, a tie, a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from tests.corpus.bench.networks import DROPPING, NETWORKS, WORDED, Builder, step_of_optimizer
from tests.corpus.device import Device, rounded
from tests.corpus.networks import Weights
from tests.corpus.tape import Plant, Precision, Session, Tape
from tests.corpus.trace import Run, Tensor

RATE = 0.2


@dataclass(frozen=True)
class Recipe:
    """Everything that the values of a run on one rank depend on. recorded: the optimizer leaves records."""

    network: str
    seed: int
    steps: int = 1
    precision: Precision = Precision()
    device: Device = Device()
    options: Mapping[str, Any] = field(default_factory=dict)
    recorded: bool = False


class Habit(NamedTuple):
    """A fault of the script: its kind, from which step on it strikes, a number from 0 to 1 that draws details."""

    kind: str = ""
    step: int = 0
    draw: float = 0.0


class Needs(NamedTuple):
    """steps: the least number; networks: () for all; recorded: whether the optimizer must be recorded, None for any;
    first: the first step that it can strike."""

    steps: int
    networks: tuple[str, ...] = ()
    recorded: Any = None
    first: int = 0


HABITS: dict[str, Needs] = {
    "gradients not cleared": Needs(3, first=1),
    "parameter without optimizer": Needs(2, recorded=False),
    "optimizer over the old parameters": Needs(3, recorded=False, first=1),
    "schedule ignored": Needs(3, first=1),
    "loss scale not undone": Needs(2),
    "clipping forgotten": Needs(2),
    "decay of every parameter": Needs(2, recorded=False),
    "momentum lost": Needs(3, recorded=False, first=1),
    "checkpoint of an earlier step": Needs(3, recorded=False, first=1),
    "tie broken": Needs(2, WORDED, False),
    "dropout in evaluation mode": Needs(2, DROPPING, first=1),
    "same batch again": Needs(2, first=1),
    "labels misaligned": Needs(1, WORDED),
    "sum in place of mean": Needs(1, ("retention", "gates", "latent_attention", "waves", "latents")),
    "overwritten between operators": Needs(1),
    "weights in a coarse type": Needs(3, recorded=False, first=1),
}


class Trained(NamedTuple):
    """Recorded runs, and the sessions."""

    runs: list[Run]
    sessions: list[Session]


def train(recipe: Recipe, plants: Sequence[Plant] = (), habit: Habit = Habit()) -> Trained:
    """Run all steps."""
    weights = Weights(recipe.seed)
    loop = _Loop(recipe, habit, weights)
    sessions = []
    for step in range(recipe.steps):
        session = Session(recipe.device, recipe.precision, {one.address: one for one in plants}, step)
        tape = Tape(session)
        b = Builder(tape, weights, loop.options(step), recipe.seed % 100_000 + 1000 * loop.batch(step))
        loss = NETWORKS[recipe.network](b)
        scale = 1.0
        if loop.is_on("sum in place of mean", step):
            scale = _sum_for_mean(session)
        session.backward([loss], scale)
        if recipe.steps > 1:
            loop.update(b, session, step)
        sessions.append(session)
    return Trained([run for one in sessions for run in one.runs()], sessions)


def _sum_for_mean(session: Session) -> float:
    """Make the recorded loss the sum over its rows; returns how much larger its gradients are."""
    place = max(k for k, (_, one) in enumerate(session.records) if one.kind == "cross_entropy")
    record = session.records[place][1]
    logits, out = record.inputs[0], record.outputs[0]
    assert isinstance(logits, Tensor) and out is not None
    np.copyto(out.values, (out.values * len(logits.values)).astype(out.values.dtype))
    return float(len(logits.values))


class _Loop:
    """The script around the network."""

    def __init__(self, recipe: Recipe, habit: Habit, weights: Weights):
        self.recipe, self.habit, self.weights = recipe, habit, weights
        self.kept: dict[str, np.ndarray] = {}
        self.momentum: dict[str, np.ndarray] = {}
        self.first: dict[str, np.ndarray] = {}

    def is_on(self, kind: str, step: int) -> bool:
        return self.habit.kind == kind and step >= self.habit.step

    def options(self, step: int) -> dict[str, Any]:
        found = dict(self.recipe.options)
        if self.is_on("tie broken", step):
            found["tied"] = False
        if self.is_on("dropout in evaluation mode", step):
            found["training"] = False
        if self.is_on("labels misaligned", step):
            found["labels"] = 1
        if self.is_on("overwritten between operators", step):
            found["overwritten"] = int(self.habit.draw * 6)
        return found

    def batch(self, step: int) -> int:
        return step - 1 if step and self.is_on("same batch again", step) else step

    def update(self, b: Builder, session: Session, step: int) -> None:
        """SGD with momentum, decay of matrices, a clipped norm and a rate that falls with each step."""
        names = sorted(name for _, name in session.weight_gradients)
        gradients = {name: session.weight_gradients[0, name] for name in names}
        if not self.first:
            self.first = {name: self.weights.values[name].copy() for name in names}
        total = np.sqrt(sum(float(np.square(one.values.astype(np.float64)).sum()) for one in gradients.values()))
        factor = min(1.0, 0.7 / max(total, 1e-30)) if not self.is_on("clipping forgotten", step) else 1.0
        rate = RATE * (0.5**step if not self.is_on("schedule ignored", step) else 1.0)
        left_out = names[int(self.habit.draw * len(names))]
        if self.is_on("tie broken", step):
            left_out = ""
        for name in names:
            g = gradients[name].values.astype(np.float64)
            if self.is_on("gradients not cleared", step):
                g = g + self.kept.get(name, 0.0)
            self.kept[name] = gradients[name].values.astype(np.float64)
            g = rounded(g * factor * (8.0 if self.is_on("loss scale not undone", step) else 1.0), "float32")
            if self.recipe.recorded:
                made = Tensor(g.astype(np.float32), gradients[name].dtype, session.key())
                step_of_optimizer(b, name, made, rate)
            if self.is_on("parameter without optimizer", step) and name == left_out:
                continue
            if self.is_on("optimizer over the old parameters", step):
                continue
            w = self.weights.values[name]
            if not self.recipe.recorded:
                if w.ndim > 1 or self.is_on("decay of every parameter", step):
                    g = g + 0.05 * w
                before = 0.0 if self.is_on("momentum lost", step) else self.momentum.get(name, 0.0)
                self.momentum[name] = g = rounded(0.8 * before + g, "float32")
            w = rounded(w - rounded(rate * g, "float32"), "float32")
            if self.is_on("checkpoint of an earlier step", step) and name == left_out:
                w = self.first[name]
            if self.is_on("weights in a coarse type", step) and name == left_out:
                w = rounded(w, "bfloat16")
            self.weights.values[name] = w
