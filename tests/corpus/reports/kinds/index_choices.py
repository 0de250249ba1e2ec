"""Indices, masks and what is chosen by them: ties, misses, rounded indices, look-ups that read other rows, negated
masks; controls beside each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_E import FORMATS, Call, names, write

TIES = r"\bties?\b|\btied\b|among equal"
NEGATION = "negation|inverted|complement"
FAULTS = (
    "ties", "miss", "argmax ties", "argmax miss", "sort ties", "rounded", "next row", "other order",
    "mask negated", "mask moved", "bias negated", "bias moved", "weights negated",
)  # fmt: skip


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    fault, form = str(random.choice(FAULTS)), str(random.choice(FORMATS))
    state = int(random.integers(2**31))
    for side in ("golden", "target"):
        calls, place, says, never = _calls(np.random.default_rng(state), fault, side == "target")
        write(folder / side, calls, form)
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "says": says, "never": never}
    run["first"] = f"^{re.escape(names(calls, form)[place])}$"
    return {"kind": "indices: choices and masks", "fault": fault, "runs": [run]}


def _calls(random: np.random.Generator, fault: str, wrong: bool) -> tuple[list[Call], int, list[str], list[str]]:
    if fault in ("ties", "miss", "argmax ties", "argmax miss", "sort ties", "other order"):
        return _ranked(random, fault, wrong)
    if fault in ("rounded", "next row"):
        return _looked_up(random, fault, wrong)
    return _masked(random, fault, wrong)


def _ranked(random: np.random.Generator, fault: str, wrong: bool) -> tuple[list[Call], int, list[str], list[str]]:
    rows, length = int(random.integers(1, 30)), int(random.integers(24, 80))
    count = {"argmax": 1, "sort": length}.get(fault.partition(" ")[0], int(random.integers(4, 10)))
    is_tied = fault.endswith("ties")
    scores = random.normal(size=(rows, length)).astype("float32")
    if is_tied:  # few values, and the best of each row twice
        scores = (random.integers(0, 6, scores.shape) / 8).astype("float32")
        scores[:, [3, 11]] = 1
    ids = np.argsort(-scores, axis=-1, kind="stable")
    if wrong and is_tied:
        ids = length - 1 - np.argsort(-scores[:, ::-1], axis=-1, kind="stable")
    if wrong and fault.endswith("miss"):
        ids[rows // 2] = np.roll(ids[rows // 2], -1 - int(random.integers(0, 2)))
    ids = ids[:, :count]
    if wrong and fault == "other order":
        ids[:, :2] = ids[:, 1::-1]
    ids = ids.astype(random.choice(["int64", "int32"]))
    best = np.take_along_axis(scores, ids, -1)
    if count == 1:
        calls = [Call("ArgMax", [scores], [ids[:, 0]])]
    else:
        calls = [Call("Sort" if count == length else "TopK", [scores], [best, ids])]
        calls.append(Call("Relu", [best], [np.maximum(best, 0)]))
    if is_tied:
        return calls, 0, [TIES], ["output:[01]: rel_l2"]
    return calls, 0, ["BORN"], [TIES]


def _looked_up(random: np.random.Generator, fault: str, wrong: bool) -> tuple[list[Call], int, list[str], list[str]]:
    length, width, count = (int(random.integers(*ends)) for ends in ((50, 900), (4, 20), (20, 60)))
    table = random.normal(size=(length, width)).astype("float32")
    x = (random.integers(1, length - 2, count) + random.uniform(0.05, 0.45, count)).astype("float32")
    half = random.permutation(count)[: int(random.integers(2, max(3, count // 4)))]
    x[half] += np.float32(0.5)
    ids = np.trunc(x).astype("int64")
    if wrong and fault == "rounded":
        ids = np.rint(x).astype("int64")
    rows = table[ids + 1 if wrong and fault == "next row" else ids]
    calls = [Call("Cast", [x], [ids]), Call("Gather", [table, ids], [rows])]
    calls.append(Call("ReduceMean", [rows], [rows.mean(1)]))
    if fault == "rounded":
        return (
            calls,
            0,
            ["BORN Cast|BORN .*Cast|BORN .*to"],
            ["WORSENED", "worsened in", r"output:0: rel_l2 [^;]*limit 0\.00"],
        )
    return calls, 1, ["BORN"], []


def _masked(random: np.random.Generator, fault: str, wrong: bool) -> tuple[list[Call], int, list[str], list[str]]:
    shape = (int(random.integers(3, 12)), int(random.integers(5, 20)))
    x = random.normal(size=shape).astype("float32")
    mask = random.random(shape) < random.choice([0.3, 0.5, 0.8])
    mask[0, :2] = True, False
    told = mask.copy()
    if wrong:
        told = ~mask
        if fault.endswith("moved"):
            told = mask.copy()
            told[0, :2] = False, True
    kind = fault.partition(" ")[0]
    says, never = ([NEGATION], []) if fault.endswith("negated") else ([], [NEGATION])
    hidden = np.maximum(x, 0)
    calls = [Call("Relu", [x], [hidden])]
    if kind == "mask":
        calls.append(Call("Where", [told, hidden, np.zeros(shape, "float32")], [np.where(told, hidden, 0)]))
    else:
        low = np.float32(random.choice([-10000.0, -65504.0]) if kind == "bias" else 1)
        told = np.where(told, 0, low).astype("float32")
        joined = hidden + told if kind == "bias" else hidden * told
        calls.append(Call("Add" if kind == "bias" else "Mul", [hidden, told], [joined.astype("float32")]))
    return calls, 1, says, never
