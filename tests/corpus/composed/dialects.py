"""Names of modules and functions as frameworks and engines have them."""

from __future__ import annotations

from tests.corpus.composed.values import layer_of

LLAMA = {
    "embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head", "rotary": "model.rotary_emb",
    "top": "model", "layer": "model.layers.{}", "norm1": "model.layers.{}.input_layernorm",
    "block": "model.layers.{}.self_attn",
    "q": "model.layers.{}.self_attn.q_proj", "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj", "qkv": "model.layers.{}.self_attn.qkv_proj",
    "rope": "model.layers.{}.self_attn.rotary_emb", "attention": "model.layers.{}.self_attn.attn",
    "o": "model.layers.{}.self_attn.o_proj", "norm2": "model.layers.{}.post_attention_layernorm",
    "mlp": "model.layers.{}.mlp", "gate": "model.layers.{}.mlp.gate_proj", "up": "model.layers.{}.mlp.up_proj",
    "gate_up": "model.layers.{}.mlp.gate_up_proj", "act": "model.layers.{}.mlp.act_fn",
    "mul": "model.layers.{}.mlp", "down": "model.layers.{}.mlp.down_proj", "residual1": "model.layers.{}",
    "residual2": "model.layers.{}",
}  # fmt: skip
GPT2 = {
    "embed": "transformer.wte", "positions": "transformer.wpe", "sum": "transformer", "norm": "transformer.ln_f",
    "head": "lm_head", "top": "transformer", "layer": "transformer.h.{}", "norm1": "transformer.h.{}.ln_1",
    "block": "transformer.h.{}.attn", "qkv": "transformer.h.{}.attn.c_attn", "attention": "transformer.h.{}.attn.attn",
    "o": "transformer.h.{}.attn.c_proj", "norm2": "transformer.h.{}.ln_2", "mlp": "transformer.h.{}.mlp",
    "up": "transformer.h.{}.mlp.c_fc", "act": "transformer.h.{}.mlp.act", "down": "transformer.h.{}.mlp.c_proj",
    "residual1": "transformer.h.{}", "residual2": "transformer.h.{}",
}  # fmt: skip
MINDFORMERS_LLAMA = {
    "embed": "model.tok_embeddings", "norm": "model.norm_out", "head": "lm_head", "top": "model",
    "layer": "model.layers.{}", "norm1": "model.layers.{}.attention_norm", "block": "model.layers.{}.attention",
    "q": "model.layers.{}.attention.wq", "k": "model.layers.{}.attention.wk", "v": "model.layers.{}.attention.wv",
    "rope": "model.layers.{}.attention.apply_rotary_emb", "attention": "model.layers.{}.attention.flash_attention",
    "o": "model.layers.{}.attention.wo", "norm2": "model.layers.{}.ffn_norm", "mlp": "model.layers.{}.feed_forward",
    "gate": "model.layers.{}.feed_forward.w1", "up": "model.layers.{}.feed_forward.w3",
    "act": "model.layers.{}.feed_forward.activation_func", "mul": "model.layers.{}.feed_forward",
    "down": "model.layers.{}.feed_forward.w2", "residual1": "model.layers.{}", "residual2": "model.layers.{}",
}  # fmt: skip
MINDFORMERS_GPT2 = {
    "embed": "backbone.embedding.word_embedding", "positions": "backbone.embedding.position_embedding",
    "sum": "backbone.embedding", "norm": "backbone.layernorm", "head": "head", "top": "backbone",
    "layer": "backbone.blocks.{}", "norm1": "backbone.blocks.{}.layernorm1", "block": "backbone.blocks.{}.attention",
    "qkv": "backbone.blocks.{}.attention.dense1", "attention": "backbone.blocks.{}.attention.core_attention",
    "o": "backbone.blocks.{}.attention.projection", "norm2": "backbone.blocks.{}.layernorm2",
    "mlp": "backbone.blocks.{}.output", "up": "backbone.blocks.{}.output.mapping",
    "act": "backbone.blocks.{}.output.activation", "down": "backbone.blocks.{}.output.projection",
    "residual1": "backbone.blocks.{}", "residual2": "backbone.blocks.{}",
}  # fmt: skip
CLASSES = {
    "llama": {
        "embed": "Embedding", "norm": "LlamaRMSNorm", "norm1": "LlamaRMSNorm", "norm2": "LlamaRMSNorm",
        "rotary": "LlamaRotaryEmbedding", "rope": "RotaryEmbedding", "attention": "Attention", "act": "SiLU",
        "layer": "LlamaDecoderLayer", "block": "LlamaAttention", "mlp": "LlamaMLP", "top": "LlamaModel",
        "residual1": "LlamaDecoderLayer", "residual2": "LlamaDecoderLayer", "mul": "LlamaMLP",
    },
    "gpt2": {
        "embed": "Embedding", "positions": "Embedding", "norm": "LayerNorm", "norm1": "LayerNorm", "norm2": "LayerNorm",
        "attention": "Attention", "act": "NewGELUActivation", "layer": "GPT2Block", "block": "GPT2Attention",
        "mlp": "GPT2MLP", "top": "GPT2Model", "sum": "GPT2Model", "residual1": "GPT2Block", "residual2": "GPT2Block",
    },
}  # fmt: skip
SPLIT = {  # classes of engines that split a network
    "embed": "VocabParallelEmbedding", "q": "ColumnParallelLinear", "k": "ColumnParallelLinear",
    "v": "ColumnParallelLinear", "qkv": "QKVParallelLinear", "o": "RowParallelLinear", "up": "ColumnParallelLinear",
    "gate": "ColumnParallelLinear", "down": "RowParallelLinear", "head": "ColumnParallelLinear",
}  # fmt: skip
VLLM = {**SPLIT, "gate_up": "MergedColumnParallelLinear", "norm": "RMSNorm", "norm1": "RMSNorm", "norm2": "RMSNorm",
        "act": "SiluAndMul", "head": "ParallelLMHead"}  # fmt: skip
FUNCTIONS = {  # PyTorch and mint, as msprobe names them; a kernel of MindSpore
    "linear": ("Functional.linear", "MintFunctional.linear", "Dense"),
    "embedding": ("Functional.embedding", "MintFunctional.embedding", "Gather"),
    "rms_norm": ("NPU.npu_rms_norm", "Functional.rms_norm", "RmsNorm"),
    "layer_norm": ("Functional.layer_norm", "MintFunctional.layer_norm", "LayerNorm"),
    "silu": ("Functional.silu", "MintFunctional.silu", "SiLU"),
    "gelu": ("Functional.gelu", "MintFunctional.gelu", "GeLU"),
    "swiglu": ("NPU.npu_swiglu", "Functional.swiglu", "Swiglu"),
    "add": ("Tensor.__add__", "Tensor.__add__", "Add"),
    "mul": ("Tensor.__mul__", "Tensor.__mul__", "Mul"),
    "neg": ("Tensor.__neg__", "Tensor.__neg__", "Neg"),
    "cat": ("Torch.cat", "Mint.cat", "Concat"),
    "masked_fill": ("Tensor.masked_fill_", "Tensor.masked_fill", "MaskedFill"),
    "sdpa": ("Functional.scaled_dot_product_attention", "Functional.flash_attention_score", "FlashAttentionScore"),
    "npu": ("NPU.npu_fusion_attention", "Functional.flash_attention_score", "FlashAttentionScore"),
    "all_reduce": ("Distributed.all_reduce", "MintDistributed.all_reduce", "AllReduce"),
    "all_gather": ("Distributed.all_gather_into_tensor", "MintDistributed.all_gather_into_tensor", "AllGather"),
    "reduce_scatter": (
        "Distributed.reduce_scatter_tensor", "MintDistributed.reduce_scatter_tensor", "ReduceScatter",
    ),
}  # fmt: skip


def module_of(dialect: str, network: str, place: str) -> tuple[str, str]:
    """The path and the class of the module of a place."""
    own = place.rpartition(".")[2]
    if dialect in ("mindformers", "kernels"):
        table = MINDFORMERS_LLAMA if network == "llama" else MINDFORMERS_GPT2
    else:
        table = LLAMA if network == "llama" else GPT2
    path = table[own].format(layer_of(place))
    classes = CLASSES[network]
    if dialect in ("parallel", "mindformers"):
        classes = {**classes, **SPLIT}
    elif dialect == "vllm":
        classes = {**classes, **(VLLM if network == "llama" else SPLIT)}
    return path, classes.get(own, "Linear")
