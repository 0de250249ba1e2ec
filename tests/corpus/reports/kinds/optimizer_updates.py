"""A network trained for a few steps, whose target's optimizer differs: gradients unscaled twice or clipped before they
are unscaled, another learning rate or weight decay, a lost update, a sign; or a gradient is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Typed
from tests.corpus.reports.kinds._torch_files import write_step

FAULTS = ("twice", "twice", "clip", "rate", "rate", "decay", "lost", "sign", "gradient", "equal")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    seed, kind = int(random.integers(1 << 30)), str(random.choice(FAULTS))
    width, classes, batch = (int(random.integers(*limits)) for limits in ((6, 24), (3, 9), (4, 12)))
    layers, steps = int(random.integers(2, 5)), int(random.integers(2, 4))
    scale = float(2 ** int(random.integers(8, 17)))
    times = float(random.choice([0.5, 2.0, 0.1, 10.0]))
    rate = float(random.choice([0.05, 0.2]))
    lost = int(random.integers(layers))
    for side in ("golden", "target"):
        faulty = kind if side == "target" else "equal"
        draws = np.random.default_rng(seed)
        shapes = [(width, width)] * (layers - 1) + [(classes, width)]
        weights = [(draws.standard_normal(shape) / np.sqrt(width)).astype(np.float32) for shape in shapes]
        for step in range(steps):
            x = draws.standard_normal((batch, width)).astype(np.float32)
            labels = draws.integers(0, classes, batch)
            records, gradients = _pass(weights, x, labels, scale, faulty == "gradient" and step == 0)
            write_step(folder / side, step, records, "pt", "mix")
            real = [gradient / scale for gradient in gradients]
            norm = np.sqrt(sum(float((one * one).sum()) for one in real))
            if faulty == "twice":
                real = [one / scale for one in real]
            elif faulty == "clip":
                real = [one / norm / scale for one in real]
            elif kind == "clip":
                real = [one / max(norm, 1.0) for one in real]
            own = rate * (times if faulty == "rate" else -1.0 if faulty == "sign" else 1.0)
            decay = 0.02 if faulty == "decay" else 0.0
            for at, (weight, gradient) in enumerate(zip(weights, real)):
                if not (faulty == "lost" and at == lost):
                    weights[at] = (weight * (1 - decay) - own * gradient).astype(np.float32)
    compare: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0 if kind == "equal" else 1]}
    precheck: dict[str, Any] = {"do": ["precheck", "target", "golden"], "exit": [0, 1]}
    if kind == "gradient":
        compare |= {"first": r"backward|parameters_grad", "never": ["optimizer's update"]}
    elif kind != "equal":
        compare |= {"says": ["the optimizer's update", "originates in 1 place"]}
        never = ["learning rates differ", "same +optimizer"]
        by_scale = [f"1/{scale:g}"]
        says = {"twice": by_scale, "clip": by_scale, "rate": [rf"{times:g}( .1/10.)? times"], "lost": ["lost"],
                "decay": ["weight decay"], "sign": ["-1 times|opposite"]}[kind]  # fmt: skip
        compare["says"] += says
        precheck |= {
            "exit": [1],
            "never": never,
            "says": [f"1/{scale:g}|loss scale"] if kind in ("twice", "clip") else [],
        }
    else:
        precheck |= {"exit": [0]}
    return {"kind": f"check: update: {kind}" + (": control" if kind in ("equal", "gradient") else ""),
            "runs": [compare, precheck]}  # fmt: skip


def _pass(
    weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray, scale: float, wrong: bool
) -> tuple[dict[str, dict[str, Any]], list[np.ndarray]]:
    """Return the records of a forward and a backward pass, and the scaled gradients of the weights."""
    records: dict[str, dict[str, Any]] = {}
    read, made = [], []
    for at, weight in enumerate(weights):
        read.append(x)
        y = (x.astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32)
        made.append(y)
        records[f"Functional.linear.{at}.forward"] = {"input_args": [Typed(x), Typed(weight)], "output": [Typed(y)]}
        if at < len(weights) - 1:
            x = np.tanh(y)
            records[f"Functional.tanh.{at}.forward"] = {"input_args": [Typed(y)], "output": [Typed(x)]}
    logits = made[-1].astype(np.float64)
    odds = np.exp(logits - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    value = -np.log(odds[rows, labels]).mean()
    labelled = Typed(labels.astype(np.int64), "int64")
    records["Functional.cross_entropy.0.forward"] = {
        "input_args": [Typed(made[-1]), labelled],
        "output": [Typed(np.float32(value).reshape(()))],
    }
    odds[rows, labels] -= 1
    g = (odds * scale / len(labels)).astype(np.float32)
    entering = Typed(np.float32(scale).reshape(()))
    records["Functional.cross_entropy.0.backward"] = {"input": [entering], "output": [Typed(g)]}
    gradients: list[np.ndarray] = []
    for at in reversed(range(len(weights))):
        dw = (g.T.astype(np.float64) @ read[at].astype(np.float64)).astype(np.float32)
        dx = (g.astype(np.float64) @ weights[at].astype(np.float64)).astype(np.float32)
        if wrong and at == len(weights) - 1:
            dx, dw = dx * np.float32(1.5), dw * np.float32(1.5)
        gradients.insert(0, dw)
        records[f"Functional.linear.{at}.backward"] = {"input": [Typed(g)], "output": [Typed(dx), Typed(dw)]}
        if at:
            y = made[at - 1].astype(np.float64)
            new = (dx.astype(np.float64) * (1 - np.tanh(y) ** 2)).astype(np.float32)
            records[f"Functional.tanh.{at - 1}.backward"] = {"input": [Typed(dx)], "output": [Typed(new)]}
            g = new
    return records, gradients
