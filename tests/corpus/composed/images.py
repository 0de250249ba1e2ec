"""Convolutions with the channels last against the channels first, by equal names, with another batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.composed.values import Array
from tests.corpus.composed.written import Truth, Written
from tests.corpus.tokens.network import bfloat16
from tests.corpus.trace import Tensor
from tests.corpus.writers.msprobe import pt, statistics

NETWORKS = ("residual", "separable")
KINDS = (
    "factor",  # an operator is 1.05 times too large
    "zero slice",  # some channels are zero
    "channels",  # two channels are exchanged
    "swapped rows",  # two images are exchanged
    "stale row",  # an image has the numbers of another
    "bias twice",
    "border",  # a convolution repeats the border in place of zeros
    "reshaped",  # channels last is read as channels first without a transposition
)


class Operator(NamedTuple):
    """A recorded operator: its name, its inputs and its output, channels first."""

    name: str
    inputs: list[Array]
    output: Array


class Fault(NamedTuple):
    kind: str
    name: str
    images: tuple[int, ...]


class Images:
    """A forward pass of a batch; `operators` are in the order of execution."""

    def __init__(self, seed: int, network: str, dtype: str, turned: bool, fault: Optional[Fault]) -> None:
        self.draw, self.network, self.dtype = np.random.default_rng([seed, 7]), network, dtype
        self.turned, self.fault = turned, fault
        self.operators: list[Operator] = []

    def run(self, images: Array) -> None:
        x = self._convolution("conv1", images, 8, 3)
        x = self._activation("relu1" if self.network == "residual" else "act1", x)
        for number in range(2):
            start = x
            if self.network == "residual":
                x = self._norm(f"layer{number}.bn1", self._convolution(f"layer{number}.conv1", x, 8, 3))
                x = self._activation(f"layer{number}.relu1", x)
                x = self._norm(f"layer{number}.bn2", self._convolution(f"layer{number}.conv2", x, 8, 3))
            else:
                x = self._convolution(f"layer{number}.depthwise", x, 8, 3, groups=8)
                x = self._activation(f"layer{number}.act", self._norm(f"layer{number}.bn", x))
                x = self._convolution(f"layer{number}.pointwise", x, 8, 1)
            x = self._made(f"Tensor.__add__.{number}.forward", [start, x], start + x)
        pooled = self._made("Module.pool.AdaptiveAvgPool2d.forward.0", [x], x.mean((2, 3), keepdims=True))
        flat = pooled.reshape(len(pooled), -1)
        weight = self._matrix(10, flat.shape[1])
        self._made("Module.fc.Linear.forward.0", [flat], flat @ weight.T)

    def _matrix(self, *shape: int) -> Array:
        fan = int(np.prod(shape[1:]))
        return self._rounded(self.draw.standard_normal(shape) * np.sqrt(2 / fan))

    def _rounded(self, values: Array) -> Array:
        narrow = np.asarray(values, np.float32)
        return bfloat16(narrow) if self.dtype == "bfloat16" else narrow

    def _strikes(self, kind: str, name: str) -> bool:
        return self.fault is not None and (self.fault.kind, self.fault.name) == (kind, name)

    def _convolution(self, path: str, x: Array, channels: int, size: int, groups: int = 1) -> Array:
        name = f"Module.{path}.Conv2d.forward.0"
        weight = self._matrix(channels, x.shape[1] // groups, size, size)
        bias = self._rounded(self.draw.standard_normal(channels) / 4)
        edge = size // 2
        margin = ((0, 0), (0, 0), (edge, edge), (edge, edge))
        wide = np.pad(x, margin, mode="edge" if self._strikes("border", name) else "constant")
        places = [(row, column) for row in range(size) for column in range(size)]
        height, width = x.shape[2:]
        total: Any = 0
        for row, column in places[::-1] if self.turned else places:
            window = wide[:, :, row : row + height, column : column + width]
            if groups == 1:
                total = total + np.einsum("nchw,oc->nohw", window, weight[:, :, row, column])
            else:
                total = total + window * weight[None, :, 0, row, column, None, None]
        times = 2 if self._strikes("bias twice", name) else 1
        return self._made(name, [x], total + times * bias[:, None, None])

    def _norm(self, path: str, x: Array) -> Array:
        mean, scale = (self._rounded(self.draw.standard_normal(x.shape[1]) / 8) for _ in range(2))
        value = (x - mean[:, None, None]) * (1 + scale[:, None, None])
        return self._made(f"Module.{path}.BatchNorm2d.forward.0", [x], value)

    def _activation(self, path: str, x: Array) -> Array:
        kind = "ReLU" if self.network == "residual" else "Hardswish"
        value = np.maximum(x, 0) if kind == "ReLU" else x * np.clip(x + 3, 0, 6) / 6
        return self._made(f"Module.{path}.{kind}.forward.0", [x], value)

    def _made(self, name: str, inputs: list[Array], output: Array) -> Array:
        output = self._rounded(output)
        fault = self.fault
        if fault is not None and fault.name == name:
            output = self._rounded(_changed(fault, output.copy()))
        self.operators.append(Operator(name, inputs, output))
        return output


def _changed(fault: Fault, x: Array) -> Array:
    if fault.kind == "factor":
        return x * np.float32(1.05)
    if fault.kind == "zero slice":
        x[:, 2:4] = 0
    elif fault.kind == "channels":
        x[:, [1, 2]] = x[:, [2, 1]]
    elif fault.kind == "swapped rows":
        x[[*fault.images]] = x[[*fault.images[::-1]]]
    elif fault.kind == "stale row":
        x[fault.images[0]] = x[fault.images[1]]
    elif fault.kind == "reshaped":
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(x.shape)
    return x


class Sides(NamedTuple):
    """Operators of both sides, and the images of the golden by their number in the target."""

    target: list[Operator]
    golden: list[Operator]
    kept: list[int]
    dtype: str
    fault: Optional[Fault]


def fault_kinds(network: str, seed: int) -> list[str]:
    return [*KINDS]


def sides(network: str, seed: int, kind: str = "") -> Sides:
    draw = np.random.default_rng([seed, NETWORKS.index(network), 5])
    count, fewer = int(draw.choice([4, 6])), int(draw.choice([2, 3]))
    height, width = (int(size) for size in draw.choice([6, 7, 9, 10], 2, replace=False))
    dtype = "bfloat16" if draw.random() < 0.25 else "float32"
    kept = [int(image) for image in draw.choice(count, fewer, replace=False)] if seed % 2 else [*range(fewer)]
    images = np.asarray(draw.standard_normal((count, 3, height, width)), np.float32)
    images = bfloat16(images) if dtype == "bfloat16" else images
    golden = Images(seed, network, dtype, False, None)
    golden.run(images[kept])
    fault = _drawn(kind, seed, golden.operators, kept) if kind else None
    target = Images(seed, network, dtype, True, fault)
    target.run(images)
    return Sides(target.operators, golden.operators, kept, dtype, fault)


def _drawn(kind: str, seed: int, operators: list[Operator], kept: list[int]) -> Fault:
    draw = np.random.default_rng([seed, *map(ord, kind)])
    names = [operator.name for operator in operators if operator.output.shape[-1] > 1 and operator.output.ndim == 4]
    if kind in ("bias twice", "border"):
        names = [name for name in names if "Conv2d" in name and "pointwise" not in name]
    return Fault(kind, str(draw.choice(names)), (kept[0], kept[1]))


def make(network: str, seed: int, kind: str, folder: str) -> Written:
    """Write both dumps."""
    made, place = sides(network, seed, kind), Path(folder)
    write(place / "target", made.target, made.dtype, lambda x: x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)
    write(place / "golden", made.golden, made.dtype, lambda x: x)
    title = f"batch {len(made.target[0].output)} {len(made.kept)}"
    fault = made.fault
    truth = None
    if fault is not None:
        image = 0 if kind in ("swapped rows", "stale row") else None
        truth = Truth(kind, fault.name, frozenset({fault.name}), None, image)
    return Written(place / "target", place / "golden", title, truth)


def write(folder: Path, operators: list[Operator], dtype: str, shown: Callable[[Array], Array]) -> None:
    """A dump in the form of msprobe."""
    place = folder / "step0" / "rank"
    (place / "dump_tensor_data").mkdir(parents=True)

    def leaf(values: Array, name: str) -> dict[str, Any]:
        tensor = Tensor(np.ascontiguousarray(shown(values)), dtype, 0)
        (place / "dump_tensor_data" / f"{name}.pt").write_bytes(pt(tensor))
        facts = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": [*tensor.values.shape]}
        return {**facts, **statistics(tensor), "requires_grad": False, "data_name": f"{name}.pt"}

    data = {
        operator.name: {
            "input_args": [leaf(x, f"{operator.name}.input.{at}") for at, x in enumerate(operator.inputs)],
            "input_kwargs": {},
            "output": [leaf(operator.output, f"{operator.name}.output.0")],
        }
        for operator in operators
    }
    top = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "dump_tensor_data", "data": data}
    place.joinpath("dump.json").write_text(json.dumps(top))
    place.joinpath("stack.json").write_text("{}")
    place.joinpath("construct.json").write_text(json.dumps(dict.fromkeys(data)))
