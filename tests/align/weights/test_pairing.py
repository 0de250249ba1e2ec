"""Pairs of parameters of two checkpoints: fused tensors, orders of rows, updates, vocabularies, heads, copies."""

import numpy as np
import pytest

from npucmp.align.weights.pairing import is_padded
from npucmp.align.weights.role import Role
from tests.align.weights.craft import Pairing, differing, values_of

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


@pytest.mark.parametrize("is_golden", [False, True])
@pytest.mark.parametrize(
    "configs, declared, how",
    [
        (({}, {}), {}, "by values: 6 of 6 parts"),
        (({"num_key_value_heads": 4}, {}), {}, "by the configuration"),
        (({}, {"num_key_value_heads": 4}), {}, "by the configuration"),
        (({}, {}), {"kv_heads": 4}, "declared"),
        (({"num_key_value_heads": 2}, {}), {"kv_heads": 4}, "declared"),
    ],
)
def test_q_k_and_v_per_query_group(paired, is_golden, configs, declared, how):
    apart, fused = attention()
    found = paired(*((apart, fused) if is_golden else (fused, apart)), *configs, **declared)
    assert differing(found) == [] and len(found.pairs) == 8
    assert found.lines[0] == f"2 tensors: q, k, v interleaved per query group of 4 ({how})"


def test_a_wrong_number_of_groups_makes_all_parts_differ(paired):
    apart, fused = attention()
    found = paired(fused, apart, kv_heads=2)
    assert len(differing(found)) == 6
    found = paired(fused, apart, kv_heads=3)
    assert [one.target.problem for one in found.pairs if one.role.kind == "q"] == [
        "[16, 8, 8] rows of q, k, v in 3 groups"
    ] * 2


def test_as_many_heads_of_k_as_of_q_are_stated_by_those_of_q(paired):
    apart, fused = attention(kv_heads=8)
    found = paired(fused, apart, {"n_head": 8})
    assert differing(found) == [] and "of 8 (by the configuration)" in found.lines[0]
    apart, fused = attention(kv_heads=4)
    assert "of 4 (by values" in paired(fused, apart, {"n_head": 8}).lines[0]


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("is_golden", [False, True])
def test_the_next_matrix_of_either_side_shows_the_rows_of_q_per_query_group(paired, side, is_golden):
    """The other side does not hold it."""
    ends = "linear_proj.weight", "o_proj.weight"
    sides = [{name: one for name, one in held.items() if at != side or not name.endswith(ends)}
             for at, held in enumerate(attention())]  # fmt: skip
    found = paired(*(sides if is_golden else sides[::-1]))
    assert [one for one in differing(found) if not one[0].endswith(ends)] == []
    assert {one.role.kind: one.golden.shape[0] for one in found.pairs if one.role.kind in "qkv"} == {
        "q": 16, "k": 8, "v": 8}  # fmt: skip


@pytest.mark.parametrize("config, likely", [({}, 8), ({"head_dim": 4}, 2), ({"head_dim": 3}, 8)])
def test_without_agreement_groups_are_cut_for_a_likely_number(paired, config, likely):
    apart, fused = attention(layers=1)
    fused[GROUPED.format(0)] = drawn(32, 16)
    found = paired(fused, apart, config)
    assert found.lines[0] == f"q, k, v per query group: no number of groups fits most layers; cut for {likely}"
    assert sorted(one.role.kind for one in found.pairs if one.name in dict(differing(found))) == ["k", "q", "v"]


@pytest.mark.parametrize("heads, size, likely", [(2, 128, 2), (3, 64, 3), (1, 128, 2), (1, 64, 64)])
def test_a_likely_head_has_128_or_64_rows(paired, heads, size, likely):
    """One query group is no choice; without a likely size, heads are as small as they can be."""
    apart, fused = attention(1, heads, heads, size, 2)
    fused[GROUPED.format(0)] = drawn(3 * heads * size, 2)
    assert paired(fused, apart).lines[0].endswith(f"cut for {likely}")


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


@pytest.mark.parametrize("is_golden", [False, True])
@pytest.mark.parametrize(
    "config, declared, how",
    [
        ({}, {}, "by values: 3 of 3 parts"),
        ({"lora_alpha": 4, "r": 2}, {}, "by the configuration"),
        ({}, {"lora_scale": 2.0}, "declared"),
        ({"lora_alpha": 1, "r": 2}, {"lora_scale": 2.0}, "declared"),
    ],
)
def test_an_update_of_low_rank_is_merged(paired, is_golden, config, declared, how):
    merged, apart = low_rank()
    found = paired(*((merged, apart) if is_golden else (apart, merged)), config, **declared)
    assert differing(found) == [] and len(found.pairs) == 3 and found.only_target == []
    assert found.lines == [f"3 tensors: LoRA merged with the scale 2 ({how})"]
    assert {one.words for one in found.pairs} == {"LoRA(2)"}
    assert all(one.limit.atol > 0.0 for one in found.pairs)


def test_a_wrong_scale_of_an_update_makes_all_differ(paired):
    merged, apart = low_rank()
    assert len(differing(paired(merged, apart, lora_scale=1.0))) == 3


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


@pytest.mark.parametrize(
    "rows, shards, vocabulary, cut",
    [
        ((10, 10), 1, None, None),
        ((16, 10), 1, None, 16),
        ((128, 10), 1, None, 128),
        ((11, 10), 1, None, None),  # no multiple of a power of two but one
        ((12, 10), 1, None, 12),
        ((2048, 10), 1, None, None),
        ((10, 16), 1, None, 16),
        ((10, 16), 1, 10, 16),
    ],
)
def test_the_padding_of_a_vocabulary(paired, rows, shards, vocabulary, cut):
    whole = drawn(max(rows), 4)
    config = {"vocab_size": vocabulary} if vocabulary else {}
    found = paired({EMBED: whole[: rows[0]]}, {EMBED: whole[: rows[1]]}, config)
    least, most = sorted(rows)
    last = found.pairs[-1]
    if cut is None:
        assert len(found.pairs) == 1 and found.lines == [] and last.words == ""
        return
    side = "target" if rows[0] > rows[1] else "golden"
    assert found.lines == [f"vocabulary {least} padded to {most} in the {side}"]
    assert last.words == f"padding({most})" and last.target.shape == last.golden.shape == (least, 4)
    is_open = side == "golden" and vocabulary != least
    assert [one.note for one in found.pairs[:-1]] == [f"the target's vocabulary ends at row {least}"] * is_open
    if is_open:
        np.testing.assert_array_equal(values_of(found.pairs[0].golden), whole[least:])
    assert differing(found) == [(EMBED, one.note) for one in found.pairs[:-1]]


@pytest.mark.parametrize(
    "rows, padded, shards, found",
    [(10, 16, 1, True), (10, 10, 1, True), (10, 11, 1, False), (10, 1024, 1, True), (10, 2048, 1, False),
     (10, 2048, 2, True), (10, 12, 2, True), (10, 14, 2, False), (10, 12, 3, True), (10, 8, 1, False)],
)  # fmt: skip
def test_a_padded_vocabulary_is_a_multiple_on_each_rank(rows, padded, shards, found):
    assert is_padded(rows, padded, shards) is found


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


def test_a_head_that_the_golden_lacks_must_be_its_embedding(paired):
    embed = drawn(8, 4)
    found = paired({EMBED: embed, HEAD: embed}, {EMBED: embed})
    assert differing(found) == [] and found.only_target == []
    assert [(one.name, one.is_tied) for one in found.pairs] == [(EMBED, False), (HEAD, True)]
    assert found.lines == ["the golden has no lm_head: the target's is compared with its embedding"]
    assert [one for one, _ in differing(paired({EMBED: embed, HEAD: drawn(8, 4)}, {EMBED: embed}))] == [HEAD]


def test_what_one_side_has_alone(paired):
    norm, frequencies = "model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"
    found = paired({"a": drawn(3), norm: drawn(4)}, {norm: drawn(4), "b": drawn(2), frequencies: drawn(5)})
    assert found.only_target == ["a"]
    assert [(one.name, one.note) for one in found.pairs if one.target is None] == [
        ("b", "the target has no such parameter")
    ]
    assert found.lines == [f"golden: 1 masks or frequencies are no parameters: {frequencies}"]


def test_pairs_stand_in_the_order_of_the_network(paired):
    apart, _ = attention()
    own = {HEAD: drawn(8, 4), "model.norm.weight": drawn(4), **dict(reversed(apart.items())), EMBED: drawn(8, 4)}
    found = [one.name for one in paired(own, own).pairs]
    assert found == [
        EMBED,
        *(ATTENTION.format(at, name) for at in (0, 1) for name in "qkvo"),
        "model.norm.weight",
        HEAD,
    ]


def test_copies_of_ranks_are_compared_too(paired):
    norm = "model.norm.weight"
    values, other = drawn(4), drawn(4)
    embeds = [{EMBED: one} for one in np.split(drawn(8, 4), 2)]
    target = [{**embed, norm: one} for embed, one in zip(embeds, (values, other))]
    golden = {EMBED: np.concatenate([one[EMBED] for one in embeds]), norm: values}
    found = paired(target, golden)
    assert [(one.role.kind, one.copy, one.words) for one in found.pairs] == [
        ("embed", 0, "concat(ranks 0-1, axis 0)"), ("nf", 0, ""), ("nf", 1, "replica")]  # fmt: skip
    assert [one for one, _ in differing(found)] == [norm]
    assert found.lines == ["target: tensor parallel 2"]
    reverse = paired(golden, target)
    assert [(one.role.kind, one.copy) for one in reverse.pairs] == [("embed", 0), ("nf", 0), ("nf", 1)]
    both = paired(target, target)
    assert differing(both) == [] and [one.copy for one in both.pairs] == [0, 0, 1]
    assert both.lines == ["target: tensor parallel 2", "golden: tensor parallel 2"]


def test_stages_and_groups_are_told(paired):
    layers = [{f"model.layers.{at}.mlp.down_proj.weight": drawn(4, 6)} for at in range(2)]
    whole = {EMBED: drawn(8, 4), **layers[0], **layers[1]}
    found = paired([{EMBED: whole[EMBED], **layers[0]}, layers[1]], whole)
    assert differing(found) == [] and found.lines == ["target: pipeline stages 2"]
    name = "model.layers.0.mlp.experts.{}.down_proj.weight"
    router = {"model.layers.0.mlp.gate.weight": drawn(4, 4)}
    experts = [drawn(4, 6) for _ in range(4)]
    groups = [
        {EMBED: whole[EMBED], **router, **{name.format(at % 2): experts[at] for at in own}} for own in ((0, 1), (2, 3))
    ]
    golden = {EMBED: whole[EMBED], **router, **{name.format(at): one for at, one in enumerate(experts)}}
    found = paired(groups, golden)
    assert differing(found) == [] and found.lines == ["target: expert-parallel groups 2"]
    assert [one.role.expert for one in found.pairs if one.role.kind == "down"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "scale, words",
    [
        ((1,), "per tensor"),
        ((8, 1), "per channel"),
        ((8,), "per channel"),
        ((2, 3), "per block of 4 by 2"),
        ((2, 1), "per block of 4 by 6"),
        ((1, 3), "per block of 8 by 2"),
    ],
)
def test_codes_are_told_with_their_scale(paired, scale, words):
    name = "model.layers.0.mlp.down_proj.weight"
    factors = np.abs(drawn(*scale)) + 0.5
    codes = CHANCE.integers(-100, 100, (8, 6)).astype(np.int8)
    grid = factors.reshape(-1, 1) if len(scale) == 1 else factors
    whole = codes * np.repeat(np.repeat(grid, 8 // grid.shape[0], 0), 6 // grid.shape[1], 1)
    found = paired({name: codes, f"{name}_scale": factors}, {name: whole.astype(np.float32)})
    assert differing(found) == [] and [one.role for one in found.pairs] == [Role(0, "down", "weight")]
    assert found.lines == [f"1 tensor of the target: int8 times its scale, {words}"]
    assert found.pairs[0].limit.is_quantised
