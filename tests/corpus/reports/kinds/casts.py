"""Runs in bfloat16 with float32 norms and softmaxes, of which one has other casts than the other run.

A cast is spelled otherwise, doubled, added where it changes nothing, or moved, which shifts the numbers of all casts
behind it: the runs agree, and a real fault behind it is named. Or a norm or a softmax computes in bfloat16 because its
input is not cast up: that operator is named, no cast. Backward calls are recorded too: a cast that returns its input
has no autograd node, and the dump records the gradients of the operator that made the input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_G import Array, Call, rounded, write

HARMLESS = "spelled", "all spelled", "doubled", "added", "there and back", "moved", "none"
COARSE = "norm", "norm by another cast", "softmax", "softmax by another cast"
NEVER = [r"(GAP|BORN|WORSENED|UNKNOWN|SUSPECT) +Tensor\.(to|float|type|bfloat16)\."]
SHORT, LONG = "bfloat16", "float32"


class Run:
    """A run under construction: its calls, how often each is called, and the types of its tensors."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.backward: list[list[Call]] = []
        self.types: dict[int, str] = {}
        self._held: list[Array] = []  # ids are unique while arrays live
        self._numbers: dict[str, int] = {}

    def make(self, values: Array, dtype: str) -> Array:
        array = rounded(values, dtype).copy()
        self.types[id(array)] = dtype
        self._held.append(array)
        return array

    def call(self, kind: str, reads: list[Any], values: Array, dtype: str, **keywords: Any) -> Array:
        number = self._numbers[kind] = self._numbers.get(kind, -1) + 1
        output = self.make(values, dtype)
        self.calls.append(Call(f"{kind}.{number}.forward", reads, [output], keywords))
        return output

    def cast(self, x: Array, dtype: str, kind: str = "Tensor.to") -> Array:
        words = [] if kind.endswith((SHORT, "float")) else [f"torch.{dtype}"]
        return self.call(kind, [x, *words], x, dtype)

    def last(self) -> str:
        return self.calls[-1].name.removesuffix(".forward")


def draw(random: np.random.Generator, folder: Path) -> dict:
    task = str(random.choice(["tensor", "tensor", "statistics"]))
    layers, width, rows = int(random.integers(3, 6)), int(random.integers(8, 25)), int(random.integers(6, 20))
    weights = random.normal(size=(layers, 2, width, width)) / np.sqrt(width)
    x, gradients = random.normal(size=(rows, width)), random.normal(size=(layers, rows, width)) / rows
    up = str(random.choice(["Tensor.float", "Tensor.to", "Tensor.type"]))
    is_coarse = bool(random.random() < 0.4)
    what = str(random.choice(COARSE if is_coarse else HARMLESS))
    at, fault = int(random.integers(layers)), -1
    if not is_coarse and random.random() < 0.5:
        fault = int(random.integers(at, layers))
    golden, _ = _network(x, weights, gradients, up)
    target, names = _network(x, weights, gradients, up, what, at, fault)
    for side, run in (("golden", golden), ("target", target)):
        calls = [*run.calls, *(call for layer in reversed(run.backward) for call in layer)]
        write(folder / side, calls, task, types=run.types)
    case: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [0], "first": "", "never": NEVER}
    if task == "statistics":
        case["exit"] = [0, 2]
    name = names.get("fault" if fault >= 0 else what.split()[0] if is_coarse else "")
    if fault >= 0 or (is_coarse and task == "tensor"):
        case.update(exit=[1], first=rf"^{name}\.forward$".replace("Tensor.", r"Tensor\."))
    elif is_coarse:
        del case["first"]
        case.update(exit=[0, 1, 2], says=[f"{name}"])  # the note on other types names it
    kind = "coarse" if is_coarse else "fault" if fault >= 0 else "control"
    return {"kind": f"casts: {kind} {what} {task}", "report": "tried as a new user", "runs": [case]}


def _network(
    x: Array, weights: Array, gradients: Array, up: str, what: str = "none", at: int = -1, fault: int = -1
) -> tuple[Run, dict[str, str]]:
    """Return a run of residual layers with a norm, a linear and a softmax, and the names of operators that are said."""
    run, names = Run(), {}
    other = "Tensor.to" if up == "Tensor.float" else "Tensor.float"
    h = run.cast(run.make(x, LONG), SHORT)
    for layer in range(len(weights)):
        here = layer == at
        spelled = other if what == "all spelled" or (what == "spelled" and here) else up
        v, kept = h, LONG
        if here and what.startswith("norm"):
            kept = SHORT
            v = run.cast(h, SHORT) if what != "norm" else h
        else:
            v = run.cast(h, LONG, spelled)
        if here and what == "doubled":
            v = run.cast(v, LONG, spelled)
        square = run.call("Tensor.pow", [v, 2], v**2, kept)
        if here:
            names["norm"] = run.last()
        mean = run.call("Tensor.mean", [square, -1], square.mean(-1, keepdims=True), kept, keepdim=True)
        eps = 0.05 if layer == fault else 1e-6
        added = run.call("Tensor.__add__", [mean, eps], mean + np.float32(eps), kept)
        if layer == fault:
            names["fault"] = run.last()
        scale = run.call("Torch.rsqrt", [added], 1 / np.sqrt(added), kept)
        y = run.call("Tensor.__mul__", [v, scale], v * scale, kept)
        product = run.last()
        z = run.cast(y, SHORT)
        cast = run.last()
        if here and what == "added":
            z = run.cast(z, SHORT)
        if here and what == "there and back":
            z = run.cast(run.cast(z, LONG, up), SHORT)
        w = run.make(weights[layer, 0], SHORT)
        s = run.call("Functional.linear", [z, w], z.astype(np.float64) @ w.T, SHORT)
        g = run.make(gradients[layer], SHORT)
        backward = [Call(f"{run.last()}.backward", [g], [run.make(g.astype(np.float64) @ w, SHORT)])]
        g = backward[0].writes[0]
        if kept == LONG:
            passed = run.make(g, LONG)
            backward.append(Call(f"{cast}.backward", [g], [passed]))
        else:
            passed = g
        own = [run.make(passed * scale, kept), run.make((passed * v).sum(-1, keepdims=True), kept)]
        backward.append(Call(f"{product}.backward", [passed], own))
        if kept == SHORT:  # the record of a cast without a node: the gradients of the product
            backward.append(Call(f"{cast}.backward", [g], own))
        run.backward.append(backward)
        if here and what == "softmax":
            p = run.call("Torch.softmax", [s, -1], _softmax(s), SHORT)
        elif here and what.startswith("softmax"):
            s = run.cast(s, SHORT)
            p = run.call("Torch.softmax", [s, -1], _softmax(s), SHORT)
        else:
            p = run.call("Torch.softmax", [run.cast(s, LONG, spelled), -1], _softmax(s), LONG)
        if here:
            names["softmax"] = run.last()
        p = p if run.types[id(p)] == SHORT else run.cast(p, SHORT)
        if layer == at + 1 and what == "moved":
            p = run.cast(p, SHORT)
        w = run.make(weights[layer, 1], SHORT)
        o = run.call("Functional.linear", [p, w], p.astype(np.float64) @ w.T, SHORT)
        h = run.call("Tensor.__add__", [h, o], h + o, SHORT)
    return run, names


def _softmax(s: Array) -> Array:
    power = np.exp(s.astype(np.float64) - s.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)
