"""The role of a parameter by its name, in the conventions of six projects."""

import pytest

from npucmp.align.weights.role import Role, is_buffer, named_role, named_roles, renumbered


@pytest.mark.parametrize(
    "name, role, convention",
    [
        ("model.layers.3.self_attn.q_proj.weight", (3, "q", "weight"), "transformers"),
        ("model.layers.3.self_attn.q_proj.bias", (3, "q", "bias"), "transformers"),
        ("model.embed_tokens.weight", (None, "embed", "weight"), "transformers"),
        ("lm_head.weight", (None, "head", "weight"), "transformers"),
        ("model.norm.weight", (None, "nf", "weight"), "transformers"),
        ("model.layers.1.mlp.experts.5.down_proj.weight", (1, "down", "weight", 5), "transformers"),
        ("model.layers.1.mlp.experts.0.down_proj.weight", (1, "down", "weight", 0), "transformers"),
        ("model.layers.0.mlp.shared_experts.gate_proj.weight", (0, "shared_gate", "weight"), "transformers"),
        ("bert.encoder.layer.2.attention.output.LayerNorm.gamma", (2, "n1", "weight"), "BERT"),
        ("bert.encoder.layer.2.attention.output.LayerNorm.beta", (2, "n1", "bias"), "BERT"),
        ("decoder.layers.0.mlp.linear_fc1.weight", (0, "fc1", "weight"), "Megatron"),
        # wrappers
        ("module.module.model.norm.weight", (None, "nf", "weight"), "transformers"),
        ("_orig_mod.lm_head.weight", (None, "head", "weight"), "transformers"),
        ("model.layers.0.self_attn.q_proj.base_layer.weight", (0, "q", "weight"), "transformers"),
        # parts
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
         (0, "q", "weight", None, "lora_A"), "transformers"),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", (0, "q", "weight", None, "lora_B"), "transformers"),
        ("model.layers.1.mlp.down_proj.weight_scale_inv", (1, "down", "weight", None, "scale"), "transformers"),
        ("model.layers.1.mlp.down_proj.weight_scale", (1, "down", "weight", None, "scale"), "transformers"),
        ("model.layers.1.mlp.down_proj.weight.scale", (1, "down", "weight", None, "scale"), "transformers"),
        ("model.layers.1.mlp.down_proj.scales", (1, "down", "weight", None, "scale"), "transformers"),
        ("model.layers.1.mlp.down_proj.scale", (1, "down", "weight", None, "scale"), "transformers"),
        # names that no convention has
        ("model.layers.1.mlp.down_proj.input_scale", (1, "=model.layers.#.mlp.down_proj.input_scale", ""), None),
        ("vision_tower.layers.0.self_attn.q_proj.weight", (0, "=vision_tower.layers.#.self_attn.q_proj.weight", ""),
         None),
        ("encoder.layers.0.cross_attn.q_proj.weight", (0, "=encoder.layers.#.cross_attn.q_proj.weight", ""), None),
        ("foo.bar", (None, "=foo.bar", ""), None),
        ("foo.layers.7.bar.weight", (7, "=foo.layers.#.bar.weight", ""), None),
        ("foo.layers.7.bar.weight_scale", (7, "=foo.layers.#.bar.weight", "", None, "scale"), None),
        ("foo.layers.1234567.bar", (None, "=foo.layers.1234567.bar", ""), None),
        ("q_proj.weight", (None, "=q_proj.weight", ""), None),  # a kind of layers outside of any
        ("model.layers.0.embed_tokens.weight", (0, "=model.layers.#.embed_tokens.weight", ""), None),
    ],
)  # fmt: skip
def test_the_role_of_a_name(name, role, convention):
    found = named_role(name)
    assert found.role == Role(*role)
    assert (found.convention and found.convention.name) == convention


def test_names_of_one_role_have_roles_of_their_own():
    """An encoder and a decoder have layers with the same numbers."""
    names = ["encoder.layers.0.self_attn.q_proj.weight", "decoder.layers.0.self_attn.q_proj.weight", "lm_head.weight"]
    found = named_roles(names)
    assert [*found] == names
    assert found[names[0]].role == Role(0, "=encoder.layers.#.self_attn.q_proj.weight", "")
    assert found[names[1]].role == Role(0, "=decoder.layers.#.self_attn.q_proj.weight", "")
    assert found[names[0]].convention is None
    assert found["lm_head.weight"].role == Role(None, "head", "weight")
    wrapped = named_roles([f"module.{name}" for name in names])
    assert wrapped[f"module.{names[0]}"].role == found[names[0]].role


@pytest.mark.parametrize(
    "name, shape, found",
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (8,), True),
        ("rotary_pos_emb.inv_freq", (8,), True),
        ("rope.freqs", (8,), True),
        ("model.rope.freqs_cis", (8,), True),
        ("embeddings.position_ids", (1, 512), True),
        ("decoder.layers.0._extra_state", (4,), True),
        ("transformer.h.0.attn.bias", (1, 1, 16, 16), True),
        ("transformer.h.0.attn.masked_bias", (), True),
        ("transformer.h.0.attn.bias", (16,), False),
        ("transformer.h.0.attn.bias", (16, 16), False),
        ("transformer.h.0.attn.c_attn.bias", (1, 1, 16, 16), False),
        ("model.norm.weight", (8,), False),
    ],
)
def test_buffers_are_no_parameters(name, shape, found):
    assert is_buffer(name, shape) is found


def test_roles_stand_in_the_order_of_the_network():
    names = ["model.embed_tokens.weight", *(f"model.layers.{layer}.{name}" for layer in (0, 1, 10) for name in (
        "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight",
        "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.experts.0.gate_proj.weight",
        "mlp.experts.2.gate_proj.weight", "mlp.experts.10.gate_proj.weight", "mlp.experts.0.down_proj.weight",
        "unknown.weight")), "model.norm.weight", "lm_head.weight"]  # fmt: skip
    roles = [named_role(name).role for name in names]
    backwards = roles[::-1]  # roles of one position would stay in this order
    assert sorted(backwards, key=lambda one: one.position) == roles
    assert roles[2].family == ("q", "weight") and len({role.family for role in roles if role.kind == "gate"}) == 1


@pytest.mark.parametrize(
    "name, found",
    [
        ("model.layers.3.mlp.weight", "model.layers.12.mlp.weight"),
        ("h.3.mlp.weight", "h.12.mlp.weight"),
        ("model.norm.weight", "model.norm.weight"),
    ],
)
def test_a_name_with_another_number_of_its_layer(name, found):
    assert renumbered(name, 12) == found
