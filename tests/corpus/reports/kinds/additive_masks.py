"""Additive masks whose constant another type cannot hold: equal results behind the softmax, a mask of other positions,
and a wrong softmax behind another constant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_b as dumps

LOW = -1e9, -3.4028234663852886e38, -1.7014117e38, -1e9
OTHER = -np.inf, -np.inf, -65504.0, -1e4
FORMS = "npy", "npy", "mindspore", "msprobe", "outputs"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    form, fault = str(random.choice(FORMS)), str(random.choice(["", "", "mask", "softmax", "tanh"]))
    half = dumps.float16 if random.random() < 0.7 else dumps.bfloat16
    constants = [float(random.choice(OTHER)), float(random.choice(LOW))]
    roundings = [half, dumps.float32]
    if random.random() < 0.3:  # the golden is the run in 16 bits
        constants, roundings = constants[::-1], roundings[::-1]
    seed = int(random.integers(1 << 30))
    sides = [_run(seed, *both, fault if at == 0 else "") for at, both in enumerate(zip(roundings, constants))]
    for side, steps in zip(("target", "golden"), sides):
        dumps.write(form, folder / side, steps)
    case: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": ""}
    if fault:
        at = {"mask": 2, "softmax": 3, "tanh": 5}[fault]
        case.update(exit=[1], first=f"^{re.escape(dumps.names(form, sides[0])[at])}$")
    return {"kind": f"additive_masks{': ' + fault if fault else ': control'} {form}", "report": "drawn", "runs": [case]}


def _run(seed: int, rounded: dumps.Rounding, constant: float, fault: str) -> list[dumps.Step]:
    random = np.random.default_rng(seed)
    heads, tokens, width = (int(random.integers(*bounds)) for bounds in ((2, 5), (5, 12), (8, 24)))
    draw_16 = lambda *shape: dumps.bfloat16(dumps.float16(random.normal(size=shape)))  # noqa: E731
    q, k, v = draw_16(heads, tokens, width), draw_16(heads, width, tokens), draw_16(heads, tokens, width)
    masked = np.triu(np.ones((tokens, tokens), bool), 1)
    if random.random() < 0.5:  # padding of the first tokens, whose rows then have nothing else
        masked[2:, 1] = True
    other = masked.copy()
    other[tokens - 1, [0, 2]] = True
    network = dumps.Network(lambda at, kind: rounded, rounded, {})
    if fault == "softmax":
        network = dumps.Network(lambda at, kind: rounded, rounded, {3: lambda x: x * np.float32(1.06)})
    if fault == "tanh":
        network = dumps.Network(lambda at, kind: rounded, rounded, {5: lambda x: x * np.float32(1.06)})
    mask = np.where(other if fault == "mask" else masked, np.float32(constant), np.float32(0)).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = network("Mul", network("MatMul", q, k), np.full(1, 0.25, np.float32))
        network("Tanh", network("MatMul", network("Softmax", network("Add", scores, rounded(mask))), v))
    return network.steps
