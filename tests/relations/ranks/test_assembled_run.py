"""Ranks as one run in the names of the golden: tensors, relations, collectives and notes."""

from __future__ import annotations

import numpy as np
import pytest

from npucmp.dump.limits import ANYWHERE
from npucmp.relations.held_values import Values
from npucmp.relations.ranks.assembled_run import assembled_run, placed
from tests.align.rank_craft import numbers
from tests.align.rank_networks import (
    GX,
    V,
    W,
    X,
    Y,
    backward,
    call,
    layer,
    searched,
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


# Tensors of operators


def test_a_tensor_of_a_shape_that_nothing_explains_is_that_of_the_first_rank(tmp_path):
    ranks = [[call("mix", [numbers(3, 5, seed=at), X[:1]], [], prefix="Module")] for at in (0, 1)]
    search = searched(tmp_path, ranks, [call("mix", [X, X[:1]], [], prefix="Module")])
    one = tensors_of(assembled_run(search, ""))["mix.0.forward input:0"]
    assert one.shape == (3, 5) and one.relation is None and one.file
    assert next(placed(search, None)).state == "shape"
