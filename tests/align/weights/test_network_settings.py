"""The settings that a configuration states."""

import math

import pytest

from npucmp.align.weights.network_settings import NetworkSettings

NOTHING = NetworkSettings()


@pytest.mark.parametrize(
    "config, found",
    [
        ({}, {}),
        ({"num_attention_heads": 8}, {"heads": 8}),
        ({"n_head": 8}, {"heads": 8}),
        ({"n_heads": 8, "n_kv_heads": 2}, {"heads": 8, "kv_heads": 2}),
        ({"num_attention_heads": 8, "n_head": 4}, {"heads": 8}),
        ({"num_attention_heads": "8", "n_head": 4}, {"heads": 4}),  # of a wrong type
        ({"num_attention_heads": True}, {}),
        ({"num_attention_heads": 0}, {}),
        ({"num_attention_heads": 1}, {"heads": 1}),
        ({"num_attention_heads": 1 << 31}, {}),
        ({"num_attention_heads": (1 << 31) - 1}, {"heads": (1 << 31) - 1}),
        ({"num_key_value_heads": 2}, {"kv_heads": 2}),
        ({"n_head": 8, "group_query_attention": False, "num_query_groups": 2}, {"heads": 8, "kv_heads": 8}),
        ({"n_head": 8, "group_query_attention": True, "num_query_groups": 2}, {"heads": 8, "kv_heads": 2}),
        ({"head_dim": 64}, {"head_size": 64}),
        ({"kv_channels": 64}, {"head_size": 64}),
        ({"num_attention_heads": 8, "hidden_size": 512}, {"heads": 8, "head_size": 64}),
        ({"n_heads": 8, "dim": 512}, {"heads": 8, "head_size": 64}),
        ({"n_head": 8, "n_embd": 512}, {"heads": 8, "head_size": 64}),
        ({"num_attention_heads": 8, "hidden_size": 510}, {"heads": 8}),
        ({"num_attention_heads": 8, "hidden_size": 512, "head_dim": 32}, {"heads": 8, "head_size": 32}),
        ({"tie_word_embeddings": True}, {"tied": True}),
        ({"tie_word_embeddings": False}, {"tied": False}),
        ({"tie_word_embeddings": 1}, {}),
        ({"untie_embeddings_and_output_weights": True}, {"tied": False}),
        ({"untie_embeddings_and_output_weights": False}, {"tied": True}),
        ({"untie_embeddings_and_output_weights": 0}, {}),
        ({"tie_word_embeddings": True, "untie_embeddings_and_output_weights": True}, {"tied": True}),
        ({"vocab_size": 1000}, {"vocabulary": 1000}),
        ({"lora_alpha": 16, "r": 8}, {"lora_scale": 2.0}),
        ({"lora_alpha": 4.0, "r": 8}, {"lora_scale": 0.5}),
        ({"lora_alpha": 16, "r": 8, "use_rslora": True}, {"lora_scale": 16 / math.sqrt(8)}),
        ({"lora_alpha": 16, "r": 8, "use_rslora": 1}, {"lora_scale": 2.0}),
        ({"lora_alpha": 16}, {}),
        ({"lora_alpha": "16", "r": 8}, {}),
        ({"lora_alpha": 16, "r": 0}, {}),
        ({"lora_alpha": 16, "r": 8.0}, {}),
        ({"lora_alpha": float("nan"), "r": 8}, {}),
        ({"lora_alpha": 2.0**31, "r": 8}, {}),
        ({"lora_alpha": 16, "r": 1 << 31}, {}),
        ({"quantization_config": {"weight_block_size": [128, 64]}}, {"block": (128, 64)}),
        ({"quantization_config": {"weight_block_size": [128]}}, {}),
        ({"quantization_config": {"weight_block_size": [128, 0]}}, {}),
        ({"quantization_config": {"weight_block_size": [128, True]}}, {}),
        ({"quantization_config": {"weight_block_size": "ab"}}, {}),
        ({"quantization_config": [128, 64]}, {}),
    ],
)  # fmt: skip
def test_settings_of_a_configuration(config, found):
    assert NetworkSettings.of(config) == NOTHING._replace(**found)


def test_one_configuration_comes_before_another():
    first, second = NetworkSettings(heads=8, tied=False), NetworkSettings(heads=4, kv_heads=2, tied=True)
    assert first.over(second) == NetworkSettings(heads=8, kv_heads=2, tied=False)
    assert second.over(first) == NetworkSettings(heads=4, kv_heads=2, tied=True)
    assert NOTHING.over(first) == first.over(NOTHING) == first
