"""An output that is wrong in a box; controls: wrong everywhere, and at scattered elements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_E import FORMATS, Call, names, write

FAULTS = ("one axis", "one axis", "two axes", "every other", "everywhere", "scattered")
RANGE = r"elements.{0,30} lie in \[|\[\d+:\d+[,\]]"


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    fault, form = str(random.choice(FAULTS)), str(random.choice(FORMATS))
    shape = tuple(int(random.integers(4, 14)) for _ in range(int(random.integers(2, 5))))
    x, y = (random.normal(size=shape).astype("float32") for _ in range(2))
    weight = (random.normal(size=(shape[-1], shape[-1])) / 3).astype("float32")
    kind = str(random.choice(["MatMul", "Add", "Tanh", "Softmax"]))
    region = [slice(0, length) for length in shape]
    chosen = random.permutation(len(shape))[: 2 if fault == "two axes" else 1]
    for axis in chosen if fault in ("one axis", "two axes", "every other") else ():
        length = int(random.integers(1, shape[axis] - 1))
        start = int(random.integers(0, shape[axis] - length + 1))
        region[axis] = slice(start, start + length)
        if fault == "every other":
            region[axis] = slice(1, shape[axis] - (shape[axis] + 1) % 2, 2)
    state = int(random.integers(2**31))
    for side in ("golden", "target"):
        hidden = np.maximum(x, 0)
        reads, result = {
            "MatMul": ([hidden, weight], hidden @ weight),
            "Add": ([hidden, y], hidden + y),
            "Tanh": ([hidden], np.tanh(hidden)),
            "Softmax": ([y], np.exp(y) / np.exp(y).sum(-1, keepdims=True)),
        }[kind]
        if side == "target":
            result = _wrong(np.random.default_rng(state), result.astype("float32"), tuple(region), fault)
        calls = [Call("Relu", [x], [hidden]), Call(kind, reads, [result])]
        calls.append(Call("Abs", [result], [np.abs(result)]))
        write(folder / side, calls, form)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1]}
    run["first"] = f"^{re.escape(names(calls, form)[1])}$"
    if fault in ("everywhere", "scattered"):
        run["never"] = [RANGE]
    else:
        run["says"] = [re.escape(f"[{', '.join(map(_words, region, shape))}]")]
    control = ": control" if "never" in run else ""
    return {"kind": f"indices: the region of wrong elements{control}", "fault": fault, "runs": [run]}


def _wrong(random: np.random.Generator, x: np.ndarray, region: tuple[slice, ...], fault: str) -> np.ndarray:
    found = x.copy()
    if fault == "scattered":
        places = random.choice(x.size, max(4, x.size // 6), replace=False)
        found.reshape(-1)[places] += np.float32(0.7)
    elif random.random() < 0.5:
        found[region] = found[region] * np.float32(0.5) + np.float32(0.3)
    else:
        found[region] = random.normal(size=found[region].shape)
    return found


def _words(part: slice, length: int) -> str:
    indices = range(part.start, part.stop, part.step or 1)
    if len(indices) == length:
        return ":"
    if len(indices) == 1:
        return str(indices[0])
    if part.step and len(indices) == 2:
        return f"({indices[0]}, {indices[1]})"
    return f"{indices[0]}:{indices[-1] + 1}" + (f":{part.step}" if part.step else "")
