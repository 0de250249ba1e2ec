"""One call overflows in float16: the value that does it is quoted, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_F import FORMATS, Network, weights

KINDS = "exp", "square", "sum", "div", "none"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    kind, style = str(random.choice(KINDS)), str(random.choice(FORMATS))
    rows, width = int(random.integers(3, 16)), int(random.integers(8, 32))
    network, dtype = Network(), np.float16
    x = random.standard_normal((rows, width)).astype(dtype)
    for _ in range(int(random.integers(1, 4))):
        w = weights(random, width, width).astype(dtype)
        x = network.call("linear", [x, w], (x.astype(np.float64) @ w.astype(np.float64).T).astype(dtype))
    high, low = float(random.integers(24, 80)) / 2, -float(random.integers(82, 120)) / 2
    size = float(random.integers(600, 2000))
    says, never, given = [], [], x.copy()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if kind == "exp":
            given.flat[0], given.flat[3] = high, low
            given, out = [given], np.exp(given.astype(np.float64)).astype(dtype)
            says, never = [f"largest {high:g}\\b"], [f"largest {-low:g}\\b"]
        elif kind == "square":
            given.flat[1], given.flat[4] = -size, size / 4
            given, out = [given], np.square(given.astype(np.float64)).astype(dtype)
            says = [f"{size:g}\\b"]
        elif kind == "sum":
            given.flat[:width] = 30000.0
            given, out = [given], given.astype(np.float64).sum(-1).astype(dtype)
            says = ["30000\\b"]
        elif kind == "div":
            divisor = np.full((rows, width), 0.5, dtype)
            divisor.flat[5] = 2.0**-12
            given.flat[5] = float(random.integers(20, 60))
            given, out = [given, divisor], (given.astype(np.float64) / divisor.astype(np.float64)).astype(dtype)
            says = ["0[.]000244141"]
        else:
            given, out = [given], np.square(given)
    name_of = "square" if kind == "none" else kind
    network.call(name_of, given, out)
    at = len(network.calls) - 1
    finite = np.where(np.isfinite(out), out, 1).astype(dtype)
    network.call("add", [finite, finite], finite + np.minimum(finite, 1))
    network.write(folder / "target", style)
    name = network.names(style)[at].replace(".", "[.]")
    run: dict[str, Any] = {
        "do": ["overflow", "target"],
        "exit": [1],
        "first": f"^{name}$",
        "says": says,
        "never": never,
    }
    if kind == "none":
        run = {"do": ["overflow", "target"], "exit": [0], "first": ""}
    return {"kind": f"overflow_sentences: {kind}", "runs": [run]}
