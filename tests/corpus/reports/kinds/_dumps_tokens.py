"""A small decoder by request, its rows laid out in steps, and the writers of engines: SGLang's dumper, files saved by
hand, msprobe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from tests.corpus.weights import files
from tests.corpus.weights.files import Stored
from tests.synthetic import write_run

Array = NDArray[Any]
PADDING = -1
CLASSES = {"embed_tokens": "Embedding", "input_layernorm": "RMSNorm", "qkv_proj": "Linear", "attn": "Attention",
           "o_proj": "Linear", "post_attention_layernorm": "RMSNorm", "up_proj": "Linear", "act_fn": "SiLU",
           "down_proj": "Linear", "norm": "RMSNorm", "lm_head": "Linear"}  # fmt: skip


class Row(NamedTuple):
    """An operator: its path, and its input and output, request by request."""

    path: str
    reads: list[Array]
    writes: list[Array]


class Decoder:
    """Weights of a seed; `run` computes each request alone. `change(path, outputs)` and `attend(layer, request, q, k,
    v)` plant faults."""

    def __init__(self, seed: int, vocabulary: int, width: int, heads: int, layers: int) -> None:
        random = np.random.default_rng(seed)
        self.width, self.heads = width, heads

        def matrix(*shape: int) -> Array:
            return (random.standard_normal(shape) * 1.1 / np.sqrt(shape[-1])).astype(np.float32)

        self.table = random.standard_normal((vocabulary, width)).astype(np.float32)
        self.layers = [(matrix(3 * width, width), matrix(width, width), matrix(2 * width, width),
                        matrix(width, 2 * width)) for _ in range(layers)]  # fmt: skip
        self.head = matrix(vocabulary, width)

    def run(
        self, ids: Sequence[Array], change: Optional[Callable[[str, list[Array]], list[Array]]] = None,
        attend: Optional[Callable[..., Optional[Array]]] = None,
    ) -> list[Row]:  # fmt: skip
        rows: list[Row] = []

        def put(path: str, reads: list[Array], writes: list[Array]) -> list[Array]:
            made = [np.asarray(values, np.float32) for values in writes]
            made = change(path, made) if change is not None else made
            rows.append(Row(path, reads, made))
            return made

        x = put("model.embed_tokens", [*ids], [self.table[own] for own in ids])
        for number, (qkv, out, up, down) in enumerate(self.layers):
            at = f"model.layers.{number}"
            h = put(f"{at}.input_layernorm", x, [_norm(values) for values in x])
            mixed = put(f"{at}.self_attn.qkv_proj", h, [values @ qkv.T for values in h])
            cores = []
            for request, values in enumerate(mixed):
                parts = np.split(values, 3, -1)
                core = attend(number, request, *parts) if attend is not None else None
                cores.append(self.attention(*parts) if core is None else core)
            core = put(f"{at}.self_attn.attn", mixed, cores)
            y = put(f"{at}.self_attn.o_proj", core, [values @ out.T for values in core])
            x = [a + b for a, b in zip(x, y)]
            h = put(f"{at}.post_attention_layernorm", x, [_norm(values) for values in x])
            h = put(f"{at}.mlp.up_proj", h, [values @ up.T for values in h])
            h = put(f"{at}.mlp.act_fn", h, [values / (1 + np.exp(-values)) for values in h])
            y = put(f"{at}.mlp.down_proj", h, [values @ down.T for values in h])
            x = [a + b for a, b in zip(x, y)]
        x = put("model.norm", x, [_norm(values) for values in x])
        put("lm_head", x, [values @ self.head.T for values in x])
        return rows

    def attention(self, q: Array, k: Array, v: Array) -> Array:
        """Causal attention with rotary positions from 0."""
        count, size = len(q), self.width // self.heads
        angle = np.arange(count)[:, None] / 50.0 ** (np.arange(size // 2) * 2 / size)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

        def turned(values: Array) -> Array:
            a, b = np.split(values.reshape(count, self.heads, size), 2, -1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        scores = np.einsum("qhd,khd->hqk", turned(q), turned(k)) / np.sqrt(size)
        scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, v.reshape(count, self.heads, size)).reshape(count, -1)


def _norm(values: Array) -> Array:
    return values / np.sqrt((values * values).mean(-1, keepdims=True) + 1e-6)


class Step(NamedTuple):
    """The tokens of a step: (request, position) for each place, (PADDING, place) where there is none."""

    tokens: Array

    def laid(self, rows: Sequence[Array], pads: Array) -> Array:
        flat = [pads[place % len(pads)] if request == PADDING else rows[request][place]
                for request, place in self.tokens.reshape(-1, 2)]  # fmt: skip
        return np.stack(flat).reshape(*self.tokens.shape[:-1], *np.shape(flat[0]))

    @property
    def mask(self) -> Array:
        return (self.tokens[..., 0] != PADDING).astype(np.int64)

    @property
    def positions(self) -> Array:
        """Positions as transformers derives them from a mask: padding has 1 on the left, counts on to the right."""
        places = self.tokens[..., 1].copy()
        if self.tokens.ndim == 3 and not self.mask[:, 0].all():
            places[self.mask == 0] = 1
        elif self.tokens.ndim == 3:
            places = np.tile(np.arange(self.tokens.shape[1]), (len(self.tokens), 1))
        return places

    @property
    def lengths(self) -> Array:
        """The number of tokens of each request that has some in this step."""
        owners = self.tokens[..., 0]
        return np.array([int((owners == one).sum()) for one in dict.fromkeys(owners[owners != PADDING].tolist())])


def packed(lengths: Sequence[int], order: Sequence[int]) -> list[Step]:
    return [Step(np.array([(one, place) for one in order for place in range(lengths[one])]))]


def padded(lengths: Sequence[int], order: Sequence[int], left: bool, wide: int = 0) -> list[Step]:
    most = max(lengths[one] for one in order) + wide
    lanes = []
    for one in order:
        own = [(one, place) for place in range(lengths[one])]
        free = [(PADDING, place) for place in range(most - len(own))]
        lanes.append(free + own if left else own + free)
    return [Step(np.array(lanes))]


def decoded(lengths: Sequence[int], order: Sequence[int], tail: int) -> list[Step]:
    """A packed prefill, and steps of one token of each request that has not ended."""
    prompts = [max(1, length - tail) for length in lengths]
    steps = packed(prompts, order)
    for more in range(tail):
        tokens = [(one, prompts[one] + more) for one in order if prompts[one] + more < lengths[one]]
        steps += [Step(np.array(tokens))] if tokens else []
    return steps


def chunked(lengths: Sequence[int], order: Sequence[int], sizes: Sequence[int]) -> list[Step]:
    """Steps of sizes[k] tokens of each request."""
    steps, start = [], 0
    for size in sizes:
        tokens = [(one, place) for one in order for place in range(start, min(start + size, lengths[one]))]
        steps += [Step(np.array(tokens))] if tokens else []
        start += size
    return steps


def write(
    folder: Path, form: str, steps: Sequence[Step], rows: Sequence[Row], pads: Sequence[Row],
    records: Callable[[Step], dict[str, Array]], has_ids: bool = True,
) -> None:  # fmt: skip
    """Write the steps of one side. `records(step)` are the tensors of the layout by name. Without `has_ids` neither the
    ids nor the embedding are recorded."""
    for number, step in enumerate(steps):
        laid = [(row.path, step.laid(row.reads, pad.reads[0]), step.laid(row.writes, pad.writes[0]))
                for row, pad in zip(rows, pads)]  # fmt: skip
        ids = [("input_ids", laid[0][1])] if has_ids else []
        laid = laid if has_ids else laid[1:]
        more = records(step)
        if form == "sglang":
            named = [*ids, *more.items(), *((path, made) for path, _, made in laid)]
            folder.mkdir(parents=True, exist_ok=True)
            for index, (name, values) in enumerate(named):
                meta = f"name={name}___step={number}___rank=0___dump_index={1000 * number + index}.pt"
                (folder / meta).write_bytes(_saved({"value": values, "meta": {"name": name, "step": number}}))
        elif form in ("pt", "npy"):
            place = folder / f"step_{number}" / "rank_0"
            place.mkdir(parents=True)
            named = [(f"{path}.output.0", made) for path, _, made in laid]
            for name, values in [*ids, *more.items(), *named]:
                _save(place / f"{name}.{form}", values)
        else:
            first = "model.embed_tokens"
            calls = {}
            for path, read, made in laid:
                last = path.rpartition(".")[2]
                given = more if last == "attn" or (path == first and not any("attn" in own[0] for own in laid)) else {}
                reads = {"in": [] if path == first else [read], "kwargs": dict(given)}
                if path == first:
                    reads["kwargs"]["input_ids" if form == "msprobe_kwargs" else "input"] = read
                calls[f"Module.{path}.{CLASSES[last]}.forward.0"] = {**reads, "out": [made]}
            write_run(folder, calls, number, None, framework="pytorch", level="L0")


def _save(path: Path, values: Array) -> None:
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        path.write_bytes(_saved(values))


def _saved(value: Any) -> bytes:
    """A file of torch.save: a tensor, or a dict of tensors, numbers and text."""
    stored: list[Stored] = []

    def pickled(item: Any) -> bytes:
        if isinstance(item, np.ndarray):
            stored.append(Stored(item, str(item.dtype)))
            return files._tensor(stored[-1], len(stored) - 1)
        if isinstance(item, dict):
            return b"}(" + b"".join(pickled(key) + pickled(own) for key, own in item.items()) + b"u"
        return files._integer(item) if isinstance(item, int) else files.pickled_text(item)

    state = pickled(value)
    return files._archive(state, [(f"archive/data/{at}".encode(), one.raw) for at, one in enumerate(stored)])
