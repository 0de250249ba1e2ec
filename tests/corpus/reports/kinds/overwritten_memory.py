"""A tensor that is overwritten between its producer and a reader, by a later output or by what no dump has; controls:
code that was not dumped makes other values of it, and an operator is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_E import FORMATS, Call, names, write

FAULTS = ("whole", "rows", "columns", "run", "unknown", "unknown part", "scale", "activation", "bias", "operator")
SCOPES = ("", "decoder/", "block1_", "head_")


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    fault, form = str(random.choice(FAULTS)), str(random.choice(FORMATS))
    rows, width = int(random.integers(5, 24)), int(random.integers(8, 40))
    dtype = np.dtype(random.choice(["float32", "float32", "float16"]))
    lead = (int(random.integers(2, 5)),) if random.random() < 0.3 else ()
    x = random.normal(size=(*lead, rows, width)).astype(dtype)
    weights = [(random.normal(size=(width, width)) / np.sqrt(width)).astype(dtype) for _ in range(3)]
    between = [str(random.choice(["Sigmoid", "Tanh", "MatMul"])) for _ in range(int(random.integers(0, 3)))]
    joins = str(random.choice(["Add", "Mul", "Concat"]))
    state = int(random.integers(2**31))
    reader = 0
    for side in ("golden", "target"):
        own = np.random.default_rng(state)
        calls: list[Call] = []
        first = _product(calls, x, weights[0])
        last = _product(calls, first, weights[1])
        writer = len(calls) - 1
        for kind in between:
            last = _product(calls, last, weights[2]) if kind == "MatMul" else _map(calls, kind, last)
        read = _changed(own, first, calls[writer].outputs[0], fault) if side == "target" else first
        joined = {"Add": np.add, "Mul": np.multiply}.get(joins, lambda a, b: np.concatenate([a, b], -1))(read, last)
        if side == "target" and fault == "operator":
            joined = (joined * dtype.type(1.25)).astype(dtype)
        calls.append(Call(joins, [read, last], [joined]))
        reader = len(calls) - 1
        _map(calls, "Relu", joined)
        write(folder / side, calls, form)
    named = [*map(re.escape, names(calls, form))]
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "first": f"^{named[reader]}$"}
    if fault == "operator":
        run |= {"says": ["BORN"], "never": ["overwrit"]}
    elif fault in ("scale", "activation", "bias"):
        run |= {"says": ["not dumped"], "never": ["overwrit"]}
    elif fault.startswith("unknown"):
        run |= {"says": ["overwrit"]}
    else:
        run |= {"says": ["overwr", named[writer]], "never": ["code that was not dumped"]}
    control = ": control" if fault in ("scale", "activation", "bias", "operator") else ""
    return {"kind": f"memory: overwritten between writer and reader{control}", "fault": fault, "runs": [run]}


def _product(calls: list[Call], x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    calls.append(Call("MatMul", [x, weight], [(x.astype("float32") @ weight.astype("float32")).astype(x.dtype)]))
    return calls[-1].outputs[0]


def _map(calls: list[Call], kind: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype("float64")
    body = {"Sigmoid": 1 / (1 + np.exp(-wide)), "Tanh": np.tanh(wide), "Relu": np.maximum(wide, 0)}[kind]
    calls.append(Call(kind, [x], [body.astype(x.dtype)]))
    return calls[-1].outputs[0]


def _changed(random: np.random.Generator, x: np.ndarray, other: np.ndarray, fault: str) -> np.ndarray:
    """What the reader of `x` gets."""
    found, (rows, width) = x.copy(), x.shape[-2:]
    top, left = int(random.integers(0, rows - 2)), int(random.integers(0, width - 4))
    if fault == "whole":
        return other.copy()
    if fault == "rows":
        found[..., top:, :] = other[..., top:, :]
    elif fault == "columns":
        found[..., top:, left : left + 4] = other[..., : rows - top, :4]
    elif fault == "run":
        length = int(random.integers(x.size // 5, x.size // 2))
        start = int(random.integers(0, x.size - length))
        found.reshape(-1)[start : start + length] = other.reshape(-1)[:length]
    elif fault == "unknown":
        return random.normal(size=x.shape).astype(x.dtype)
    elif fault == "unknown part":
        found[..., top:, left:] = random.normal(size=found[..., top:, left:].shape)
    elif fault == "scale":
        found = (x * x.dtype.type(random.choice([0.5, 0.9, 1.1, 2.0]))).astype(x.dtype)
    elif fault == "activation":
        found = (x / (1 + np.exp(-x.astype("float64")))).astype(x.dtype)
    elif fault == "bias":
        found = (x + random.normal(0, 0.5, width)).astype(x.dtype)
    return found
