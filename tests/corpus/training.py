"""Steps of training: forward, backward, an update by SGD or AdamW, one or two ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from tests.corpus import ranks
from tests.corpus.device import Device, rounded
from tests.corpus.faults import Setting
from tests.corpus.networks import GENERATED, NETWORKS, TOGETHER, Kind, Net, Size, Weights
from tests.corpus.second_networks import SECOND_NETWORKS, SECOND_TOGETHER
from tests.corpus.tape import Plant, Precision, Session, Tape
from tests.corpus.trace import Run
from tests.corpus.unseen import UNSEEN_NETWORKS

KINDS = {**NETWORKS, **SECOND_NETWORKS, **UNSEEN_NETWORKS}
ALL_TOGETHER = {**TOGETHER, **SECOND_TOGETHER}


@dataclass(frozen=True)
class Recipe:
    """All that the values of a run depend on.

    together: "" for one rank; "data_parallel" for a network on two; else a network of ALL_TOGETHER.
    lengths: of each step, where they change; net: the class that builds the network.
    """

    network: str
    size: Size
    precision: Precision = Precision()
    device: Device = Device()
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1
    together: str = ""
    update: str = "sgd"
    seed: int = 0
    hooks: str = "full"
    captures_all: bool = False
    modules: bool = False
    loss_scale: float = 1.0
    lengths: tuple[int, ...] = ()
    net: type[Net] = Net

    def size_in(self, step: int) -> Size:
        return self.size._replace(length=self.lengths[step]) if self.lengths else self.size


@dataclass
class Trained:
    """What a run left: what was recorded, and the sessions, for the truth."""

    runs: list[Run]
    sessions: list[Session]
    weights: list[Weights]


def train(recipe: Recipe, plants: Sequence[Plant] = (), setting: Optional[Setting] = None) -> Trained:
    """Runs all steps."""
    setting = setting or Setting()
    options = {**recipe.options, **setting.options}
    count = 2 if recipe.together else 1
    everywhere = setting.all_ranks or recipe.together == "data_parallel"
    weights = [
        Weights(recipe.seed, changes=setting.weights if rank == 0 or everywhere else {}) for rank in range(count)
    ]
    moments: list[dict[str, Any]] = [{} for _ in range(count)]
    sessions = []
    by_address = {plant.address: plant for plant in plants}
    for step in range(recipe.steps):
        session = Session(
            recipe.device, recipe.precision, by_address, step, count, recipe.hooks, recipe.captures_all, recipe.modules
        )
        nets = [
            recipe.net(Tape(session, rank), weights[rank], recipe.size_in(step), options, _batch(recipe, step, rank))
            for rank in range(count)
        ]
        if recipe.together in ALL_TOGETHER:
            losses = ALL_TOGETHER[recipe.together](nets)
        else:
            losses = [kind_of(recipe.network).build(net) for net in nets]
        session.backward([loss for loss in losses if loss is not None], recipe.loss_scale)
        if recipe.together == "data_parallel":
            ranks.average_gradients(session)
        sessions.append(session)
        if step + 1 < recipe.steps:
            for rank in range(count):
                update(session, rank, weights[rank], moments[rank], recipe, setting.optimizer)
    return Trained([run for session in sessions for run in session.runs()], sessions, weights)


def kind_of(network: str) -> Kind:
    return KINDS.get(network) or GENERATED[network]


def _batch(recipe: Recipe, step: int, rank: int) -> int:
    """Every step has a batch of its own; ranks share theirs unless each computes on its own."""
    return recipe.seed % 100_000 + 1000 * step + (17 * rank if recipe.together == "data_parallel" else 0)


def update(
    session: Session,
    rank: int,
    weights: Weights,
    moments: dict[str, Any],
    recipe: Recipe,
    wrong: Mapping[str, float],
) -> None:
    """SGD with momentum 0.9, or AdamW (Loshchilov and Hutter 2019); `wrong` is a fault of the optimizer.

    Each result is rounded to the type of the weights, as an optimizer without master weights does.
    """
    adam, base, step = recipe.update == "adamw", recipe.precision.base, session.step + 1
    rate = (0.003 if adam else 0.05) * wrong.get("rate", 1.0)
    decay = (0.1 if adam else 0.01) * (3 * wrong["decay"] if "decay" in wrong else 1.0)
    beta1, beta2 = 0.9 / wrong.get("momentum", 1.0), 0.999
    for place, name in enumerate(sorted(name for r, name in session.weight_gradients if r == rank)):
        if ("skip" in wrong and place == 1) or name not in weights.values:  # an expert that only another rank has used
            continue
        g = session.weight_gradients[rank, name].values.astype(np.float64) / recipe.loss_scale
        w = weights.values[name]
        kind = "float64" if base == "float64" else "float32"
        first, second = moments.get(name, (np.zeros_like(w), np.zeros_like(w)))
        if adam:
            first = rounded(beta1 * first + (1 - beta1) * g, kind)
            second = rounded(beta2 * second + (1 - beta2) * g * g, kind)
            corrected = "correction" not in wrong
            m = first / (1 - beta1**step) if corrected else first
            v = second / (1 - beta2**step) if corrected else second
            eps = 1e-8 * 10 ** (4 * wrong["eps"]) if "eps" in wrong else 1e-8
            w = w * (1 - rate * decay) - rate * m / (np.sqrt(v) + eps)
        else:
            first = rounded(beta1 * first + (g + decay * w), kind)
            w = w - rate * first
        moments[name] = (first, second)
        weights.values[name] = rounded(w, base)
