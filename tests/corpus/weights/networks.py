"""Random networks by the names of transformers: Llama, Qwen, GPT-2, BERT, Mixtral, Qwen-MoE, DeepSeek with MLA."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.corpus.weights.files import Stored


class Network(NamedTuple):
    """The kind, the settings of config.json, and the parameters in the order of the network."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Stored]
    dtype: str


class Draw:
    """Random tensors of one type."""

    def __init__(self, rng: np.random.Generator, dtype: str) -> None:
        self.rng, self.dtype = rng, dtype

    def matrix(self, *shape: int) -> Stored:
        return self._of(self.rng.standard_normal(shape) * 0.05)

    def norm(self, size: int) -> Stored:
        return self._of(1.0 + 0.1 * self.rng.standard_normal(size))

    def _of(self, values: np.ndarray) -> Stored:
        from tests.corpus.weights.files import NUMPY

        return Stored(values.astype(NUMPY[self.dtype]).astype(np.float32), self.dtype)


def llama(rng: np.random.Generator, dtype: str, biased: bool = False, tied: bool = False) -> Network:
    """Llama; with biases and a tied head: Qwen2. Heads of q and of k and v are unequal, or equal once in a while."""
    size = int(rng.choice([8, 16]))
    kv = int(rng.choice([2, 4]))
    heads = kv * int(rng.choice([1, 2, 4]))
    width = heads * size if rng.random() < 0.7 else heads * size + 16
    inner, layers, vocabulary = int(rng.choice([3, 4])) * 32, int(rng.choice([2, 3, 4])), int(rng.choice([50, 61, 100]))
    draw, found = Draw(rng, dtype), {}
    found["model.embed_tokens.weight"] = draw.matrix(vocabulary, width)
    for at in range(layers):
        p = f"model.layers.{at}."
        found[p + "input_layernorm.weight"] = draw.norm(width)
        for name, rows in (("q", heads * size), ("k", kv * size), ("v", kv * size)):
            found[p + f"self_attn.{name}_proj.weight"] = draw.matrix(rows, width)
            if biased:
                found[p + f"self_attn.{name}_proj.bias"] = draw.matrix(rows)
        found[p + "self_attn.o_proj.weight"] = draw.matrix(width, heads * size)
        found[p + "post_attention_layernorm.weight"] = draw.norm(width)
        _mlp(found, p + "mlp.", draw, width, inner)
    found["model.norm.weight"] = draw.norm(width)
    if not tied:
        found["lm_head.weight"] = draw.matrix(vocabulary, width)
    config = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size,
              "num_hidden_layers": layers, "vocab_size": vocabulary, "tie_word_embeddings": tied}  # fmt: skip
    return Network("qwen" if biased else "llama", config, found, dtype)


def _mlp(found: dict[str, Stored], p: str, draw: Draw, width: int, inner: int) -> None:
    found[p + "gate_proj.weight"] = draw.matrix(inner, width)
    found[p + "up_proj.weight"] = draw.matrix(inner, width)
    found[p + "down_proj.weight"] = draw.matrix(width, inner)


def qwen(rng: np.random.Generator, dtype: str) -> Network:
    return llama(rng, dtype, True, bool(rng.random() < 0.5))


def gpt2(rng: np.random.Generator, dtype: str) -> Network:
    """GPT-2: Conv1D stores (in, out)."""
    heads, size, layers, vocabulary = int(rng.choice([2, 4])), int(rng.choice([8, 16])), int(rng.choice([2, 3])), 50
    width = heads * size
    draw, found = Draw(rng, dtype), {}
    found["transformer.wte.weight"] = draw.matrix(vocabulary, width)
    found["transformer.wpe.weight"] = draw.matrix(40, width)
    for at in range(layers):
        p = f"transformer.h.{at}."
        for name, shape in (("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)),
                            ("mlp.c_fc", (width, 4 * width)), ("mlp.c_proj", (4 * width, width))):  # fmt: skip
            found[p + name + ".weight"] = draw.matrix(*shape)
            found[p + name + ".bias"] = draw.matrix(shape[1])
        for name in ("ln_1", "ln_2"):
            found[p + name + ".weight"], found[p + name + ".bias"] = draw.norm(width), draw.matrix(width)
    found["transformer.ln_f.weight"], found["transformer.ln_f.bias"] = draw.norm(width), draw.matrix(width)
    config = {
        "n_embd": width,
        "n_head": heads,
        "n_layer": layers,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }
    return Network("gpt2", config, found, dtype)


def bert(rng: np.random.Generator, dtype: str) -> Network:
    heads, size, layers = int(rng.choice([2, 4])), 16, 2
    width = heads * size
    draw, found = Draw(rng, dtype), {}
    for name, rows in (("word", 60), ("position", 40), ("token_type", 2)):
        found[f"bert.embeddings.{name}_embeddings.weight"] = draw.matrix(rows, width)
    names = {"attention.self.query": (width, width), "attention.self.key": (width, width),
             "attention.self.value": (width, width), "attention.output.dense": (width, width),
             "intermediate.dense": (4 * width, width), "output.dense": (width, 4 * width)}  # fmt: skip
    norms = ["bert.embeddings.LayerNorm"]
    for at in range(layers):
        p = f"bert.encoder.layer.{at}."
        for name, shape in names.items():
            found[p + name + ".weight"], found[p + name + ".bias"] = draw.matrix(*shape), draw.matrix(shape[0])
        norms += [p + "attention.output.LayerNorm", p + "output.LayerNorm"]
    for name in norms:
        found[name + ".weight"], found[name + ".bias"] = draw.norm(width), draw.matrix(width)
    return Network("bert", {"num_attention_heads": heads, "hidden_size": width}, found, dtype)


def mixtral(rng: np.random.Generator, dtype: str) -> Network:
    """Llama whose MLP is a row of experts, by the names of Mixtral or of Qwen's MoE."""
    plain = llama(rng, dtype)
    experts, width = int(rng.choice([4, 8])), plain.config["hidden_size"]
    old = bool(rng.random() < 0.5)
    draw, found = Draw(rng, dtype), {}
    names = ("w1", "w3", "w2") if old else ("gate_proj", "up_proj", "down_proj")
    for name, one in plain.tensors.items():
        if ".mlp." not in name:
            found[name] = one
        elif "gate_proj" in name:
            p = name.partition("mlp.")[0] + ("block_sparse_moe." if old else "mlp.")
            found[p + "gate.weight"] = draw.matrix(experts, width)
            for at in range(experts):
                for own, shape in zip(names, ((48, width), (48, width), (width, 48))):
                    found[p + f"experts.{at}.{own}.weight"] = draw.matrix(*shape)
    config = {**plain.config, "num_local_experts": experts}
    return Network("mixtral" if old else "qwen_moe", config, found, dtype)


def deepseek(rng: np.random.Generator, dtype: str) -> Network:
    """Multi-head latent attention, experts and a shared expert; the first layer is dense."""
    heads, layers, width, experts, vocabulary = 4, 3, 64, 4, 60
    draw, found = Draw(rng, dtype), {}
    found["model.embed_tokens.weight"] = draw.matrix(vocabulary, width)
    for at in range(layers):
        p = f"model.layers.{at}."
        found[p + "input_layernorm.weight"] = draw.norm(width)
        a = p + "self_attn."
        found[a + "q_a_proj.weight"], found[a + "q_a_layernorm.weight"] = draw.matrix(24, width), draw.norm(24)
        found[a + "q_b_proj.weight"] = draw.matrix(heads * 24, 24)
        found[a + "kv_a_proj_with_mqa.weight"], found[a + "kv_a_layernorm.weight"] = (
            draw.matrix(24, width),
            draw.norm(16),
        )
        found[a + "kv_b_proj.weight"] = draw.matrix(heads * 32, 16)
        found[a + "o_proj.weight"] = draw.matrix(width, heads * 16)
        found[p + "post_attention_layernorm.weight"] = draw.norm(width)
        if at == 0:
            _mlp(found, p + "mlp.", draw, width, 96)
            continue
        found[p + "mlp.gate.weight"] = draw.matrix(experts, width)
        for expert in range(experts):
            _mlp(found, p + f"mlp.experts.{expert}.", draw, width, 32)
        _mlp(found, p + "mlp.shared_experts.", draw, width, 32)
    found["model.norm.weight"], found["lm_head.weight"] = draw.norm(width), draw.matrix(vocabulary, width)
    config = {"hidden_size": width, "num_attention_heads": heads, "vocab_size": vocabulary}
    return Network("deepseek", config, found, dtype)


NETWORKS = {"llama": llama, "qwen": qwen, "gpt2": gpt2, "bert": bert, "moe": mixtral, "deepseek": deepseek}
