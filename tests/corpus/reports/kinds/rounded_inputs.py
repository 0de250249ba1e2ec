"""Positions, tables, masks and buffers that one run rounded to a coarser type before an operator reads them. Controls:
the same tensor shifted, scaled or with noise is not called rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds import _dumps_G as dumps


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, count = int(random.integers(8, 40)), int(random.integers(1, 3))
    what = str(random.choice(["positions", "table", "bias", "frequencies"]))
    dtype = str(random.choice(["bfloat16", "float16"]))
    kind = str(random.choice(["rounded", "rounded", "rounded", "shifted", "scaled", "noise"]))
    x = dumps.rounded(random.standard_normal((width, width)), "float32")
    before = dumps.layers(random, width, count, x)
    hidden = before[-1].writes[0]
    length = int(random.integers(300, 900)) if dtype == "bfloat16" else int(random.integers(2100, 4000))
    if what == "positions":
        tensor = np.arange(length, dtype=np.float32)
        other = (10000.0 ** -(np.arange(width) / width)).astype(np.float32)
        reader, result = "Torch.outer.0.forward", lambda t: np.outer(t, other)
    elif what == "frequencies":
        tensor = (10000.0 ** -(np.arange(width) / width)).astype(np.float32)
        other = np.arange(64, dtype=np.float32)
        reader, result = "Torch.outer.0.forward", lambda t: np.outer(t, other)
    elif what == "table":
        tensor = np.cos(np.arange(width * width) * 0.37).reshape(width, width).astype(np.float32)
        other, reader, result = hidden, "Tensor.__mul__.0.forward", lambda t: t * hidden
    else:
        tensor = (6.9 + 0.1 * random.standard_normal(width)).astype(np.float32)
        other, reader, result = hidden, "Tensor.__add__.0.forward", lambda t: t + hidden
    coarse = dumps.rounded(tensor, dtype)
    if kind == "shifted":
        coarse = tensor + np.float32(1.0)
    elif kind == "scaled":
        coarse = tensor * np.float32(1.01)
    elif kind == "noise":
        coarse = tensor * (1 + 1e-3 * random.standard_normal(tensor.shape)).astype(np.float32)
    rounds = str(random.choice(["target", "target", "golden"]))
    stored = dtype if kind == "rounded" and random.random() < 0.5 else "float32"
    for side in ("target", "golden"):
        read = coarse if side == rounds else tensor
        out = result(read.astype(np.float64)).astype(np.float32)
        reads = [read, other] if what in ("positions", "frequencies") else [other, read]
        calls = [*before, dumps.Call(reader, reads, [out]), dumps.Call("Tensor.sin.0.forward", [out], [np.sin(out)])]
        dumps.write(folder / side, calls, "tensor", types={id(coarse): stored})
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "first": reader.replace(".", r"\.")}
    if kind == "rounded":
        run["says"] = [f"rounded to {dtype}"]
        run["never"] = [r"last matching tensor: Functional\.relu"] if what != "table" else []
        if rounds == "golden" and stored != "float32":  # the type of the golden allows this error: a note names both
            del run["first"]
            run["exit"], run["says"] = [0, 1], [dtype, reader.replace(".", r"\.")]
    else:
        run["never"] = ["rounded to b", "rounded to float16"]
    return {"kind": f"rounded_inputs: {kind} {what} {dtype} {rounds} {stored}", "runs": [run]}
