"""The parts of a checkpoint: pieces of ranks side by side, fused tensors that are cut, stacks, codes with scales."""

import numpy as np
import pytest

from tests.relations.weights.craft import Pairing, differing

CHANCE = np.random.default_rng(0)
EMBED = "model.embed_tokens.weight"
Q, K, V, OUT = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo")
GATE, UP, DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
QKV, GATE_UP = "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"


def drawn(*shape):
    return CHANCE.standard_normal(shape).astype(np.float32)


@pytest.fixture
def paired(tmp_path):
    return Pairing(tmp_path)


def problems(found):
    """Why parts of the target cannot be built, by kind."""
    return {one.role.kind: one.target.problem for one in found.pairs if one.target is not None and one.target.problem}


def both_ways(paired, one, other, **options):
    """Pairs in both directions, of which none differs."""
    for sides in ((one, other), (other, one)):
        found = paired(*sides, **options)
        assert differing(found) == [] and found.only_target == []
        yield found


def attention(query=8, rest=4, width=8):
    return {Q: drawn(query, width), K: drawn(rest, width), V: drawn(rest, width), OUT: drawn(width, query)}


def mlp(inner=6, width=8):
    return {GATE: drawn(inner, width), UP: drawn(inner, width), DOWN: drawn(width, inner)}


def test_q_k_and_v_one_behind_the_other(paired):
    apart = attention()
    fused = {QKV: np.concatenate([apart[name] for name in (Q, K, V)]), OUT: apart[OUT]}
    for found in both_ways(paired, fused, apart):
        assert len(found.pairs) == 4 and "q, k and v one behind the other" in found.lines[0]
    assert len(paired(fused, fused).pairs) == 2  # both fuse them alike
    del fused[OUT], apart[OUT]
    assert len(differing(paired(fused, apart))) == 3  # without the next matrix, a third each
    equal = attention(8, 8)
    del equal[OUT]
    assert differing(paired({QKV: np.concatenate([equal[name] for name in (Q, K, V)])}, equal)) == []


@pytest.mark.parametrize("name, beside", [(GATE_UP, mlp()), (QKV, attention())])
def test_a_fused_tensor_of_one_number_has_the_reason(paired, name, beside):
    apart = {one: array for one, array in beside.items() if one not in (DOWN, OUT)}
    found = paired({name: np.float32(1)}, apart)
    assert {*problems(found).values()} == {"a fused tensor of one number"} and found.only_target == []


def stacked(count=4, inner=3, width=5, router=True):
    """Experts apart, and stacked as vLLM holds them."""
    p = "model.layers.0.mlp."
    apart, stacks = {}, {}
    names = {name: [drawn(*((width, inner) if name == "down" else (inner, width))) for _ in range(count)]
             for name in ("gate", "up", "down")}  # fmt: skip
    for name, own in names.items():
        apart.update({f"{p}experts.{at}.{name}_proj.weight": one for at, one in enumerate(own)})
    stacks[f"{p}experts.w13_weight"] = np.concatenate([np.stack(names["gate"]), np.stack(names["up"])], 1)
    stacks[f"{p}experts.w2_weight"] = np.stack(names["down"])
    if router:
        apart[f"{p}gate.weight"] = stacks[f"{p}gate.weight"] = drawn(count, width)
    return apart, stacks


@pytest.mark.parametrize("how", ["groups", "shards"])
def test_stacked_experts_on_ranks(paired, how):
    apart, stacks = stacked(4, 4, 5)
    w13, w2 = (stacks[f"model.layers.0.mlp.experts.{name}_weight"] for name in ("w13", "w2"))
    embed, gate = drawn(8, 4), stacks["model.layers.0.mlp.gate.weight"]
    ranks = []
    for at in range(2):
        if how == "groups":
            own = w13[2 * at : 2 * at + 2], w2[2 * at : 2 * at + 2]
            rows = embed
        else:
            halves = [one[:, 2 * at : 2 * at + 2] for one in np.split(w13, 2, 1)]
            own = np.concatenate(halves, 1), w2[:, :, 2 * at : 2 * at + 2]
            rows = embed[4 * at : 4 * at + 4]
        ranks.append({EMBED: rows, "model.layers.0.mlp.gate.weight": gate,
                      "model.layers.0.mlp.experts.w13_weight": own[0].copy(),
                      "model.layers.0.mlp.experts.w2_weight": own[1].copy()})  # fmt: skip
    golden = {EMBED: embed, **apart}
    found = paired(ranks, golden)
    assert differing(found) == []
    assert sorted(one.role.expert for one in found.pairs if one.role.kind == "down") == [0, 1, 2, 3]
    assert differing(paired(ranks, {EMBED: embed, **stacks})) == []
    words = "expert-parallel groups 2" if how == "groups" else "tensor parallel 2"
    assert found.lines[0] == f"target: {words}"


def test_ranks_on_both_sides_hold_stacks_and_biases_alike(paired):
    """Inner rows of the first stack, inner columns of the second; a bias of the last matrix is on all ranks."""
    _, stacks = stacked(4, 4, 5)
    names = [f"model.layers.0.mlp.experts.{name}_weight" for name in ("w13", "w2")]
    embed, bias = drawn(8, 4), OUT.replace("weight", "bias")
    whole = drawn(8)
    first, second = np.split(stacks[names[0]], 2, 1), np.split(stacks[names[1]], 2, 2)
    ranks = [{EMBED: embed[4 * at : 4 * at + 4], names[0]: first[at], names[1]: second[at], bias: whole}
             for at in range(2)]  # fmt: skip
    found = paired(ranks, ranks)
    assert differing(found) == []
    words = {one.role.kind: one.words for one in found.pairs if one.copy == 0}
    assert words == {"embed": "concat(ranks 0-1, axis 0)", "gu_stack": "concat(ranks 0-1, axis 1)",
                     "down_stack": "concat(ranks 0-1, axis 2)", "o": ""}  # fmt: skip
    assert [one.target.shape for one in found.pairs if one.role.kind == "o"] == [(8,)] * 2


def test_groups_of_unequal_numbers_of_experts_have_the_reason(paired):
    apart, stacks = stacked(4, 4, 5)
    name = "model.layers.0.mlp.experts.w2_weight"
    router, embed = "model.layers.0.mlp.gate.weight", drawn(8, 4)
    ranks = [{EMBED: embed, router: stacks[router], name: stacks[name][own].copy()} for own in (np.s_[:1], np.s_[1:])]
    found = paired(
        ranks, {EMBED: embed, **{one: array for one, array in apart.items() if "down" in one or one == router}}
    )
    assert set(problems(found).values()) == {"groups of unequal numbers of experts"}


def test_heads_of_k_and_v_that_several_ranks_hold(paired):
    apart, embed = attention(8, 2), drawn(8, 4)
    ranks = []
    for at in range(4):
        head = at // 2
        ranks.append({EMBED: embed[2 * at : 2 * at + 2], Q: apart[Q][2 * at : 2 * at + 2],
                      K: apart[K][head : head + 1], V: apart[V][head : head + 1],
                      OUT: apart[OUT][:, 2 * at : 2 * at + 2].copy()})  # fmt: skip
    found = paired(ranks, {EMBED: embed, **apart})
    assert differing(found) == []
    assert "2 tensors of the target: heads of k and v on 2 ranks each" in found.lines
    assert [(one.role.kind, one.copy) for one in found.pairs if one.role.kind in "kv"] == [
        ("k", 0), ("k", 1), ("v", 0), ("v", 1)]  # fmt: skip
    ranks[1][K] = drawn(1, 8)
    assert [one for one, _ in differing(paired(ranks, {EMBED: embed, **apart}))] == [K]
    ranks[1][K], ranks[2][V] = ranks[0][K], drawn(1, 8)
    assert [one for one, _ in differing(paired(ranks, {EMBED: embed, **apart}))] == [V]


def test_the_columns_of_an_embedding_of_meta_on_ranks(paired):
    embed, q = drawn(8, 6), drawn(4, 6)
    ranks = [{"tok_embeddings.weight": embed[:, 3 * at : 3 * at + 3].copy(),
              "layers.0.attention.wo.weight": q[:, 3 * at : 3 * at + 3].copy()} for at in range(2)]  # fmt: skip
    found = paired(ranks, {EMBED: embed, OUT: q})
    assert differing(found) == [] and {one.words for one in found.pairs} == {"concat(ranks 0-1, axis 1)"}


@pytest.mark.parametrize("shape, axis", [((4, 6), 0), ((4, 6), 1), ((4,), 0)])
def test_a_tensor_without_a_convention_lies_on_ranks_as_the_other_side_shows(paired, shape, axis):
    embed, one = drawn(8, 4), drawn(*shape)
    parts = np.split(one, 2, axis)
    ranks = [{EMBED: embed[4 * at : 4 * at + 4], "own.w": parts[at].copy()} for at in range(2)]
    for found in both_ways(paired, ranks, {EMBED: embed, "own.w": one}):
        assert found.pairs[-1].words == f"concat(ranks 0-1, axis {axis})"
    copies = [{**rank, "own.w": one} for rank in ranks]
    found = paired(copies, {EMBED: embed, "own.w": one})
    assert differing(found) == [] and [part.copy for part in found.pairs] == [0, 0, 1]


@pytest.mark.parametrize("shape", [(3, 6), (2, 3), (4, 5)])
def test_a_tensor_of_which_no_axis_is_a_multiple_lies_on_no_axis(paired, shape):
    """The other side has (4, 6)."""
    embed = drawn(8, 4)
    ranks = [{EMBED: half, "own.w": drawn(*shape)} for half in np.split(embed, 2)]
    found = paired(ranks, {EMBED: embed, "own.w": drawn(4, 6)})
    assert [one.words for one in found.pairs if one.role.kind != "embed"] == ["", "replica"]


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda one: one.astype(np.float64), "ranks hold it in unequal types"),
        (lambda one: drawn(3, 7), "ranks hold shapes that do not fit side by side along axis 0"),
    ],
)
def test_pieces_that_do_not_fit_have_the_reason(paired, change, why):
    whole = {EMBED: drawn(8, 4), **mlp()}
    ranks = [{EMBED: whole[EMBED][4 * at : 4 * at + 4], GATE: whole[GATE][3 * at : 3 * at + 3]} for at in range(2)]
    ranks[1][GATE] = change(ranks[1][GATE])
    assert problems(paired(ranks, whole)) == {"gate": why}
