"""The title says "first" only if everything before was compared: operators of one run alone, in this step or in an
earlier one, are counted and named. Controls: everything was compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_G as dumps


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, count = int(random.integers(6, 32)), int(random.integers(1, 4))
    kind = str(random.choice(["same step", "earlier step", "control"]))
    task = str(random.choice(["statistics", "tensor", "md5"])) if kind != "control" else "tensor"
    steps = 2 if kind == "earlier step" else int(random.integers(1, 3))
    alone = str(random.choice(["target", "golden"]))
    name = str(random.choice(["Tensor.mul_", "Tensor.clamp_", "Tensor.addcmul_", "Tensor.lerp_"]))
    seeds = [int(random.integers(1 << 30)) for _ in range(steps)]
    factor = np.float32(random.uniform(0.5, 0.9))
    for step, seed in enumerate(seeds):
        for side in ("target", "golden"):
            drawn = np.random.default_rng(seed)
            x = drawn.standard_normal((width, width)).astype(np.float32)
            calls = dumps.layers(drawn, width, count, x)
            weight = drawn.standard_normal((width, width)).astype(np.float32)
            last = step == steps - 1
            lone = dumps.Call(f"{name}.0.forward", [weight, float(factor)], [weight * factor])
            if side == alone and (last if kind == "same step" else step == 0) and kind != "control":
                calls.append(lone)
            hidden = calls[2 * count - 1].writes[0]
            out = hidden * np.float32(2.0)
            if side == "target" and last:
                out = out * np.float32(1.25)
            calls.append(dumps.Call("Tensor.__mul__.0.forward", [hidden, 2.0], [out]))
            calls.append(dumps.relu(f"Functional.relu.{count}.forward", out))
            dumps.write(folder / side, calls, task, step=step)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "first": r"__mul__\.0\.forward"}
    if kind == "control":
        run["says"] = ["First diverging operator"]
        run["never"] = ["were? not compared", "was not compared"]
    else:
        run["says"] = [r"not compared, for example of " + name.replace(".", r"\.") + r"\.0|statistics only; not proven"]
        run["never"] = ["First diverging operator"]
    return {"kind": f"uncompared_before_first: {kind} {task} {name}", "runs": [run]}
