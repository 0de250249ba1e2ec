"""Small networks for the kinds about sentences: a chain of calls, written as msprobe or as files of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.synthetic import write_run

Array = NDArray[Any]
Calls = dict[str, dict[str, Any]]
FORMATS = "msprobe", "npy"
NAMES = {
    "linear": "Gemm",
    "exp": "Exp",
    "square": "Square",
    "sum": "ReduceSum",
    "div": "Div",
    "mul": "Mul",
    "add": "Add",
}
CALLS = {
    "linear": "Functional.linear",
    "exp": "Mint.exp",
    "square": "Mint.square",
    "sum": "Mint.sum",
    "div": "Mint.div",
    "mul": "Mint.mul",
    "add": "Mint.add",
}


class Network:
    """The calls of one side, in order. `call` returns the output that later calls read."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any], Array]] = []

    def call(self, kind: str, inputs: list[Any], output: Array) -> Array:
        self.calls.append((kind, inputs, output))
        return output

    def names(self, style: str) -> list[str]:
        """The name of each call in a format."""
        seen: dict[str, int] = {}
        found = []
        for number, (kind, _, _) in enumerate(self.calls):
            count = seen.setdefault(kind, 0)
            seen[kind] += 1
            found.append(
                f"{CALLS[kind]}.{count}.forward" if style == "msprobe" else f"{NAMES.get(kind, kind.title())}_{number}"
            )
        return found

    def write(self, folder: Path, style: str) -> None:
        names = self.names(style)
        if style == "msprobe":
            write_run(folder, {name: {"in": given, "out": [out]} for name, (_, given, out) in zip(names, self.calls)})
            return
        folder.mkdir(parents=True)
        for name, (_, given, out) in zip(names, self.calls):
            for number, value in enumerate(given):
                if isinstance(value, np.ndarray):
                    np.save(folder / f"{name}.input.{number}.npy", value)
            np.save(folder / f"{name}.output.0.npy", out)


def weights(random: np.random.Generator, *shape: int) -> Array:
    return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
