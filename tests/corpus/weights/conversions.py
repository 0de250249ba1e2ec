"""Conversions of a network into the conventions of engines: what a correct converter writes, in plain numpy."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, NamedTuple

import ml_dtypes
import numpy as np

from tests.corpus.weights.files import NUMPY, Stored
from tests.corpus.weights.networks import Network

Ranks = "dict[str, dict[str, Stored]]"  # by the folder of a rank, "" for a checkpoint of one


class Converted(NamedTuple):
    """The target; further tensors and settings of the golden, if the conversion needs them."""

    ranks: dict[str, dict[str, Stored]]
    golden: dict[str, Stored]
    kind: str = "safetensors"
    config: dict[str, Any] | None = None


def cast(one: Stored, dtype: str) -> Stored:
    return Stored(one.values.astype(NUMPY[dtype]).astype(np.float32), dtype)


def _layers(tensors: Mapping[str, Stored]) -> int:
    return 1 + max(int(found[1]) for name in tensors if (found := re.search(r"(?:layers|h|layer)\.(\d+)\.", name)))


def _cat(*parts: Stored) -> Stored:
    return parts[0].like(np.concatenate([one.values for one in parts]))


def same(net: Network, rng: np.random.Generator) -> Converted:
    """Equal names, perhaps another type."""
    dtype = str(rng.choice(["bfloat16", "float16", net.dtype]))
    return Converted({"": {name: cast(one, dtype) for name, one in net.tensors.items()}}, dict(net.tensors))


def vllm(net: Network, rng: np.random.Generator, dtype: str = "") -> Converted:
    """Fused q, k, v; fused gate and up; stacked experts; fused low-rank parts of MLA."""
    dtype = dtype or str(rng.choice(["bfloat16", net.dtype]))
    own = {name: cast(one, dtype) for name, one in net.tensors.items()}
    found: dict[str, Stored] = {}
    for name, one in own.items():
        _head, _, _tail = name.rpartition(".")
        if ".self_attn.q_proj." in name:
            names = [name.replace("q_proj", f"{x}_proj") for x in "qkv"]
            found[name.replace("q_proj", "qkv_proj")] = _cat(*(own[x] for x in names))
        elif ".q_a_proj." in name:
            found[name.replace("q_a_proj", "fused_qkv_a_proj")] = _cat(
                one, own[name.replace("q_a_proj", "kv_a_proj_with_mqa")]
            )
        elif re.search(r"\.experts\.0\.(?:gate_proj|w1)\.", name):
            p = name.partition(".experts.")[0]
            gate, up, down = ("w1", "w3", "w2") if ".w1." in name else ("gate_proj", "up_proj", "down_proj")
            count = sum(1 for x in own if x.startswith(f"{p}.experts.") and f".{gate}." in x)
            both = [
                np.concatenate([own[f"{p}.experts.{e}.{x}.weight"].values for x in (gate, up)]) for e in range(count)
            ]
            found[f"{p}.experts.w13_weight"] = Stored(np.stack(both), dtype)
            downs = [own[f"{p}.experts.{e}.{down}.weight"].values for e in range(count)]
            found[f"{p}.experts.w2_weight"] = Stored(np.stack(downs), dtype)
        elif ".experts." in name:
            continue
        elif ".gate_proj." in name:
            found[name.replace("gate_proj", "gate_up_proj")] = _cat(one, own[name.replace("gate_proj", "up_proj")])
        elif re.search(r"\.(?:k_proj|v_proj|up_proj|kv_a_proj_with_mqa)\.", name):
            continue
        else:
            found[name] = one
    return Converted({"": found}, dict(net.tensors))


def vllm_ranks(net: Network, rng: np.random.Generator) -> Converted:
    """Ranks of vLLM: each holds its q, k and v in one tensor; a few heads of k and v are on several ranks."""
    heads, kv = net.config["num_attention_heads"], net.config["num_key_value_heads"]
    tp = int(rng.choice([size for size in (2, 4, 8) if heads % size == 0]))
    dtype = str(rng.choice(["bfloat16", net.dtype]))
    own = {name: cast(one, dtype) for name, one in net.tensors.items()}
    padded = -(-net.config["vocab_size"] // 64) * 64
    found: dict[str, dict[str, Stored]] = {}
    for rank in range(tp):
        here: dict[str, Stored] = {}
        for name, one in own.items():
            if ".q_proj." in name:
                parts = [np.split(one.values, tp)[rank]]
                for x in "kv":
                    values = own[name.replace("q_proj", f"{x}_proj")].values
                    parts.append(np.split(values, tp)[rank] if kv % tp == 0 else np.split(values, kv)[rank * kv // tp])
                here[name.replace("q_proj", "qkv_proj")] = one.like(np.concatenate(parts))
            elif ".gate_proj." in name:
                both = (one.values, own[name.replace("gate_proj", "up_proj")].values)
                here[name.replace("gate_proj", "gate_up_proj")] = one.like(
                    np.concatenate([np.split(x, tp)[rank] for x in both])
                )
            elif re.search(r"\.(?:k_proj|v_proj|up_proj)\.", name):
                continue
            elif re.search(r"\.(?:o_proj|down_proj)\.", name):
                here[name] = one.like(np.split(one.values, tp, 1)[rank])
            elif "embed_tokens" in name or "lm_head" in name:
                more = np.zeros((padded - len(one.values), one.values.shape[1]), np.float32)
                here[name] = one.like(np.split(np.concatenate([one.values, more]), tp)[rank])
            else:
                here[name] = one
        found[f"rank{rank}"] = here
    return Converted(found, dict(net.tensors))


def megatron(net: Network, rng: np.random.Generator, tp: int = 0, pp: int = 0) -> Converted:
    """Megatron core: q, k, v per query group, gate and up on each rank, padded vocabulary, stages numbered from 0."""
    dtype = str(rng.choice(["bfloat16", net.dtype]))
    own = {name: cast(one, dtype) for name, one in net.tensors.items()}
    kv = net.config["num_key_value_heads"]
    tp = tp or int(rng.choice([size for size in (1, 2, 4) if kv % size == 0]))
    layers = _layers(own)
    pp = pp or (2 if layers % 2 == 0 and rng.random() < 0.6 else 1)
    padded = -(-net.config["vocab_size"] // (8 * tp)) * 8 * tp
    ep = 2 if tp == 1 and pp == 1 and any(".experts." in name for name in own) and rng.random() < 0.5 else 1
    named = bool(rng.random() < 0.5)
    found: dict[str, dict[str, Stored]] = {}
    for stage in range(pp):
        for group in range(ep):
            for shard in range(tp):
                rank = shard + tp * (group + ep * stage)
                folder = f"mp_rank_{shard:02}_{stage:03}" if named and pp > 1 else f"mp_rank_{rank:02}"
                found[folder if tp * pp * ep > 1 else "mp_rank_00"] = _megatron_rank(
                    own, net, range(stage * layers // pp, (stage + 1) * layers // pp), (shard, tp), (group, ep),
                    (stage == 0, stage == pp - 1), padded)  # fmt: skip
    kind = str(rng.choice(["safetensors", "pt", "megatron"]))
    return Converted(found, dict(net.tensors), kind)


def _megatron_rank(own: Mapping[str, Stored], net: Network, layers: range, shard: tuple[int, int],
                   group: tuple[int, int], ends: tuple[bool, bool], padded: int) -> dict[str, Stored]:  # fmt: skip
    at, tp = shard

    def rows(one: Stored) -> Stored:
        size = len(one.values) // tp
        return one.like(one.values[at * size : (at + 1) * size])

    def columns(one: Stored) -> Stored:
        size = one.values.shape[1] // tp
        return one.like(one.values[:, at * size : (at + 1) * size])

    def vocabulary(one: Stored) -> Stored:
        return rows(
            one.like(np.concatenate([one.values, np.full((padded - len(one.values), one.values.shape[1]), 0.01)]))
        )

    def both(gate: Stored, up: Stored) -> Stored:
        return _cat(rows(gate), rows(up))

    found: dict[str, Stored] = {}
    if ends[0]:
        found["embedding.word_embeddings.weight"] = vocabulary(own["model.embed_tokens.weight"])
    for number, layer in enumerate(layers):
        p, q = f"model.layers.{layer}.", f"decoder.layers.{number}."
        found[q + "self_attention.linear_qkv.layer_norm_weight"] = own[p + "input_layernorm.weight"]
        for kind in ("weight", "bias"):
            if p + f"self_attn.q_proj.{kind}" in own:
                parts = [own[p + f"self_attn.{x}_proj.{kind}"] for x in "qkv"]
                found[q + f"self_attention.linear_qkv.{kind}"] = rows(grouped(parts, net.config["num_key_value_heads"]))
        found[q + "self_attention.linear_proj.weight"] = columns(own[p + "self_attn.o_proj.weight"])
        moe = next((p + x for x in ("mlp.", "block_sparse_moe.") if p + x + "gate.weight" in own), "")
        norm = "pre_mlp_layernorm.weight" if moe else "mlp.linear_fc1.layer_norm_weight"
        found[q + norm] = own[p + "post_attention_layernorm.weight"]
        if not moe:
            found[q + "mlp.linear_fc1.weight"] = both(own[p + "mlp.gate_proj.weight"], own[p + "mlp.up_proj.weight"])
            found[q + "mlp.linear_fc2.weight"] = columns(own[p + "mlp.down_proj.weight"])
            continue
        found[q + "mlp.router.weight"] = own[moe + "gate.weight"]
        names = ("w1", "w3", "w2") if "block" in moe else ("gate_proj", "up_proj", "down_proj")
        count = len(own[moe + "gate.weight"].values) // group[1]
        for expert in range(count):
            e = moe + f"experts.{group[0] * count + expert}."
            x = q + f"mlp.experts.local_experts.{expert}."
            found[x + "linear_fc1.weight"] = both(own[e + f"{names[0]}.weight"], own[e + f"{names[1]}.weight"])
            found[x + "linear_fc2.weight"] = columns(own[e + f"{names[2]}.weight"])
    if ends[1]:
        found["decoder.final_layernorm.weight"] = own["model.norm.weight"]
        if "lm_head.weight" in own:
            found["output_layer.weight"] = vocabulary(own["lm_head.weight"])
    return found


LATENT = {
    "self_attn.q_a_proj.weight": ("linear_q_down_proj.weight", None),
    "self_attn.q_a_layernorm.weight": ("linear_q_up_proj.layer_norm_weight", None),
    "self_attn.q_b_proj.weight": ("linear_q_up_proj.weight", 0),
    "self_attn.kv_a_proj_with_mqa.weight": ("linear_kv_down_proj.weight", None),
    "self_attn.kv_a_layernorm.weight": ("linear_kv_up_proj.layer_norm_weight", None),
    "self_attn.kv_b_proj.weight": ("linear_kv_up_proj.weight", 0),
    "self_attn.o_proj.weight": ("linear_proj.weight", 1),
}  # name → name in Megatron's self_attention, the axis that ranks share


def megatron_latent(net: Network, rng: np.random.Generator) -> Converted:
    """DeepSeek by Megatron's names: latent attention, experts on groups of ranks, experts that are grouped or local."""
    tp, ep = int(rng.choice([1, 2])), int(rng.choice([1, 2]))
    dtype, is_grouped = str(rng.choice(["bfloat16", net.dtype])), bool(rng.random() < 0.5)
    own = {name: cast(one, dtype) for name, one in net.tensors.items()}
    experts = len(own["model.layers.1.mlp.gate.weight"].values) // ep
    found = {}
    for group in range(ep):
        for shard in range(tp):
            folder = f"mp_rank_{shard:02}_{group:03}" if ep > 1 else f"mp_rank_{shard:02}"
            here = {}
            for name, one in own.items():
                placed = _latent_tensor(own, name, one, (shard, tp), range(group * experts, (group + 1) * experts))
                if placed is not None:
                    here[_grouped_name(placed[0]) if is_grouped else placed[0]] = placed[1]
            found[folder] = here
    return Converted(found, dict(net.tensors), str(rng.choice(["safetensors", "pt", "megatron"])))


def _grouped_name(name: str) -> str:
    """The name of an expert in grouped matrices: linear_fc1.weight3."""
    return re.sub(r"local_experts\.(\d+)\.linear_fc(\d)\.weight", r"linear_fc\2.weight\1", name)


def _latent_tensor(
    own: Mapping[str, Stored], name: str, one: Stored, place: tuple[int, int], experts: range
) -> tuple[str, Stored] | None:
    """The name and values of a tensor on a rank; None if it holds none, or its partner names it."""
    shard, tp = place

    def part(x: np.ndarray, axis: int | None) -> np.ndarray:
        return x if axis is None else np.ascontiguousarray(np.split(x, tp, axis)[shard])

    layer, _, tail = name.removeprefix("model.layers.").partition(".")
    head = f"decoder.layers.{layer}."
    if not name.startswith("model.layers."):
        table = {
            "model.embed_tokens": "embedding.word_embeddings",
            "lm_head": "output_layer",
            "model.norm": "decoder.final_layernorm",
        }
        new = table[name.removesuffix(".weight")]
        if one.values.ndim == 1:
            return f"{new}.weight", one
        more = np.zeros((64 - len(one.values), one.values.shape[1]), np.float32)
        return f"{new}.weight", one.like(part(np.concatenate([one.values, more]), 0))
    if tail in LATENT:
        return f"{head}self_attention.{LATENT[tail][0]}", one.like(part(one.values, LATENT[tail][1]))
    if "layernorm" in tail:
        return head + tail.replace("post_attention_layernorm", "pre_mlp_layernorm"), one
    if tail == "mlp.gate.weight":
        return f"{head}mlp.router.weight", one
    number = re.search(r"experts\.(\d+)\.", tail)
    if "up_proj" in tail or (number and int(number[1]) not in experts):
        return None
    path = tail.rpartition(".")[0].rpartition(".")[0]
    if number:
        path = f"mlp.experts.local_experts.{int(number[1]) - experts[0]}"
    if "down_proj" in tail:
        return f"{head}{path}.linear_fc2.weight", one.like(part(one.values, 1))
    both = np.concatenate([part(one.values, 0), part(own[name.replace("gate_proj", "up_proj")].values, 0)])
    return f"{head}{path}.linear_fc1.weight", one.like(both)


def grouped(parts: list[Stored], groups: int) -> Stored:
    """q, k and v per query group."""
    cut = [one.values.reshape(groups, -1, *one.values.shape[1:]) for one in parts]
    values = np.concatenate(cut, 1)
    return parts[0].like(values.reshape(-1, *values.shape[2:]))


def reverse(net: Network, rng: np.random.Generator) -> Converted:
    """The golden is Megatron's, the target has the names of transformers."""
    made = megatron(net, rng, 1, 1)
    (golden,) = made.ranks.values()
    vocabulary = net.config["vocab_size"]
    golden = {name: one.like(one.values[:vocabulary]) if "word_emb" in name or "output_l" in name else one
              for name, one in golden.items()}  # fmt: skip
    return Converted(
        {"": {name: cast(one, str(rng.choice(["bfloat16", net.dtype]))) for name, one in net.tensors.items()}}, golden
    )


META = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def meta(net: Network, rng: np.random.Generator) -> Converted:
    """Meta's names; rotary embedding turns neighbouring rows of q and k."""
    size, found = net.config["head_dim"], {}
    for name, one in net.tensors.items():
        own = name.removeprefix("model.") if ".layers." in name else name
        for old, new in META.items():
            own = own.replace(old, new)
        if re.search(r"\.w[qk]\.", own):
            values = one.values.reshape(-1, 2, size // 2, *one.values.shape[1:])
            one = one.like(values.swapaxes(1, 2).reshape(one.values.shape))
        found[own] = one
    return Converted({"": found}, dict(net.tensors), str(rng.choice(["safetensors", "pt"])))


def linear_gpt2(net: Network, rng: np.random.Generator) -> Converted:
    """GPT-2 with matrices as (out, in)."""
    found = {name: one.like(one.values.T.copy()) if ".c_" in name and one.values.ndim == 2 else one
             for name, one in net.tensors.items()}  # fmt: skip
    return Converted({"": found}, dict(net.tensors))


def megatron_gpt2(net: Network, rng: np.random.Generator) -> Converted:
    """GPT-2 by Megatron's names: transposed, q, k, v per head, two ranks or one."""
    heads, tp, found = net.config["n_head"], int(rng.choice([1, 2])), {}
    names = {"attn.c_proj": "self_attention.linear_proj", "mlp.c_fc": "mlp.linear_fc1", "mlp.c_proj": "mlp.linear_fc2",
             "ln_1": "input_layernorm", "ln_2": "pre_mlp_layernorm"}  # fmt: skip
    for at in range(tp):
        own: dict[str, Stored] = {}
        for name, one in net.tensors.items():
            x = one.values.T if ".c_" in name and one.values.ndim == 2 else one.values
            name = name.replace("transformer.h.", "decoder.layers.").replace(
                "transformer.ln_f", "decoder.final_layernorm"
            )
            name = name.replace("transformer.wte", "embedding.word_embeddings").replace(
                "transformer.wpe", "embedding.position_embeddings"
            )
            if "c_attn" in name:
                name, x = (
                    name.replace("attn.c_attn", "self_attention.linear_qkv"),
                    grouped([one.like(y) for y in np.split(x, 3)], heads).values,
                )
                x = np.split(x, tp)[at]
            for old, new in names.items():
                if f".{old}." in name:
                    name = name.replace(old, new)
                    if old == "mlp.c_fc":
                        x = np.split(x, tp)[at]
                    elif x.ndim == 2:
                        x = np.split(x, tp, 1)[at]
            if "word_embeddings" in name:
                x = np.split(np.concatenate([x, np.zeros((64 - len(x), x.shape[1]))]), tp)[at]
            own[name] = one.like(np.ascontiguousarray(x))
        found[f"mp_rank_{at:02}"] = own
    return Converted(found, dict(net.tensors), str(rng.choice(["pt", "megatron"])))


def _codes(one: Stored, block: tuple[int, int], code: str) -> tuple[Stored, Stored]:
    x = one.values
    grid = tuple(-(-size // b) for size, b in zip(x.shape, block))
    padded = np.zeros((grid[0] * block[0], grid[1] * block[1]), np.float32)
    padded[: x.shape[0], : x.shape[1]] = np.abs(x)
    largest = padded.reshape(grid[0], block[0], grid[1], block[1]).max((1, 3))
    scale = (largest / (127 if code == "int8" else 448)).astype(np.float32)
    full = np.repeat(np.repeat(scale, block[0], 0), block[1], 1)[: x.shape[0], : x.shape[1]]
    full = np.where(full > 0, full, 1)
    if code == "int8":
        return Stored(np.clip(np.rint(x / full), -127, 127).astype(np.float32), "int8"), Stored(scale)
    codes = (x / full).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return Stored(codes, "float8_e4m3fn"), Stored(scale)


def quantised(net: Network, rng: np.random.Generator) -> Converted:
    """int8 per row, or float8 per block or per tensor, with scales; by the names of transformers or fused by vLLM."""
    code, how = [("int8", "row"), ("float8_e4m3fn", "block"), ("float8_e4m3fn", "tensor")][int(rng.integers(3))]
    fused = how == "row" and rng.random() < 0.5 and net.kind == "llama"
    source = vllm(net, rng, net.dtype).ranks[""] if fused else net.tensors
    found: dict[str, Stored] = {}
    for name, one in source.items():
        if not re.search(r"proj\.weight$|\.w[123]\.weight$", name):
            found[name] = one
            continue
        shape = one.values.shape
        block = {"row": (1, shape[1]), "block": (16, 16), "tensor": shape}[how]
        codes, scale = _codes(one, block, code)
        found[name] = codes
        found[name + ("_scale_inv" if how == "block" else "_scale")] = (
            scale.like(scale.values.reshape(())) if how == "tensor" else scale
        )
    config = {"quantization_config": {"weight_block_size": [16, 16]}} if how == "block" and rng.random() < 0.5 else None
    return Converted({"": found}, dict(net.tensors), config=config)


def lora(net: Network, rng: np.random.Generator) -> Converted:
    """The golden has LoRA apart, the target merged it, perhaps fused by vLLM."""
    rank, scale = int(rng.choice([2, 4])), float(rng.choice([0.5, 1.0, 2.0, 4.0]))
    golden: dict[str, Stored] = {}
    merged: dict[str, Stored] = {}
    for name, one in net.tensors.items():
        merged[name] = one
        own = "base_model.model." + name
        if not re.search(r"self_attn\.[qv]_proj\.weight$", name):
            golden[own] = one
            continue
        a = one.like(rng.standard_normal((rank, one.values.shape[1])) * 0.1)
        b = one.like(rng.standard_normal((one.values.shape[0], rank)) * 0.1)
        a, b = cast(a, one.dtype), cast(b, one.dtype)
        base = own.removesuffix(".weight")
        golden[base + ".base_layer.weight"] = one
        golden[base + ".lora_A.default.weight"], golden[base + ".lora_B.default.weight"] = a, b
        delta = b.values.astype(np.float64) @ a.values.astype(np.float64)
        merged[name] = cast(one.like((one.values + scale * delta).astype(np.float32)), one.dtype)
    fused = vllm(net._replace(tensors=merged), rng) if rng.random() < 0.4 else None
    target = fused.ranks[""] if fused is not None else merged
    return Converted({"": target}, golden)


def npz_and_pt(net: Network, rng: np.random.Generator) -> Converted:
    """One checkpoint in two formats."""
    return Converted({"": dict(net.tensors)}, dict(net.tensors), str(rng.choice(["npz", "pt", "sharded"])))


Conversion = Callable[[Network, np.random.Generator], Converted]
CONVERSIONS: dict[str, tuple[Conversion, tuple[str, ...]]] = {
    "same": (same, ("llama", "qwen", "gpt2", "bert", "moe", "deepseek")),
    "formats": (npz_and_pt, ("llama", "bert", "gpt2")),
    "vllm": (vllm, ("llama", "qwen", "moe", "deepseek")),
    "vllm_ranks": (vllm_ranks, ("llama", "qwen")),
    "megatron": (megatron, ("llama", "qwen", "moe")),
    "latent": (megatron_latent, ("deepseek",)),
    "reverse": (reverse, ("llama", "qwen")),
    "meta": (meta, ("llama",)),
    "linear": (linear_gpt2, ("gpt2",)),
    "megatron_gpt2": (megatron_gpt2, ("gpt2",)),
    "quantised": (quantised, ("llama", "moe")),
    "lora": (lora, ("llama",)),
}
