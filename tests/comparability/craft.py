"""Dumps of a small image classifier in training, of which every part can be changed: the two sides of a precheck."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from npucmp import precheck
from npucmp.model.item_result import Status
from npucmp.model.precheck_result import Precheck
from tests.health.craft import Writer

CLASSES, BATCH, STEPS = 5, 6, 2


def start(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "conv.weight": random.normal(0, 0.2, (4, 3, 3, 3)).astype("f4"),
        "norm.weight": np.ones(4, "f4"),
        "norm.bias": np.zeros(4, "f4"),
        "fc.weight": random.normal(0, 0.3, (CLASSES, 4)).astype("f4"),
        "head.weight": random.normal(0, 0.3, (CLASSES, CLASSES)).astype("f4"),
        "side.weight": random.normal(0, 0.3, (CLASSES, CLASSES)).astype("f4"),
    }


def images(seed: int = 1) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.normal(0, 1, (BATCH, 3, 4, 4)).astype("f4") for _ in range(STEPS)]


def classes(seed: int = 2) -> list[Any]:
    return [np.random.default_rng(seed + step).permutation(BATCH) % CLASSES for step in range(STEPS)]


@dataclass
class Net:
    """One run. `move` is what the optimizer makes of a gradient, `spoil` changes what the first convolution writes."""

    weights: dict[str, Any] = field(default_factory=start)
    images: list[Any] = field(default_factory=images)
    labels: list[Any] = field(default_factory=classes)
    mean: float = 0.0
    eps: float = 1e-5
    p: float = 0.0
    training: bool = True
    seed: int = 7
    reduction: str = "mean"
    scale: float = 1.0
    rate: float = 0.1
    by_sign: bool = False
    accumulates: bool = False
    apart: bool = False  # side.weight moves otherwise than head.weight
    products: str = "float32"
    frozen: tuple[str, ...] = ()
    more: int = 0  # operators that the other side does not have
    spoil: float = 0.0
    steps: tuple[int, ...] = tuple(range(STEPS))

    def _reduced(self) -> dict[str, str]:
        """The argument of the loss; a call that names none has the default."""
        return {"reduction": self.reduction} if self.reduction else {}

    def but(self, **changed: Any) -> Net:
        return replace(self, **changed)

    def write(self, folder: Path, values: bool = True, level: str = "mix") -> Path:
        weights = {name: one.copy() for name, one in self.weights.items()}
        sums: dict[str, Any] = {}
        for at, step in enumerate(self.steps):
            dump = Writer(folder / f"step{step}" / "rank0", values)
            gradients = self._step(dump, at, weights, sums)
            dump.write(level)
            for name, gradient in gradients.items():
                moved = np.sign(gradient) * 0.01 if self.by_sign else gradient
                weights[name] = (weights[name] - self.rate * moved).astype(weights[name].dtype)
        return folder

    def _step(self, dump: Writer, at: int, w: dict[str, Any], sums: dict[str, Any]) -> dict[str, Any]:
        held = {name: dump.wanted(one, name not in self.frozen) for name, one in w.items()}
        x = self.images[at]
        flat = x.mean((2, 3)).astype("f4")
        y = (flat[:, :, None, None] @ w["conv.weight"].mean((2, 3)).T[None, None, 0:1] + self.spoil).astype("f4")
        y = np.broadcast_to(y.reshape(len(x), 3, 4, 1).mean(1)[:, :, :, None][..., 0], (len(x), 4, 1))[..., None]
        y = np.ascontiguousarray(np.broadcast_to(y, (len(x), 4, 2, 2))).astype(self.products)
        dump.record("Functional.conv2d.0.forward", [x, held["conv.weight"], None, (2, 2), (1, 1), (1, 1), 1], [y],
                    scope="Module.conv.Conv2d.forward.0")  # fmt: skip
        dump.module("conv", "Conv2d", [x], [y], {"weight": held["conv.weight"]})
        mean, var = np.full(4, self.mean, "f4"), np.ones(4, "f4")
        z = ((y.astype("f4") - self.mean) / np.sqrt(1 + self.eps)).astype("f4")
        given = [y, mean, var, held["norm.weight"], held["norm.bias"], self.training, 0.1, self.eps]
        dump.record("Functional.batch_norm.0.forward", given, [z], scope="Module.norm.BatchNorm2d.forward.0")
        dump.module("norm", "BatchNorm2d", [y], [z], {"weight": held["norm.weight"], "bias": held["norm.bias"]})
        pooled = z.mean((2, 3))
        dump.record("Tensor.mean.0.forward", [z, (2, 3)], [pooled])
        for number in range(self.more):
            dump.record(f"Tensor.__mul__.{number}.forward", [pooled, 2.0], [pooled * 2])
        kept = np.random.default_rng(self.seed + at).random(pooled.shape) >= self.p if self.training else True
        dropped = (pooled * kept).astype("f4")
        dump.record("Functional.dropout.0.forward", [pooled, self.p, self.training, False], [dropped])
        logits = dropped @ w["fc.weight"].T
        dump.record("Functional.linear.0.forward", [dropped, held["fc.weight"], None], [logits])
        dump.module("fc", "Linear", [dropped], [logits], {"weight": held["fc.weight"]})
        out = logits @ w["head.weight"].T
        dump.record("Functional.linear.1.forward", [logits, held["head.weight"], None], [out])
        dump.module("head", "Linear", [logits], [out], {"weight": held["head.weight"]})
        dump.module("side", "Linear", [logits], [logits], {"weight": held["side.weight"]})
        exp = np.exp(out - out.max(1, keepdims=True))
        share = exp / exp.sum(1, keepdims=True)
        losses = -np.log(share[np.arange(len(x)), self.labels[at]])
        loss = np.asarray(losses.sum() if self.reduction == "sum" else losses.mean(), "f4")
        dump.record("Functional.cross_entropy.0.forward", [out, self.labels[at]], [loss], **self._reduced())
        error = (share - np.eye(CLASSES, dtype="f4")[self.labels[at]]).astype("f4") / len(x)
        dump.record("Functional.cross_entropy.0.backward", [np.asarray(self.scale, "f4")], [error * self.scale])
        found = {"head.weight": error.T @ logits, "fc.weight": (error @ w["head.weight"]).T @ dropped}
        found["conv.weight"] = np.broadcast_to(flat.mean(0)[None, :, None, None], (4, 3, 3, 3)) * error.mean()
        found["side.weight"] = found["head.weight"] * (2 if self.apart else 1)
        dump.record("Functional.linear.1.backward", [error], [error @ w["head.weight"], found["head.weight"]])
        dump.record("Functional.linear.0.backward", [error @ w["head.weight"]], [dropped, found["fc.weight"]])
        for name, gradient in found.items():
            sums[name] = gradient + (sums.get(name, 0) if self.accumulates else 0)
        for name, kind in (("head", "Linear"), ("side", "Linear"), ("fc", "Linear"), ("conv", "Conv2d")):
            if f"{name}.weight" not in self.frozen:
                dump.gradients(name, kind, {"weight": sums[f"{name}.weight"].astype("f4")})
        return {name: found[name] for name in found if name not in self.frozen}


def held(folder: Path, target: Net, golden: Net, values: bool = True, **options: Any) -> Precheck:
    """What a precheck says of two runs."""
    sides = [net.write(folder / name, values) for name, net in (("target", target), ("golden", golden))]
    return precheck(*sides, **{"jobs": 1, "skip": ("*.health",), **options})


def differing(result: Precheck) -> dict[str, str]:
    """Rows that differ, with their severity."""
    return {row.row: row.severity for row in result.rows if row.status is Status.DIFFERS}


def words(result: Precheck, row: str) -> str:
    return next(one.because for one in result.rows if one.row == row)


def status(result: Precheck, row: str) -> str:
    return next(one.status.value for one in result.rows if one.row == row)
