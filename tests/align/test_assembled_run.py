"""Ranks as one run in the names of the golden: tensors, relations, collectives and notes."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.align.assembled_run import assembled_run, collectives, golden_run, layout_words, placed
from npucmp.align.layout_sizes import parse_layout
from npucmp.align.rank_run import Values
from npucmp.align.rank_shares import hold_shares
from npucmp.dump.limits import ANYWHERE
from tests.align.rank_craft import numbers
from tests.align.rank_networks import (
    GX,
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
    layer,
    searched,
    shared,
    tensor_parallel,
    trained,
)

ALL, UPPER, LOWER = np.s_[:], np.s_[:2], np.s_[2:]


def tensors_of(run):
    return {f"{op.name.split('.', 1)[1]} {one.slot}": one for op in run.operators for one in op.tensors}


def test_parts_of_ranks_are_put_together(tmp_path):
    golden = [*layer(W, V, Y), *backward(ALL, GX)]
    search = searched(tmp_path, trained(scale=2.0), golden)
    run = assembled_run(search, "ranks")
    assert run.path == "ranks" and run.rank is None and run.detail == "2 ranks put together"
    assert [one.name for one in run.operators] == [one.name for one in search.golden.operators]
    values, whole = Values(ANYWHERE), tensors_of(search.golden.run)
    for name, one in tensors_of(run).items():
        assert values.array(one) == pytest.approx(values.array(whole[name]), rel=1e-4, abs=1e-4)
        assert (one.slot, one.dtype, one.shape) == (whole[name].slot, "float32", whole[name].shape)
        assert one.relation.ranks == (0, 1) and len(one.relation.operators) == 2 and one.statistics is None
    relations = {name: one.relation for name, one in tensors_of(run).items()}
    assert relations["linear.0.forward input:1"].placement == "shard(0)"
    assert relations["linear.0.forward output:0"].operators == (
        (0, "Torch.linear.0.forward"),
        (1, "Torch.linear.0.forward"),
    )
    assert relations["linear.0.backward output:1"].placement == "shard(0), 2 times"
    total = relations["linear.1.forward output:0"]
    parts = [np.linalg.norm(one[2][2][0].astype(float)) for one in trained(scale=2.0)]
    assert total.placement == "sum" and total.rank_errors == ()
    assert total.rounding == pytest.approx(2 * max(1.0, np.hypot(*parts) / np.linalg.norm(Y)), rel=1e-5)
    assert relations["relu.0.forward output:0"].rounding == 1.0
    assert [rank for rank, _ in relations["relu.0.forward output:0"].rank_errors] == [0, 1]
    assert relations["relu.0.forward input:0"].rank_errors == ()  # an input has none
    assert relations["relu.0.forward output:0"].decided_by == "agreement"
    assert relations["relu.0.forward output:0"].error == pytest.approx(0.0, abs=1e-6)


def test_statistics_are_put_together(tmp_path):
    ranks, golden = [by_statistics(one) for one in tensor_parallel()], by_statistics(layer(W, V, Y))
    search = searched(tmp_path, ranks, golden, values=False)
    found = tensors_of(assembled_run(search, "ranks"))
    assert found["linear.0.forward input:1"].statistics == pytest.approx(
        (W.max(), W.min(), W.mean(), np.linalg.norm(W)), rel=1e-5
    )
    assert found["linear.0.forward input:1"].payload is None and found["linear.0.forward input:1"].file == ""
    assert found["linear.1.forward output:0"].statistics is None  # those of a sum do not follow
    assert found["add.0.forward input:0"].statistics == pytest.approx((Y.max(), Y.min(), Y.mean(), np.linalg.norm(Y)))


def test_operators_without_partners_and_own_tensors_are_left_out(tmp_path):
    ids, table = np.array([3, 1, 0, 2, 3]), numbers(4, 6, seed=12)
    golden = [call("sort", [numbers(5, seed=13)], [ids]), call("embedding", [ids, table], [table[ids]]),
              call("tan", [X], [Y])]  # fmt: skip
    ranks = []
    for low in (0, 2):
        local = np.clip(ids - low, 0, 1)
        ranks.append([golden[0], call("sub", [ids], [ids - low]), call("clip", [ids - low], [local]),
                      call("embedding", [local, table[low : low + 2]], [table[low : low + 2][local]])])  # fmt: skip
    search = searched(tmp_path, ranks, golden)
    run = assembled_run(search, "ranks")
    assert [*tensors_of(run)] == [
        "sort.0.forward input:0", "sort.0.forward output:0", "embedding.0.forward input:1",
    ]  # fmt: skip
    states = {(one.operator.split(".")[1], one.slot): one.state for one in placed(search, 7)}
    assert states["embedding", "input:0"] == states["embedding", "output:0"] == "local"
    assert states["tan", "input:0"] == states["tan", "output:0"] == "without a partner"
    assert states["sort", "output:0"] == "agrees"
    rows = [*placed(search, 7)]
    assert {one.step for one in rows} == {7} and [one.relation is None for one in rows] == [
        one.state in ("local", "without a partner") for one in rows
    ]
    assert next(one for one in rows if one.slot == "input:1").relation.placement == "shard(0)"


def marked(search):
    """The tensors of the golden that each rank has of its own, and whose readers are compared."""
    hold_shares(search)
    return [name for name, one in tensors_of(golden_run(search)).items() if one.relation is not None]


def test_a_golden_without_own_tensors_is_as_it_was(tmp_path):
    search = searched(tmp_path, tensor_parallel(), layer(W, V, Y))
    run = golden_run(search)
    assert [one.name for one in run.operators] == [one.name for one in search.golden.run.operators]
    tensors = [one for op in run.operators for one in op.tensors]
    assert [one._replace(payload=None) for one in tensors] == [
        one for op in search.golden.run.operators for one in op.tensors
    ]
    assert all(one.payload for one in tensors) and run.rank is None and marked(search) == []


IDS, TABLE = np.array([3, 1, 0, 2, 3]), numbers(4, 6, seed=12)


def looked_up(low, reads_all=True):
    local = np.clip(IDS - low, 0, 1)
    rows = TABLE[low : low + 2][local]
    return [
        call("sub", [IDS], [IDS - low]),
        call("clip", [IDS - low], [local]),
        call("embedding", [local, TABLE[low : low + 2]], [rows]),
        *([shared("all_reduce", rows, TABLE[IDS]), call("relu", [TABLE[IDS]], [X])] if reads_all else []),
    ]


@pytest.mark.parametrize("reads_all", [True, False])
def test_an_own_tensor_is_compared_as_what_is_read_in_its_place(tmp_path, reads_all):
    golden = [call("embedding", [IDS, TABLE], [TABLE[IDS]])]
    golden += [call("relu", [TABLE[IDS]], [X])] if reads_all else []
    search = searched(tmp_path, [looked_up(low, reads_all) for low in (0, 2)], golden)
    assert marked(search) == []
    assert (search.found["Torch.embedding.0.forward", "output:0"].state == "agrees") is reads_all


def test_collectives_of_a_golden_are_marked(tmp_path):
    golden = layer(W, V, Y)
    golden.insert(3, shared("all_reduce", Y, Y, group=(0,)))
    assert marked(searched(tmp_path, tensor_parallel(), golden)) == [
        "all_reduce.0.forward input:0", "all_reduce.0.forward output:0",
    ]  # fmt: skip


def test_an_index_of_values_that_are_compared_is_marked(tmp_path):
    """Each rank counts places within its part."""
    ranks = []
    for own in (H[:, :4], H[:, 4:]):
        ranks.append([call("sin", [X], [own]), call("max", [own], [own.max(1), own.argmax(1)])])
    golden = [call("sin", [X], [H]), call("max", [H], [H.max(1), H.argmax(1)])]
    search = searched(tmp_path, ranks, golden)
    assert [one.state for one in placed(search, None)] == ["agrees"] * 4 + ["local"]
    assert search.found["Torch.max.0.forward", "output:0"].placements[0].words == "max"
    assert marked(search) == ["max.0.forward output:1"]


# Words


def test_collectives_stand_before_operators_of_the_golden(tmp_path):
    ranks = tensor_parallel()
    ranks[0].insert(0, ("Distributed.broadcast.0.forward", [X], [X], (0, 1)))
    for one in ranks:
        one.append(("Distributed.all_gather.0.forward", [Z], [Z], (0, 1)))
    found = [*collectives(searched(tmp_path, ranks, layer(W, V, Y)), 3)]
    assert [(one.step, one.name.split(".")[1], one.before, one.ranks) for one in found] == [
        (3, "broadcast", "Torch.linear.0.forward", (0,)),
        (3, "all_reduce", "Torch.add.0.forward", (0, 1)),
        (3, "all_gather", "", (0, 1)),
    ]


@pytest.mark.parametrize(
    "ranks, golden, more, words",
    [
        (tensor_parallel(), layer(W, V, Y), {}, "2 ranks, groups 0-1"),
        (tensor_parallel(), layer(W, V, Y), {"sizes": parse_layout("tp=2")}, "tp=2"),
        ([layer(W, V, Y)], layer(W, V, Y), {}, "1 rank"),
        ([[*batch(UPPER), *batch(LOWER, 1)]], batch(ALL), {}, "1 rank, 2 micro batches"),
        ([[call("sin", [X], [Y]), ("Distributed.send.0.forward", [Y], [], {"input:dst": 1})],
          [("Distributed.recv.0.forward", [], [Y], {"input:src": 0}), call("cos", [Y], [Z])]],
         [call("sin", [X], [Y]), call("cos", [Y], [Z])], {}, "2 ranks, pp=2"),
    ],
)  # fmt: skip
def test_the_layout_in_words(tmp_path, ranks, golden, more, words):
    assert layout_words(searched(tmp_path, ranks, golden, **more)) == words


OPEN = ("the dumps have no optimizer step, which shows whether gradients are reduced and divided "
        "(npucmp plan --layout records it)")  # fmt: skip


def test_notes(tmp_path):
    golden = [*layer(W, V, Y), *backward(ALL, GX)]
    assert assembled_run(searched(tmp_path / "0", trained(), golden), "").notes == ()
    times = "gradients of the target are 2 times the golden's from Torch.add.0.backward on"
    assert assembled_run(searched(tmp_path / "1", trained(scale=2.0), golden), "").notes == (times, OPEN)
    update = [call("exp", [X], [np.exp(X)])]
    search = searched(tmp_path / "2", [one + update for one in trained(scale=2.0)], golden + update)
    assert assembled_run(search, "").notes == (times,)


@pytest.mark.parametrize(
    "missing, note",
    [
        ([1], "rank 1 is missing in the target: 7 tensors that need it are unknown"),
        ([1, 2], "ranks 1-2 are missing in the target: 7 tensors that need them are unknown"),
    ],
)
def test_notes_on_missing_ranks(tmp_path, missing, note):
    search = searched(tmp_path, tensor_parallel()[:1], layer(W, V, Y), missing=missing)
    run = assembled_run(search, "")
    assert run.notes == (note,) and run.detail == "1 ranks put together"
    assert [*tensors_of(run)] == [
        "linear.0.forward input:0", "add.0.forward input:0", "add.0.forward input:1", "add.0.forward output:0",
    ]  # fmt: skip


# Tensors of operators


def test_the_widest_type_and_the_rows_of_the_ranks(tmp_path):
    ranks = [[call("sin", [X[own].astype(kind)], [])] for own, kind in ((UPPER, np.float16), (LOWER, np.float32))]
    search = searched(tmp_path, ranks, [call("sin", [X], [])])
    assert tensors_of(assembled_run(search, ""))["sin.0.forward input:0"].dtype == "float32"
    other = [[call("mix", [numbers(8, 6)], [], prefix="Module")]] * 2
    search = searched(tmp_path / "rows", other, [call("mix", [X], [], prefix="Module")])
    one = tensors_of(assembled_run(search, ""))["mix.0.forward input:0"]
    assert one.shape == (8, 6) and one.relation.placement == "whole"


def test_a_tensor_of_a_shape_that_nothing_explains_is_that_of_the_first_rank(tmp_path):
    ranks = [[call("mix", [numbers(3, 5, seed=at), X[:1]], [], prefix="Module")] for at in (0, 1)]
    search = searched(tmp_path, ranks, [call("mix", [X, X[:1]], [], prefix="Module")])
    one = tensors_of(assembled_run(search, ""))["mix.0.forward input:0"]
    assert one.shape == (3, 5) and one.relation is None and one.file
    assert next(placed(search, None)).state == "shape"


def test_facts_of_the_operators_of_ranks(tmp_path):
    """Their arguments, if those of all ranks are equal, and the name on the first one."""
    golden = [
        ("Torch.sin.0.forward", [X], [Y], {"input:alpha": 1}),
        ("Torch.cos.0.forward", [Y], [Z], {"input:beta": 2}),
    ]
    sine = "Torch.sin.5.forward", [X], [Y], {"input:alpha": 3}
    ranks = [[sine, ("Torch.cos.5.forward", [Y], [Z], {"input:beta": at})] for at in (0, 1)]
    first, second = assembled_run(searched(tmp_path, ranks, golden), "").operators
    assert (first.name, first.own_name, first.arguments) == (
        "Torch.sin.0.forward",
        "Torch.sin.5.forward",
        {"input:alpha": 3},
    )
    assert second.arguments == {"input:beta": 2}
