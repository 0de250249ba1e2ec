"""Names of the fused parameters of vLLM and SGLang; the others are those of transformers.

Source: vllm-project/vllm, model_executor/models/llama.py, qwen3_moe.py, deepseek_v2.py, layers/fused_moe/layer.py.
"""

from __future__ import annotations

from npucmp.relations.weights.convention import Convention

CONVENTION = Convention(
    "vLLM",
    (
        (r"qkv_proj\.@", "qkv"),
        (r"fused_qkv_a_proj(?:_with_mqa)?\.@", "qkv_a"),
        (r"shared_experts?\.gate_up_proj\.@", "shared_gu"),
        (r"experts\.w13_@", "gu_stack"),
        (r"experts\.w2_@", "down_stack"),
        (r"gate_up_proj\.@", "gu"),
    ),
)
