"""Faults of a target: single tokens, caches from a position on, masks of a request, heads, whole operators."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np

from tests.corpus.tokens.network import HEADS, HIDDEN, LAYERS, Arrays, Change, attention

KINDS = ("token", "cache", "request", "mask", "head", "all", "suffix", "exchanged")
LINEAR = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.act_fn", "mlp.down_proj")  # fmt: skip


class Fault(NamedTuple):
    """What is wrong: a kind, an operator, and the request and position where it begins. `size` is a factor."""

    kind: str
    path: str
    request: int
    position: int
    size: float

    @property
    def change(self) -> Optional[Change]:
        """The function that replaces outputs of the network; None if the attention itself is wrong."""
        if self.kind in ("cache", "request", "mask"):
            return None

        def changed(path: str, arrays: Arrays) -> Arrays:
            if path != f"{self.path}:0":
                return arrays
            made = [one.copy() for one in arrays]
            if self.kind == "token":
                made[self.request][self.position] *= self.size
            elif self.kind == "exchanged":  # two rows of one request, or of two
                other = (self.request + 1) % len(made)
                rows = made[self.request][self.position].copy(), made[other][-1].copy()
                made[self.request][self.position], made[other][-1] = rows[::-1]
            elif self.kind == "suffix":
                made[self.request][self.position :] *= self.size
            elif self.kind == "head":
                width = made[0].shape[1] // HEADS
                for one in made:
                    one[:, width : 2 * width] *= self.size
            else:
                made = [one * np.float32(self.size) for one in made]
            return made

        return changed

    @property
    def attend(self) -> Optional[Any]:
        """The attention with this fault; None if it is right."""
        if self.kind not in ("cache", "request", "mask"):
            return None
        layer = int(self.path.split(".")[2])

        def wrong(number: int, request: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            right = attention(number, request, q, k, v)
            if number != layer or request != self.request:
                return right
            if self.kind == "cache":  # the cache lost the value of a token
                lost = v.copy()
                lost[self.position] = 0.0
                made = attention(number, request, q, k, lost)
                made[: self.position] = right[: self.position]
                return made
            if self.kind == "request":  # the values of the request are those of another place
                return attention(number, request, q, k, v[::-1] * 0.9)
            made = attention(number, request, q, k, v)  # every token sees the first one twice
            return made + 0.2 * v[:1]

        return wrong


def draw(generator: np.random.Generator, lengths: list[int], requests: list[int], act: bool, coarse: bool) -> Fault:
    """A fault of one of the requests that both sides have."""
    kind = KINDS[generator.integers(len(KINDS))]
    layer = int(generator.integers(LAYERS))
    request = int(generator.choice(requests))
    position = int(generator.integers(lengths[request]))
    names = [one for one in LINEAR if act or one != "mlp.act_fn"]
    name = "self_attn.core" if kind in ("cache", "request", "mask", "head") else names[generator.integers(len(names))]
    size = float(generator.choice([1.3, 0.7, 1.15] if coarse else [1.3, 1.05, 1.01]))
    return Fault(kind, f"model.layers.{layer}.{name}", request, position, size)


__all__ = ["HIDDEN", "Fault", "draw"]
