"""Weights of ranks on both sides in two conventions: Megatron on two ranks, against Meta's or transformers' shards."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from tests.corpus.composed.values import Array
from tests.corpus.composed.written import Truth, Written
from tests.corpus.weights import files, networks
from tests.corpus.weights.conversions import megatron, megatron_gpt2, meta
from tests.corpus.weights.files import Stored

NETWORKS = ("llama", "gpt2")
RANKS = 2  # of the target
KINDS = (
    "exchanged shards",  # the ranks hold the parts of each other
    "same shard",  # a rank holds the part of the other
    "transposed",  # a square block of a part is transposed
    "permuted",  # the rows of a part are in another order
    "stale",  # a part is that of an earlier update
    "factor",  # a part is 1.05 times too large
    "zero slice",  # some rows of a part are zero
    "other layer",  # a tensor holds the weights of another layer
    "copies differ",  # a norm of one rank is another
)
Ranks = list[dict[str, Stored]]
FUSED = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj", "wq", "wk", "wv", "c_attn"),
    "linear_proj": ("o_proj", "wo", "attn.c_proj"),
    "linear_fc1": ("gate_proj", "up_proj", "w1", "w3", "c_fc"),
    "linear_fc2": ("down_proj", "w2", "mlp.c_proj"),
    "final_layernorm": ("model.norm", "norm.weight", "ln_f"),
}  # parts of names: of Megatron, of the others


class Sides(NamedTuple):
    """The tensors of each rank of both sides; what files hold them; the tensor with a fault and its rank."""

    network: networks.Network
    target: Ranks
    golden: Ranks
    forms: tuple[str, str]
    fault: Optional[tuple[str, str, Optional[int]]]


def fault_kinds(network: str, seed: int) -> list[str]:
    return [*KINDS]


def sides(network: str, seed: int, kind: str = "") -> Sides:
    clean = _clean(network, seed)
    if not kind:
        return clean
    target, fault = _broken(clean.target, kind, np.random.default_rng([seed, *map(ord, kind)]))
    return clean._replace(target=target, fault=fault)


@lru_cache(4)
def _clean(network: str, seed: int) -> Sides:
    draw = np.random.default_rng([seed, NETWORKS.index(network), 9])
    net = _network(network, draw)
    own = np.random.default_rng([seed, 1])
    target = [*megatron(net, own, RANKS, 1).ranks.values()] if network == "llama" else _gpt2_ranks(net, seed)
    form = ("safetensors", "pt", "megatron")[seed % 3]
    groups = net.config.get("num_key_value_heads", net.config.get("n_head"))
    shards = int(draw.choice([2, 4])) if groups % 4 == 0 else 2
    if network == "llama" and seed % 2 == 0:
        golden = [_shard(meta(net, own).ranks[""], rank, shards, True) for rank in range(shards)]
        return Sides(net, target, golden, (form, "meta"), None)
    golden = [_shard(net.tensors, rank, shards, False) for rank in range(shards)]
    return Sides(net, target, golden, (form, "safetensors" if form != "safetensors" else "pt"), None)


def _network(network: str, draw: np.random.Generator) -> networks.Network:
    dtype = "bfloat16" if draw.random() < 0.25 else "float32"
    while True:
        net = networks.NETWORKS[network](draw, dtype)
        layers = {number[1] for name in net.tensors if (number := re.search(r"\.(\d+)\.", name))}
        width = net.config.get("hidden_size", net.config.get("n_embd"))
        is_even = network == "gpt2" or net.config["vocab_size"] % 4 == 0
        if is_even and len(layers) <= 3 and width <= 64:
            return net


def _gpt2_ranks(net: networks.Network, seed: int) -> Ranks:
    for number in range(99):  # the conversion draws the number of its ranks
        ranks = megatron_gpt2(net, np.random.default_rng([seed, number])).ranks
        if len(ranks) == RANKS:
            return [*ranks.values()]
    raise AssertionError("no draw has two ranks")


def _shard(tensors: dict[str, Stored], rank: int, count: int, is_meta: bool) -> dict[str, Stored]:
    parts = {}
    for name, one in tensors.items():
        values = one.values
        if "wte" in name:  # engines fill up the vocabulary
            values = np.concatenate([values, np.zeros((-len(values) % 64, values.shape[1]), np.float32)])
        parts[name] = one.like(_part(name, values, rank, count, is_meta))
    return parts


def _part(name: str, values: Array, rank: int, count: int, is_meta: bool) -> Array:
    """The part of a rank: rows or columns, as the convention has them."""
    if "tok_embeddings" in name and is_meta:
        return _cut(values, 1, rank, count)
    if re.search(r"\.(wo|w2|o_proj|down_proj)\.weight", name):
        return _cut(values, 1, rank, count)
    if re.search(r"\.(w[qkv13]|[qkv]_proj|gate_proj|up_proj)\.", name) or re.match(
        r"(output|lm_head|model\.embed_tokens|transformer\.wte)\.", name
    ):
        return _cut(values, 0, rank, count)
    if ".c_attn." in name:
        blocks = np.split(values, 3, -1)
        return np.concatenate([_cut(block, values.ndim - 1, rank, count) for block in blocks], -1)
    if ".c_fc." in name:
        return _cut(values, values.ndim - 1, rank, count)
    if ".c_proj.weight" in name:
        return _cut(values, 0, rank, count)
    return values


def _cut(values: Array, axis: int, rank: int, count: int) -> Array:
    return np.ascontiguousarray(np.array_split(values, count, axis)[rank])


def _broken(target: Ranks, kind: str, draw: np.random.Generator) -> tuple[Ranks, tuple[str, str, Optional[int]]]:
    """The ranks with a fault of a tensor; its name and the rank, None if several ranks are wrong."""
    ranks = [dict(tensors) for tensors in target]
    matrices = [name for name, one in ranks[0].items() if "layers." in name and one.values.ndim == 2]
    name = str(draw.choice(matrices))
    rank: Optional[int] = int(draw.integers(RANKS))
    if kind == "copies differ":
        name = str(draw.choice([name for name, one in ranks[0].items() if "norm" in name and one.values.ndim == 1]))
    one = ranks[rank or 0][name]
    values = one.values.copy()
    if kind == "exchanged shards":
        ranks[0][name], ranks[1][name] = ranks[1][name], ranks[0][name]
        return ranks, (kind, name, None)
    if kind == "other layer":
        other = (
            name.replace("layers.0.", "layers.9.").replace("layers.1.", "layers.0.").replace("layers.9.", "layers.1.")
        )
        other = other if other != name else name.replace("layers.2.", "layers.0.")
        for own, tensors in zip(ranks, target):
            own[name] = tensors[other]
        return ranks, (kind, name, None)
    if kind == "same shard":
        values = ranks[1 - (rank or 0)][name].values
    elif kind == "transposed":
        size = min(values.shape)
        values[:size, :size] = values[:size, :size].T.copy()
    elif kind == "permuted":
        values = values[draw.permutation(len(values))]
    elif kind == "stale":
        values = values + np.float32(0.02 * np.abs(values).max()) * draw.standard_normal(values.shape)
    elif kind == "zero slice":
        values[: len(values) // 4] = 0
    else:
        values = values * np.float32(1.05)
    rounded = values.astype(files.NUMPY[one.dtype]).astype(np.float32)
    ranks[rank or 0][name] = one.like(rounded)
    return ranks, (kind, name, rank)


def right_names(golden: dict[str, Stored], name: str) -> frozenset[str]:
    """The golden's tensors that a tensor of Megatron holds, and its own name."""
    layer = re.search(r"layers\.(\d+)\.", name)
    if "layer_norm_weight" in name or "layernorm" in name:
        if layer is None:
            parts: tuple[str, ...] = FUSED["final_layernorm"]
        elif "qkv" in name or "input_layernorm" in name:
            parts = ("input_layernorm", "attention_norm", "ln_1")
        else:
            parts = ("post_attention_layernorm", "ffn_norm", "ln_2")
    else:
        parts = next(parts for key, parts in FUSED.items() if key in name)
    tail = name.rpartition(".")[2].replace("layer_norm_", "")
    inside = [own for own in golden if any(part in own for part in parts) and own.endswith(tail)]
    if layer is None:
        return frozenset({name, *(own for own in inside if not re.search(r"\.\d+\.", own))})
    return frozenset({name, *(own for own in inside if re.search(rf"\.{layer[1]}\.", own))})


def make(network: str, seed: int, kind: str, folder: str) -> Written:
    """Write both checkpoints."""
    made, place = sides(network, seed, kind), Path(folder)
    target, golden = place / "target", place / "golden"
    for rank, tensors in enumerate(made.target):
        own = target / f"mp_rank_{rank:02}"
        own.mkdir(parents=True)
        if made.forms[0] == "megatron":
            files.torch_save(own / "model_optim_rng.pt", tensors, {"padded": 1})
        elif made.forms[0] == "pt":
            files.torch_save(own / "pytorch_model.bin", tensors)
        else:
            files.safetensors(own / "model.safetensors", tensors)
    golden.mkdir()
    if made.forms[1] == "meta":
        for rank, tensors in enumerate(made.golden):
            files.torch_save(golden / f"consolidated.{rank:02}.pth", tensors)
        config = made.network.config
        params = {"dim": config["hidden_size"], "n_heads": config["num_attention_heads"],
                  "n_kv_heads": config["num_key_value_heads"], "n_layers": config["num_hidden_layers"],
                  "vocab_size": config["vocab_size"]}  # fmt: skip
        (golden / "params.json").write_text(json.dumps(params))
    else:
        for rank, tensors in enumerate(made.golden):
            (golden / f"rank{rank}").mkdir()
            if made.forms[1] == "pt":
                files.torch_save(golden / f"rank{rank}" / "pytorch_model.bin", tensors)
            else:
                files.safetensors(golden / f"rank{rank}" / "model.safetensors", tensors)
        (golden / "config.json").write_text(json.dumps(made.network.config))
    truth = None
    if made.fault is not None:
        kind, name, rank_or_none = made.fault
        truth = Truth(kind, name, right_names(made.golden[0], name), rank_or_none)
    return Written(target, golden, f"{made.forms[0]} tp2, {made.forms[1]} tp{len(made.golden)}", truth)
