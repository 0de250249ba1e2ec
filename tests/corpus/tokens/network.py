"""A small decoder in numpy, computed request by request: the inputs and outputs of each of its operators."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import numpy as np

VOCABULARY, HIDDEN, HEADS, INNER, LAYERS = 40, 16, 4, 32, 3
Arrays = list[np.ndarray]  # one for each request: tokens × values


class Record(NamedTuple):
    """An operator: its path, its class, and its tensors request by request."""

    path: str
    kind: str
    inputs: list[Arrays]
    outputs: list[Arrays]


Change = Callable[[str, Arrays], Arrays]


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest numbers of bfloat16, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


class Network:
    """Weights of a seed. `exact`: products are summed in float64, else in float32: two kernels."""

    def __init__(self, seed: int, dtype: str) -> None:
        generator = np.random.default_rng(seed)
        self.dtype, self.noise = dtype, np.random.default_rng(seed + 1)

        def matrix(*shape: int) -> np.ndarray:
            return self._rounded(generator.standard_normal(shape) / np.sqrt(shape[-1]))

        self.embedding = self._rounded(generator.standard_normal((VOCABULARY, HIDDEN)))
        self.layers = [
            {**{name: matrix(HIDDEN, HIDDEN) for name in "qkvo"},
             "gate": matrix(INNER, HIDDEN), "up": matrix(INNER, HIDDEN), "down": matrix(HIDDEN, INNER)}
            for _ in range(LAYERS)
        ]  # fmt: skip
        self.head = matrix(VOCABULARY, HIDDEN)

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        return bfloat16(values) if self.dtype == "bfloat16" else np.asarray(values, np.float32)

    def run(
        self, ids: list[np.ndarray], exact: bool, change: Optional[Change] = None, attend: Optional[Any] = None
    ) -> list[Record]:
        """The records of a forward pass. `change(path, arrays)` replaces outputs, `attend(layer, request, q, k, v)` the
        attention of a request."""
        found: list[Record] = []
        self.noise = np.random.default_rng(1)

        def record(path: str, kind: str, inputs: list[Arrays], *outputs: Arrays) -> Any:
            made = []
            for number, arrays in enumerate(outputs):
                own = [self._rounded(one) for one in arrays]
                made.append(change(f"{path}:{number}", own) if change is not None else own)
            found.append(Record(path, kind, inputs, made))
            return made[0] if len(made) == 1 else made

        def product(arrays: Arrays, weight: np.ndarray) -> Arrays:
            if exact:
                return [one.astype(np.float64) @ weight.T.astype(np.float64) for one in arrays]
            if self.dtype == "bfloat16":  # the last bits of a float32 sum in another order, of thousands of terms
                return [
                    one @ weight.T * (1 + 2.0**-13 * self.noise.standard_normal((len(one), len(weight))))
                    for one in arrays
                ]
            order = np.arange(weight.shape[1])[::-1]
            return [one[:, order] @ weight[:, order].T for one in arrays]

        def norm(arrays: Arrays) -> Arrays:
            wide = [one.astype(np.float64 if exact else np.float32) for one in arrays]
            return [one / np.sqrt((one * one).mean(1, keepdims=True) + 1e-6) for one in wide]

        x = record("model.embed_tokens", "Embedding", [ids], [self.embedding[one] for one in ids])
        for number, weights in enumerate(self.layers):
            path = f"model.layers.{number}"
            h = record(f"{path}.input_layernorm", "LlamaRMSNorm", [x], norm(x))
            q, k, v = (record(f"{path}.self_attn.{one}_proj", "Linear", [h], product(h, weights[one])) for one in "qkv")
            q, k = record(
                f"{path}.self_attn.rotary_emb", "RotaryEmbedding", [q, k], *(map(_rotated, one) for one in (q, k))
            )
            own = attend or attention
            core = [own(number, at, *one) for at, one in enumerate(zip(q, k, v))]
            core = record(f"{path}.self_attn.core", "Attention", [q, k, v], core)
            out = record(f"{path}.self_attn.o_proj", "Linear", [core], product(core, weights["o"]))
            x = [self._rounded(a + b) for a, b in zip(x, out)]
            h = record(f"{path}.post_attention_layernorm", "LlamaRMSNorm", [x], norm(x))
            gate, up = (
                record(f"{path}.mlp.{one}_proj", "Linear", [h], product(h, weights[one])) for one in ("gate", "up")
            )
            act = record(f"{path}.mlp.act_fn", "SiluAndMul", [gate, up], [_silu(a) * b for a, b in zip(gate, up)])
            down = record(f"{path}.mlp.down_proj", "Linear", [act], product(act, weights["down"]))
            x = [self._rounded(a + b) for a, b in zip(x, down)]
        x = record("model.norm", "LlamaRMSNorm", [x], norm(x))
        record("lm_head", "Linear", [x], product(x, self.head))
        return found


def _silu(values: np.ndarray) -> np.ndarray:
    wide = values.astype(np.float64)
    return wide / (1 + np.exp(-wide))


def _rotated(values: np.ndarray) -> np.ndarray:
    """Rotary positions from 0."""
    count, width = values.shape[0], HIDDEN // HEADS
    angle = np.arange(count)[:, None] / 100.0 ** (np.arange(width // 2) / (width // 2))
    heads = values.reshape(count, HEADS, 2, width // 2).astype(np.float64)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = heads[:, :, 0], heads[:, :, 1]
    return np.stack([first * cos - second * sin, second * cos + first * sin], 2).reshape(count, HIDDEN)


def attention(_: int, __: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention of one request."""
    count, width = len(q), HIDDEN // HEADS
    q, k, v = (one.astype(np.float64).reshape(count, HEADS, width).transpose(1, 0, 2) for one in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(width)
    scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return ((weights / weights.sum(-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(count, HIDDEN)
