"""One small transformer as two worlds write it: transformers with q, k, v, gate and up by themselves, vLLM with fused
products, tokens of all sequences along one axis and the residual beside the stream, in what modules read and write. Two
layers, grouped queries.

Records are made in float64 by plain numpy from one set of weights; what a world calls them is written here from the
documents of transformers, vLLM and msprobe, not from the tables of npucmp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Optional

import numpy as np

LAYERS, BATCH, LENGTH, HEADS, SHARED, WIDTH, INNER = 2, 2, 3, 4, 2, 4, 24  # SHARED heads of keys and values
IDS = np.arange(BATCH * LENGTH) * 3 % 5
HIDDEN, Q, KV = HEADS * WIDTH, HEADS * WIDTH, SHARED * WIDTH


class Record(NamedTuple):
    """One module: `name` is its path, `kind` its class."""

    name: str
    kind: str
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    weights: Mapping[str, np.ndarray] = {}


Wrong = Callable[[str, np.ndarray], np.ndarray]  # what a faulty product writes, by the name of its module


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    sizes = {"q_proj": (Q, HIDDEN), "k_proj": (KV, HIDDEN), "v_proj": (KV, HIDDEN), "o_proj": (HIDDEN, Q),
             "gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}  # fmt: skip
    names = ((f"{layer}.{name}", size) for layer in range(LAYERS) for name, size in sizes.items())
    return {name: random.standard_normal(size) / 3 for name, size in names}


def normed(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Of [batch, length, heads · width], without a mask."""

    def heads(x: np.ndarray, count: int) -> np.ndarray:
        return np.repeat(x.reshape(BATCH, LENGTH, count, WIDTH), HEADS // count, axis=2).transpose(0, 2, 1, 3)

    q, k, v = heads(q, HEADS), heads(k, SHARED), heads(v, SHARED)
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(WIDTH))
    found = scores / scores.sum(-1, keepdims=True) @ v
    return found.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, Q)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def transformers(wrong: Optional[Wrong] = None) -> list[Record]:
    """[batch, length, size]; every product by itself."""
    bent = wrong or (lambda name, x: x)
    w, x = weights(), np.random.default_rng(5).standard_normal((BATCH, LENGTH, HIDDEN))
    found: list[Record] = []

    def product(path: str, name: str, layer: int, x: np.ndarray) -> np.ndarray:
        weight = w[f"{layer}.{name}"]
        out = bent(f"{layer}.{name}", x @ weight.T)
        found.append(Record(f"{path}.{name}", "Linear", (x,), (out,), {"weight": weight}))
        return out

    def norm(path: str, x: np.ndarray) -> np.ndarray:
        scale = np.linspace(0.5, 1.5, HIDDEN)
        found.append(Record(path, "LlamaRMSNorm", (x,), (normed(x) * scale,), {"weight": scale}))
        return found[-1].outputs[0]

    found.append(Record("model.embed_tokens", "Embedding", (IDS.reshape(BATCH, LENGTH),), (x,)))
    for layer in range(LAYERS):
        path, reads = f"model.layers.{layer}", x
        h = norm(f"{path}.input_layernorm", x)
        q, k, v = (product(f"{path}.self_attn", name, layer, h) for name in ("q_proj", "k_proj", "v_proj"))
        x = x + product(f"{path}.self_attn", "o_proj", layer, attention(q, k, v))
        h = norm(f"{path}.post_attention_layernorm", x)
        gate = product(f"{path}.mlp", "gate_proj", layer, h)
        found.append(Record(f"{path}.mlp.act_fn", "SiLU", (gate,), (silu(gate),)))
        up = product(f"{path}.mlp", "up_proj", layer, h)
        x = x + product(f"{path}.mlp", "down_proj", layer, silu(gate) * up)
        found.append(Record(path, "LlamaDecoderLayer", (reads,), (x,)))
    norm("model.norm", x)
    return found


def vllm(
    wrong: Optional[Wrong] = None, interleaved: bool = False, names: tuple[str, str] = ("qkv_proj", "gate_up_proj")
) -> list[Record]:
    """[tokens, size]; `interleaved`: heads of q, k and v of one group side by side, as other networks have them."""
    bent = wrong or (lambda name, x: x)
    w = weights()
    stream = np.random.default_rng(5).standard_normal((BATCH, LENGTH, HIDDEN)).reshape(-1, HIDDEN)
    found: list[Record] = []
    residual: Optional[np.ndarray] = None

    def product(path: str, name: str, kind: str, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
        out = bent(f"{path.split('.')[2]}.{name}", x @ weight.T)
        found.append(Record(f"{path}.{name}", kind, (x,), (out,), {"weight": weight}))
        return out

    def norm(path: str, x: np.ndarray) -> np.ndarray:
        nonlocal residual
        scale, reads = np.linspace(0.5, 1.5, HIDDEN), (x,) if residual is None else (x, residual)
        residual = x if residual is None else x + residual
        out = normed(residual) * scale
        writes = (out,) if len(reads) == 1 else (out, residual)
        found.append(Record(path, "RMSNorm", reads, writes, {"weight": scale}))
        return out

    x = stream
    found.append(Record("model.embed_tokens", "VocabParallelEmbedding", (IDS,), (x,)))
    for layer in range(LAYERS):
        path = f"model.layers.{layer}"
        reads = (x,) if residual is None else (x, residual)
        h = norm(f"{path}.input_layernorm", x)
        fused = np.concatenate([w[f"{layer}.{name}"] for name in ("q_proj", "k_proj", "v_proj")])
        order = np.arange(Q + 2 * KV)
        if interleaved:
            rows = [np.split(order[a:b], SHARED) for a, b in ((0, Q), (Q, Q + KV), (Q + KV, Q + 2 * KV))]
            order = np.concatenate([part for group in zip(*rows) for part in group])
        mixed = product(f"{path}.self_attn", names[0], "QKVParallelLinear", fused[order], h)
        whole = np.empty_like(mixed)
        whole[:, order] = mixed
        q, k, v = (each.reshape(BATCH, LENGTH, -1) for each in np.split(whole, (Q, Q + KV), axis=1))
        out = attention(q, k, v).reshape(-1, Q)
        found.append(Record(f"{path}.self_attn.attn", "Attention", tuple(np.split(whole, (Q, Q + KV), axis=1)), (out,)))
        x = product(f"{path}.self_attn", "o_proj", "RowParallelLinear", w[f"{layer}.o_proj"], out)
        h = norm(f"{path}.post_attention_layernorm", x)
        both = np.concatenate([w[f"{layer}.gate_proj"], w[f"{layer}.up_proj"]])
        mixed = product(f"{path}.mlp", names[1], "MergedColumnParallelLinear", both, h)
        out = silu(mixed[:, :INNER]) * mixed[:, INNER:]
        found.append(Record(f"{path}.mlp.act_fn", "SiluAndMul", (mixed,), (out,)))
        x = product(f"{path}.mlp", "down_proj", "RowParallelLinear", w[f"{layer}.down_proj"], out)
        found.append(Record(path, "LlamaDecoderLayer", reads, (x, residual)))
    norm("model.norm", x)
    return found


def msprobe(folder: Path, records: list[Record], task: str = "tensor", weights: bool = True) -> Path:
    """A dump of level L0: dump.json and the values of each tensor."""
    data = {}
    (folder / "dump_tensor_data").mkdir(parents=True)

    def told(name: str, values: np.ndarray) -> dict[str, object]:
        dtype = "float32" if values.dtype.kind == "f" else "int64"
        values = np.ascontiguousarray(values, dtype)
        figures = {"Max": values.max(), "Min": values.min(), "Mean": values.mean(dtype=float),
                   "Norm": np.linalg.norm(values.astype(float))}  # fmt: skip
        entry: dict[str, object] = {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": [*values.shape],
                                    **{key: float(figure) for key, figure in figures.items()}}  # fmt: skip
        if task == "tensor":
            entry["data_name"] = f"{name}.npy"
            np.save(folder / "dump_tensor_data" / f"{name}.npy", values)
        return entry

    for one in records:
        name = f"Module.{one.name}.{one.kind}.forward.0"
        data[name] = {
            "input_args": [told(f"{name}.input.{at}", x) for at, x in enumerate(one.inputs)],
            "input_kwargs": {},
            "output": [told(f"{name}.output.{at}", x) for at, x in enumerate(one.outputs)],
        }
        if weights and one.weights:
            data[name]["parameters"] = {key: told(f"{name}.parameters.{key}", x) for key, x in one.weights.items()}
    top = {"task": task, "level": "L0", "framework": "pytorch", "dump_data_dir": "", "data": data}
    (folder / "dump.json").write_text(json.dumps(top))
    return folder
