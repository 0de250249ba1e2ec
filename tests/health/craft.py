"""Dumps of small trainings, written by the tests: linear layers and a norm, every part of which can be changed.

Weights, gradients and what flows between them are plain arrays until `write`, which makes the records that msprobe
makes of them at level mix, L0 or L1, with values or with statistics alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np

from npucmp import check
from npucmp.model.check_finding import CheckResult, Symptom

RATE = 0.05
OWN = ("weight.*", "weights.*", "grad.*", "optimizer.*", "embedding.*")  # rules of weights.py, updates.py, gradients.py


class Training:
    """`weights` and `gradients` by name and step; a gradient that is None is not dumped. `order` are the layers."""

    def __init__(self, steps: int = 3, layers: int = 4, width: int = 8, seed: int = 0, norm: bool = True) -> None:
        self.random = np.random.default_rng(seed)
        self.steps, self.width = steps, width
        self.weights: dict[str, list[Any]] = {}
        self.gradients: dict[str, list[Any]] = {}
        self.frozen: set[str] = set()
        self.own: dict[str, list[dict[str, Any]]] = {}  # what backwards wrote, where it is not what was accumulated
        self.embedding: Optional[Any] = None  # indices into embed.weight
        self.layers = [f"layers.{n}" for n in range(layers)]
        for name in self.layers:
            self.add(f"{name}.weight", self.random.normal(0, 0.3, (width, width)))
            self.add(f"{name}.bias", self.random.normal(0, 0.1, width))
        self.more: list[str] = []  # modules besides, with a weight
        self.norm = norm
        if norm:
            self.add("norm.weight", np.ones(width))
            self.add("norm.bias", np.zeros(width))

    def add(self, name: str, start: Any, dtype: str = "float32") -> None:
        """A parameter that each step moves against a gradient of its own."""
        gradients = [self.random.normal(0, 0.1, np.shape(start)).astype(dtype) for _ in range(self.steps)]
        self.gradients[name] = gradients
        self.weights[name] = [np.asarray(start, dtype)]
        for gradient in gradients[:-1]:
            self.weights[name].append((self.weights[name][-1] - RATE * gradient).astype(dtype))

    def start(self, name: str, value: Any) -> None:
        """Another start, and the same gradients."""
        shape, dtype = self.weights[name][0].shape, self.weights[name][0].dtype
        weight = np.broadcast_to(np.asarray(value, dtype), shape).copy()
        for step in range(self.steps):
            self.weights[name][step] = weight
            weight = (weight - RATE * self.gradients[name][step]).astype(dtype)

    def beside(self, name: str, start: Any, dtype: str = "float32") -> None:
        """A module that is no layer, with a weight."""
        self.more.append(name)
        self.add(f"{name}.weight", start, dtype)

    def write(self, folder: Path, values: bool = True, level: str = "mix", rank: int = 0) -> Path:
        for step in range(self.steps):
            writer = Writer(folder / f"step{step}" / f"rank{rank}", values)
            self._step(step, writer, level)
            writer.write(level)
        return folder

    def _step(self, step: int, dump: Writer, level: str) -> None:
        x = np.random.default_rng(100 + step).normal(0, 1, (6, self.width)).astype("float32")
        if self.embedding is not None:
            table = self.weights["embed.weight"][step]
            if level != "L0":
                dump.record("Functional.embedding.0.forward", [self.embedding, dump.wanted(table)], [x])
            dump.module("embed", "Embedding", [self.embedding], [x], {"weight": dump.wanted(table)})
        for number, name in enumerate(self.layers):
            w, b = (self._of(dump, f"{name}.{word}", step) for word in ("weight", "bias"))
            with np.errstate(all="ignore"):
                y = (x.astype("float64") @ w["array"].T.astype("float64") + b["array"]).astype("float32")
            module = f"Module.{name}.Linear.forward.0"
            if level != "L0":
                dump.record(f"Functional.linear.{number}.forward", [x, w, b], [y], scope=module)
            if level != "L1":
                dump.module(name, "Linear", [x], [y], {"weight": w, "bias": b})
            x = np.maximum(y, 0)
        if self.norm and level != "L1":
            w, b = (self._of(dump, f"norm.{word}", step) for word in ("weight", "bias"))
            dump.module("norm", "LayerNorm", [x], [x], {"weight": w, "bias": b})
        for name in self.more:
            dump.module(name, "Linear", [x], [x], {"weight": self._of(dump, f"{name}.weight", step)})
        for number, name in reversed([*enumerate(self.layers)]):
            g = {word: self.gradients[f"{name}.{word}"][step] for word in ("weight", "bias")}
            if level != "L0" and any(one is not None for one in g.values()):
                own = self.own.get(name, [g] * self.steps)[step]  # what this step's backward made itself
                weight = None if own["weight"] is None else own["weight"].T
                dump.record(f"Functional.linear.{number}.backward", [x], [own["bias"], x, weight])
            if level != "L1":
                dump.gradients(name, "Linear", {word: one for word, one in g.items() if one is not None})
        if self.norm and level != "L1":
            dump.gradients(
                "norm", "LayerNorm", {one: self.gradients[f"norm.{one}"][step] for one in ("weight", "bias")}
            )

    def _of(self, dump: Writer, name: str, step: int) -> dict[str, Any]:
        return dump.wanted(self.weights[name][step], name not in self.frozen)


class Writer:
    """One dump.json, record by record; arrays become tensors, `wanted` ones those that want a gradient or do not."""

    def __init__(self, folder: Path, values: bool) -> None:
        self.folder, self.values = folder, values
        self.data: dict[str, Any] = {}
        self.scopes: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}

    def wanted(self, array: Any, trainable: bool = True) -> dict[str, Any]:
        return {"array": array, "trainable": trainable}

    def record(self, name: str, args: Sequence[Any], outputs: Sequence[Any], scope: str = "", **kwargs: Any) -> None:
        key = "input_args" if ".forward" in name else "input"
        record = {key: [self.leaf(f"{name}.{key}.{n}", one) for n, one in enumerate(args)]}
        if key == "input_args":
            record["input_kwargs"] = {word: self.leaf(f"{name}.{word}", one) for word, one in kwargs.items()}  # type: ignore[assignment]
        record["output"] = [self.leaf(f"{name}.output.{n}", one) for n, one in enumerate(outputs)]
        self.data[name] = record
        self.scopes[name] = scope or None

    def module(self, path: str, kind: str, args: Any, outputs: Any, parameters: dict[str, Any]) -> None:
        name = f"Module.{path}.{kind}.forward.0"
        self.record(name, args, outputs)
        self.data[name]["parameters"] = {word: self.leaf(f"{name}.{word}", one) for word, one in parameters.items()}

    def gradients(self, path: str, kind: str, gradients: dict[str, Any]) -> None:
        name = f"Module.{path}.{kind}.parameters_grad"
        if gradients:
            self.data[name] = {word: [self.leaf(f"{name}.{word}", one)] for word, one in gradients.items()}

    def leaf(self, name: str, value: Any) -> Any:
        trainable = False
        if isinstance(value, dict):
            value, trainable = value["array"], value["trainable"]
        if isinstance(value, (list, tuple)):
            return [self.leaf(f"{name}.{n}", one) for n, one in enumerate(value)]
        if not isinstance(value, np.ndarray):
            return None if value is None else {"type": type(value).__name__, "value": value}
        leaf = {"type": "torch.Tensor", "dtype": f"torch.{value.dtype}", "shape": list(value.shape),
                "requires_grad": trainable, **figures(value)}  # fmt: skip
        if self.values:
            leaf["data_name"] = f"{name}.npy"
            self.arrays[f"{name}.npy"] = value
        return leaf

    def write(self, level: str) -> None:
        (self.folder / "dump_tensor_data").mkdir(parents=True)
        task = "tensor" if self.values else "statistics"
        top = {"task": task, "level": level, "framework": "pytorch", "data": self.data}
        (self.folder / "dump.json").write_text(json.dumps(top))
        (self.folder / "construct.json").write_text(json.dumps(self.scopes))
        for name, array in self.arrays.items():
            np.save(self.folder / "dump_tensor_data" / name, array)


def figures(value: Any) -> dict[str, Any]:
    """As msprobe records them: of integers no mean and no norm."""
    with np.errstate(all="ignore"):
        wide = value.astype("float64")
        found = {"Max": float(wide.max()), "Min": float(wide.min()), "Mean": None, "Norm": None}
        if value.dtype.kind == "f":
            found.update(Mean=float(wide.mean()), Norm=float(np.sqrt((wide**2).sum())))
    return found


def checked(training: Training, folder: Path, values: bool = True, level: str = "mix", **options: Any) -> CheckResult:
    """What the rules of this family say of it."""
    return check(training.write(folder, values, level), **{"jobs": 1, "only": OWN, **options})


def found(result: CheckResult) -> dict[str, Symptom]:
    """The gravest of each rule."""
    named: dict[str, Symptom] = {}
    for one in result.symptoms:
        named.setdefault(one.rule, one)
    return named
