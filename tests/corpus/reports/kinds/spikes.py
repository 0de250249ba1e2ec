"""Several steps of one run without a golden: a tensor that is many times its size of the other steps; steps that are
alike, a warm-up, or a network that differs from step to step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Typed
from tests.corpus.reports.kinds._torch_files import write_step

ACTIVATIONS = {
    "Functional.tanh": np.tanh,
    "Functional.gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "Functional.relu": lambda x: np.maximum(x, 0),
    "Torch.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, depth, batch = (int(random.integers(*limits)) for limits in ((8, 40), (2, 6), (4, 16)))
    first, steps = int(random.choice([0, 1, 5, 100])), int(random.integers(4, 9))
    form, dtype = str(random.choice(["statistics", "statistics", "pt", "npy"])), "float32"
    kind = str(random.choice(["spike", "spike", "input", "alike", "warm-up", "varies"]))
    at = (int(random.integers(1 if steps > 4 else 3, steps)), int(random.integers(depth)))
    factor = float(random.choice([20.0, 50.0, 400.0, 1e5]))
    names = [str(random.choice([*ACTIVATIONS])) for _ in range(depth)]
    weights = [random.standard_normal((width, width)) / np.sqrt(width) for _ in range(depth)]
    where = str(random.choice(["linear", "activation"]))
    wrong = ""
    numbers: dict[str, int] = {}
    for step in range(steps):
        records, counted = {}, dict.fromkeys(numbers, 0)
        x = random.standard_normal((batch, width))
        x *= {"warm-up": 2.0**step, "varies": float(random.choice([0.1, 1.0, 5.0]))}.get(kind, 1.0)
        x *= factor if kind == "input" and step == at[0] else 1.0
        for layer, weight in enumerate(weights):
            y = x @ weight.T
            is_wrong = kind == "spike" and (step, layer) == at
            y *= factor if is_wrong and where == "linear" else 1.0
            linear = f"Functional.linear.{layer}.forward"
            number = counted.get(names[layer], 0)
            counted[names[layer]] = number + 1
            activation = f"{names[layer]}.{number}.forward"
            z = ACTIVATIONS[names[layer]](
                np.clip(y, -500, 500) if "sigmoid" in names[layer] or "gelu" in names[layer] else y
            )
            z = z * (factor if is_wrong and where == "activation" else 1.0)
            records[linear] = {"input_args": [Typed(x, dtype), Typed(weight, dtype)], "output": [Typed(y, dtype)]}
            records[activation] = {"input_args": [Typed(y, dtype)], "output": [Typed(z, dtype)]}
            wrong = (linear if where == "linear" else activation) if is_wrong else wrong
            x = z
        write_step(folder / "run", first + step, records, form)
    run: dict[str, Any] = {"do": ["check", "run"], "exit": [0, 1]}
    if kind == "spike":
        run |= {"says": [rf"tensor\.spike +{wrong}".replace(".forward", ""), f"step {first + at[0]}\\b"]}
    elif kind == "input":
        run |= {"says": [r"tensor\.spike +Functional\.linear\.0", "input:0"]}
    else:
        run |= {"never": [r"\d +(ERROR|WARNING|HINT) +tensor\.spike"]}
    return {"kind": f"check: spike: {kind}" + ("" if kind in ("spike", "input") else ": control"), "runs": [run]}
