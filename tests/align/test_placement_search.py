"""How the ranks of small networks hold the tensors of a golden, as the walk over its operators decides."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.layout_sizes import parse_layout
from npucmp.align.placement_search import PlacementSearch
from npucmp.model import Statistics
from tests.align.craft import Recorded
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

SQUARES = [numbers(6, 6, seed=30 + at) for at in range(3)]


def stack(weights):
    """Three products of one shape, each before a sine; the ranks hold parts of the weights."""
    calls, x = [], X
    for at, (whole, own) in enumerate(zip(SQUARES, weights)):
        calls += [call("linear", [x, own], [x @ own.T], at), call("sin", [x @ whole.T], [np.sin(x @ whole.T)], at)]
        x = np.sin(x @ whole.T)
    return calls


HALVES = [np.s_[:3], np.s_[3:]]


@pytest.mark.parametrize(
    "last, by, placement",
    [
        (lambda at, own: SQUARES[2][own] * (1 + 0.2 * at), "agreement", "shard(0) whole"),
        (lambda at, own: SQUARES[2][own] * (1 + 0.6 * at), "other layers", "shard(0) whole"),
        (lambda at, own: SQUARES[2][:, own].T.copy() * (1 + 0.6 * at), "other layers", "shard(0) whole"),
    ],
)
def test_the_placement_of_a_tensor_that_differs_is_that_of_other_layers(tmp_path, last, by, placement):
    """Unless one placement is near, and three times nearer than all others."""
    ranks = [stack([SQUARES[0][own], SQUARES[1][own], last(at, own)]) for at, own in enumerate(HALVES)]
    search = searched(tmp_path, ranks, stack(SQUARES))
    found = decisions(search)
    assert found["linear.2 in 1"] == f"differs, {placement}" and found["linear.1 in 1"] == placement
    assert search.found["Torch.linear.2.forward", "input:1"].by == by
    assert found["sin.2 in 0"] == "whole whole"


def product(parts, outputs=None):
    outputs = [None] * 2 if outputs is None else outputs
    return [[call("sin", [one], [X] if out is None else [out])] for one, out in zip(parts, outputs)]


@pytest.mark.parametrize("dtype, limit", [(np.float32, 1e-3), (np.float16, 0.05)])
@pytest.mark.parametrize("times, state", [(0.9, "agrees"), (1.1, "differs")])
def test_the_limit_of_agreement(tmp_path, dtype, limit, times, state):
    """Floats of 16 bits anywhere in a run make all of it coarse."""
    ranks = product([X[at] * np.float32(1 + times * limit) for at in (np.s_[:2], np.s_[2:])])
    golden = product([X])[0] + [call("abs", [Y.astype(dtype)], [Y.astype(dtype)])]
    search = searched(tmp_path, ranks, golden)
    found = search.found["Torch.sin.0.forward", "input:0"]
    assert (found.state, found.fit.placements[0].words) == (state, "shard(0)")


@pytest.mark.parametrize("dtype, limit", [(np.float32, 2e-3), (np.float16, 0.03)])
@pytest.mark.parametrize("times, state", [(0.9, "agrees"), (1.1, "differs")])
def test_the_limit_of_statistics(tmp_path, dtype, limit, times, state):
    golden = product([recorded(X)])[0] + [call("abs", [Y.astype(dtype)], [Y.astype(dtype)])]
    search = searched(tmp_path, product([recorded(X * np.float32(1 + times * limit))] * 2), golden, values=False)
    found = search.found["Torch.sin.0.forward", "input:0"]
    assert (found.state, found.fit.placements[0].words) == (state, "whole")


def recorded(array):
    figures = (float(of(array)) for of in (np.max, np.min, np.mean, np.linalg.norm))
    return Recorded(Statistics(*figures), array.shape)


def by_statistics(calls):
    return [(name, [recorded(one) for one in inputs], [recorded(one) for one in outputs], *group)
            for name, inputs, outputs, *group in calls]  # fmt: skip


def test_a_layer_of_which_statistics_are_recorded(tmp_path):
    ranks = [by_statistics(one) for one in tensor_parallel()]
    assert decisions(searched(tmp_path, ranks, by_statistics(layer(W, V, Y)), values=False)) == AGREES


def test_terms_that_cancel_agree_within_their_own_rounding(tmp_path):
    """The ranks' products are about 1000 times their sum."""
    wide = 1000 * numbers(4, 8, seed=40)
    parts = [Y / 2 + wide[:, :5], Y / 2 - wide[:, :5]]
    for error, state in ((0.5, "agrees"), (5.0, "differs")):
        noise = error * numbers(4, 5, seed=41)
        ranks = tensor_parallel()
        for one, part, more in zip(ranks, parts, (noise, 0 * noise)):
            one[2] = call("linear", one[2][1], [part + more], 1)
            one[3] = shared("all_reduce", part + more, Y)
        search = searched(tmp_path / state, ranks, layer(W, V, Y))
        assert search.found["Torch.linear.1.forward", "output:0"].state == state


@pytest.mark.parametrize(
    "shape, state, rows", [((8, 6), "differs", 8), ((5, 6), "differs", 5), ((3, 5), "shape", None)]
)
def test_another_number_of_rows(tmp_path, shape, state, rows):
    """A router chose otherwise."""
    ranks = [[call("mix", [numbers(*shape)], [], prefix="Module")]] * 2
    search = searched(tmp_path, ranks, [call("mix", [X], [], prefix="Module")])
    found = search.found.get(("Module.mix.0.forward", "input:0"))
    assert (found.state, found.rows) == (state, rows)
    if rows is not None:
        assert found.by == "shape" and found.fit.scale == 1.0 and found.fit.error == np.inf
        assert found.placements == (("whole", 0, (1,)),) * 2


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


# Facts


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


# Layers of which several placements agree


def test_an_axis_of_ranks_splits_tensors_of_one_operator_alike(tmp_path):
    """The blocks of a dimension in which parts agree: a contiguous part before parts of two blocks."""
    wide = np.repeat(numbers(4, 1, seed=80), 8, axis=1)  # equal columns agree in any order
    ranks = [[call("sin", [wide[:, own]], [H[:, own]])] for own in (np.s_[:4], np.s_[4:])]
    found = decisions(searched(tmp_path, ranks, [call("sin", [wide], [H])]))
    assert found == {"sin.0 in 0": "shard(1) whole", "sin.0 out 0": "shard(1) whole"}


BLOCKS = [np.r_[0:2, 4:6], np.r_[2:4, 6:8]]


def test_of_placements_that_agree_that_of_the_other_tensors_is_taken(tmp_path):
    equal = np.repeat(numbers(4, 1, seed=80), 8, axis=1)
    ranks = [[call("add", [H[:, own], equal[:, :4]], [(H + equal)[:, own]])] for own in BLOCKS]
    search = searched(tmp_path, ranks, [call("add", [H, equal], [H + equal])])
    words = "shard(1, in 2 blocks) whole"
    assert decisions(search) == {"add.0 in 0": words, "add.0 in 1": words, "add.0 out 0": words}


def test_the_second_walk_knows_what_agrees_in_other_layers(tmp_path):
    """A tensor that agrees in several ways is held as that of other layers."""
    weights = [numbers(8, 6, seed=85), np.repeat(numbers(1, 6, seed=86), 8, axis=0), numbers(8, 6, seed=87)]
    ranks = [[call("mix", [one[own]], [], at) for at, one in enumerate(weights)] for own in BLOCKS]
    search = searched(tmp_path, ranks, [call("mix", [one], [], at) for at, one in enumerate(weights)])
    words = "shard(0, in 2 blocks) whole"
    assert decisions(search) == {f"mix.{at} in 0": words for at in range(3)}
    assert [one.by for one in search.found.values()][1] == "agreement"
