"""Repeated runs that differ: sums in another order, around zero, in many operators, and memory that was overwritten."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_E import FORMATS, Call, names, write

FAULTS = ("order", "zero", "many", "one", "some", "piece", "rows")
MANY = r"(all|the) \d+ .{0,60}(sum|reducesum|linear|output)"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    fault, form = str(random.choice(FAULTS)), str(random.choice(FORMATS))
    width, terms = int(random.integers(10, 60)), int(random.integers(20, 200))
    number = int(random.integers(3, 7)) if fault in ("many", "one", "some") else int(random.integers(1, 3))
    moved = {"many": range(number), "some": range(number - 1), "one": [int(random.integers(number))]}.get(fault, [0])
    inputs = [random.normal(size=(terms, width)).astype("float32") for _ in range(number)]
    if fault == "zero":
        inputs[0] = np.concatenate([inputs[0], -inputs[0]])
    order = [random.permutation(len(terms_of)) for terms_of in inputs]
    noise = (random.normal(size=width) * random.choice([3.0, 1e3])).astype("float32")
    length = int(random.integers(max(6, width // 3), max(7, 2 * width // 3)))
    start = int(random.integers(0, width - length))
    for side in ("run1", "run2"):
        calls: list[Call] = []
        for place, x in enumerate(inputs):
            wide = np.tanh(x)
            calls.append(Call("Tanh", [x], [wide]))
            sum_of = _added(x if fault == "zero" and place == 0 else wide)
            if side == "run2" and place in moved:
                if fault == "piece":
                    sum_of[start : start + length] = noise[start : start + length]
                elif fault != "rows":
                    sum_of = _added((x if fault == "zero" else wide)[order[place]])
            read = x if fault == "zero" and place == 0 else wide
            calls.append(Call("ReduceSum", [read], [sum_of]))
        if fault == "rows":
            x = inputs[0][: width + 4]
            y = x * np.float32(2)
            if side == "run2":
                y[3:5] = noise
            calls.append(Call("Mul", [x], [y]))
        write(folder / side, calls, form)
    named = [*map(re.escape, names(calls, form))]
    first = f"^({'|'.join(named[2 * place + 1] for place in moved)})$" if fault != "rows" else f"^{named[-1]}$"
    run: dict[str, Any] = {"do": ["rerun-diff", "run1", "run2"], "exit": [1], "first": first}
    huge = r"\d,\d{3},\d{3},\d{3} ulp"
    if fault in ("piece", "rows"):
        run |= {
            "says": ["one piece|overwritten|rows|tail"],
            "never": ["another order|other order" if fault == "piece" else huge, huge],
        }
    else:
        run |= {"says": ["another order"], "never": ["memory overwritten", huge]}
        if fault == "many":
            run["says"].append(MANY)
        elif fault == "some":
            run["says"].append(rf"{number - 1} of {number} ")
        else:
            run["never"].append(r"all \d+ ")
    return {"kind": "order: repeated runs", "fault": fault, "runs": [run]}


def _added(rows: np.ndarray) -> np.ndarray:
    total = np.zeros(rows.shape[1:], rows.dtype)
    for row in rows:
        total = total + row
    return total
