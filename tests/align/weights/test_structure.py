"""The stages and ranks of a checkpoint, and the numbers of its layers and experts, by counting."""

import pytest

from npucmp.align.weights.role import Role
from npucmp.align.weights.structure import is_turned, query_rows, structure_of
from npucmp.errors import UsageError
from tests.align.weights.craft import checkpoint

EMBED, HEAD = {"model.embed_tokens.weight": (8, 4)}, {"lm_head.weight": (8, 4)}


def layer(number, prefix="model.layers", **more):
    return {f"{prefix}.{number}.mlp.down_proj.weight": (4, 6), **more}


def experts(*numbers, router=0):
    found = {f"model.layers.0.mlp.experts.{at}.down_proj.weight": (4, 6) for at in numbers}
    return {**found, **({"model.layers.0.mlp.gate.weight": (router, 4)} if router else {})}


def structure(*ranks, config=None):
    return structure_of(checkpoint(*ranks, config=config), "target")


def where(found):
    """The pieces of each tensor: rank, (stage, group, shard), name."""
    return {role: [(one.rank, tuple(one.place), one.name) for one in held.pieces] for role, held in found.held.items()}


def test_a_checkpoint_of_one_file():
    found = structure(((0,), {**EMBED, **layer(3)}), config={"n_head": 2})
    assert (found.sizes, found.shards, found.stated.heads) == ((1, 1, 1), 1, 2)
    assert where(found) == {
        Role(None, "embed", "weight"): [(0, (0, 0, 0), "model.embed_tokens.weight")],
        Role(3, "down", "weight"): [(0, (0, 0, 0), "model.layers.3.mlp.down_proj.weight")],
    }


@pytest.mark.parametrize(
    "holds, sizes, places",
    [
        ([1, 1], (1, 1, 2), [(0, 0, 0), (0, 0, 1)]),
        ([1, 0], (2, 1, 1), [(0, 0, 0), (1, 0, 0)]),
        ([1, 1, 0, 0], (2, 1, 2), [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]),
        ([1, 0, 0], (3, 1, 1), [(0, 0, 0), (1, 0, 0), (2, 0, 0)]),
        ([0, 0], (1, 1, 2), [(0, 0, 0), (0, 0, 1)]),  # no embedding shows a stage
    ],
)
def test_ranks_that_hold_an_embedding_are_one_stage(holds, sizes, places):
    ranks = [((at,), {**(EMBED if one else {}), **layer(at)}) for at, one in enumerate(holds)]
    found = structure(*ranks)
    assert tuple(found.sizes) == sizes
    assert [one.place for held in found.held.values() if held.role.kind == "down" for one in held.pieces] == places


@pytest.mark.parametrize(
    "ranks, words",
    [
        ([((0,), EMBED), ((1,), EMBED), ((2,), layer(0))], "has 3 ranks, of which 2 hold an embedding"),
        ([((0,), EMBED), ((2,), EMBED)], "holds ranks 0, 2: ranks between them are missing"),
        ([((1,), EMBED), ((2,), EMBED)], "holds ranks 1, 2: ranks between them are missing"),
    ],
)
def test_missing_ranks_are_refused(ranks, words):
    with pytest.raises(UsageError, match=f"the target {words}"):
        structure(*ranks)


def test_a_scale_of_an_embedding_is_none():
    found = structure(((0,), EMBED), ((1,), {"model.embed_tokens.weight_scale": (8,)}))
    assert tuple(found.sizes) == (2, 1, 1)


@pytest.mark.parametrize(
    "places, first, sizes, found",
    [
        ([(0, 0), (1, 0), (0, 1), (1, 1)], [1, 1, 0, 0], (2, 1, 2), [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]),
        ([(0, 0), (1, 0), (0, 1), (1, 1)], [1, 1, 1, 1], (1, 2, 2), [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]),
        ([(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)], [1, 0, 1, 0], (2, 2, 1),
         [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]),
    ],
)  # fmt: skip
def test_folders_with_several_numbers_name_the_place(places, first, sizes, found):
    ranks = [(place, {**(EMBED if one else {}), "a": (at + 1,)}) for at, (place, one) in enumerate(zip(places, first))]
    own = structure(*ranks)
    assert tuple(own.sizes) == sizes
    pieces = own.held[Role(None, "=a", "")].pieces
    assert [tuple(one.place) for one in pieces] == sorted(found)
    assert [found[one.rank] for one in pieces] == sorted(found)


@pytest.mark.parametrize("again", [True, False])
def test_layers_of_later_stages_are_numbered_on_if_they_begin_with_0(again):
    second = {**layer(0), **layer(1)} if again else {**layer(2), **layer(3)}
    found = structure(((0,), {**EMBED, **layer(0), **layer(1)}), ((1,), {**second, **HEAD}))
    assert [role.layer for role in found.held if role.kind == "down"] == [0, 1, 2, 3]
    names = [one.name for held in found.held.values() if held.role.kind == "down" for one in held.pieces]
    assert names == [f"model.layers.{at}.mlp.down_proj.weight" for at in range(4)]
    assert found.held[Role(3, "down", "weight")].pieces[0].rank == 1


def test_layers_of_one_stage_keep_their_numbers_on_all_ranks():
    found = structure(*(((at,), {**EMBED, **layer(0), **layer(1)}) for at in range(2)))
    assert [role.layer for role in found.held if role.kind == "down"] == [0, 1]
    assert [len(held.pieces) for held in found.held.values()] == [2, 2, 2]


def test_chunks_of_an_interleaved_pipeline_follow_those_of_all_stages():
    ranks = [((0,), {**EMBED, **layer(0)}, layer(0)), ((1,), layer(0), {**layer(0), **HEAD})]
    found = structure(*ranks)
    at = {role.layer: held.pieces[0].rank for role, held in found.held.items() if role.kind == "down"}
    assert at == {0: 0, 1: 1, 2: 0, 3: 1}
    found = structure(((0,), {**EMBED, **layer(0)}, layer(0)), ((1,), layer(0)))  # one stage has one chunk
    assert {role.layer for role in found.held if role.kind == "down"} == {0, 1, 2}


@pytest.mark.parametrize(
    "own, sizes, numbers",
    [
        ([(0, 1), (0, 1)], (1, 2, 1), [0, 1, 2, 3]),  # each group counts from 0
        ([(0, 1), (2, 3)], (1, 2, 1), [0, 1, 2, 3]),
        ([(0, 3), (1, 2)], (1, 2, 1), [0, 1, 2, 3]),  # numbers of the network, in another order
        ([(0, 1, 2, 3), (0, 1, 2, 3)], (1, 1, 2), [0, 1, 2, 3]),  # ranks hold a part of all experts
        ([(0, 1, 2), (0, 1, 2)], (1, 2, 1), [0, 1, 2, 3, 4, 5]),  # two slots beyond the experts
    ],
)
def test_the_router_counts_groups_of_experts(own, sizes, numbers):
    ranks = [((at,), {**EMBED, **experts(*some, router=4)}) for at, some in enumerate(own)]
    found = structure(*ranks)
    assert tuple(found.sizes) == sizes
    assert sorted(role.expert for role in found.held if role.expert is not None) == numbers


def test_stacked_experts_are_counted_by_their_first_axis():
    name = "model.layers.0.mlp.experts.w2_weight"
    ranks = [((at,), {**EMBED, name: (2, 4, 6), "model.layers.0.mlp.gate.weight": (4, 4)}) for at in range(2)]
    assert tuple(structure(*ranks).sizes) == (1, 2, 1)
    ranks = [((at,), {**EMBED, name: (4, 4, 6), "model.layers.0.mlp.gate.weight": (4, 4)}) for at in range(2)]
    assert tuple(structure(*ranks).sizes) == (1, 1, 2)


@pytest.mark.parametrize("shape, sizes", [((8, 4), (1, 1, 2)), ((2, 4), (1, 1, 2)), ((), (1, 1, 2)), (None, (1, 1, 2))])
def test_a_router_that_fits_no_group_counts_none(shape, sizes):
    router = {} if shape is None else {"model.layers.0.mlp.gate.weight": shape}
    ranks = [((at,), {**EMBED, **experts(0, 1), **router}) for at in range(2)]
    assert tuple(structure(*ranks).sizes) == sizes


NAME = "model.layers.0.mlp.down_proj.weight"


def test_a_scale_belongs_to_its_codes():
    found = structure(((0,), {NAME: ((4, 6), "int8"), f"{NAME}_scale": (4, 1)}))
    (held,) = found.held.values()
    assert held.role == Role(0, "down", "weight") and held.pieces[0].scale.shape == (4, 1)
    found = structure(((0,), {NAME: ((4, 6), "float32"), f"{NAME}_scale": (4, 1)}))
    assert {role.part: held.pieces[0].scale for role, held in found.held.items()} == {"": None, "scale": None}
    found = structure(((0,), {NAME: ((4, 6), "int8")}))
    assert found.held[Role(0, "down", "weight")].pieces[0].scale is None
    found = structure(((0,), {f"{NAME}_scale": (4, 1)}))
    assert [role.part for role in found.held] == ["scale"]


def test_buffers_are_listed_once():
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    found = structure(*(((at,), {**EMBED, name: (4,)}) for at in range(2)))
    assert found.buffers == (name,)


@pytest.mark.parametrize(
    "shapes, rows, turned_rows",
    [([(4, 6)], 6, 4), ([(4, 6), (4, 6)], 12, 8), ([(6,)], 0, 0), ([], 0, 0)],
)
def test_rows_of_q_by_the_matrix_that_reads_the_heads(shapes, rows, turned_rows):
    name = "model.layers.2.self_attn.o_proj.weight"
    found = structure(
        *(((at,), {**EMBED, name: shape}) for at, shape in enumerate(shapes)) if shapes else [((0,), EMBED)]
    )
    assert query_rows(found, 2, False) == rows and query_rows(found, 2, True) == turned_rows
    assert query_rows(found, 1, False) == 0


@pytest.mark.parametrize(
    "shapes, found",
    [
        ({"c_attn": (4, 12)}, True),
        ({"c_attn": (12, 4)}, False),
        ({"c_attn": (4, 12), "c_fc": (16, 4)}, False),  # as many for as against
        ({"c_attn": (4, 12), "c_fc": (16, 4), "c_proj": (16, 4)}, True),
        ({"c_proj": (16, 4)}, True),
        ({"c_proj": (4, 16)}, False),
        ({"c_proj": (4, 4)}, False),
        ({}, False),
    ],
)
def test_matrices_of_gpt2_may_be_turned(shapes, found):
    inside = {"c_attn": "attn", "c_fc": "mlp", "c_proj": "mlp"}
    names = {f"transformer.h.0.{inside[name]}.{name}.weight": shape for name, shape in shapes.items()}
    assert is_turned(structure(((0,), {**names, "transformer.wte.weight": (8, 4)}))) is found


def test_only_conventions_that_may_turn_matrices_count():
    assert not is_turned(structure(((0,), {"model.layers.0.self_attn.qkv_proj.weight": (4, 12)})))
    assert not is_turned(structure(((0,), {"transformer.h.0.mlp.c_fc.bias": (16,)})))
