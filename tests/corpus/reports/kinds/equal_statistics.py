"""An input in another order: its statistics are equal, its values are not. One run alone moves the elements, or both
runs move other axes. Controls: the operator itself is wrong, beside an operator of one run that moves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_G as dumps

MOVES = {
    "Tensor.t": lambda w: w.T,
    "Torch.transpose": lambda w: w.T,
    "Tensor.permute": lambda w: w.T,
    "Torch.flip": lambda w: w[::-1],
    "Torch.roll": lambda w: np.roll(w, 1, axis=0),
}
KEEPS = "Tensor.clone", "Tensor.contiguous", "Tensor.reshape"
READERS = {
    "Tensor.__add__": lambda h, w: h + w,
    "Torch.add": lambda h, w: h + w,
    "Tensor.__mul__": lambda h, w: h * w,
    "Torch.matmul": lambda h, w: h @ w,
    "Tensor.__sub__": lambda h, w: h - w,
}


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, count = int(random.integers(6, 40)), int(random.integers(1, 4))
    task = str(random.choice(["statistics", "statistics", "md5", "tensor"]))
    dtype = str(random.choice(["float32", "bfloat16"]))
    x = dumps.rounded(random.standard_normal((width, width)), dtype)
    w = dumps.rounded(random.standard_normal((width, width)) + random.uniform(0, 0.5), dtype)
    before = dumps.layers(random, width, count, x, dtype)
    hidden = before[-1].writes[0]
    reader, move = str(random.choice([*READERS])), str(random.choice([*MOVES]))
    kind = str(random.choice(["moved", "moved", "axes", "faulty"]))
    alone = str(random.choice(["target", "golden"]))
    after = random.bit_generator.state
    for side in ("target", "golden"):
        random.bit_generator.state = after
        calls, read = [*before], w
        if kind == "axes":
            axes = [1, 0] if side == alone else [0, 1]
            read = np.ascontiguousarray(w.transpose(axes))
            calls.append(dumps.Call("Tensor.permute.0.forward", [w, *axes], [read]))
        elif side == alone:
            name = str(random.choice(KEEPS)) if kind == "faulty" else move
            read = w if kind == "faulty" else np.ascontiguousarray(MOVES[move](w))
            calls.append(dumps.Call(f"{name}.0.forward", [w], [read]))
        result = READERS[reader](hidden.astype(np.float64), read.astype(np.float64))
        if kind == "faulty" and side == "target":
            result = result * 1.5 + 0.25
        result = dumps.rounded(result, dtype)
        calls.append(dumps.Call(f"{reader}.0.forward", [hidden, read], [result]))
        calls.append(dumps.relu(f"Functional.relu.{count}.forward", result))
        dumps.write(folder / side, calls, task, dtype)
    operator = rf"{reader}\.0\.forward".replace("Tensor.", r"Tensor\.").replace("Torch.", r"Torch\.")
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "first": operator}
    if kind == "faulty":
        run["never"] = [r"\(only in the (target|golden)\) wrote"]
    elif kind == "axes":
        run["first"] = rf"{operator}|permute"
        run["never"] = [rf"BORN {operator} output:0 inputs agree"]
    else:
        run["first"] = rf"{operator}|{move}\.0"
        run["says"] = [rf"{move}\.0\.forward \(only in the {alone}\)"]
        run["never"] = [rf"BORN {operator}"]
    return {"kind": f"equal_statistics: {kind} {task} {move} {reader}", "runs": [run]}
