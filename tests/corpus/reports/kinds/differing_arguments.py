"""An operator that the two runs call with other arguments. Its kernel is right with its own argument, or wrong as well,
or the arguments are equal and the kernel is wrong. Dumps of values and of statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from tests.corpus.reports.kinds import _dumps_G as dumps

Array = np.ndarray


class Operator(NamedTuple):
    """An operator: name, the arguments of golden and target, and its result in float64."""

    name: str
    golden: Any
    target: Any
    result: Callable[[Array, Any], Array]
    place: Callable[[Array, Any], tuple[list[Any], dict[str, Any]]]


def _layer_norm(x: Array, eps: float) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def _softmax(x: Array, axis: int) -> Array:
    y = np.exp(x - x.max(axis, keepdims=True))
    return y / y.sum(axis, keepdims=True)


OPERATORS = (
    Operator("Functional.layer_norm", 1e-5, 1e-6, _layer_norm, lambda x, a: ([x, [x.shape[-1]], None, None, a], {})),
    Operator("Functional.layer_norm", 1e-5, 1e-3, _layer_norm, lambda x, a: ([x, [x.shape[-1]], None, None, a], {})),
    Operator("Functional.softmax", -1, 0, _softmax, lambda x, a: ([x], {"dim": a})),
    Operator("Torch.add", 1, 1.25, lambda x, a: x + a * x[::-1], lambda x, a: ([x, x[::-1].copy()], {"alpha": a})),
    Operator("Functional.leaky_relu", 0.01, 0.1, lambda x, a: np.where(x > 0, x, a * x), lambda x, a: ([x, a], {})),
    Operator("Tensor.__mul__", 0.125, 0.25, lambda x, a: x * a, lambda x, a: ([x, a], {})),
    Operator("Tensor.__rpow__", 10000.0, 5e5, lambda x, a: a ** -np.abs(x), lambda x, a: ([-np.abs(x), a], {})),
)


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    width, count = int(random.integers(8, 48)), int(random.integers(1, 4))
    task = str(random.choice(["tensor", "tensor", "statistics"]))
    dtype = str(random.choice(["float32", "float32", "bfloat16", "float16"]))
    operator = OPERATORS[int(random.integers(len(OPERATORS)))]
    kind = str(random.choice(["right", "right", "wrong", "equal"]))
    x = dumps.rounded(random.standard_normal((width, width)), dtype)
    before = dumps.layers(random, width, count, x, dtype)
    small = 0.05 if operator.name.endswith("layer_norm") else 1.0
    read = before[-1].writes[0]
    for name, argument, result in (
        ("Tensor.__sub__.0", 0.4, lambda v: v - 0.4),
        ("Tensor.__mul__.7", small, lambda v: v * small),
    ):
        before.append(dumps.Call(f"{name}.forward", [read, argument], [dumps.rounded(result(read), dtype)]))
        read = before[-1].writes[0]
    name = f"{operator.name}.0.forward"
    for side in ("target", "golden"):
        argument = operator.target if side == "target" and kind != "equal" else operator.golden
        result = operator.result(read.astype(np.float64), argument)
        if side == "target" and kind != "right":
            result = result + 0.3 * np.sqrt(np.mean(result**2)) * np.cos(np.arange(result.size)).reshape(result.shape)
        out = dumps.rounded(result, dtype)
        reads, keywords = operator.place(read, argument)
        calls = [
            *before,
            dumps.Call(name, reads, [out], keywords),
            dumps.Call("Tensor.exp.0.forward", [out], [dumps.rounded(np.exp(out), dtype)]),
        ]
        dumps.write(folder / side, calls, task, dtype)
    known = name.replace(".", r"\.")
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "exit": [1], "first": known}
    if kind != "equal":
        run["says"] = ["argument .* is .* in the target"]
    if kind == "right" and task == "tensor":
        run["says"].append("the call differs, not the kernel")
    elif kind != "right":
        run["never"] = ["the call differs, not the kernel"]
    if kind == "wrong" and task == "tensor":
        run["says"].append("differs from float64 of its recorded inputs")
    return {"kind": f"differing_arguments: {kind} {task} {dtype} {operator.name}", "runs": [run]}
