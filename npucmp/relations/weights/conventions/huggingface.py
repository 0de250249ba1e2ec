"""Names of transformers: Llama, Qwen, Mistral, Mixtral, DeepSeek with multi-head latent attention.

Source: huggingface/transformers, models/llama, qwen2, qwen3_moe, mixtral, deepseek_v3. Its version 5 stacks the experts
of a layer: gate_up_proj (experts, 2 * intermediate, hidden), down_proj (experts, hidden, intermediate); Llama 4 turns
both.
"""

from __future__ import annotations

from npucmp.relations.weights.convention import Convention

_EXPERT = r"experts\.(?P<e>[0-9]{1,6})\."
_SHARED = r"shared_experts?\."

CONVENTION = Convention(
    "transformers",
    (
        (r"embed_tokens\.@", "embed"),
        (r"lm_head\.@", "head"),
        (r"(?:model|language_model|^)\.?norm\.@", "nf"),
        (r"input_layernorm\.@", "n1"),
        (r"post_attention_layernorm\.@", "n2"),
        (r"q_proj\.@", "q"),
        (r"k_proj\.@", "k"),
        (r"v_proj\.@", "v"),
        (r"o_proj\.@", "o"),
        (r"q_norm\.@", "qn"),
        (r"k_norm\.@", "kn"),
        (r"q_a_proj\.@", "q_a"),
        (r"q_a_layernorm\.@", "q_a_norm"),
        (r"q_b_proj\.@", "q_b"),
        (r"kv_a_proj_with_mqa\.@", "kv_a"),
        (r"kv_a_layernorm\.@", "kv_a_norm"),
        (r"kv_b_proj\.@", "kv_b"),
        (r"experts\.gate_up_proj(?:_@)?", "gu_stack"),
        (r"experts\.down_proj(?:_@)?", "down_stack"),
        (_EXPERT + r"(?:gate_proj|w1)\.@", "gate"),
        (_EXPERT + r"(?:up_proj|w3)\.@", "up"),
        (_EXPERT + r"(?:down_proj|w2)\.@", "down"),
        (_SHARED + r"gate_proj\.@", "shared_gate"),
        (_SHARED + r"up_proj\.@", "shared_up"),
        (_SHARED + r"down_proj\.@", "shared_down"),
        (r"shared_expert_gate\.@", "shared_router"),
        (r"(?:mlp|moe|block_sparse_moe|feed_forward)\.(?:gate|router)\.@", "router"),
        (r"(?:(?:gate|router|moe_statics)\.)?(?:e_score_correction_bias|expert_bias)", "router_bias"),
        (r"gate_proj\.@", "gate"),
        (r"up_proj\.@", "up"),
        (r"down_proj\.@", "down"),
    ),
)
