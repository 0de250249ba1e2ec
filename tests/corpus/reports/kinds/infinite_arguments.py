"""A scalar that a call reads is infinite, NaN or another number on one side: printed as what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_F import Network

VALUES = {"-inf": -np.inf, "inf": np.inf, "nan": np.nan, "number": -1000.0}


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    kind, side = str(random.choice([*VALUES])), str(random.choice(["target", "golden"]))
    usual = float(random.choice([-10000.0, -1e9, 0.5, -3.4028234663852886e38, 2.5]))
    rows, width, at = int(random.integers(2, 12)), int(random.integers(4, 24)), int(random.integers(0, 4))
    dtype = np.float32
    seed = int(random.integers(1 << 30))
    for name in ("target", "golden"):
        own = np.random.default_rng(seed)
        network, x = Network(), own.standard_normal((rows, width)).astype(dtype)
        for number in range(5):
            constant = np.asarray(
                VALUES[kind] if number == at and name == side else usual if number == at else 0.5, dtype
            )
            mask = (own.random((rows, width)) < 0.5).astype(dtype)
            with np.errstate(invalid="ignore", over="ignore"):
                y = network.call(
                    "mul", [mask if number == at else x, constant], (mask if number == at else x) * constant
                )
                if number == at:
                    y = np.where(np.isfinite(y), y, 0)
                x = network.call("add", [x, np.tanh(y).astype(dtype)], (x + np.tanh(y)).astype(dtype))
        network.write(folder / name, "npy")
    first = f"^{network.names('npy')[2 * at]}$"
    words = "nan" if kind == "nan" else "-1000" if kind == "number" else f"{side} {kind}\\b"
    never = [] if kind == "nan" else ["(target|golden) nan"]
    if kind == "inf":
        never += ["(target|golden) -inf"]
    run = {"do": ["compare", "target", "golden"], "exit": [1], "first": first, "says": [words], "never": never}
    return {"kind": f"infinite_arguments: {kind}", "runs": [run]}
