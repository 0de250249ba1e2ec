"""A run quantised to 8 bits against one in float32: one operator counts in steps that are many times coarser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Typed, rounded, softmax, unary, write


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, depth = int(random.choice([16, 32, 64])), int(random.integers(3, 7))
    shape = int(random.integers(2, 5)), int(random.integers(8, 20)), width
    names, layers = _network(random, width, depth)
    x = rounded(random.standard_normal(shape), "float32")
    is_faulty = bool(random.random() < 0.6)
    linear = [at for at, name in enumerate(names) if ".linear." in name and at > 1]
    at = int(random.choice(linear)) if is_faulty else -1
    coarser = float(random.uniform(18.0, 30.0))
    form = str(random.choice(["pt", "npy"]))
    both = bool(random.random() < 0.3)  # both sides are quantised, with scales of their own
    write(folder / "golden", _records(names, layers, x, both, -1, coarser, 1.04), form)
    write(folder / "target", _records(names, layers, x, True, at, coarser, 1.0), form)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1 if is_faulty else 0]}
    run["first"] = re.escape(names[at]) if is_faulty else ""
    return {
        "kind": "coarse_steps, " + ("wrong" if is_faulty else "clean: control"),
        "report": "a scale of quantisation that is too coarse",
        "runs": [run],
    }


def _network(random: np.random.Generator, width: int, depth: int) -> tuple[list[str], list[Any]]:
    names, layers, counts = [], [], dict[str, int]()
    for _ in range(depth):
        weight = rounded(random.standard_normal((width, width)) * 1.4 / np.sqrt(width), "float32")
        kind = str(random.choice(["gelu", "silu", "tanh", "softmax"]))
        for name, layer in (("linear", weight), (kind, kind)):
            counts[name] = counts.get(name, -1) + 1
            names.append(f"Functional.{name}.{counts[name]}.forward")
            layers.append(layer)
    return names, layers


def _records(
    names: list[str], layers: list[Any], x: np.ndarray, is_quantised: bool, at: int, coarser: float, scale: float
) -> dict[str, dict[str, Any]]:
    found, read = {}, x
    for place, (name, layer) in enumerate(zip(names, layers)):
        if isinstance(layer, str):
            wide = softmax(read) if layer == "softmax" else unary(layer, read)[0]
        else:
            wide = read.astype(np.float64) @ layer.T
        if is_quantised:
            step = scale * np.abs(wide).max() / 127.0 * (coarser if place == at else 1.0)
            wide = np.round(wide / step) * step
        wrote = rounded(wide, "float32")
        weights = [] if isinstance(layer, str) else [Typed(layer)]
        found[name] = {"input_args": [Typed(read), *weights], "input_kwargs": {}, "output": [Typed(wrote)]}
        read = wrote
    return found
