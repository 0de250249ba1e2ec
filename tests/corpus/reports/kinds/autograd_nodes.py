"""msprobe records the gradients of the last autograd node of a call: a view, a cast or a copy at the end of a call on
one side makes two records that are no pair. Beside it, nothing or another operator is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from tests.corpus.reports.kinds._dumps_D import (
    FORMATS,
    Device,
    Typed,
    rounded,
    softmax,
    softmax_gradient,
    unary,
    write,
)


class Layer(NamedTuple):
    """One call of the network; `name` without its phase."""

    kind: str
    name: str
    weight: Optional[np.ndarray] = None
    bias: Optional[np.ndarray] = None


class Fault(NamedTuple):
    """What is wrong: an output of a call in a phase, multiplied or partly lost."""

    at: int = -1
    phase: str = ""
    how: str = ""

    def strike(self, at: int, phase: str, values: np.ndarray) -> np.ndarray:
        if (at, phase) != (self.at, self.phase):
            return values
        if self.how == "scaled":
            return values * 1.3
        if self.how == "lost":
            wrong = values.copy()
            wrong[:, values.shape[1] // 2 :] = 0.0
            return wrong
        return values + 0.5 * np.abs(values).max() * np.cos(np.arange(values.size)).reshape(values.shape)


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    form = str(random.choice(FORMATS))
    node = str(random.choice(["view", "view", "cast", "coarse cast", "copy", "none"]))
    dtype = {"cast": "bfloat16", "coarse cast": "float32"}.get(node) or str(random.choice(["float32", "bfloat16"]))
    batch, tokens = int(random.integers(2, 5)), int(random.integers(4, 9))
    layers = _layers(random, dtype)
    x = rounded(random.standard_normal((batch, tokens, layers[0].weight.shape[1])), dtype)
    places = [at for at, layer in enumerate(layers) if layer.kind == {"view": "linear"}.get(node, "softmax")]
    at = int(random.choice([place for place in places if place > 0]))
    odd = set(places) if node == "view" else {at} if node != "none" else set()
    side = "target" if node == "coarse cast" or random.random() < 0.5 else "golden"
    fault = _fault(random, layers, odd)
    devices = {name: Device(int(random.integers(1 << 30)), dtype) for name in ("target", "golden")}
    for name, device in devices.items():
        own = fault if name == "target" else Fault()
        write(folder / name, _records(layers, x, device, own, odd if name == side else set(), node), form)
    return _case(layers, fault, node, odd, form, at, side)


def _layers(random: np.random.Generator, dtype: str) -> list[Layer]:
    """Blocks of linear, function, linear, softmax or function, each followed by the next."""
    width, found, counts = int(random.integers(8, 20)), [], {}

    def add(kind: str, weight: Optional[np.ndarray] = None, bias: Optional[np.ndarray] = None) -> None:
        number = counts[kind] = counts.get(kind, -1) + 1
        prefix = {"mul": "Tensor", "linear": "Functional"}.get(kind, "Functional")
        found.append(Layer(kind, f"{prefix}.{'__mul__' if kind == 'mul' else kind}.{number}", weight, bias))

    def linear(reads: int, writes: int) -> None:
        weight = random.standard_normal((writes, reads)) * 1.5 / np.sqrt(reads)
        add("linear", rounded(weight, dtype), rounded(random.standard_normal(writes) / 8, dtype))

    reads = width
    for _ in range(int(random.integers(2, 4))):
        writes = int(random.integers(8, 20))
        linear(reads, writes)
        add(str(random.choice(["gelu", "silu", "tanh", "sigmoid"])))
        add("mul")
        add("softmax")
        add("mul")
        reads = writes
    linear(reads, int(random.integers(4, 9)))
    return found


def _fault(random: np.random.Generator, layers: list[Layer], odd: set[int]) -> Fault:
    if random.random() < 0.35:
        return Fault()
    phase = str(random.choice(["forward", "backward"]))
    last = len(layers) - 1
    at = int(random.choice([place for place in range(1, last) if phase == "forward" or place not in odd]))
    return Fault(at, phase, str(random.choice(["scaled", "lost", "shifted"])))


def _factor(at: int) -> float:
    return 3.0 + 0.37 * at


def _records(
    layers: list[Layer], x: np.ndarray, device: Device, fault: Fault, odd: set[int], node: str
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    dtype, read, saved = device.dtype, x, []
    for at, layer in enumerate(layers):
        arguments: list[Any] = [Typed(read, dtype)]
        if layer.kind == "linear":
            arguments += [Typed(layer.weight, dtype), Typed(layer.bias, dtype)]
            wrote = read.astype(np.float64) @ layer.weight.T + layer.bias
        elif layer.kind == "softmax":
            wrote = softmax(read)
        elif layer.kind == "mul":
            arguments.append(_factor(at))
            wrote = read.astype(np.float64) * _factor(at)
        else:
            wrote = unary(layer.kind, read)[0]
        wrote = fault.strike(at, "forward", device.store(wrote))
        wrote = rounded(rounded(wrote, "bfloat16" if at in odd and node == "coarse cast" else dtype), dtype)
        found[f"{layer.name}.forward"] = {"input_args": arguments, "input_kwargs": {}, "output": [Typed(wrote, dtype)]}
        saved.append((read, wrote))
        read = wrote
    gradient = device.store(2.0 * read.astype(np.float64) / read.size * 1e3)
    for at, layer in reversed([*enumerate(layers)]):
        before, after = saved[at]
        incoming, others = gradient, []
        wide = incoming.astype(np.float64)
        if layer.kind == "linear":
            flat = wide.reshape(-1, wide.shape[-1])
            others = [device.store(flat.T @ before.reshape(len(flat), -1)), device.store(flat.sum(0))]
            gradient = device.store(wide @ layer.weight)
        elif layer.kind == "softmax":
            gradient = device.store(softmax_gradient(incoming, after))
        elif layer.kind == "mul":
            gradient = device.store(wide * _factor(at))
        else:
            gradient = device.store(wide * unary(layer.kind, before)[1])
        gradient = rounded(fault.strike(at, "backward", gradient), dtype)
        outputs: list[Any] = [Typed(one, dtype) for one in (gradient, *others)]
        outputs[0] = None if at == 0 else outputs[0]
        if at in odd:
            outputs = [_of_other_node(incoming, dtype, node)]
        found[f"{layer.name}.backward"] = {"input": [Typed(incoming, dtype)], "output": outputs}
    return found


def _of_other_node(incoming: np.ndarray, dtype: str, node: str) -> Typed:
    """The gradient that the last node of a call returns: the incoming one in another shape, type or place."""
    if node == "view":
        return Typed(incoming.reshape(-1, incoming.shape[-1]), dtype)
    if node == "coarse cast":
        return Typed(rounded(incoming, "bfloat16"), "bfloat16")
    return Typed(incoming, "float32" if node == "cast" else dtype)


def _case(layers: list[Layer], fault: Fault, node: str, odd: set[int], form: str, at: int, side: str) -> dict[str, Any]:
    accused = [rf"(BORN|WORSENED|GAP|UNKNOWN|SUSPECT) +{re.escape(layers[one].name)}\.backward" for one in sorted(odd)]
    run: dict[str, Any] = {"do": ["compare", "target", "golden"], "never": accused}
    if form != "statistics":
        run["never"] = [*accused, "statistics cannot prove", "--trust-statistics", "dump with task tensor"]
    if odd:
        run["says"] = ["autograd node"]
    faulty = [Fault(at, "forward")] * (node == "coarse cast") + [fault] * (fault.at >= 0)
    if faulty:
        names = [rf"{re.escape(layers[one.at].name)}\.{one.phase}" for one in faulty]
        run |= {"exit": [1] if form != "statistics" else [1, 2], "first": "|".join(names)}
    else:
        run |= {"exit": [0] if form != "statistics" and (node != "view" or side == "golden") else [0, 2], "first": ""}
    control = "" if odd else ": control"
    return {
        "kind": f"autograd_nodes: {node}, {form}{control}",
        "report": "gradients of npu_linear and of casts",
        "runs": [run],
    }
