"""The role of a tensor by its name: layer, kind, parameter, expert and part."""

import pytest

from npucmp.align.weights.role import LAST, ORDER, Role, is_buffer, named_role, named_roles, renumbered


@pytest.mark.parametrize(
    "name, role, convention",
    [
        ("model.embed_tokens.weight", Role(None, "embed", "weight"), "transformers"),
        ("model.layers.3.self_attn.q_proj.weight", Role(3, "q", "weight"), "transformers"),
        ("model.layers.12.self_attn.q_proj.bias", Role(12, "q", "bias"), "transformers"),
        ("layers.0.attention.wq.weight", Role(0, "q", "weight"), "Meta"),
        ("module.model.layers.3.self_attn.q_proj.weight", Role(3, "q", "weight"), "transformers"),
        ("base_model.model.model.layers.3.self_attn.q_proj.base_layer.weight", Role(3, "q", "weight"), "transformers"),
        ("bert.encoder.layer.1.attention.output.LayerNorm.gamma", Role(1, "n1", "weight"), "BERT"),
        ("bert.encoder.layer.1.attention.output.LayerNorm.beta", Role(1, "n1", "bias"), "BERT"),
        ("h.0.attn.c_attn.weight", Role(0, "qkv", "weight"), "GPT-2"),
        ("model.layers.2.mlp.experts.7.up_proj.weight", Role(2, "up", "weight", 7), "transformers"),
        ("model.layers.2.mlp.experts.0.up_proj.weight", Role(2, "up", "weight", 0), "transformers"),
        ("model.layers.0.mlp.up_proj.lora_A.weight", Role(0, "up", "weight", None, "lora_A"), "transformers"),
        ("model.layers.0.mlp.up_proj.lora_B.default.weight", Role(0, "up", "weight", None, "lora_B"), "transformers"),
        ("model.layers.0.mlp.up_proj.weight_scale_inv", Role(0, "up", "weight", None, "scale"), "transformers"),
        ("model.layers.0.mlp.up_proj.weight_scale", Role(0, "up", "weight", None, "scale"), "transformers"),
        ("model.layers.0.mlp.up_proj.scale", Role(0, "up", "weight", None, "scale"), "transformers"),
        ("model.layers.0.mlp.up_proj.weight.scales", Role(0, "up", "weight", None, "scale"), "transformers"),
        ("model.layers.2.mlp.gate.e_score_correction_bias", Role(2, "router_bias", "weight"), "transformers"),
        # names that no convention has
        ("odd_scale", Role(None, "=odd", "", None, "scale"), None),
        ("odd.scale", Role(None, "=odd.weight", "", None, "scale"), None),
        ("model.layers.0.mlp.up_proj.input_scale", Role(0, "=model.layers.#.mlp.up_proj.input_scale", ""), None),
        ("vision.layers.4.self_attn.q_proj.weight", Role(4, "=vision.layers.#.self_attn.q_proj.weight", ""), None),
        ("model.layers.4.cross.q_proj.weight", Role(4, "=model.layers.#.cross.q_proj.weight", ""), None),
        ("model.q_proj.weight", Role(None, "=model.q_proj.weight", ""), None),  # of no layer
        ("model.layers.4.embed_tokens.weight", Role(4, "=model.layers.#.embed_tokens.weight", ""), None),
        ("module.odd.weight_scale", Role(None, "=odd.weight", "", None, "scale"), None),
        ("odd.layers.5.x.lora_A.weight", Role(5, "=odd.layers.#.x.weight", "", None, "lora_A"), None),
    ],
)
def test_the_role_of_a_name(name, role, convention):
    found = named_role(name)
    assert found.role == role
    assert (found.convention.name if found.convention is not None else None) == convention


def test_names_with_one_role_have_roles_of_their_own():
    alike = ["encoder.layers.0.self_attn.q_proj.weight", "decoder.layers.0.self_attn.q_proj.weight"]
    names = [*alike, "decoder.layers.0.self_attn.k_proj.weight"]
    found = named_roles(names)
    assert [*found] == names
    assert [found[name].role for name in alike] == [
        Role(0, f"={side}.layers.#.self_attn.q_proj.weight", "") for side in ("encoder", "decoder")
    ]
    assert [found[name].convention for name in alike] == [None, None]
    assert found[names[2]] == named_role(names[2]) and found[names[2]].role == Role(0, "k", "weight")
    wrapped = named_roles(["module." + alike[0], alike[1]])
    assert wrapped["module." + alike[0]].role == found[alike[0]].role


@pytest.mark.parametrize(
    "name, shape, expected",
    [
        ("h.0.attn.bias", (1, 1, 8, 8), True),
        ("h.0.attn.masked_bias", (), True),
        ("h.0.attn.bias", (8,), False),
        ("h.0.attn.bias", (1, 8, 8), False),
        ("layers.0.attention.self.bias", (1, 1, 8, 8), True),
        ("layers.0.mlp.bias", (1, 1, 8, 8), False),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (4,), True),
        ("rope.freqs", (4, 4), True),
        ("embeddings.position_ids", (1, 8), True),
        ("layers.0.mlp._extra_state", (3,), True),
        ("model.layers.0.self_attn.q_proj.weight", (4, 4), False),
    ],
)
def test_masks_positions_and_frequencies_are_no_parameters(name, shape, expected):
    assert is_buffer(name, shape) is expected


def test_the_place_of_a_role_in_the_network():
    roles = [
        Role(None, "embed", "weight"), Role(0, "n1", "weight"), Role(0, "q", "weight"), Role(0, "q", "bias"),
        Role(0, "gate", "weight"), Role(0, "gate", "weight", 0), Role(0, "gate", "weight", 1), Role(0, "up", "weight"),
        Role(0, "=own", ""), Role(1, "n1", "weight"), Role(None, "nf", "weight"), Role(None, "head", "weight"),
    ]  # fmt: skip
    mixed = [*roles[1::2], *roles[::2]]
    assert sorted(mixed, key=lambda one: one.position) == roles
    assert roles[1].position == (0, ORDER.index("n1"), -1, "") and roles[3].position[3] == "bias"
    assert roles[8].position[1] == len(ORDER)
    for kind in ORDER:
        layer = Role(None, kind, "weight").position[0]
        assert layer > 10**6 if kind in LAST else layer == -1


def test_the_family_of_a_role_is_without_layer_and_expert():
    assert Role(3, "up", "bias", 2).family == ("up", "bias") == Role(4, "up", "bias").family


@pytest.mark.parametrize(
    "name, expected",
    [("a.layers.3.b.4.weight", "a.layers.17.b.4.weight"), ("h.0.x", "h.17.x"), ("norm.weight", "norm.weight")],
)
def test_a_name_with_another_number_of_its_layer(name, expected):
    assert renumbered(name, 17) == expected
