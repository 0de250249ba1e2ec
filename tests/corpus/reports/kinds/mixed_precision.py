"""Mixed runs, products in 16 bits and the rest in float32, with a small error of a float32 operator; and runs in
float32 or 16 bits whose files are float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_b as dumps

HALVES = {"float16": dumps.float16, "bfloat16": dumps.bfloat16}
NETWORKS = dumps.mlp, dumps.attention, dumps.convolutions
FORMS = "npy", "npy", "mindspore", "msprobe"
PRODUCTS = "MatMul", "Conv"
FINE = "Tanh", "Softmax", "Gelu", "Add"
NOISE = 2.0**-26


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    run = NETWORKS[random.integers(len(NETWORKS))](random)
    form, half = str(random.choice(FORMS)), HALVES[str(random.choice([*HALVES]))]
    what = str(random.choice(["mixed", "mixed", "mixed", "float32", "short"]))
    files = str(random.choice(["float32", "float64"])) if what == "mixed" else "float64"
    is_golden_mixed, is_noisy = bool(random.random() < 0.4), bool(random.random() < 0.5)
    noise = np.random.default_rng(random.integers(1 << 30))

    def target(at: int, kind: str) -> dumps.Rounding:
        usual = dumps.float32 if what == "float32" or (what == "mixed" and kind not in PRODUCTS) else half
        if not is_noisy or kind not in PRODUCTS:
            return usual
        return lambda x: usual(x * (1 + NOISE * noise.normal(size=x.shape)) if x.dtype == np.float64 else x)

    def golden(at: int, kind: str) -> dumps.Rounding:
        return half if what == "short" or (what == "mixed" and is_golden_mixed and kind in PRODUCTS) else dumps.float32

    loads = half if what == "short" else dumps.float32
    right = dumps.Network(golden, loads, {})
    run(right)
    fine = [at for at, step in enumerate(right.steps) if step.kind in FINE]
    at, is_faulty = int(random.choice(fine)), bool(random.random() < 0.6)
    size = random.uniform(0.1, 0.4) if what == "short" else 10 ** random.uniform(-3.3, -2.3)
    wrong = dumps.Network(target, loads, {at: lambda x: x.astype(np.float64) * (1 + size)} if is_faulty else {})
    run(wrong)
    dumps.write(form, folder / "golden", dumps.stored(right.steps, files))
    dumps.write(form, folder / "target", dumps.stored(wrong.steps, files))
    case: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": "", "never": ["HF32"]}
    if is_faulty:
        case.update(exit=[1], first=f"^{re.escape(dumps.names(form, right.steps)[at])}$")
    elif files == "float64":
        case["says"] = ["files say float64"]
    ends = what if is_faulty else "control"
    return {"kind": f"mixed_precision: {ends} {form} {files}", "report": "drawn", "runs": [case]}
