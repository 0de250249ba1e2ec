"""A second coding of a network: layers of primitive operators, in the way of TensorFlow, JAX or a user's own torch."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from tests.corpus.frameworks import dialects
from tests.corpus.frameworks.tape import Call, Strike, Tape

Weights = Mapping[str, np.ndarray]


class Value:
    """A tensor of a coding: its array, and the operator's output that it is ("" for an input)."""

    def __init__(self, array: np.ndarray, source: str = "") -> None:
        self.array, self.source = array, source

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


class Coding:
    """A framework's operators on a tape.

    weights: of the torch network, by their names there.
    sources: operator's name → what it reads, as a TensorFlow graph says it.
    """

    framework = ""

    def __init__(self, weights: Weights, strike: Optional[Strike] = None) -> None:
        self.tape, self.weights = Tape(strike), weights
        self.sources: dict[str, list[str]] = {}
        self._dialect = _dialect(self.framework)
        self._seen: Counter[str] = Counter()
        self._scopes: list[str] = []
        self._read: dict[str, Value] = {}

    @property
    def calls(self) -> list[Call]:
        return self.tape.calls

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def name(self, type: str) -> str:
        """Return the name of the next operator of a type."""
        stem = type
        count = self._seen[stem]
        self._seen[stem] += 1
        return f"{stem}_{count}"

    def op(self, word: str, *items: Any, **arguments: Any) -> Any:
        """Run one operator: tensors, numbers and arrays in, its output or the list of its outputs out."""
        type, function = self._dialect[word]
        values = [one if isinstance(one, Value) else self.constant(one) for one in items]
        name = self.name(type)

        def compute(arrays: list[np.ndarray], changed: dict[str, Any]) -> list[np.ndarray]:
            given = arrays
            if self.framework == "torch":
                import torch

                given = [torch.from_numpy(one) for one in arrays]
            made = function(*given, **changed)
            return [np.asarray(one) for one in made] if isinstance(made, (list, tuple)) else [np.asarray(made)]

        outputs = self.tape.run(name, type, compute, [one.array for one in values], arguments)
        self.sources[name] = [one.source for one in values]
        made = [Value(one, f"{name}:{k}" if k else name) for k, one in enumerate(outputs)]
        return made if len(made) > 1 or word == "split" else made[0]

    def constant(self, number: Any) -> Value:
        array = np.asarray(number)
        return Value(array.astype(np.float32) if array.dtype == np.float64 else array)

    def weight(self, name: str, array: Optional[np.ndarray] = None) -> Value:
        """Return a weight of the network, or what a port stores of it."""
        return Value(np.ascontiguousarray(self.weights[name] if array is None else array))

    def __getattr__(self, word: str) -> Any:
        if word.startswith("_") or word not in self._dialect:
            raise AttributeError(word)
        return lambda *items, **arguments: self.op(word, *items, **arguments)

    # layers: what the frameworks' libraries do with them

    def has(self, name: str) -> bool:
        return name in self.weights

    def dense(self, x: Value, *names: str, kernel: bool = False) -> Value:
        """Apply one linear, or several side by side as one; `kernel`: the weight is stored as (in, out)."""
        arrays = [self.weights[f"{name}.weight"] for name in names]
        whole = np.concatenate([one if kernel else one.T for one in arrays], 1)
        y = self.product(x, self.weight(names[0], whole))
        if self.has(f"{names[0]}.bias"):
            y = self.bias(y, self.weight(names[0], np.concatenate([self.weights[f"{name}.bias"] for name in names])))
        return y

    def product(self, x: Value, kernel: Value) -> Value:
        return self.op("matmul2", x, kernel)  # type: ignore[no-any-return]

    def gelu(self, x: Value) -> Value:
        return self.mul(self.mul(x, 0.5), self.add(self.erf(self.mul(x, 0.70710678)), 1.0))  # type: ignore[no-any-return]

    def gelu_tanh(self, x: Value) -> Value:
        cube = self.mul(self.mul(x, self.mul(x, x)), 0.044715)
        inner = self.tanh(self.mul(self.add(x, cube), 0.7978845608))
        return self.mul(x, self.mul(self.add(inner, 1.0), 0.5))  # type: ignore[no-any-return]

    def silu(self, x: Value) -> Value:
        return self.mul(x, self.sigmoid(x))  # type: ignore[no-any-return]

    def softmax(self, x: Value) -> Value:
        e = self.exp(self.sub(x, self.max(x, axes=(-1,))))
        return self.div(e, self.sum(e, axes=(-1,)))  # type: ignore[no-any-return]

    def layer_norm(self, x: Value, name: str, eps: float = 1e-5, axes: Sequence[int] = (-1,)) -> Value:
        raise NotImplementedError

    def rms_norm(self, x: Value, name: str, eps: float = 1e-6) -> Value:
        y = self.mul(x, self.rsqrt(self.add(self.mean(self.square(x), axes=(-1,)), eps)))
        return self.mul(y, self.weight(f"{name}.weight"))  # type: ignore[no-any-return]

    def mask(self, scores: Value, seen: np.ndarray) -> Value:
        """Mask scores (B, N, S, T); seen: bool, of a shape that broadcasts."""
        raise NotImplementedError

    def heads(self, x: Value, count: int) -> Value:
        """(B, S, H) → (B, N, S, D)."""
        batch, length, width = x.shape
        return self.transpose(self.reshape(x, shape=(batch, length, count, width // count)), axes=(0, 2, 1, 3))  # type: ignore[no-any-return]

    def joined(self, x: Value) -> Value:
        """(B, N, S, D) → (B, S, H)."""
        batch, count, length, each = x.shape
        return self.reshape(self.transpose(x, axes=(0, 2, 1, 3)), shape=(batch, length, count * each))  # type: ignore[no-any-return]

    def mixed(
        self, q: Value, k: Value, v: Value, seen: Optional[np.ndarray], bias: Optional[Value], scaled: bool
    ) -> Value:
        """Attention of (B, N, S, D): q is scaled before the product."""
        if scaled:
            q = self.mul(q, float(q.shape[-1] ** -0.5))
        scores = self.matmul(q, k, adjoint=True)
        if bias is not None:
            scores = self.add(scores, bias)
        if seen is not None:
            scores = self.mask(scores, seen)
        return self.matmul(self.softmax(scores), v)  # type: ignore[no-any-return]

    def attention(
        self,
        x: Value,
        name: str,
        count: int,
        seen: Optional[np.ndarray] = None,
        memory: Optional[Value] = None,
        bias: Optional[Value] = None,
        scaled: bool = True,
    ) -> Value:
        """The attention of blocks.Attention."""
        if memory is None and self.fuses:
            q, k, v = self.split(self.dense(x, *(f"{name}.{part}" for part in "qkv")), parts=3, axis=2)
        else:
            source = x if memory is None else memory
            q, k, v = self.dense(x, f"{name}.q"), self.dense(source, f"{name}.k"), self.dense(source, f"{name}.v")
        y = self.mixed(*(self.heads(one, count) for one in (q, k, v)), seen, bias, scaled)
        return self.dense(self.joined(y), f"{name}.o")

    def gated(self, x: Value, name: str) -> Value:
        """The feed-forward of blocks.GatedMlp."""
        if self.fuses:
            gate, up = self.split(self.dense(x, f"{name}.gate", f"{name}.up"), parts=2, axis=2)
        else:
            gate, up = self.dense(x, f"{name}.gate"), self.dense(x, f"{name}.up")
        return self.dense(self.mul(up, self.silu(gate)), f"{name}.down")

    fuses = False  # whether q, k, v and gate, up are one product

    def conv2d(self, x: Value, name: str, stride: int = 1, groups: int = 1) -> Value:
        """Convolve (B, H, W, C) as torch does with padding size // 2, patches (stride = size) without."""
        w = self.weights[f"{name}.weight"]
        size = w.shape[2]
        if stride == 2 and size == 3:
            x = self.pad(x, pads=((0, 0), (1, 1), (1, 1), (0, 0)))
        pad = "SAME" if stride == 1 else "VALID"
        depth = groups > 1
        w = w.transpose(2, 3, 0, 1) if depth and self.framework == "tensorflow" else w.transpose(2, 3, 1, 0)
        y = self.op("depthwise" if depth else "conv", x, self.weight(name, w), stride=stride, pad=pad, groups=groups)
        return self.bias(y, self.weight(f"{name}.bias")) if self.has(f"{name}.bias") else y  # type: ignore[no-any-return]

    def norm2d(self, x: Value, name: str, eps: float = 1e-5) -> Value:
        """Batch norm by the running mean and variance."""
        scale = self.mul(self.rsqrt(self.add(self.weight(f"{name}.running_var"), eps)), self.weight(f"{name}.weight"))
        y = self.mul(self.sub(x, self.weight(f"{name}.running_mean")), scale)
        return self.add(y, self.weight(f"{name}.bias"))  # type: ignore[no-any-return]

    def conv_norm(self, x: Value, name: str, stride: int = 1, groups: int = 1, act: str = "relu") -> Value:
        y = self.norm2d(self.conv2d(x, f"{name}.conv", stride, groups), f"{name}.bn")
        return getattr(self, act)(y) if act else y  # type: ignore[no-any-return]


class TensorFlow(Coding):
    """As TensorFlow codes it: Tensordot, BiasAdd, norms as in batch_normalization, added masks, qkv in one."""

    framework, fuses = "tensorflow", True

    def name(self, type: str) -> str:
        stem = "/".join(filter(None, ("model", *self._scopes, type)))
        count = self._seen[stem]
        self._seen[stem] += 1
        return f"{stem}_{count}" if count else stem

    def weight(self, name: str, array: Optional[np.ndarray] = None) -> Value:
        """Read a variable, which is recorded once."""
        value = super().weight(name, array)
        stem = "/".join(("model", *self._scopes, name.replace(".", "/"), f"r{value.array.ndim}", "ReadVariableOp"))
        if stem not in self._read:
            [array] = self.tape.run(stem, "ReadVariableOp", lambda arrays, changed: [value.array], [])
            self.sources[stem] = []
            self._read[stem] = Value(array, stem)
        return self._read[stem]

    def product(self, x: Value, kernel: Value) -> Value:
        if len(x.shape) == 2:
            return self.op("matmul2", x, kernel)  # type: ignore[no-any-return]
        flat = self.op("matmul2", self.reshape(x, shape=(-1, x.shape[-1])), kernel)
        return self.reshape(flat, shape=(*x.shape[:-1], kernel.shape[-1]))  # type: ignore[no-any-return]

    def softmax(self, x: Value) -> Value:
        return self.op("softmax", x)  # type: ignore[no-any-return]

    def layer_norm(self, x: Value, name: str, eps: float = 1e-5, axes: Sequence[int] = (-1,)) -> Value:
        mean = self.mean(x, axes=axes)
        variance = self.mean(self.square_difference(x, mean), axes=axes)
        inverse = self.rsqrt(self.add(variance, eps))
        inverse = self.mul(inverse, self.weight(f"{name}.weight"))
        return self.add(self.mul(x, inverse), self.sub(self.weight(f"{name}.bias"), self.mul(mean, inverse)))  # type: ignore[no-any-return]

    def mask(self, scores: Value, seen: np.ndarray) -> Value:
        hidden = self.mul(self.sub(1.0, seen.astype(np.float32)), -1e9)
        return self.add(scores, hidden)  # type: ignore[no-any-return]

    def norm2d(self, x: Value, name: str, eps: float = 1e-5) -> Value:
        parts = (self.weight(f"{name}.{part}") for part in ("weight", "bias", "running_mean", "running_var"))
        return self.op("batch_norm", x, *parts, epsilon=eps)  # type: ignore[no-any-return]


class Jax(Coding):
    """As flax codes it: einsum without transposes, softmax of primitives, variance by mean of squares."""

    framework = "jax"

    def layer_norm(self, x: Value, name: str, eps: float = 1e-5, axes: Sequence[int] = (-1,)) -> Value:
        mean = self.mean(x, axes=axes)
        variance = self.sub(self.mean(self.square(x), axes=axes), self.square(mean))
        scale = self.mul(self.rsqrt(self.add(variance, eps)), self.weight(f"{name}.weight"))
        return self.add(self.mul(self.sub(x, mean), scale), self.weight(f"{name}.bias"))  # type: ignore[no-any-return]

    def gelu(self, x: Value) -> Value:
        return self.div(self.mul(x, self.add(self.erf(self.div(x, 1.41421356)), 1.0)), 2.0)  # type: ignore[no-any-return]

    def mask(self, scores: Value, seen: np.ndarray) -> Value:
        return self.where(np.broadcast_to(seen, scores.shape).copy(), scores, np.float32(-3e38))  # type: ignore[no-any-return]

    def heads(self, x: Value, count: int) -> Value:
        return self.reshape(x, shape=(*x.shape[:2], count, x.shape[2] // count))  # type: ignore[no-any-return]

    def joined(self, x: Value) -> Value:
        return self.reshape(x, shape=(*x.shape[:2], -1))  # type: ignore[no-any-return]

    def mixed(
        self, q: Value, k: Value, v: Value, seen: Optional[np.ndarray], bias: Optional[Value], scaled: bool
    ) -> Value:
        """Attention of (B, S, N, D)."""
        if scaled:
            q = self.div(q, float(q.shape[-1] ** 0.5))
        scores = self.einsum(q, k, form="bqhd,bkhd->bhqk")
        if bias is not None:
            scores = self.add(bias, scores)
        if seen is not None:
            scores = self.mask(scores, seen)
        return self.einsum(self.softmax(scores), v, form="bhqk,bkhd->bqhd")  # type: ignore[no-any-return]


class OwnTorch(Coding):
    """As a user writes it in torch: fused products, batched matrices, norms by hand."""

    framework, fuses = "torch", True

    def name(self, type: str) -> str:
        count = self._seen[type]
        self._seen[type] += 1
        return f"{type}.{count}.forward"

    def silu(self, x: Value) -> Value:
        return self.op("silu", x)  # type: ignore[no-any-return]

    def gelu(self, x: Value) -> Value:
        return self.op("gelu", x, approximate="none")  # type: ignore[no-any-return]

    def layer_norm(self, x: Value, name: str, eps: float = 1e-5, axes: Sequence[int] = (-1,)) -> Value:
        centred = self.sub(x, self.mean(x, axes=axes))
        deviation = self.sqrt(self.add(self.mean(self.square(centred), axes=axes), eps))
        y = self.mul(self.div(centred, deviation), self.weight(f"{name}.weight"))
        return self.add(y, self.weight(f"{name}.bias"))  # type: ignore[no-any-return]

    def mask(self, scores: Value, seen: np.ndarray) -> Value:
        return self.where(np.broadcast_to(seen, scores.shape).copy(), scores, np.float32(-65504))  # type: ignore[no-any-return]


_DIALECTS: dict[str, Any] = {}


def _dialect(framework: str) -> dialects.Dialect:
    if framework not in _DIALECTS:
        _DIALECTS[framework] = getattr(dialects, framework)()
    return _DIALECTS[framework]  # type: ignore[no-any-return]


CODINGS = {"tensorflow": TensorFlow, "jax": Jax, "own": OwnTorch}
