"""Small networks that record their operators: a decoder with split or fused attention, an encoder, an MLP with
residuals, a convolutional network. A network runs on any device; weights and inputs are numbers of its type."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tests.corpus.three_runs.kernels import Array, Fault, Kernels, rounded
from tests.corpus.trace import Record, Run, Tensor


class Size(NamedTuple):
    layers: int = 6
    width: int = 64
    heads: int = 4
    tokens: int = 48


class Var(NamedTuple):
    """A value with the tensor that is recorded for it."""

    values: Array
    tensor: Tensor


class Plan(NamedTuple):
    """The calls, by number, that a fault changes."""

    calls: frozenset[int]
    fault: Fault


class Net:
    """A run of a network: its weights by name, drawn once for all devices, and the records so far."""

    def __init__(self, kernels: Kernels, weights: dict[str, Array], seed: int, plan: Optional[Plan] = None) -> None:
        self.kernels, self.weights, self.plan = kernels, weights, plan
        self.seed = seed
        self.records: list[Record] = []
        self.own: dict[int, tuple[str, tuple[Any, ...]]] = {}  # function and values of each call
        self._calls: Counter[str] = Counter()
        self._key = 0
        self._known: dict[str, Var] = {}

    def var(self, values: Array) -> Var:
        dtype = self.kernels.device.dtype
        self._key += 1
        kept = values if dtype == "float64" else values.astype(np.float32)
        return Var(values, Tensor(np.ascontiguousarray(kept), dtype, self._key))

    def weight(self, name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> Var:
        if name not in self.weights:
            random = np.random.default_rng([self.seed, len(self.weights)])
            size = scale or 1.0 / np.sqrt(shape[-1] if len(shape) < 3 else np.prod(shape[1:]))
            drawn = offset + size * random.standard_normal(shape)
            self.weights[name] = rounded(drawn, "float32")
        if name not in self._known:
            dtype = self.kernels.device.dtype
            self._known[name] = self.var(rounded(self.weights[name], dtype))
        return self._known[name]

    def __call__(self, kind: str, *inputs: Any, **keywords: Any) -> Var:
        """Run a kernel and record it. `inputs` are recorded as they are; those that are values reach the kernel."""
        number = len(self.records)
        values = tuple(one.values if isinstance(one, Var) else one for one in inputs)
        arguments = tuple(one for one in values if isinstance(one, (np.ndarray, float)))
        if kind in ("layer_norm", "rms_norm"):
            arguments = arguments[:-1]
        self.own[number] = kind, arguments
        if self.plan is not None and number in self.plan.calls:
            self.kernels.fault = self.plan.fault
        found = self.var(getattr(self.kernels, kind)(*arguments))
        self.kernels.fault = None
        told = tuple(one.tensor if isinstance(one, Var) else one for one in inputs)
        call = self._calls[kind]
        self._calls[kind] += 1
        self.records.append(Record(kind, "forward", call, "", told, (found.tensor,), keywords))
        return found

    def linear(self, name: str, x: Var, width: int, bias: bool = False) -> Var:
        weight = self.weight(f"{name}.weight", width, x.values.shape[-1])
        more = (self.weight(f"{name}.bias", width, scale=0.1),) if bias else ()
        return self("linear", x, weight, *more)

    def rms_norm(self, name: str, x: Var) -> Var:
        width = x.values.shape[-1]
        return self("rms_norm", x, [width], self.weight(f"{name}.weight", width, scale=0.1, offset=1.0), 1e-6)

    def layer_norm(self, name: str, x: Var) -> Var:
        width = x.values.shape[-1]
        weights = (
            self.weight(f"{name}.weight", width, scale=0.1, offset=1.0),
            self.weight(f"{name}.bias", width, scale=0.1),
        )
        return self("layer_norm", x, [width], *weights, 1e-5)

    def turned(self, x: Var, function: Callable[[Array], Array]) -> Var:
        """Return a view of a value, which is not recorded."""
        return self.var(np.ascontiguousarray(function(x.values)))

    def attention(self, name: str, x: Var, size: Size, fused: bool) -> Var:
        batch, tokens, width = x.values.shape
        heads = batch, tokens, size.heads, width // size.heads
        parts = [
            self.turned(self.linear(f"{name}.{part}", x, width), lambda one: one.reshape(heads).transpose(0, 2, 1, 3))
            for part in "qkv"
        ]
        if fused:
            mixed = self("attention", *parts)
        else:
            scores = self("matmul", parts[0], self.turned(parts[1], lambda one: np.swapaxes(one, -1, -2)))
            scaled = self("mul", scores, float(heads[-1]) ** -0.5)
            mixed = self("matmul", self("softmax", scaled, dim=-1), parts[2])
        joined = self.turned(mixed, lambda one: one.transpose(0, 2, 1, 3).reshape(batch, tokens, width))
        return self.linear(f"{name}.out", joined, width)


def decoder(net: Net, x: Var, size: Size, fused: bool = False) -> Var:
    for layer in range(size.layers):
        name = f"layers.{layer}"
        x = net("add", x, net.attention(f"{name}.attn", net.rms_norm(f"{name}.before", x), size, fused))
        h = net.rms_norm(f"{name}.after", x)
        gate = net("silu", net.linear(f"{name}.gate", h, 2 * size.width))
        inner = net("mul", gate, net.linear(f"{name}.up", h, 2 * size.width))
        x = net("add", x, net.linear(f"{name}.down", inner, size.width))
    return net.linear("head", net.rms_norm("norm", x), 128)


def fused_decoder(net: Net, x: Var, size: Size) -> Var:
    return decoder(net, x, size, fused=True)


def encoder(net: Net, x: Var, size: Size) -> Var:
    for layer in range(size.layers):
        name = f"layers.{layer}"
        x = net("add", x, net.attention(f"{name}.attn", net.layer_norm(f"{name}.norm1", x), size, False))
        h = net("gelu", net.linear(f"{name}.fc1", net.layer_norm(f"{name}.norm2", x), 2 * size.width, bias=True))
        x = net("add", x, net.linear(f"{name}.fc2", h, size.width, bias=True))
    return net.linear("head", net.layer_norm("norm", x), 64, bias=True)


def residuals(net: Net, x: Var, size: Size) -> Var:
    for layer in range(size.layers):
        name = f"blocks.{layer}"
        h = net("gelu", net.linear(f"{name}.up", net.layer_norm(f"{name}.norm", x), 2 * size.width, bias=True))
        x = net("add", x, net("mul", net.linear(f"{name}.down", h, size.width), 0.5))
    return net.linear("head", x, 32)


def convolutions(net: Net, x: Var, size: Size) -> Var:
    def conv(name: str, one: Var) -> Var:
        wide = one.values.shape[1]
        weights = net.weight(f"{name}.weight", 8, wide, 3, 3), net.weight(f"{name}.bias", 8, scale=0.1)
        return net("conv2d", one, *weights, 1, 1)

    batch = len(x.values)
    x = net.turned(x, lambda one: one.reshape(batch, 3, 16, -1))
    x = conv("first", x)
    for layer in range(size.layers):
        h = conv(f"blocks.{layer}.two", net("relu", conv(f"blocks.{layer}.one", x)))
        x = net("relu", net("add", x, h))
    flat = net.turned(x, lambda one: one.reshape(batch * 8, -1))
    return net.linear("head", flat, 32, bias=True)


NETWORKS: dict[str, Callable[[Net, Var, Size], Var]] = {
    "decoder": decoder,
    "fused_decoder": fused_decoder,
    "encoder": encoder,
    "residuals": residuals,
    "convolutions": convolutions,
}


def run(
    name: str, kernels: Kernels, weights: dict[str, Array], seed: int, step: int, size: Size, plan: Optional[Plan]
) -> tuple[Run, Net]:
    """Return the records of a step: inputs depend on the step, weights on the seed."""
    net = Net(kernels, weights, seed, plan)
    random = np.random.default_rng([seed, 1, step])
    given = rounded(random.standard_normal((2, size.tokens, size.width)), kernels.device.dtype)
    NETWORKS[name](net, net.var(given), size)
    return Run(tuple(net.records), step), net
