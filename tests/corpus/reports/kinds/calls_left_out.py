"""Calls that msprobe leaves out without "risk_level": "ALL": a fault in a constant, a view or a cast.

With the call in the dump it is the root; without it the next operator is a GAP, and the key that records it is named.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.synthetic import write_run

MAKERS = {  # name of the call → (right, wrong) tensor from a shape
    "arange": lambda rows, size: (np.arange(rows), np.arange(1, rows + 1)),
    "linspace": lambda rows, size: (np.linspace(0, 1, rows), np.linspace(0, 1.1, rows)),
    "tril": lambda rows, size: (
        np.tril(np.ones((rows, rows)))[:, -1] + 1,
        np.tril(np.ones((rows, rows)), 1)[:, -2] + 1,
    ),
    "full": lambda rows, size: (np.full(rows, 0.5), np.full(rows, 0.25)),
    "eye": lambda rows, size: (np.eye(rows)[0] + 0.5, np.eye(rows)[1] + 0.5),
}


def draw(random: np.random.Generator, folder: Path) -> dict:
    name, seed = str(random.choice([*MAKERS])), int(random.integers(2**31))
    layers, is_recorded = int(random.integers(1, 5)), bool(random.random() < 0.4)
    faulty = int(random.integers(layers))
    for side in ("target", "golden"):
        operators = _network(seed, layers, name, faulty if side == "target" else -1)
        if not is_recorded:
            operators = {key: one for key, one in operators.items() if f".{name}." not in key}
        write_run(folder / side, operators, framework="pytorch")
    config = {"task": "tensor", "dump_path": "./target", "level": "L1"}
    if random.random() < 0.5:
        config["risk_level"] = "ALL" if is_recorded else "FOCUS"
        (folder / "target" / "config.json").write_text(json.dumps(config))
    run = {"do": ["compare", "target", "golden"], "exit": [1], "never": [], "says": []}
    if is_recorded:
        run.update(first=rf"Torch\.{name}\.{faulty}\.forward", never=["risk_level"])
    else:
        run.update(first=rf"Tensor\.__mul__\.{faulty}\.forward", says=['"risk_level": "ALL"'])
    return {"kind": f"calls left out{': control' if is_recorded else ''}", "runs": [run]}


def _network(seed: int, layers: int, name: str, faulty: int) -> dict:
    random = np.random.default_rng(seed)
    rows, size = int(random.integers(4, 9)), int(random.integers(4, 17))
    x = random.standard_normal((rows, size)).astype("f4")
    found = {}
    for at in range(layers):
        weight = (random.standard_normal((size, size)) / size**0.5).astype("f4")
        bias = random.standard_normal(size).astype("f4")
        h = (x @ weight.T + bias).astype("f4")
        found[f"Functional.linear.{at}.forward"] = {"in": [x, weight, bias], "out": [h]}
        rng = MAKERS[name](rows, size)[at == faulty].astype("f4")[:, None] * np.float32(1 + at)
        found[f"Torch.{name}.{at}.forward"] = {"in": [rows], "out": [rng]}
        product = (h * rng).astype("f4")
        found[f"Tensor.__mul__.{at}.forward"] = {"in": [h, rng], "out": [product]}
        x = np.tanh(product).astype("f4")
        found[f"Torch.tanh.{at}.forward"] = {"in": [product], "out": [x]}
    return found
