"""Weights that only the golden recorded: kernels and moving statistics of TensorFlow's debugger against a device's
dump, or parameters of modules. All operators that read them agree, or one of them or another operator does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Device, Typed, rounded, softmax, unary, write
from tests.corpus.trace import Record, Tensor
from tests.corpus.writers import cann
from tests.corpus.writers.msprobe import npy
from tests.corpus.writers.naming import Kernel

TIME = 1_786_000_000_000_000


class Layer(NamedTuple):
    """One operator: its scope, its type, and its weights by name."""

    scope: str
    kind: str
    weights: dict[str, np.ndarray]


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    of_device = bool(random.random() < 0.6)
    layers = _layers(random, of_device)
    fault = str(random.choice(["none", "none", "weight", "operator"]))
    places = [at for at, layer in enumerate(layers) if bool(layer.weights) == (fault == "weight")]
    at = int(random.choice(places)) if fault != "none" else -1
    x = random.standard_normal((int(random.integers(4, 20)), layers[0].weights["kernel"].shape[0])).astype(np.float32)
    dtype = str(random.choice(["float16", "float32"]))
    devices = {"target": Device(int(random.integers(1 << 30)), dtype), "golden": Device(int(random.integers(1 << 30)))}
    runs = {side: _run(layers, x, device, at if side == "target" else -1) for side, device in devices.items()}
    if of_device:
        style = str(random.choice(["{}", "{}/read", "{op}/ReadVariableOp"]))
        _write_device(folder, layers, runs["target"], dtype)
        _write_debugger(folder / "golden", layers, runs["golden"], style)
    else:
        form = str(random.choice(["pt", "npy"]))
        for side, run in runs.items():
            records = _modules(layers, run, devices[side].dtype, form == "npy", side == "golden")
            write(folder / side, records, form, "L0")
    do = ["compare", "target", "golden", *(["--graph", "graph.txt"] if of_device else [])]
    answer: dict[str, Any] = {
        "do": do,
        "exit": [1],
        "first": "[/_.]".join(map(re.escape, layers[at].scope.split("/"))),
    }
    if fault == "none":
        answer |= {"exit": [0], "first": ""}
    elif fault == "weight":
        answer["says"] = ["weights that only the golden recorded were not compared|input:1 differs|input:1, rel_l2"]
    what = "debugger" if of_device else "modules"
    control = "" if fault == "none" else ": control"
    return {
        "kind": f"weights_of_golden_alone: {what}, {fault}{control}",
        "report": "npy of TensorFlow",
        "runs": [answer],
    }


def _layers(random: np.random.Generator, of_device: bool) -> list[Layer]:
    """Blocks of product, bias, norm and function, then a softmax."""
    top = str(random.choice(["resnet", "model", "bert/encoder"])) if of_device else "model"
    width, found = int(random.integers(6, 20)), []
    for block in range(int(random.integers(2, 5))):
        wide = int(random.integers(6, 20))
        kernel = random.standard_normal((width, wide)).astype(np.float32) / np.float32(np.sqrt(width))
        found.append(Layer(f"{top}/dense_{block}", "MatMul", {"kernel": rounded(kernel, "float16")}))
        bias = rounded(random.standard_normal(wide), "float16")
        found.append(Layer(f"{top}/shift_{block}", "BiasAdd", {"bias": bias}))
        if random.random() < 0.5:
            scale, mean = 1 + random.random(wide), random.standard_normal(wide)
            statistics = {"moving_variance": rounded(scale, "float16"), "moving_mean": rounded(mean, "float16")}
            found.append(Layer(f"{top}/bn_{block}", "BatchNorm", statistics))
        found.append(Layer(f"{top}/act_{block}", str(random.choice(["Tanh", "Sigmoid"])), {}))
        width = wide
    return [*found, Layer(f"{top}/probs", "Softmax", {})]


class Step(NamedTuple):
    """What an operator read, its weights in this run, and what it wrote."""

    read: np.ndarray
    weights: dict[str, np.ndarray]
    wrote: np.ndarray


def _run(layers: list[Layer], x: np.ndarray, device: Device, at: int) -> list[Step]:
    found, read = [], rounded(x, device.dtype)
    for place, layer in enumerate(layers):
        weights = dict(layer.weights)
        if place == at and weights:
            name = next(iter(weights))
            weights[name] = rounded(np.roll(weights[name], 1, -1) * 1.1, "float16")
        wide = read.astype(np.float64)
        if layer.kind == "MatMul":
            wrote = wide @ weights["kernel"]
        elif layer.kind == "BiasAdd":
            wrote = wide + weights["bias"]
        elif layer.kind == "BatchNorm":
            wrote = (wide - weights["moving_mean"]) / np.sqrt(weights["moving_variance"] + 1e-3)
        elif layer.kind == "Softmax":
            wrote = softmax(wide)
        else:
            wrote = unary(layer.kind.lower(), wide)[0]
        wrote = device.store(wrote * (1.15 if place == at and not weights else 1.0))
        found.append(Step(read, weights, wrote))
        read = wrote
    return found


def _write_device(folder: Path, layers: list[Layer], steps: list[Step], dtype: str) -> None:
    """A raw dump of the device with the weights as constants of its graph, and graph.txt."""
    kernels, key, read = [], 0, Tensor(steps[0].read, dtype, 0)
    for layer, step in zip(layers, steps):
        weights = []
        for name, values in step.weights.items():
            key += 1
            weights.append(Tensor(values, dtype, key, parameter=f"{layer.scope}/{name}".replace("/", ".")))
        key += 1
        wrote = Tensor(step.wrote, dtype, key)
        record = Record(layer.kind, "forward", 0, layer.scope, (read, *weights), (wrote,))
        name = f"{layer.scope}/{layer.kind}"
        kernels.append(Kernel(record, name, layer.kind, (read, *weights), (wrote,), 1 + len(weights)))
        read = wrote
    sources, edges = cann._edges(kernels)
    folder.joinpath("graph.txt").write_text(cann._graph("ge_default_1", sources, kernels, edges))
    cann._write_run(folder / "target" / cann.FOLDER / "0" / "ge_default_1" / "1" / "0", kernels, cann.TIME)


def _write_debugger(folder: Path, layers: list[Layer], steps: list[Step], style: str) -> None:
    """Outputs and weights as TensorFlow's debugger names them."""
    folder.mkdir(parents=True)
    files = []
    for layer, step in zip(layers, steps):
        for number, (name, values) in enumerate(step.weights.items()):
            word = style.format(name, op=layer.kind) + (f"_{number}" if number and "{op}" in style else "")
            files.append((f"{layer.scope}/{word}", values))
        files.append((f"{layer.scope}/{layer.kind}", step.wrote))
    for at, (name, values) in enumerate(files):
        tensor = Tensor(values, "float32", at)
        folder.joinpath(f"{name.replace('/', '_')}.0.{TIME + 1000 * at}.npy").write_bytes(npy(tensor))


def _modules(
    layers: list[Layer], steps: list[Step], dtype: str, cell: bool, with_weights: bool
) -> dict[str, dict[str, Any]]:
    """Records of modules, with the parameters of each or without."""
    found = {}
    for layer, step in zip(layers, steps):
        record: dict[str, Any] = {"input_args": [Typed(step.read, dtype)], "input_kwargs": {}}
        record["output"] = [Typed(step.wrote, dtype)]
        record["parameters"] = {name: Typed(v, dtype) for name, v in step.weights.items()} if with_weights else {}
        kind = {"MatMul": "Linear", "BiasAdd": "Shift"}.get(layer.kind, layer.kind)
        found[f"{'Cell' if cell else 'Module'}.{layer.scope.replace('/', '.')}.{kind}.forward.0"] = record
    return found
