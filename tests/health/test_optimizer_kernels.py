"""Parameters of dumps of kernels: what an optimizer in the graph did to them, from one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npucmp.health.evaluate import examine
from npucmp.health.facts import Health
from npucmp.health.gather import build
from npucmp.health.rules import RULES
from npucmp.model import Operator, Run, TensorRef

RATE = 0.1
NAMES = ("variable", "accumulation", "learning_rate", "gradient", "momentum")
RULES_OF_STEPS = [one for one in RULES if one.name.startswith(("weight", "optimizer"))]


class Graph:
    """Kernels of one step: two layers of the same shape that the forward reads, and the optimizer's step of each."""

    def __init__(self, folder: Path, attributes: dict[str, Any] = {"input_names": NAMES}) -> None:  # noqa: B006
        self.folder, self.attributes = folder, attributes
        self.random = np.random.default_rng(1)
        self.operators: list[Operator] = []
        self.before = {name: self.random.normal(0, 0.3, (6, 6)).astype("float32") for name in ("one", "two")}
        self.moments = {name: self.random.normal(0, 0.05, (6, 6)).astype("float32") for name in self.before}
        self.factor = dict.fromkeys(self.before, 1.0)  # of the step that is really made
        self.is_named = True

    def add(self, name: str, kind: str, inputs: list[Any], outputs: list[Any], **attributes: Any) -> None:
        order, tensors = len(self.operators), []
        for role, some in (("input", inputs), ("output", outputs)):
            for n, values in enumerate(some):
                file = self.folder / f"{order}.{role}.{n}.npy"
                np.save(file, values)
                tensors.append(
                    TensorRef(f"{role}:{n}", str(values.dtype), values.shape, file=str(file), encoding="npy")
                )
        phase = "backward" if name.startswith("Gradients") else ""
        self.operators.append(Operator(name, kind, name, phase, order, tuple(tensors), attributes=attributes))

    def health(self) -> Health:
        x = self.random.normal(0, 1, (3, 6)).astype("float32")
        for name, weight in self.before.items():
            self.add(f"Default_{name}_MatMul-op0", "MatMul", [x, weight], [x @ weight.T])
        self.add("Gradients_one_MatMul-op1", "MatMul", [x, self.before["one"]], [x])
        rate = np.array(RATE, "float32")
        after = {}
        for name in reversed([*self.before]):
            moment = self.moments[name]
            step = np.float32(self.factor[name]) * rate * moment
            after[name] = (self.before[name] - step).astype("float32")
            given = [after[name], moment, rate, moment, np.array(0.9, "float32")]  # in place: the first is written
            self.add(f"Default_optimizer_{name}", "ApplyMomentum", given, [after[name]], **self.attributes)
        for name in self.before if self.is_named else ():
            self.add(f"{name}.weight", "Parameter", [after[name]], [])
        (found,) = build(str(self.folder), [Run(str(self.folder), "mindspore", tuple(self.operators), 0, 0)], jobs=1)
        return found


def said(health: Health) -> list[tuple[str, str]]:
    return [(one.rule, one.where) for one in examine([health], RULES_OF_STEPS).symptoms]


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.01, [("optimizer.arithmetic", "two.weight")]),
        (0.0, [("weight.not_changed", "two.weight"), ("optimizer.arithmetic", "two.weight")]),
        (
            100.0,
            [
                ("weights.change_large", ""),
                ("weight.change_large", "two.weight"),
                ("optimizer.arithmetic", "two.weight"),
            ],
        ),
    ],
)
def test_steps_that_are_none(factor, expected, tmp_path):
    graph = Graph(tmp_path)
    graph.factor["two"] = factor
    assert sorted(said(graph.health())) == sorted(expected)


def test_an_uphill_step_is_told_from_one_step(tmp_path):
    graph = Graph(tmp_path)
    graph.factor = dict.fromkeys(graph.before, -1.0)
    assert ("optimizer.uphill", "one.weight") in said(graph.health())
