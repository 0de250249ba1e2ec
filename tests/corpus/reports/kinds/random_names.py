"""Random operators in dumps that have names alone, with labels behind the type; what lies behind another draw is judged
on the drawn numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_b as dumps

DROPOUTS = (
    "dropout_c",
    "dropout_1_2",
    "Dropout_7",
    "attn_dropout_b",
    "block1_Dropout_3",
    "dropout_x1",
    "encoder_dropout_out",
)
SOURCES = "randn_a", "normal_2", "rand_like_b", "RandomNormal_x", "randn_1_2"
FUNCTIONS = "Gelu", "Tanh", "Sigmoid", "Softmax", "Mul"
DRAWS = "random|seed|generator"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    is_dropout = bool(random.random() < 0.7)
    name = str(random.choice(DROPOUTS if is_dropout else SOURCES))
    function, files = str(random.choice(FUNCTIONS)), str(random.choice(["float32", "float32", "float64"]))
    drawn, wrong = bool(random.random() < 0.75), bool(random.random() < 0.5)
    seed, size = int(random.integers(1 << 30)), random.uniform(0.01, 0.2)
    for side in ("golden", "target"):
        again = drawn and side == "target"
        steps = _run(seed, name, is_dropout, again, function, size * (wrong and side == "target"))
        dumps.write("npy", folder / side, dumps.stored(steps, files))
    case: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "never": ["none diverged"]}
    wanted = [name] * drawn + [f"{function}_5"] * wrong
    if not wanted:
        case.update(exit=[0], first="", never=["another mask"])
    else:
        case.update(first=f"^{re.escape(wanted[0])}$", **({"says": [DRAWS]} if drawn else {}))
    runs = [case]
    if len(wanted) > 1:
        runs.append({**case, "first": f"^{re.escape(wanted[1])}$", "places": 2})
    elif drawn:
        runs[0]["says"] = [DRAWS, "1 place"]
    return {"kind": f"random_names{'' if wanted else ': control'}", "report": "drawn", "runs": runs}


def _run(seed: int, name: str, is_dropout: bool, again: bool, function: str, error: float) -> list[dumps.Step]:
    random = np.random.default_rng(seed)
    rows, width = int(random.integers(6, 30)), int(random.integers(12, 40))
    make = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    x, first, second = make(rows, width), make(width, width) / 5, make(width, width) / 5
    network = dumps.Network(lambda at, kind: dumps.float32, dumps.float32, {})
    drawn = np.random.default_rng([seed, 77 if again else 5])
    h = network("MatMul", x, first)
    if is_dropout:
        kept = drawn.random(h.shape) >= 0.25
        h = _add(network, name, [h], np.where(kept, h / np.float32(0.75), np.float32(0)))
    else:
        noise = _add(network, name, [h] if "like" in name else [], drawn.normal(size=h.shape).astype(np.float32))
        h = network("Mul", h, noise)
    while len(network.steps) < 4:
        h = network("Add", h, make(width))
    h = network("MatMul", h, second)
    read = (h, make(width)) if function == "Mul" else (h,)
    out = dumps.float32(dumps.BODIES[function](*[each.astype(np.float64) for each in read]) * (1 + error))
    h = _add(network, f"{function}_5", read, out)
    network("Add", h, make(width))
    return network.steps


def _add(network: dumps.Network, name: str, inputs: Any, output: np.ndarray) -> np.ndarray:
    network.steps.append(dumps.Step(name, name, [*inputs], output))
    return output
