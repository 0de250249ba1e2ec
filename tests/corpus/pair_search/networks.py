"""Draws small networks: chains of layers with residuals, some with their backward, some of the corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

import numpy as np

from tests.corpus.device import ROUND_OFF, Device
from tests.corpus.faults import Random
from tests.corpus.networks import GENERATED, WORDS, Kind, Net, Size
from tests.corpus.planter import recorded
from tests.corpus.tape import Precision, Var
from tests.corpus.trace import Record, Run, Tensor
from tests.corpus.training import Recipe, Trained, train
from tests.corpus.writers.slots import PARAMETER, slots

LAYERS = (
    "linear",
    "layer_norm",
    "rms_norm",
    "gelu",
    "relu",
    "tanh",
    "silu",
    "softmax",
    "residual",
    "gate",
    "attention",
)
PRECISIONS = {"float32": 0.7, "bfloat16": 0.08, "float16": 0.08, "float64": 0.04, "autocast": 0.1}
CORPUS = ("decoder", "encoder", "residual_conv", "experts", "unet")


def chain(net: Net) -> Var:
    """Layers that the option `structure` draws; the loss is a cross entropy or a mean of squares."""
    r = Random([int(net.options["structure"]), 1])
    s = net.size
    if r.random_sample() < 0.4:
        x = net.t(
            "embedding", net.words("ids", s.batch, s.length), net.weight("embed.weight", WORDS, s.width, scale=0.5)
        )
    else:
        x = net.linear("entry", net.normal("x", s.batch, s.length, s.width), s.width)
    for k in range(s.layers):
        with net.t.inside(f"layers.{k}"):
            x = _layer(net, str(r.choice(LAYERS)), x)
    if r.random_sample() < 0.5:
        return net.loss_of(net.linear("head", x, 5), 5)
    return net.t("mean", net.t("mul", x, x))


def _layer(net: Net, kind: str, x: Var) -> Var:
    width = x.shape[-1]
    if kind == "linear":
        return net.linear("product", x, width)
    if kind in ("layer_norm", "rms_norm"):
        return getattr(net, kind)("norm", x)
    if kind == "softmax":
        return net.t("softmax", x, dim=-1)
    if kind == "residual":
        return net.t("add", x, net.linear("out", net.t("gelu", net.linear("in", x, 2 * width)), width))
    if kind == "gate":
        return net.t("mul", x, net.t("sigmoid", net.linear("gate", x, width)))
    if kind == "attention":
        return net.t("add", x, net.attention("attn", x, x, causal=True))
    return net.t(kind, x)


GENERATED["drawn"] = Kind(chain, False, ())


@dataclass(frozen=True)
class Drawn:
    """A golden run: how it was made, what was recorded of it, and the coarsest round-off in it."""

    number: int
    recipe: Recipe
    part: str
    golden: list[Run]
    unit: float
    only_outputs: bool = False

    def kept(self, trained: Trained) -> list[Run]:
        """What is recorded of another training of the same recipe."""
        return kept(trained.runs, self.part, self.number, self.only_outputs)

    @property
    def slots(self) -> list[tuple[int, Record, str, str, Tensor]]:
        """Every recorded tensor: place of its run, record, role, path, tensor."""
        return [(k, one, *slot) for k, run in enumerate(self.golden) for one in run.records for slot in slots(one)]


def kept(runs: Sequence[Run], part: str, number: int, only_outputs: bool = False) -> list[Run]:
    """What is recorded; of the part "weights" a checkpoint, a record for each parameter."""
    if part == "weights":
        return [_checkpoint(run) for run in runs]
    some = recorded(runs, part, number)
    return recorded(some, "outputs", number) if only_outputs else some


def _checkpoint(run: Run) -> Run:
    found: dict[str, Tensor] = {}
    for record in run.records:
        for item in record.inputs:
            if isinstance(item, Tensor) and item.parameter and record.phase == "forward":
                found.setdefault(item.parameter, item)
    made = (Record(PARAMETER, "forward", k, name, (), (one,)) for k, (name, one) in enumerate(found.items()))
    return Run(tuple(made), run.step, run.rank)


def draw(r: Random, number: int, parts: Mapping[str, float], types: Sequence[str], **how: Any) -> Drawn:
    """A golden run. types: what the format holds; how: fields of its Recipe, and `only_outputs`."""
    only_outputs = bool(how.pop("only_outputs"))
    precision = _pick(r, {name: share for name, share in PRECISIONS.items() if name in (*types, "autocast")})
    base, half = ("float32", "bfloat16") if precision == "autocast" else (precision, "")
    if r.random_sample() < 0.12:
        name, size = str(r.choice(CORPUS)), Size(2, 4, 8, 2, 1)
    else:
        name = "drawn"
        size = Size(*(int(r.choice(some)) for some in ((1, 2, 3), (2, 3, 5), (4, 8, 16), (1, 2), range(1, 7))))
        size = size._replace(heads=min(size.heads, size.width // 4))
    part = _pick(r, parts)
    recipe = Recipe(
        name,
        size,
        Precision(base, half),
        Device(int(r.choice([16, 64])), int(r.randint(3))),
        {"structure": int(r.randint(1 << 30))} if name == "drawn" else {},
        steps=1,
        seed=int(r.randint(1 << 30)),
        hooks=str(r.choice(["full", "last"])),
        **how,
    )
    made = train(recipe)
    if not any(True for run in kept(made.runs, part, number) for one in run.records for _ in slots(one)):
        part = "all"
    runs = kept(made.runs, part, number, only_outputs)
    return Drawn(number, recipe, part, runs, ROUND_OFF[recipe.precision.coarsest], only_outputs)


def another_order(recipe: Recipe, r: Random) -> Recipe:
    """The same on a device that adds in another order."""
    block = int(r.choice([size for size in (16, 32, 128, 256) if size != recipe.device.block]))
    return replace(recipe, device=replace(recipe.device, block=block, order=(recipe.device.order + 1) % 3))


def _pick(r: Random, table: Mapping[str, float]) -> str:
    names = list(table)
    shares = np.cumsum([table[name] for name in names])
    return names[int(np.searchsorted(shares / shares[-1], r.random_sample()))]
