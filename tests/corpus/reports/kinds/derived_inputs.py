"""Tensors that a network makes of its inputs (masks, positions, slots of a cache) or keeps as buffers, and that differ.

A small decoder computes its mask and its positions from the attention mask that it is given, by operators that the dump
holds or by code that it does not hold. The fault is an operator of that code, the code itself, a buffer of one module
(rotary frequencies, the router's bias, the map of experts) or an operator that a mask depends on. Controls: inputs of
the network that differ, which is another set-up of the run; an additive mask without an element; clean pairs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from tests.corpus.reports.kinds import _dumps_D as dumps
from tests.corpus.reports.kinds._dumps_D import Typed

Array = np.ndarray
INSIDE = "frequencies", "router bias", "expert map", "slots", "chosen"  # no module of L0 reads or writes what differs
LEVELS = "L1", "L1", "L1", "mix", "mix", "L0"
MADE = r"buffer|constant|parameter|not dumped|was not recorded|made|computes?\b"
BUFFER = r"buffer|constant|parameter"
FAULTS = ("none", "none", "given ids", "given mask", "given states", "mask", "mask", "positions", "positions",
          "slots", "frequencies", "frequencies", "router bias", "router bias", "expert map", "chosen", "no border",
          "no mask")  # fmt: skip


class Plan(NamedTuple):
    """The network of a case: sizes, and which code is recorded."""

    batch: int
    length: int
    width: int
    layers: int
    vocabulary: int
    level: str
    masks: str  # "additive", "boolean"
    rotary: bool
    router: bool
    cache: bool
    chosen: bool
    border: bool
    states: bool
    records_mask: bool
    records_positions: bool
    has_root: bool
    dtype: str
    weights: int


def draw(random: np.random.Generator, folder: Path) -> dict[str, Any]:
    fault = str(random.choice(FAULTS))
    form = str(random.choice(["pt", "pt", "npy", "files", "statistics"]))
    level = "L1" if form == "files" or fault == "given states" else str(random.choice(LEVELS))
    if level == "L0" and fault in INSIDE:
        level = "mix"
    is_border = fault in ("no border", "no mask")
    is_additive = is_border or random.random() < 0.5
    plan = Plan(int(random.integers(1, 4)), int(random.integers(6, 14)), int(random.choice([8, 16, 24])),
                int(random.integers(1, 4)), int(random.integers(60, 300)), level,
                "additive" if is_additive else "boolean",
                fault == "frequencies" or (fault != "given states" and random.random() < 0.5),
                fault in ("router bias", "expert map") or random.random() < 0.3,
                fault == "slots" or random.random() < 0.2,
                fault == "chosen" or (level != "L0" and random.random() < 0.2),
                fault == "no border" or (is_additive and random.random() < 0.2), fault == "given states",
                fault == "given mask" or (level != "L0" and not is_border and random.random() < 0.5),
                level != "L0" and random.random() < 0.5,
                fault == "given mask" or random.random() < 0.7, str(random.choice(["float32", "float32", "bfloat16"])),
                int(random.integers(1 << 30)))  # fmt: skip
    at = int(random.integers(plan.layers))
    seed = int(random.integers(1 << 30))
    sides = [_Side(plan, fault if side == "target" else "none", at, seed, side) for side in ("target", "golden")]
    for side in sides:
        side.compute()
        _write(folder / side.name, side, form)
    run = _expected(plan, fault, form, sides[0])
    kind = "control" if fault in ("none", "given ids", "given mask", "given states", "no mask") else fault
    return {"kind": f"derived_inputs: {kind}", "fault": fault, "form": form, "plan": plan._asdict(), "layer": at,
            "runs": [{"do": ["compare", "target", "golden"], **run}]}  # fmt: skip


def _expected(plan: Plan, fault: str, form: str, target: _Side) -> dict[str, Any]:
    exact = form != "statistics"
    if fault == "none":
        return {"exit": [0] if exact else [0, 2], "first": ""}
    run: dict[str, Any] = {"exit": [1] if exact else [1, 2]}
    if fault != "given mask" and (exact or fault == "given ids"):
        run["first"] = target.expected
        run.update({"places": 3} if form == "files" else {})  # the order of the files is guessed
    if fault.startswith("given"):
        if exact:
            run["says"] = ["set up differently: (tokens|inputs)" + ("|an input" if form == "files" else "")]
    elif fault == "no mask":
        run.update({"says": ["all zeros?"]} if exact else {})
    else:
        run["never"] = ["set up differently: inputs", "(target|mask) is all zero"]
        if exact and target.is_hidden:
            run["says"] = [BUFFER if fault in ("frequencies", "router bias", "expert map") else MADE]
    return run


class _Side:
    """One run of the network: the records of its operators and modules, in order of their ends."""

    def __init__(self, plan: Plan, fault: str, at: int, seed: int, name: str) -> None:
        self.plan, self.fault, self.at, self.name = plan, fault, at, name
        self.random, self.device = np.random.default_rng(seed), dumps.Device(seed + (name == "target"), plan.dtype)
        self.records: dict[str, dict[str, Any]] = {}
        self.scopes: dict[str, Optional[str]] = {}
        self.counts: dict[str, int] = {}
        self.inside: list[str] = []
        self.kinds: dict[int, str] = {}
        self.kept: list[Array] = []
        self.expected, self.is_hidden = "", False
        self.narrows = at % 2 == 0 and plan.dtype == "float32"  # a buffer rounded to bfloat16

    # ---- records
    def typed(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return Typed(value, self.kinds.get(id(value), str(value.dtype)))

    def store(self, values: Array, dtype: str = "") -> Array:
        found = self.device.store(values, dtype)
        self.kinds[id(found)] = dtype or self.plan.dtype
        self.kept.append(found)
        return found

    def exact(self, values: Array, dtype: str = "float32") -> Array:
        found = dumps.rounded(values, dtype)
        self.kinds[id(found)] = dtype
        self.kept.append(found)
        return found

    def view(self, values: Array, of: Array) -> Array:
        self.kept.append(values)
        self.kinds[id(values)] = self.kinds.get(id(of), str(values.dtype))
        return values

    def op(self, name: str, reads: list[Any], out: Array, is_recorded: bool = True, **kwargs: Any) -> Array:
        self.kept.append(out)
        if is_recorded and self.plan.level != "L0":
            number = self.counts.setdefault(name, 0)
            self.counts[name] += 1
            full = f"{name}.{number}.forward"
            self.records[full] = {"input_args": [*map(self.typed, reads)],
                                  "input_kwargs": {key: self.typed(value) for key, value in kwargs.items()},
                                  "output": [self.typed(out)]}  # fmt: skip
            self.scopes[full] = self.inside[-1] if self.inside else None
            self.last = full
        return out

    def enter(self, path: str, kind: str) -> None:
        self.inside.append(f"Module.{path}.{kind}.forward.0")

    def leave(self, reads: list[Any], out: Array, parameters: Optional[dict[str, Array]] = None, **kwargs: Any) -> None:
        name = self.inside.pop()
        self.scopes[name] = self.inside[-1] if self.inside else None
        if self.plan.level == "L1":
            return
        self.records[name] = {"input_args": [*map(self.typed, reads)],
                              "input_kwargs": {key: self.typed(value) for key, value in kwargs.items()},
                              "output": [self.typed(out)]}  # fmt: skip
        if parameters:
            self.records[name]["parameters"] = {key: self.typed(value) for key, value in parameters.items()}
        self.last = name

    # ---- truth
    def fault_at(self, name: str = "", is_hidden: bool = False) -> None:
        """The record written last, or one named, bears the fault."""
        if self.expected or self.fault == "none":
            return
        found = name or self.last
        self.expected, self.is_hidden = found.replace(".", r"\."), is_hidden

    # ---- the network
    def compute(self) -> None:
        plan, random = self.plan, np.random.default_rng(self.plan.weights)
        batch, length, width = plan.batch, plan.length, plan.width
        ids = random.integers(3, plan.vocabulary, (batch, length))
        padding = random.integers(0, max(1, length // 3), batch)
        padding[-1] = 2
        mask = (np.arange(length) >= padding[:, None]).astype(np.int64)
        ids[mask == 0] = 0
        other = random.integers(3, plan.vocabulary)
        if self.fault == "given ids":
            ids[0, length // 2] = other if other != ids[0, length // 2] else 3
        if self.fault == "given mask":
            mask[-1, 2] = 0
        table = self.exact(random.standard_normal((plan.vocabulary, width)), plan.dtype)
        if plan.has_root:
            self.enter("model", "DecoderModel")
        x = self.embed(ids, table, random)
        places = self.positions(mask)
        if not plan.rotary:
            learned = self.exact(random.standard_normal((2 * length, width)) * 0.3, plan.dtype)
            self.enter("model.embed_positions", "Embedding")
            spots = self.op("Functional.embedding", [places, learned], self.view(learned[places], learned))
            if plan.level != "L0":
                self.at_reader("positions", not plan.records_positions)
            self.leave([places], spots, {"weight": learned})
            self.at_reader("positions", not plan.records_positions)
            x = self.op("Tensor.__add__", [x, spots], self.store(x + spots))
        bias = self.mask(mask)
        for layer in range(plan.layers):
            x = self.layer(layer, x, bias, places, random)
        if plan.has_root:
            self.leave([ids], x, attention_mask=mask)

    def embed(self, ids: Array, table: Array, random: np.random.Generator) -> Array:
        if self.plan.states:
            states = self.exact(random.standard_normal((*ids.shape, self.plan.width)), self.plan.dtype)
            if self.fault == "given states":
                states = self.exact(states[::-1].copy() * 1.5 + 0.2, self.plan.dtype)
            weight = self.weight(random)
            x = self.op("Functional.linear", [states, weight], self.store(states @ weight.T))
            if self.fault == "given states":
                self.fault_at()
            return x
        self.enter("model.embed_tokens", "Embedding")
        x = self.op("Functional.embedding", [ids, table], self.view(table[ids], table))
        self.leave([ids], x, {"weight": table})
        if self.fault == "given ids":
            self.fault_at(next(name for name in self.records if "mbedding" in name))
            self.expected += "|" + self.last.replace(".", r"\.")
        return x

    def weight(self, random: np.random.Generator, *shape: int) -> Array:
        width = self.plan.width
        return self.exact(random.standard_normal(shape or (width, width)) * 1.2 / np.sqrt(width), self.plan.dtype)

    def positions(self, mask: Array) -> Array:
        plan, hidden = self.plan, not self.plan.records_positions
        sums = mask.cumsum(-1)
        if self.fault == "positions" and not hidden:
            sums = sums.copy()
            sums[:, plan.length // 2 :] += 1
        total = self.op("Tensor.cumsum", [mask, -1], sums, not hidden)
        if self.fault == "given mask" and not hidden:
            self.fault_at()
        if self.fault == "positions" and not hidden and plan.level != "L0":
            self.fault_at()
        less = self.op("Tensor.__sub__", [total, 1], total - 1, not hidden)
        empty = self.op("Tensor.__eq__", [mask, 0], mask == 0, not hidden)
        places = self.op("Tensor.masked_fill", [less, empty, 1], np.where(empty, 1, less), not hidden)
        if self.fault == "positions" and hidden:  # padding is not looked at
            places = np.tile(np.arange(plan.length), (plan.batch, 1))
            self.kept.append(places)
        return places

    def mask(self, mask: Array) -> Array:
        plan, recorded = self.plan, self.plan.records_mask
        length = plan.length
        rows, columns = np.arange(length)[:, None], np.arange(length)[None]
        self.counts.setdefault("Tensor.__gt__", 0)
        future = columns > rows
        window = future | (rows - columns >= length // 2)
        wrong = columns > rows + 1 if mask[0, 0] else window
        if self.fault == "mask":
            future = wrong
        future = self.op("Tensor.__gt__", [columns.copy(), rows.copy()], future, recorded)
        if self.fault == "mask" and recorded:
            self.fault_at()
        empty = self.op("Tensor.__eq__", [mask, 0], mask == 0, recorded)
        if self.fault == "given mask" and recorded:
            self.fault_at()
        closed = self.op("Tensor.__or__", [future[None], empty[:, None]], future[None] | empty[:, None], recorded)
        if plan.border and not recorded:
            documents = np.arange(length) // (length // 2)
            border = (documents[:, None] != documents[None]) & (self.fault != "no border")
            closed = future[None] | border[None] | np.zeros((plan.batch, 1, 1), bool)
        closed = closed & ~np.eye(length, dtype=bool)  # no row without an element
        self.kept.append(closed)
        if plan.masks == "boolean":
            return closed
        lowest = -1e9 if plan.dtype == "float32" else -3.3895314e38
        if self.fault == "no mask":
            closed = closed & False
        bias = self.exact(np.where(closed, lowest, 0.0), plan.dtype)
        return self.op("Torch.where", [closed, lowest, 0.0], bias, recorded)

    def at_reader(self, fault: str, is_hidden: bool) -> None:
        if self.fault == fault and is_hidden:
            self.fault_at(is_hidden=True)

    def layer(self, layer: int, x: Array, bias: Array, places: Array, random: np.random.Generator) -> Array:
        plan = self.plan
        self.enter(f"model.layers.{layer}", "DecoderLayer")
        start, x = x, self.norm(x)
        self.enter(f"model.layers.{layer}.self_attn", "Attention")
        given = x
        q = self.linear(x, random, f"model.layers.{layer}.self_attn.q_proj")
        k = self.linear(x, random, f"model.layers.{layer}.self_attn.k_proj")
        if plan.rotary:
            cos, sin = self.tables(layer, places)
            q, k = (self.turned(values, cos, sin) for values in (q, k))
        if plan.cache:
            k = self.cached(k, layer)
        scale = float(plan.width**-0.5)
        scores = self.op("Torch.matmul", [q, self.view(k.swapaxes(-1, -2), k)], self.store(q @ k.swapaxes(-1, -2)))
        scores = self.op("Tensor.__mul__", [scores, scale], self.store(scores * scale))
        if plan.masks == "boolean":
            filled = self.store(np.where(bias, 0.0, scores))
            filled[bias] = dumps.rounded(np.float32(-1e9).reshape(1), plan.dtype)
            scores = self.op("Tensor.masked_fill", [scores, bias, -1e9], filled)
        else:
            total = self.store(np.where(bias < 0, 0.0, scores))
            total[bias < 0] = dumps.rounded(scores + bias, plan.dtype)[bias < 0]
            scores = self.op("Tensor.__add__", [scores, bias], total)
        hidden_mask = self.fault in ("no border", "no mask") or not plan.records_mask
        if plan.level != "L0":
            for fault in ("mask", "no border", "no mask", "given mask"):
                self.at_reader(fault, hidden_mask)
        share = self.op("Functional.softmax", [scores], self.store(dumps.softmax(scores)), dim=-1)
        mixed = self.op("Torch.matmul", [share, x], self.store(share @ x))
        out = self.linear(mixed, random, f"model.layers.{layer}.self_attn.o_proj")
        self.leave([given], out, attention_mask=bias, position_ids=places)
        if plan.level == "L0":
            for fault in ("mask", "no border", "no mask", "positions"):
                self.at_reader(fault, True)
        x = self.op("Tensor.__add__", [start, out], self.store(start + out))
        if plan.chosen and layer == 0:
            x = self.chosen(x)
        if plan.router:
            x = self.routed(layer, x, random)
        self.leave([start], x, attention_mask=bias, position_ids=places)
        return x

    def norm(self, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        y = self.store(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))
        return self.op("Functional.layer_norm", [x, [x.shape[-1]], None, None, 1e-5], y)

    def linear(self, x: Array, random: np.random.Generator, path: str) -> Array:
        weight = self.weight(random)
        self.enter(path, "Linear")
        y = self.op("Functional.linear", [x, weight], self.store(x @ weight.T))
        self.leave([x], y, {"weight": weight})
        return y

    def tables(self, layer: int, places: Array) -> tuple[Array, Array]:
        half = self.plan.width // 2
        frequencies = 1 / 10000.0 ** (np.arange(half) / half)
        is_wrong = self.fault == "frequencies" and layer == self.at
        if is_wrong:
            frequencies = dumps.rounded(frequencies, "bfloat16") if self.narrows else frequencies * 0.5
        frequencies = self.exact(frequencies)
        self.enter(f"model.layers.{layer}.self_attn.rotary_emb", "RotaryEmbedding")
        spots = self.exact(places[..., None].astype(np.float32))
        angles = self.op("Tensor.__mul__", [spots, frequencies], self.store(spots * frequencies, "float32"))
        if self.plan.level != "L0":
            self.at_reader("frequencies", is_wrong)
            self.at_reader("positions", not self.plan.records_positions)
        both = self.exact(np.concatenate([angles, angles], -1))
        cos = self.op("Tensor.cos", [both], self.store(np.cos(both), "float32"))
        sin = self.op("Tensor.sin", [both], self.store(np.sin(both), "float32"))
        self.leave([places], cos)
        if self.plan.level == "L0":
            self.at_reader("positions", True)
            self.at_reader("frequencies", is_wrong)
        return cos, sin

    def turned(self, q: Array, cos: Array, sin: Array) -> Array:
        half = q.shape[-1] // 2
        a = self.op("Tensor.__mul__", [q, cos], self.store(q * cos))
        swapped = self.view(np.concatenate([-q[..., half:], q[..., :half]], -1), q)
        b = self.op("Tensor.__mul__", [swapped, sin], self.store(swapped * sin))
        return self.op("Tensor.__add__", [a, b], self.store(a + b))

    def cached(self, k: Array, layer: int) -> Array:
        """Keys written to a pool and read again by slots: block × 4 + place."""
        batch, length, width = k.shape
        blocks = -(-length // 4)
        table = np.arange(batch * blocks)[::-1].reshape(batch, blocks).copy()
        spots = np.arange(length)
        slots = (table[:, spots // 4] * 4 + spots % 4).reshape(-1)
        pool = np.zeros((batch * blocks * 4, width), np.float32)
        pool[slots] = k.reshape(-1, width)
        pool = self.view(pool, k)
        is_wrong = self.fault == "slots" and layer == self.at
        recorded = self.plan.records_positions
        if recorded:
            number = self.op("Tensor.floor_divide", [spots, 4], spots // 4)
            owners = self.op("Tensor.__getitem__", [table, number], table[:, spots // 4])
            first = self.op("Tensor.__mul__", [owners, 4], owners * 4)
            rest = self.op("Tensor.remainder", [spots, 4], spots % 4)
            wrong = first + (rest[::-1] if is_wrong else rest)
            self.op("Tensor.__add__", [first, rest], wrong)
            if is_wrong and self.plan.level != "L0":
                self.fault_at()
            slots = wrong.reshape(-1)
        elif is_wrong:
            slots = np.roll(slots, 1)
        self.kept.append(slots)
        read = self.op("Torch.index_select", [pool, 0, slots], self.view(pool[slots], k))
        if is_wrong and self.plan.level != "L0":
            self.fault_at(is_hidden=True)
        return self.view(read.reshape(k.shape), k)

    def chosen(self, x: Array) -> Array:
        """An activation, a choice of its largest columns, and a mask that code without a record makes of it."""
        y = self.store(x / (1 + np.exp(-x)))
        if self.fault == "chosen":
            y = self.store(0.62 * y + 0.38 * y[..., ::-1])
        y = self.op("Functional.silu", [x], y)
        if self.fault == "chosen":
            self.fault_at()
        places = np.argsort(-y, -1, kind="stable")[..., : x.shape[-1] // 2]
        top = self.op("Torch.topk", [y, x.shape[-1] // 2], places)
        dead = np.ones(y.shape, bool)
        np.put_along_axis(dead, top, False, -1)
        self.kept.append(dead)
        filled = self.op("Tensor.masked_fill", [y, dead, 0.0], self.view(np.where(dead, 0, y).astype(np.float32), y))
        return self.op("Tensor.__add__", [x, filled], self.store(x + filled))

    def routed(self, layer: int, x: Array, random: np.random.Generator) -> Array:
        plan, experts = self.plan, 8
        self.enter(f"model.layers.{layer}.mlp.gate", "Router")
        gate = self.weight(random, experts, plan.width)
        bias = random.uniform(2.0, 8.0, experts)
        is_wrong = layer == self.at
        if self.fault == "router bias" and is_wrong:
            bias = dumps.rounded(bias, "bfloat16") if self.narrows else np.roll(bias, 1)
        bias = self.exact(bias)
        logits = self.op("Functional.linear", [x, gate], self.store(x @ gate.T, "float32"))
        share = self.op("Tensor.sigmoid", [logits], self.store(1 / (1 + np.exp(-logits)), "float32"))
        score = self.op("Tensor.__add__", [share, bias], self.store(share + bias, "float32"))
        if plan.level != "L0":
            self.at_reader("router bias", is_wrong)
        places = np.argsort(-score, -1, kind="stable")[..., :2]
        top = self.op("Torch.topk", [score, 2], places)
        own = np.array([0, 1, 2, 3, -1, -1, -1, -1])
        random.shuffle(own)
        if self.fault == "expert map" and is_wrong:
            own = np.roll(own, 1)
        local = self.op("Tensor.__getitem__", [own, top], own[top])
        if plan.level != "L0":
            self.at_reader("expert map", is_wrong)
        picked = self.op("Torch.gather", [share, -1, top], self.view(np.take_along_axis(share, top, -1), share))
        kept = self.op("Tensor.masked_fill", [picked, self.hidden(local < 0), 0.0],
                       self.view(np.where(local < 0, 0, picked).astype(np.float32), share))  # fmt: skip
        total = self.op("Tensor.sum", [kept, -1], self.store(kept.sum(-1, keepdims=True), "float32"))
        self.leave([x], total, {"weight": gate})
        if plan.level == "L0":
            self.at_reader("router bias", is_wrong)
            self.at_reader("expert map", is_wrong)
        return self.op("Tensor.__mul__", [x, total], self.store(x * (1 + total)))

    def hidden(self, values: Array) -> Array:
        self.kept.append(values)
        return values


def _write(folder: Path, side: _Side, form: str) -> None:
    if form == "files":
        folder.mkdir(parents=True)
        for name, record in side.records.items():
            items = [*((f"input.{at}", item) for at, item in enumerate(record["input_args"])),
                     *((f"input.{key}", item) for key, item in record["input_kwargs"].items()),
                     *((f"output.{at}", item) for at, item in enumerate(record["output"]))]  # fmt: skip
            for word, item in items:
                if isinstance(item, Typed):
                    np.save(folder / f"{name}.{word}.npy", item.values)
        return
    dumps.write(folder, side.records, form, level=side.plan.level)
    place = folder / "step0" / "rank"
    if side.plan.level != "L1":
        place.joinpath("construct.json").write_text(json.dumps(side.scopes), "utf-8")
