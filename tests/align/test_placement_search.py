"""How the ranks of small networks hold the tensors of a golden, as the walk over its operators decides."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.layout_sizes import parse_layout
from npucmp.align.placement_search import PlacementSearch
from tests.align.rank_craft import numbers, rank_of
from tests.align.rank_networks import (
    GX,
    LABELS,
    B,
    H,
    V,
    W,
    X,
    Y,
    Z,
    backward,
    batch,
    by_statistics,
    call,
    decisions,
    layer,
    searched,
    shared,
    tensor_parallel,
    trained,
)

AGREES = {
    "linear.0 in 0": "whole whole", "linear.0 in 1": "shard(0) whole", "linear.0 out 0": "shard(1) whole",
    "relu.0 in 0": "shard(1) whole", "relu.0 out 0": "shard(1) whole",
    "linear.1 in 0": "shard(1) whole", "linear.1 in 1": "shard(1) whole", "linear.1 out 0": "sum whole",
    "add.0 in 0": "whole whole", "add.0 in 1": "whole whole", "add.0 out 0": "whole whole",
}  # fmt: skip


def test_a_layer_that_ranks_split(tmp_path):
    search = searched(tmp_path, tensor_parallel(), layer(W, V, Y))
    assert decisions(search) == AGREES
    assert {one.by for one in search.found.values()} == {"agreement"}


def test_a_partial_sum_that_an_addend_reads_is_illegal(tmp_path):
    found = decisions(searched(tmp_path, tensor_parallel("not reduced"), layer(W, V, Y)))
    assert found.pop("add.0 in 0") == "differs, whole whole, illegal"
    assert found.pop("add.0 out 0").startswith("differs")
    assert found.items() <= AGREES.items()


GRADIENTS = {
    "add.0 back in 0": "whole whole", "add.0 back out 0": "whole whole",
    "linear.1 back in 0": "whole whole",
    "linear.1 back out 0": "shard(1) whole", "linear.1 back out 1": "shard(1) whole",
    "relu.0 back in 0": "shard(1) whole", "relu.0 back out 0": "shard(1) whole",
    "linear.0 back in 0": "shard(1) whole",
    "linear.0 back out 0": "sum whole", "linear.0 back out 1": "shard(0) whole",
}  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.5])
def test_gradients_of_a_layer_that_ranks_split(tmp_path, scale):
    golden = [*layer(W, V, Y), *backward(np.s_[:], GX)]
    search = searched(tmp_path, trained(scale=scale), golden)
    words = "" if scale == 1.0 else f", {scale:g} times"
    assert decisions(search) == {**AGREES, **{slot: found + words for slot, found in GRADIENTS.items()}}
    assert search.scale == scale and search.scaled_from == ("Torch.add.0.backward" if scale != 1.0 else "")


def test_gradients_that_are_reduced_within_the_backward_pass(tmp_path):
    golden = [*layer(W, V, Y), *backward(np.s_[:], GX)]
    expected = {**AGREES, **GRADIENTS, "linear.0 back out 0": "whole whole"}
    assert decisions(searched(tmp_path, trained("reduced"), golden)) == expected


def test_a_factor_of_gradients_that_no_layout_has(tmp_path):
    """The placements of gradients that differ: those that operators make."""
    search = searched(tmp_path, trained(scale=7.0), [*layer(W, V, Y), *backward(np.s_[:], GX)])
    found = decisions(search)
    assert all(words.startswith("differs") == (" back " in slot) for slot, words in found.items())
    known = "relu.0 back in 0", "linear.0 back in 0", "linear.0 back out 0"
    assert [found[slot].split(", ")[1] for slot in known] == [GRADIENTS[slot] for slot in known]
    assert search.scale is None and search.scaled_from == ""


@pytest.mark.parametrize(
    "ranks, more",
    [
        ([batch(np.s_[:2]), batch(np.s_[2:])], " whole"),
        ([[*batch(np.s_[:2]), *batch(np.s_[2:], 1)]], ""),  # two micro batches
    ],
)
def test_a_batch_that_is_split(tmp_path, ranks, more):
    search = searched(tmp_path, ranks, batch(np.s_[:]))
    assert decisions(search) == {
        "linear.0 in 0": f"shard(0){more}", "linear.0 in 1": f"whole{more}", "linear.0 out 0": f"shard(0){more}",
        "mse_loss.0 in 0": f"shard(0){more}", "mse_loss.0 in 1": f"shard(0){more}",
        "mse_loss.0 out 0": f"mean{more}", "mse_loss.0 back in 0": f"whole{more}",
        "mse_loss.0 back out 0": f"shard(0){more}, 2 times", "linear.0 back in 0": f"shard(0){more}, 2 times",
        "linear.0 back out 0": f"shard(0){more}, 2 times", "linear.0 back out 1": f"sum{more}, 2 times",
    }  # fmt: skip
    assert search.scale == 2.0 and search.scaled_from == "Torch.mse_loss.0.backward"


# Vocabulary

IDS, TABLE = np.array([3, 1, 0, 2, 3]), numbers(4, 6, seed=12)


def part_of_the_vocabulary(low, high):
    local = IDS - low
    outside = (local < 0) | (local >= high - low)
    kept = np.where(outside, 0, local)
    rows = TABLE[low:high][kept]
    masked = np.where(outside[:, None], 0, rows)
    return [
        call("sub", [IDS], [local]),
        call("where", [local], [kept]),
        call("embedding", [kept, TABLE[low:high]], [rows]),
        call("masked_fill", [rows], [masked]),
        shared("all_reduce", masked, TABLE[IDS]),
        call("relu", [TABLE[IDS]], [np.maximum(TABLE[IDS], 0)]),
    ]


def test_the_data_from_which_ranks_make_places_in_their_part_of_the_vocabulary(tmp_path):
    golden = [call("embedding", [IDS, TABLE], [TABLE[IDS]]), call("relu", [TABLE[IDS]], [np.maximum(TABLE[IDS], 0)])]
    search = searched(tmp_path, [part_of_the_vocabulary(0, 2), part_of_the_vocabulary(2, 4)], golden)
    assert decisions(search) == {
        "embedding.0 in 0": "whole whole", "embedding.0 in 1": "shard(0) whole", "embedding.0 out 0": "local",
        "relu.0 in 0": "whole whole", "relu.0 out 0": "whole whole",
    }  # fmt: skip
    ranks = search.partners.mesh(search.golden.operators[0])
    sources = [search.part("Torch.embedding.0.forward", op, "input:0") for op in ranks.cells.values()]
    assert [one.array.tolist() for one in sources] == [IDS.tolist()] * 2


def test_places_that_the_golden_computes_too_are_local(tmp_path):
    before = call("sort", [numbers(5, seed=13)], [IDS])
    golden = [before, call("embedding", [IDS, TABLE], [TABLE[IDS]])]
    ranks = [[before, *part_of_the_vocabulary(*ends)[:3]] for ends in ((0, 2), (2, 4))]
    found = decisions(searched(tmp_path, ranks, golden))
    assert found["sort.0 out 0"] == "whole whole" and found["embedding.0 in 0"] == "local"


# Faults


def test_a_layer_of_which_statistics_are_recorded(tmp_path):
    ranks = [by_statistics(one) for one in tensor_parallel()]
    assert decisions(searched(tmp_path, ranks, by_statistics(layer(W, V, Y)), values=False)) == AGREES


# Ranks that are missing


def test_tensors_that_need_a_missing_rank_are_unknown(tmp_path):
    found = decisions(searched(tmp_path, tensor_parallel()[:1], layer(W, V, Y), missing=[1]))
    whole = {"linear.0 in 0", "add.0 in 0", "add.0 in 1", "add.0 out 0"}
    assert found == {slot: "whole whole" if slot in whole else "unknown" for slot in AGREES}


def test_one_replica_computes_the_batch_of_the_golden(tmp_path):
    """Of two, each with two ranks: gradients of parameters need the other one."""
    sizes = parse_layout("tp=2,dp=2")
    search = searched(tmp_path, tensor_parallel(), layer(W, V, Y), sizes=sizes, missing=[2, 3])
    assert decisions(search) == AGREES
    wrong = tensor_parallel()
    for one in wrong:
        one[-1] = call("add", [Y, B], [Z + 1])
    search = searched(tmp_path / "wrong", wrong, layer(W, V, Y), sizes=sizes, missing=[2, 3])
    assert decisions(search) == {**AGREES, "add.0 out 0": "differs, whole whole"}
    other = [[call("sin", [LABELS * 5], [X])], [call("sin", [LABELS * 5], [X])]]
    search = searched(tmp_path / "other", other, [call("sin", [LABELS], [X])], sizes=sizes, missing=[2, 3])
    assert decisions(search)["sin.0 in 0"] == "unknown"  # the data is that of another batch


def test_parts_of_which_ranks_are_missing_make_no_tensor(tmp_path):
    """Although the others have all of it."""
    ranks = [[call("sin", [X[own]], [Y])] for own in (np.s_[:2], np.s_[2:])]
    found = decisions(searched(tmp_path, ranks, [call("sin", [X], [Y])], missing=[2]))
    assert found == {"sin.0 in 0": "unknown", "sin.0 out 0": "whole whole"}


def test_gradients_that_replicas_exchange_need_the_missing_one(tmp_path):
    """Other tensors of the batch differ."""

    def calls(by):
        return [
            ("Module.fc.0.forward", [X, W], [Y]),
            call("sin", [X], [H * by]),
            call("sin", [Z], [H], phase="backward"),
            ("Module.fc.0.gradients", [], [W * by]),
            call("mul", [V * by], [V * 2 * by]),
        ]

    sizes = parse_layout("tp=2,dp=2")
    found = decisions(searched(tmp_path, [calls(1.5)] * 2, calls(1.0), sizes=sizes, missing=[2, 3]))
    assert found["fc.0 in 0"] == "whole whole" and found["sin.0 out 0"].startswith("differs")
    assert {found[one] for one in ("fc.0.gradients grad:0", "mul.0 in 0", "mul.0 out 0")} == {"unknown"}


# Updates

G = numbers(4, 6, seed=52)
TOTAL = np.float32((G**2).sum())


def norm_of(gradient, total, is_reduced=False, skips=()):
    """The norm of gradients behind the backward pass; `total` is the number that the root reads."""
    own = np.float32((gradient**2).sum())
    calls = [
        call("linear", [X, W], [H]),
        call("linear", [H], [G], phase="backward"),
        call("square", [gradient], [gradient**2]),
        call("sum", [gradient**2], [own]),
        *([("Distributed.all_reduce.0.forward", [own], [total], (0, 1))] if is_reduced else []),
        call("sqrt", [total], [np.sqrt(total)]),
    ]
    return [one for one in calls if one[0].split(".")[1] not in skips]


@pytest.mark.parametrize(
    "is_reduced, skips, root",
    [
        (True, (), "whole whole"),
        (False, (), "differs, whole whole, illegal"),
        (False, ("sum",), "differs, whole whole, illegal, proven"),  # nothing shows where the number comes from
    ],
)
def test_a_norm_over_the_parts_of_gradients(tmp_path, is_reduced, skips, root):
    parts = G[:2], G[2:]
    ranks = [norm_of(one, TOTAL if is_reduced else np.float32((one**2).sum()), is_reduced, skips) for one in parts]
    found = decisions(searched(tmp_path, ranks, norm_of(G, TOTAL, skips=skips)))
    assert found["square.0 in 0"] == found["square.0 out 0"] == "shard(0) whole"
    assert found["sqrt.0 in 0"] == root
    assert found.get("sum.0 out 0") == (None if skips else "sum whole")


# Numbers and places


def test_the_largest_values_of_parts_and_their_places(tmp_path):
    """Each rank counts places within its part."""
    ranks = [[call("sin", [X], [own]), call("max", [own], [own.max(1), own.argmax(1)])] for own in (H[:, :4], H[:, 4:])]
    search = searched(tmp_path, ranks, [call("sin", [X], [H]), call("max", [H], [H.max(1), H.argmax(1)])])
    assert decisions(search) == {
        "sin.0 in 0": "whole whole", "sin.0 out 0": "shard(1) whole", "max.0 in 0": "shard(1) whole",
        "max.0 out 0": "max whole", "max.0 out 1": "local",
    }  # fmt: skip


def test_numbers_of_occurrences_among_parts_add_up(tmp_path):
    counts, parts = np.array([5, 2, 9]), (np.array([1, 2, 4]), np.array([4, 0, 5]))
    for name, more, words in (("sums", 0, "sum whole"), ("other", 1, "local")):
        ranks = [[call("bincount", [X[own]], [part + more])] for own, part in zip((np.s_[:2], np.s_[2:]), parts)]
        found = decisions(searched(tmp_path / name, ranks, [call("bincount", [X], [counts])]))
        assert found == {"bincount.0 in 0": "shard(0) whole", "bincount.0 out 0": words}


def test_one_number_of_operators_with_other_arguments_is_local(tmp_path):
    golden = [("Torch.sum.0.forward", [X], [np.float32(3.3)], {"input:dim": 1})]
    for name, of_ranks, words in (("same", 1, "differs, whole whole"), ("other", 2, "local")):
        ranks = [[("Torch.sum.0.forward", [X], [np.float32(7.9)], {"input:dim": of_ranks})]] * 2
        assert decisions(searched(tmp_path / name, ranks, golden))["sum.0 out 0"] == words
    ranks = [[("Torch.sum.0.forward", [X], [Y + 9], {"input:dim": 2})]] * 2  # several numbers differ
    golden = [("Torch.sum.0.forward", [X], [Y], {"input:dim": 1})]
    assert decisions(searched(tmp_path / "several", ranks, golden))["sum.0 out 0"].startswith("differs")


@pytest.mark.parametrize(
    "parts, indices, words",
    [
        ((np.s_[:2], np.s_[2:]), ([1, 0, 0], [1, 0, 1]), "local"),
        ((np.s_[:2], np.s_[2:]), ([1, 0, 0], [1, 0, 0]), "local"),
        ((np.s_[:2], np.s_[2:]), ([1, 0], [1, 0]), "local"),
        ((np.s_[:], np.s_[:]), ([1, 0, 0], [1, 0, 1]), "differs"),
    ],
)
def test_places_among_the_rows_of_a_rank_are_local(tmp_path, parts, indices, words):
    """If the ranks have rows of their own; if all have all rows, they differ."""
    ranks = [[call("index_select", [X[own], np.array(places)], [])] for own, places in zip(parts, indices)]
    found = decisions(searched(tmp_path, ranks, [call("index_select", [X, np.array([3, 2, 1])], [])]))
    assert found["index_select.0 in 1"].split(",")[0] == words
    assert found["index_select.0 in 0"] == ("shard(0) whole" if words == "local" else "whole whole")


@pytest.mark.parametrize("own, words", [(H > 0, "whole whole"), (H > 1, "differs")])
def test_a_mask_that_all_ranks_have_differs(tmp_path, own, words):
    calls = [call("where", [own, H], [H])]
    found = decisions(searched(tmp_path, [calls, calls], [call("where", [H > 0, H], [H])]))
    assert found["where.0 in 0"].split(", ")[0] == words


def test_a_mask_of_each_rank_is_local_beside_a_part(tmp_path):
    """Masks of one shape that differ between ranks, of which each goes with a part of the other tensor."""
    masks = np.array([[True], [False], [True], [True]]), np.array([[False], [True], [True], [False]])
    ranks = [[call("sin", [X], [own]), call("mul", [own, mask], [own * mask])]
             for own, mask in zip((H[:, :4], H[:, 4:]), masks)]  # fmt: skip
    golden = [call("sin", [X], [H]), call("mul", [H, ~masks[0]], [H * ~masks[0]])]
    found = decisions(searched(tmp_path, ranks, golden))
    assert found["mul.0 in 0"] == "shard(1) whole" and found["mul.0 in 1"] == "local"
    whole = [[call("sin", [X], [H]), call("mul", [H, mask], [H * mask])] for mask in masks]
    found = decisions(searched(tmp_path / "whole", whole, golden))
    assert found["mul.0 in 1"].startswith("differs")


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("split", [0, 1])
def test_a_mask_is_local_along_the_axis_of_ranks_along_which_its_operand_is_split(tmp_path, by, split):
    """Four ranks: masks differ along one axis, the operand is split along one."""
    masks = np.array([[True], [False], [True], [True]]), np.array([[False], [True], [True], [False]])
    parts, ranks = (H[:, :4], H[:, 4:]), []
    for at in ((0, 0), (0, 1), (1, 0), (1, 1)):
        own, mask = parts[at[split]], masks[at[by]]
        ranks.append([call("sin", [X], [own]), call("mul", [own, mask], [own * mask])])
    golden = [call("sin", [X], [H]), call("mul", [H, ~masks[0]], [H * ~masks[0]])]
    found = decisions(searched(tmp_path, ranks, golden, sizes=parse_layout("tp=2,dp=2")))
    assert found["mul.0 in 1"].split(",")[0] == ("local" if by == split else "differs")


def test_factors_that_a_gradient_may_have(tmp_path):
    """Over how many parts a loss is averaged, and its inverse, and so many micro batches."""
    plain = searched(tmp_path / "plain", tensor_parallel(), layer(W, V, Y))
    loss = searched(tmp_path / "loss", [one[:2] for one in (batch(np.s_[:2]), batch(np.s_[2:]))], batch(np.s_[:])[:2])
    figures = PlacementSearch(loss.partners, False)
    micro = [[*batch(np.s_[:2])[:2], *batch(np.s_[2:], 1)[:1]], batch(np.s_[:2])[:1]]
    micro = searched(tmp_path / "micro", [[*batch(np.s_[:2]), *batch(np.s_[2:], 1)]], batch(np.s_[:])[:1])
    op = rank_of(tmp_path / "op", [call("sin", [X], [np.float32(0.3), np.arange(3)], phase="backward"),
                                   call("sin", [X], [])]).operators  # fmt: skip
    mesh = plain.partners.mesh(plain.golden.operators[0])._replace(sizes=(2, 3))
    gradient, (number, places) = op[0].inputs[0], op[0].outputs
    every = [2.0, 0.5, 3.0, 1 / 3, 6.0, 1 / 6]
    assert plain.scales(op[0], gradient, mesh) == [1.0, *every] == plain.scales(op[0], number, mesh)
    assert plain.scales(op[0], places, mesh) == plain.scales(op[1], op[1].inputs[0], mesh) == [1.0]
    assert loss.scales(op[0], gradient, mesh) == [1.0, 2.0, 0.5]
    assert figures.scales(op[0], gradient, mesh) == [1.0, *every]
    assert micro.scales(op[0], gradient, mesh._replace(sizes=(3,))) == [1.0, 1.5, 2 / 3, 2.0, 0.5, 3.0, 1 / 3]
    trained = searched(tmp_path / "trained", [batch(np.s_[:2]), batch(np.s_[2:])], batch(np.s_[:]))
    assert trained.scales(op[0], gradient, mesh) == [2.0]
    assert trained.scales(op[0], number, mesh) == [1.0, 2.0, 0.5]


def test_the_class_and_the_role_of_a_tensor(tmp_path):
    golden = [
        call(kind, [X], [X * (at + 1)], at) for at, kind in enumerate(["abs", "sin", "sin", "cos", "tan", "exp", "log"])
    ]
    golden += [
        call("sin", [X], [X], 2, "backward"),
        call("add", [X, H], [X], 9),
        ("Distributed.broadcast.0.forward", [X], [X], (0, 1)),
    ]
    search = searched(tmp_path, [golden, golden], golden)
    ops = search.golden.operators
    assert search.class_of(ops[1], ops[1].inputs[0]) == search.class_of(ops[2], ops[2].inputs[0])
    assert len({search.class_of(op, one) for op in (ops[0], ops[1], ops[7], ops[8]) for one in op.tensors}) == 9
    kinds = [[key.split(".")[1] for key in search.role_of(op)] for op in ops]
    assert kinds[0] == ["abs", "sin", "sin", "cos"] and kinds[2] == ["sin", "sin", "cos", "tan", "exp"]
    assert kinds[5] == ["tan", "exp", "log", "add"] and kinds[8] == ["log", "add"]
    assert kinds[7] == kinds[9] == []


def test_states_placements_and_origins(tmp_path):
    search = searched(tmp_path, tensor_parallel(), layer(W, V, Y))
    linear, relu = search.golden.operators[:2]
    mesh = search.partners.mesh(relu)
    assert (
        search.state(linear, linear.inputs[1]) == "agrees"
        and search.placed(linear, linear.inputs[1])[0].words == "shard(0)"
    )
    origins = search.origins(mesh, "input:0")
    assert {at: one.operator.name for at, one in origins.items()} == dict.fromkeys([(0, 0), (1, 0)], linear.name)
    assert search.origins(mesh, "input:9") == {}
    search.found.clear()
    assert search.state(linear, linear.inputs[1]) == "" and search.placed(linear, linear.inputs[1]) is None
