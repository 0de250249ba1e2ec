"""Names of Megatron-LM and MindSpeed: Megatron core, and the older names of Megatron's language model.

Source: NVIDIA/Megatron-LM, megatron/core/models/gpt, megatron/core/transformer, megatron/legacy/model;
tools/checkpoint.
"""

from __future__ import annotations

from npucmp.relations.weights.convention import Convention

_EXPERT = r"local_experts\.(?P<e>[0-9]{1,6})\."

CONVENTION = Convention(
    "Megatron",
    (
        (r"embedding\.word_embeddings\.@", "embed"),
        (r"embedding\.position_embeddings\.@", "pos"),
        (r"output_layer\.@", "head"),
        (r"final_(?:layernorm|norm)\.@", "nf"),
        (r"linear_qkv\.layer_norm_@", "n1"),
        (r"linear_q_up_proj\.layer_norm_@", "q_a_norm"),
        (r"linear_kv_up_proj\.layer_norm_@", "kv_a_norm"),
        (r"mlp\.linear_fc1\.layer_norm_@", "n2"),
        (r"pre_mlp_layernorm\.@", "n2"),
        (r"q_layernorm\.@", "qn"),
        (r"k_layernorm\.@", "kn"),
        (r"(?:linear_qkv|query_key_value)\.@", "qkv_groups"),
        (r"(?:linear_proj|self_attention\.dense)\.@", "o"),
        (r"linear_q_proj\.@", "q"),
        (r"linear_q_down_proj\.@", "q_a"),
        (r"linear_q_up_proj\.@", "q_b"),
        (r"linear_kv_down_proj\.@", "kv_a"),
        (r"linear_kv_up_proj\.@", "kv_b"),
        (_EXPERT + r"linear_fc1\.@", "gu"),
        (_EXPERT + r"linear_fc2\.@", "down"),
        (r"mlp\.experts\.linear_fc1\.@(?P<e>[0-9]{1,6})", "gu"),
        (r"mlp\.experts\.linear_fc2\.@(?P<e>[0-9]{1,6})", "down"),
        (r"shared_experts\.linear_fc1\.@", "shared_fc1"),
        (r"shared_experts\.linear_fc2\.@", "shared_down"),
        (r"shared_experts\.gate_@", "shared_router"),
        (r"mlp\.router\.weight", "router"),
        (r"mlp\.router\.expert_bias", "router_bias"),
        (r"mlp\.(?:linear_fc1|dense_h_to_4h)\.@", "fc1"),
        (r"mlp\.(?:linear_fc2|dense_4h_to_h)\.@", "fc2"),
    ),
)
