"""Pairs of parameters of two checkpoints: fused tensors, orders of rows, updates, vocabularies, heads, copies."""

import numpy as np
import pytest

from tests.relations.weights.craft import Pairing, differing

CHANCE = np.random.default_rng(0)
ATTENTION = "model.layers.{}.self_attn.{}_proj.weight"
GROUPED = "decoder.layers.{}.self_attention.linear_qkv.weight"


def drawn(*shape):
    return CHANCE.standard_normal(shape).astype(np.float32)


@pytest.fixture
def paired(tmp_path):
    """Pairs two checkpoints of arrays by name, or of several ranks of them."""
    return Pairing(tmp_path)


def interleaved(q, k, v, groups):
    return np.concatenate([part for parts in zip(*(np.split(one, groups) for one in (q, k, v))) for part in parts])


def attention(layers=2, heads=8, kv_heads=4, size=2, width=16):
    """q, k, v and o of layers, under the names of transformers and of Megatron."""
    apart, fused = {}, {}
    for layer in range(layers):
        q, k, v = (drawn(rows * size, width) for rows in (heads, kv_heads, kv_heads))
        o = drawn(width, heads * size)
        for name, one in zip("qkvo", (q, k, v, o)):
            apart[ATTENTION.format(layer, name)] = one
        fused[GROUPED.format(layer)] = interleaved(q, k, v, kv_heads)
        fused[f"decoder.layers.{layer}.self_attention.linear_proj.weight"] = o
    return apart, fused


def test_a_wrong_number_of_groups_makes_all_parts_differ(paired):
    apart, fused = attention()
    found = paired(fused, apart, kv_heads=2)
    assert len(differing(found)) == 6
    found = paired(fused, apart, kv_heads=3)
    assert [one.target.problem for one in found.pairs if one.role.kind == "q"] == [
        "[16, 8, 8] rows of q, k, v in 3 groups"
    ] * 2


def test_rows_that_cannot_be_cut_have_the_reason(paired):
    apart, fused = attention(layers=1)
    fused[GROUPED.format(0)] = drawn(31, 16)
    found = paired(fused, apart)
    problems = {one.role.kind: one.target.problem for one in found.pairs if one.target.payload is None}
    assert problems == dict.fromkeys("qkv", "[31, 16] of q, k and v, of which q has 16 rows")
    del fused["decoder.layers.0.self_attention.linear_proj.weight"], apart[ATTENTION.format(0, "o")]
    found = paired(fused, apart)
    assert {one.target.problem for one in found.pairs} == {"[31, 16] of q, k and v, of which q has 0 rows"}


def meta(values, size):
    """The rows of heads in Meta's order: the two halves of a head are neighbours."""
    return values.reshape(-1, 2, size // 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize(
    "config, declared, how",
    [
        ({}, {}, "by values: 4 of 4 parts"),
        ({"head_dim": 4}, {}, "by the configuration"),
        ({"dim": 48, "n_heads": 4, "n_kv_heads": 2}, {}, "by the configuration"),  # heads that do not fill the width
        ({}, {"kv_heads": 2}, "declared"),
    ],
)
@pytest.mark.parametrize("is_golden", [False, True])
def test_rotary_embedding_of_neighbouring_rows(paired, config, declared, how, is_golden):
    plain, turned = {}, {}
    for layer in range(2):
        q, k = drawn(16, 16), drawn(8, 16)
        for name, own, one in (("q", "wq", q), ("k", "wk", k)):
            plain[ATTENTION.format(layer, name)] = one
            turned[f"layers.{layer}.attention.{own}.weight"] = meta(one, 4)
    sides = (plain, turned) if is_golden else (turned, plain)
    found = paired(*sides, config, **declared)
    assert differing(found) == []
    side = "4 tensors: q and k in Meta's order of rotary embedding, heads of 4"
    assert found.lines == [f"{side} ({how})"]
    assert {one.words for one in found.pairs} == {"rotary pairs (4)"}
    found = paired(*sides, {"head_dim": 2})
    assert len(differing(found)) == 4
    found = paired(turned, turned)
    assert differing(found) == [] and found.lines == []
    same = {"golden" if is_golden else "target": "hf"}
    assert len(differing(paired(*sides, **same))) == 4  # declared to be in the order of halves


def test_a_declared_convention_of_rotary_embedding_counts(paired):
    q = drawn(16, 16)
    name = ATTENTION.format(0, "q")
    found = paired({name: meta(q, 4)}, {name: q}, {"head_dim": 4}, target="Meta")
    assert differing(found) == []
    assert len(differing(paired({name: meta(q, 4)}, {name: q}, {"head_dim": 4}))) == 1
    other = paired({name: drawn(16, 16)}, {name: q}, target="meta")
    assert other.lines == ["q and k of the target in Meta's order: no size of heads fits most layers"]


def low_rank(layers=3, scale=2.0):
    merged, apart = {}, {}
    for layer in range(layers):
        name = ATTENTION.format(layer, "q")
        base, a, b = drawn(12, 10), drawn(2, 10), drawn(12, 2)
        own = "base_model.model." + name.removesuffix(".weight")
        merged[name] = base + np.float32(scale) * (b.astype(float) @ a).astype(np.float32)
        apart.update({f"{own}.base_layer.weight": base, f"{own}.lora_A.default.weight": a,
                      f"{own}.lora_B.default.weight": b})  # fmt: skip
    return merged, apart


def test_updates_that_both_hold_or_that_have_no_partner_stay_apart(paired):
    merged, apart = low_rank(1)
    found = paired(apart, apart)
    assert differing(found) == [] and sorted(one.role.part for one in found.pairs) == ["", "lora_A", "lora_B"]
    alone = {name: one for name, one in apart.items() if "lora_B" not in name}
    found = paired(merged, alone)
    assert [(one.role.part, one.note) for one in found.pairs if one.target is None] == [
        ("lora_A", "the target has no such parameter")
    ]
    odd = {name: drawn(3, 10) if "lora_A" in name else one for name, one in apart.items()}
    assert len([one for one in paired(merged, odd).pairs if one.target is None]) == 2


def test_without_a_scale_that_fits_the_likely_one_is_merged(paired):
    merged, apart = low_rank(4)
    for number, name in enumerate(merged):
        merged[name] = merged[name] if number == 0 else drawn(12, 10)
    found = paired(merged, apart)
    assert found.lines == ["LoRA: no scale fits most layers; declare it with --lora-scale"]
    assert len(differing(found)) == 3


EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("config, is_tied", [({}, True), ({"tie_word_embeddings": True}, True),
                                             ({"tie_word_embeddings": False}, False)])  # fmt: skip
def test_a_head_that_the_target_lacks_is_its_embedding(paired, config, is_tied):
    embed = drawn(8, 4)
    found = paired({EMBED: embed}, {EMBED: embed, HEAD: embed}, config)
    assert len(found.pairs) == 2
    if is_tied:
        assert differing(found) == [] and found.lines == ["the target has no lm_head: its embedding is compared"]
    else:
        assert differing(found) == [(HEAD, "the target has no such parameter")] and found.lines == []
    other = paired({EMBED: embed}, {EMBED: embed, HEAD: drawn(8, 4)})
    assert [one for one, _ in differing(other)] == [HEAD]


def test_what_one_side_has_alone(paired):
    norm, frequencies = "model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"
    found = paired({"a": drawn(3), norm: drawn(4)}, {norm: drawn(4), "b": drawn(2), frequencies: drawn(5)})
    assert found.only_target == ["a"]
    assert [(one.name, one.note) for one in found.pairs if one.target is None] == [
        ("b", "the target has no such parameter")
    ]
    assert found.lines == [f"golden: 1 masks or frequencies are no parameters: {frequencies}"]
