"""A LLaMA-like decoder (RMS norm, rotary embedding, grouped queries, SwiGLU) and a GPT-2-like one (layer norm, biases,
learned positions, gelu)."""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from tests.corpus.composed.forward import IDS, Forward
from tests.corpus.composed.values import Array, Meta, Value
from tests.corpus.tokens.network import bfloat16

MOST_POSITIONS = 64


class Design(NamedTuple):
    """The kind of a network and its sizes; `biased`: products of attention have biases."""

    kind: str
    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    biased: bool

    @property
    def size(self) -> int:
        return self.width // self.heads

    @property
    def positions(self) -> str:
        """The place that reads positions."""
        return "rope" if self.kind == "llama" else "positions"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Places of a layer at which a factor can strike."""
        shared = ("norm1", "q", "v", "attention", "o", "norm2", "up", "act", "down")
        return (*shared, "gate") if self.kind == "llama" else shared


def draw_design(kind: str, draw: np.random.Generator, tp: int) -> Design:
    heads = int(draw.choice([4, 8])) if tp < 4 else 8
    groups = heads if kind == "gpt2" else int(draw.choice([2, 4]))
    width = heads * (8 if heads == 4 else int(draw.choice([4, 8])))
    biased = kind == "gpt2" or bool(draw.random() < 0.5)
    layers = int(draw.integers(2, 4))
    return Design(kind, layers, width, heads, groups, 2 * width, int(draw.choice([48, 64])), biased)


Weights = dict[str, Array]


def draw_weights(design: Design, draw: np.random.Generator, dtype: str) -> Weights:
    """Parameters by place: "embed", "1.q", "1.q.bias"."""
    d, kept = design, {}

    def matrix(rows: int, columns: int) -> Array:
        return rounded(draw.standard_normal((rows, columns)) / np.sqrt(columns))

    def rounded(values: Array) -> Array:
        narrow = np.asarray(values, np.float32)
        return bfloat16(narrow) if dtype == "bfloat16" else narrow

    kept["embed"] = rounded(draw.standard_normal((d.vocabulary, d.width)))
    if d.kind == "gpt2":
        kept["positions"] = rounded(draw.standard_normal((MOST_POSITIONS, d.width)) / 2)
    narrow = d.groups * d.size
    shapes = {"q": (d.width, d.width), "k": (narrow, d.width), "v": (narrow, d.width), "o": (d.width, d.width),
              "up": (d.inner, d.width), "down": (d.width, d.inner)}  # fmt: skip
    if d.kind == "llama":
        shapes["gate"] = (d.inner, d.width)
    for layer in range(d.layers):
        for name, shape in shapes.items():
            kept[f"{layer}.{name}"] = matrix(*shape)
            if d.kind == "gpt2" or (d.biased and name in "qkvo"):
                kept[f"{layer}.{name}.bias"] = rounded(draw.standard_normal(shape[0]) / 4)
        for name in ("norm1", "norm2"):
            kept[f"{layer}.{name}"] = rounded(1 + draw.standard_normal(d.width) / 8)
            if d.kind == "gpt2":
                kept[f"{layer}.{name}.bias"] = rounded(draw.standard_normal(d.width) / 8)
    kept["norm"] = rounded(1 + draw.standard_normal(d.width) / 8)
    if d.kind == "gpt2":
        kept["norm.bias"] = rounded(draw.standard_normal(d.width) / 8)
    kept["head"] = matrix(d.vocabulary, d.width)
    return kept


def run(design: Design, weights: Weights, f: Forward) -> None:
    """The records of a forward pass."""
    d, w = design, weights
    fused = f.style.fused
    x = f.embedding("embed", w["embed"], d.kind == "gpt2")
    if d.kind == "gpt2":
        x = _with_positions(w, f, x)
    x = f.divided(x)
    if d.kind == "llama":
        f.rotary_table(x, d.size)
    addend: Optional[Value] = None
    for layer in range(d.layers):
        at = f"{layer}."
        start = x
        h = _norm(w, f, f"{at}norm1", x, addend)
        groups = {"q": d.heads, "k": d.groups, "v": d.groups}
        qkv = [(name, w[at + name], w.get(f"{at}{name}.bias"), count) for name, count in groups.items()]
        q, k, v = f.columns(f"{at}qkv", qkv, h, fused or d.kind == "gpt2")
        if d.kind == "llama":
            q, k = f.rotary(f"{at}rope", q, k, d.size)
        core = f.attention(f"{at}attention", q, k, v, d.size)
        out = f.row(f"{at}o", core, w[f"{at}o"], w.get(f"{at}o.bias"))
        f.container(f"{at}block", [h], [out])
        x = f.residual(f"{at}residual1", x, out)
        h = _norm(w, f, f"{at}norm2", x, out if fused else None)
        down = _mlp(d, w, f, at, h)
        f.container(f"{at}mlp", [h], [down])
        x = f.residual(f"{at}residual2", x, down)
        addend = down if fused else None
        if not fused:
            f.container(f"{at}layer", [start], [x])
    x = _norm(w, f, "norm", x, addend)
    mask = {"attention_mask": Meta("attention_mask")} if f.arrangement.rows(0, 0).ndim == 2 else {}
    f.container("top", [], [x], input_ids=IDS, position_ids=f.recorded_positions(), **mask)
    (logits,) = f.columns("head", [("head", w["head"], None, 0)], x, False)
    whole = f.gathered_columns("head", logits)
    if whole is not logits:  # the module hands on all columns
        f.records = [record for record in f.records if (record.operator, record.place) != ("module", "head")]
        f.module("head", [x], [whole])


def _norm(w: Weights, f: Forward, place: str, x: Value, addend: Optional[Value]) -> Value:
    return f.norm(place, x, w[place], w.get(f"{place}.bias"), addend)


def _with_positions(w: Weights, f: Forward, x: Value) -> Value:
    positions = f.positions_at("positions")
    item = f.recorded_positions()
    rows = f.outcome("positions", Value([f.rounded(w["positions"][positions])] * f.tp))
    f.function("embedding", "positions", [item, f.same(w["positions"])], [rows])
    f.module("positions", [item], [rows])
    value = f.each(np.add, x, rows)
    f.function("add", "sum", [x, rows], [value])
    return value


def _mlp(d: Design, w: Weights, f: Forward, at: str, h: Value) -> Value:
    if d.kind == "gpt2":
        (up,) = f.columns(f"{at}up", [("up", w[f"{at}up"], w[f"{at}up.bias"], 0)], h, False)
        act = f.pointwise("gelu", f"{at}act", _gelu, up, approximate="tanh")
        f.module(f"{at}act", [up], [act])
        return f.row(f"{at}down", act, w[f"{at}down"], w[f"{at}down.bias"])
    both = [(name, w[f"{at}{name}"], None, 0) for name in ("gate", "up")]
    gate, up = f.columns(f"{at}gate_up", both, h, f.style.fused)
    if f.style.fused:  # one kernel
        value = f.outcome(f"{at}act", f.each(_silu, gate))
        value = f.outcome(f"{at}mul", f.each(np.multiply, value, up))
        whole = [np.concatenate(pair, 1) for pair in zip(gate.parts, up.parts)]
        joined = Value(whole, gate.held, "own", 0, (*gate.blocks, *up.blocks))
        f.function("swiglu", f"{at}act", [joined], [value], f"{at}act", f"{at}mul")
        f.module(f"{at}act", [joined], [value], f"{at}act", f"{at}mul")
    else:
        act = f.pointwise("silu", f"{at}act", _silu, gate)
        f.module(f"{at}act", [gate], [act])
        value = f.pointwise("mul", f"{at}mul", np.multiply, act, up)
    return f.row(f"{at}down", value, w[f"{at}down"], None)


def _silu(rows: Array) -> Array:
    return rows / (1 + np.exp(-rows))


def _gelu(rows: Array) -> Array:
    return 0.5 * rows * (1 + np.tanh(np.float32(0.7978845608) * (rows + np.float32(0.044715) * rows**3)))
