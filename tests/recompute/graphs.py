"""Dumps of a graph mode, made by hand: TensorFlow's files of outputs with the graph beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npucmp import replay
from npucmp.model import ReplayedOutput, ReplayResult

TIME = 1_795_254_505_000_000


def spelled(value: Any) -> str:
    """An attribute as protobuf text."""
    if isinstance(value, (list, tuple)):
        return "list { " + " ".join(spelled(one) for one in value) + " }"
    if isinstance(value, bool):
        return f"b: {str(value).lower()}"
    if isinstance(value, str):
        return f's: "{value}"'
    return f"i: {value}" if isinstance(value, int) else f"f: {value!r}"


def constant(value: Any) -> str:
    numbers = np.ravel(value).tolist()
    dims = "" if np.ndim(value) == 0 else f"dim {{ size: {len(numbers)} }}"
    kind, field = ("DT_FLOAT", "float_val") if isinstance(numbers[0], float) else ("DT_INT32", "int_val")
    words = " ".join(f"{field}: {one}" for one in numbers)
    return f"tensor {{ dtype: {kind} tensor_shape {{ {dims} }} {words} }}"


class GraphDump:
    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes, self.count = folder, list[str](), 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, op: str, inputs: list[Any], outputs: list[np.ndarray[Any, Any]], **told: Any) -> GraphDump:
        """An operator; arrays among its inputs are variables that it reads, other values constants of the graph."""
        read = [one if isinstance(one, str) else self._source(f"{name}_in{at}", one) for at, one in enumerate(inputs)]
        self._node(name, op, read, {key: spelled(value) for key, value in told.items()})
        for at, array in enumerate(outputs):
            self._save(name, at, array)
        return self

    def _source(self, name: str, value: Any) -> str:
        if isinstance(value, np.ndarray):
            self._node(name, "ReadVariableOp", [], {})
            self._save(name, 0, value)
        else:
            self._node(name, "Const", [], {"value": constant(value)})
        return name

    def _node(self, name: str, op: str, read: list[str], told: dict[str, str]) -> None:
        words = "".join(f' input: "{one}"' for one in read)
        words += "".join(f' attr {{ key: "{key}" value {{ {text} }} }}' for key, text in told.items())
        self.nodes.append(f'node {{ name: "{name}" op: "{op}"{words} }}')

    def _save(self, name: str, at: int, array: np.ndarray[Any, Any]) -> None:
        self.count += 1
        np.save(self.folder / f"{name}.{at}.{TIME + self.count}.npy", array)

    def replays(self, **options: Any) -> ReplayResult:
        (self.folder / "graph.pbtxt").write_text("\n".join(self.nodes))
        return replay(self.folder, jobs=1, **options)

    def rows(self, **options: Any) -> dict[str, ReplayedOutput]:
        """The first row of each operator."""
        found = self.replays(**options)
        (one,) = found.replays
        rows: dict[str, ReplayedOutput] = {}
        for row in one.rows:
            rows.setdefault(one.operators[row.order].name, row)
        return {name: row for name, row in rows.items() if "_in" not in name}
