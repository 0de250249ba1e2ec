"""Small networks in numpy whose operators round to a type of their own, and dumps of them in several formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.synthetic import write_run

Array = np.ndarray
Rounding = Callable[[Array], Array]
CLOCK = 1789000000000000
MSPROBE = {
    "MatMul": "Mint.matmul", "Add": "Mint.add", "Relu": "Functional.relu", "Tanh": "Mint.tanh", "Mul": "Mint.mul",
    "Sigmoid": "Mint.sigmoid", "Softmax": "Functional.softmax", "Conv": "Functional.conv2d", "Sub": "Mint.sub",
    "Div": "Mint.div", "Sqrt": "Mint.sqrt", "ReduceMean": "Mint.mean", "Gelu": "Functional.gelu",
}  # fmt: skip


def float32(values: Array) -> Array:
    return np.asarray(values, np.float32)


def float16(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def bfloat16(values: Array) -> Array:
    words = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return (
        ((words + 0x7FFF + ((words >> 16) & 1)) & 0xFFFF0000)
        .astype(np.uint32)
        .view(np.float32)
        .reshape(np.shape(values))
    )


def int8(values: Array, factor: float = 1.0, axis: int | None = None) -> Array:
    """Integers of 8 bits times a float32 scale, which fits the values; one for each slice of an axis."""
    values = np.asarray(values, np.float32)
    others = None if axis is None else tuple(at for at in range(values.ndim) if at != axis)
    scale = np.float32(np.maximum(np.abs(values).max(others, keepdims=True), 1e-20) / 127 * factor)
    return (np.clip(np.round(values / scale), -128, 127) * scale).astype(np.float32)


def uint8(values: Array) -> Array:
    """Integers of 8 bits with a zero point, times a float32 scale."""
    values = np.asarray(values, np.float32)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = np.float32(max(high - low, 1e-20) / 255)
    zero = np.round(-low / scale)
    return ((np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


class Step(NamedTuple):
    """One operator that ran: its type, its name, what it read and wrote."""

    kind: str
    name: str
    inputs: Sequence[Array]
    output: Array


class Network:
    """Operators in order of execution. `rounding` gives each operator the type that it computes in; `loads` is the type
    of the network's inputs and weights as they are recorded."""

    def __init__(self, rounding: Callable[[int, str], Rounding], loads: Rounding, faults: dict[int, Rounding]) -> None:
        self.steps: list[Step] = []
        self._rounding, self.loads, self._faults = rounding, loads, faults

    def __call__(self, kind: str, *inputs: Array) -> Array:
        at = len(self.steps)
        rounded = self._rounding(at, kind)
        read = inputs if rounded in (int8, uint8) else [rounded(each) for each in inputs]
        output = rounded(BODIES[kind](*[each.astype(np.float64) for each in read]))
        if at in self._faults:
            output = rounded(self._faults[at](read[0] if self._faults[at] is as_it_is else output))
        self.steps.append(Step(kind, f"{kind}_{at}", [*inputs], output))
        return output


def as_it_is(values: Array) -> Array:
    return values


def _conv(x: Array, w: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w.shape[2:], axis=(2, 3)
    )
    return np.einsum("nchwij,ocij->nohw", windows, w)


def _softmax(x: Array) -> Array:
    made = np.exp(x - x.max(-1, keepdims=True))
    return made / made.sum(-1, keepdims=True)


BODIES: dict[str, Callable[..., Array]] = {
    "MatMul": np.matmul, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Sqrt": np.sqrt,
    "Relu": lambda x: np.maximum(x, 0), "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softmax": _softmax,
    "Gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), "Conv": _conv,
    "ReduceMean": lambda x: x.mean(-1, keepdims=True),
}  # fmt: skip


def mlp(random: np.random.Generator) -> Callable[[Network], None]:
    rows, width, depth = (int(random.integers(*bounds)) for bounds in ((3, 9), (12, 40), (2, 5)))
    x = random.normal(size=(rows, width)).astype(np.float32)
    weights = [(random.normal(size=(width, width)) * 1.3 / np.sqrt(width)).astype(np.float32) for _ in range(depth)]
    biases = [random.normal(0, 0.3, width).astype(np.float32) for _ in range(depth)]
    functions = [str(random.choice(["Relu", "Tanh", "Gelu"])) for _ in range(depth)]

    def run(net: Network) -> None:
        h = net.loads(x)
        for w, b, function in zip(weights, biases, functions):
            h = net(function, net("Add", net("MatMul", h, net.loads(w)), net.loads(b)))

    return run


def convolutions(random: np.random.Generator) -> Callable[[Network], None]:
    channels, size, depth = (int(random.integers(*bounds)) for bounds in ((4, 9), (6, 11), (2, 5)))
    x = random.normal(size=(1, 3, size, size)).astype(np.float32)
    widths = [3] + [channels] * depth
    weights = [
        random.normal(0, np.sqrt(2 / (9 * a)), (b, a, 3, 3)).astype(np.float32) for a, b in zip(widths, widths[1:])
    ]
    biases = [random.normal(0, 0.3, (1, channels, 1, 1)).astype(np.float32) for _ in range(depth)]

    def run(net: Network) -> None:
        h = net.loads(x)
        for w, b in zip(weights, biases):
            h = net("Relu", net("Add", net("Conv", h, net.loads(w)), net.loads(b)))

    return run


def attention(random: np.random.Generator) -> Callable[[Network], None]:
    tokens, width, depth = (int(random.integers(*bounds)) for bounds in ((4, 9), (12, 33), (1, 3)))
    x = random.normal(size=(tokens, width)).astype(np.float32)
    weights = random.normal(0, 1 / np.sqrt(width), (depth, 4, width, width)).astype(np.float32)
    scale = np.float32(1 / np.sqrt(width))

    def run(net: Network) -> None:
        h = net.loads(x)
        for q, k, v, o in weights:
            a, b, c = (net("MatMul", h, net.loads(w)) for w in (q, k, v))
            scores = net("Mul", net("MatMul", a, np.ascontiguousarray(b.T)), net.loads(np.full(1, scale)))
            h = net("Add", net("MatMul", net("MatMul", net("Softmax", scores), c), net.loads(o)), h)
            h = net("Tanh", h)

    return run


def stored(steps: Sequence[Step], dtype: str) -> list[Step]:
    """The steps with arrays of another type, as files of that type hold them."""
    return [
        step._replace(inputs=[x.astype(dtype) for x in step.inputs], output=step.output.astype(dtype)) for step in steps
    ]


def names(form: str, steps: Sequence[Step]) -> list[str]:
    """The names that a report has for the operators."""
    counts: dict[str, int] = {}
    found = []
    for at, step in enumerate(steps):
        if form == "msprobe":
            kind = MSPROBE[step.kind]
            counts[kind] = counts.get(kind, -1) + 1
            found.append(f"{kind}.{counts[kind]}.forward")
        elif form == "mindspore":
            kind = {"Add": "BiasAdd", "Conv": "Conv2D"}.get(step.kind, step.kind)
            found.append(f"Default_network-Net_cell{at}_{kind}-op{at}")
        else:
            found.append(step.name)
    return found


def write(form: str, folder: Path, steps: Sequence[Step]) -> None:
    """Write a dump: npy of ONNX nodes, outputs alone, kernels of MindSpore, or msprobe."""
    spelled = names(form, steps)
    if form == "msprobe":
        write_run(folder, {name: {"in": [*step.inputs], "out": [step.output]} for name, step in zip(spelled, steps)})
        return
    clock = CLOCK
    place = folder / "rank_0/net/0/0" if form == "mindspore" else folder
    place.mkdir(parents=True)
    for name, step in zip(spelled, steps):
        kind = {"Add": "BiasAdd", "Conv": "Conv2D"}.get(step.kind, step.kind)
        tensors = [("input", at, values) for at, values in enumerate(step.inputs) if form != "outputs"]
        for role, at, values in [*tensors, ("output", 0, step.output)]:
            clock += 7
            if form == "mindspore":
                words = values.dtype.name.capitalize()
                file = f"{kind}.{name}.0.0.{clock}.{role}.{at}.DefaultFormat.{words}.npy"
            elif form == "outputs":
                file = f"{name}.0.{clock}.npy"
            else:
                file = f"input_{name}.{at}.{clock}.npy" if role == "input" else f"{name}.{at}.{clock}.npy"
            np.save(place / file, values)
