"""Norms that one side runs as one kernel and the other as single operators: the outputs of the last autograd node are
the gradients of input and weight on one side, those of the normalised values and of the weight on the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.reports.kinds._dumps_D import Device, Typed, rounded, unary, write

FAULTS = ("none", "none", "weight", "weight", "weight", "input", "linear")
Array = np.ndarray


class Layer:
    """A linear layer, a norm and a function."""

    def __init__(self, random: np.random.Generator, reads: int, writes: int, dtype: str) -> None:
        def drawn(*shape: int) -> Array:
            return rounded(random.standard_normal(shape) / np.sqrt(shape[-1]), dtype)

        self.matrix, self.bias = drawn(writes, reads), drawn(writes)
        self.weight = rounded(1.0 + random.standard_normal(writes) / 3.0, dtype)
        self.act = str(random.choice(["gelu", "silu", "tanh"]))


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    dtype, form = str(random.choice(["float32", "float32", "bfloat16"])), str(random.choice(["pt", "pt", "npy"]))
    widths = [int(random.integers(8, 25)) for _ in range(int(random.integers(3, 6)))]
    layers = [Layer(random, *pair, dtype) for pair in zip(widths, widths[1:])]
    x = rounded(random.standard_normal((int(random.integers(2, 6)), int(random.integers(4, 12)), widths[0])), dtype)
    spelled_out = str(random.choice(["golden", "golden", "target", "none"]))
    name = str(random.choice(["Functional.rms_norm", "NPU.npu_rms_norm", "Functional.layer_norm"]))
    fault, at = str(random.choice(FAULTS)), int(random.integers(1, len(layers)))
    size = float(random.choice([0.05, 0.3, 1.0])) * (1.0 if dtype == "float32" else 3.0)
    for side in ("golden", "target"):
        device = Device(int(random.integers(1 << 30)), dtype)
        own = (fault, at, size) if side == "target" else ("none", at, size)
        write(folder / side, _records(layers, x, device, name, side == spelled_out, own), form)
    return _case(name, fault, at, spelled_out)


def _records(
    layers: list[Layer], x: Array, device: Device, name: str, is_spelled: bool, fault: tuple[str, int, float]
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    centres, dtype = name.endswith("layer_norm"), device.dtype
    read, saved = x, []

    def typed(*values: Array) -> list[Any]:
        return [Typed(value, dtype) for value in values]

    def forward(call: str, read: list[Any], wrote: list[Any]) -> None:
        found[f"{call}.forward"] = {"input_args": read, "input_kwargs": {}, "output": wrote}

    def backward(call: str, read: list[Any], wrote: list[Any]) -> None:
        found[f"{call}.backward"] = {"input": read, "output": wrote}

    def strike(what: str, at: int, values: Array) -> Array:
        if fault[:2] != (what, at):
            return values
        return values * (1.0 + fault[2] * (np.arange(values.shape[-1]) % 3 == 0))

    for at, layer in enumerate(layers):
        linear = device.store(read.astype(np.float64) @ layer.matrix.T + layer.bias)
        forward(f"Functional.linear.{at}", typed(read, layer.matrix, layer.bias), typed(linear))
        wide = linear.astype(np.float64)
        wide = wide - wide.mean(-1, keepdims=True) if centres else wide
        factor = 1.0 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
        normed = device.store(wide * factor * layer.weight)
        others = [Typed(layer.weight, dtype), 1e-6] if "npu" in name else [None, Typed(layer.weight, dtype)]
        outputs = typed(normed, device.store(factor)) if "npu" in name else typed(normed)
        forward(f"{name}.{at}", typed(linear) + others, outputs)
        wrote = device.store(unary(layer.act, normed)[0])
        number = sum(before.act == layer.act for before in layers[:at])
        forward(f"Functional.{layer.act}.{number}", typed(normed), typed(wrote))
        saved.append((read, wide, factor, normed, number))
        read = wrote
    gradient = device.store(1e2 * read.astype(np.float64) / read.size)
    for at, layer in reversed([*enumerate(layers)]):
        before, wide, factor, normed, number = saved[at]
        behind = device.store(gradient * unary(layer.act, normed)[1])
        backward(f"Functional.{layer.act}.{number}", typed(gradient), typed(behind))
        flat = behind.astype(np.float64).reshape(-1, behind.shape[-1])
        of_weight = strike("weight", at, device.store((flat * (wide * factor).reshape(flat.shape)).sum(0)))
        product, y = behind.astype(np.float64) * layer.weight, wide * factor
        inside = product - y * (product * y).mean(-1, keepdims=True)
        inside = inside - product.mean(-1, keepdims=True) if centres else inside
        inside = rounded(strike("input", at, device.store(inside * factor)), dtype)
        first = device.store(product) if is_spelled else inside
        backward(f"{name}.{at}", typed(behind), typed(first, rounded(of_weight, dtype)))
        gradient = device.store(inside.astype(np.float64) @ layer.matrix)
        gradient = rounded(strike("linear", at, gradient), dtype)
        flat = inside.astype(np.float64).reshape(-1, inside.shape[-1])
        others = typed(device.store(flat.T @ before.reshape(len(flat), -1)), device.store(flat.sum(0)))
        backward(f"Functional.linear.{at}", typed(inside), [*(typed(gradient) if at else [None]), *others])
    return found


def _case(name: str, fault: str, at: int, spelled_out: str) -> dict[str, Any]:
    run: dict[str, Any] = {"do": ["compare", "target", "golden"]}
    if fault == "none":
        run |= {"exit": [0], "first": ""}
    else:
        norm = rf"{re.escape(name)}\.{at}\.backward"
        linear = rf"Functional\.linear\.{at}\.backward"
        run |= {"exit": [1], "first": {"weight": norm, "input": f"{norm}|{linear}", "linear": linear}[fault]}
    control = "" if spelled_out != "none" else ": control"
    return {
        "kind": f"fused_norms, {'one side' if spelled_out != 'none' else 'both'}: {fault}{control}",
        "report": "a fused norm against the same norm in single operators",
        "runs": [run],
    }
