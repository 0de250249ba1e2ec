"""What ranks have in common: who should hold the same, and where each stands, on crafted dumps."""

import json

import numpy as np
import pytest

import npucmp
from npucmp.localise.rank_coordinates import Coordinates, coordinates
from npucmp.localise.rank_digest import ReplicaMismatch, joint_of, odd_ones
from npucmp.model import RankGroup
from tests.synthetic import with_checksums, with_statistics, write_run

F32 = np.float32


def product(a, b):
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(F32)


def grouped(*ranks):
    return {"type": "torch.ProcessGroup", "group_ranks": [*ranks], "group_id": "0"}


def parallel(stale=None, wrong=None, torn=None):
    """Two stages of two tensor ranks, twice (data parallel): rank = 4 · stage + 2 · replica + part. `stale` holds a
    weight that its peers do not hold, `wrong` computes a product wrongly, `torn` gets a NaN for a reduced gradient."""
    random = np.random.default_rng(3)
    weights = {
        (stage, part): random.standard_normal((2, 12, 12)).astype(F32) / 4 for stage in (0, 1) for part in (0, 1)
    }
    ranks = [{} for _ in range(8)]
    put: dict[tuple[int, int], list[np.ndarray]] = {}
    for replica in (0, 1):
        x = random.standard_normal((5, 12)).astype(F32)
        for stage in (0, 1):
            parts = []
            for part in (0, 1):
                rank = 4 * stage + 2 * replica + part
                inner, outer = weights[stage, part]
                outer = outer * F32(1.001) if rank == stale else outer
                if stage:
                    ranks[rank - 4]["Distributed.send.0.forward"] = {"in": [x, rank], "out": [x]}
                    ranks[rank]["Distributed.recv.0.forward"] = {"in": [None, rank - 4], "out": [x]}
                h = product(x, inner) * F32(1.01 if rank == wrong else 1)
                y = product(h, outer)
                ranks[rank]["Functional.linear.0.forward"] = {"in": [x, inner], "out": [h]}
                ranks[rank]["Functional.linear.1.forward"] = {"in": [h, outer], "out": [y]}
                put.setdefault((stage, part), []).append(product(h.T, y))
                parts.append(y)
            x = parts[0] + parts[1]
            for part in (0, 1):
                rank = 4 * stage + 2 * replica + part
                ranks[rank]["Distributed.all_reduce.0.forward"] = {"in": [parts[part]], "out": [x]}
    for (stage, part), gradients in put.items():
        for replica, gradient in enumerate(gradients):
            calls = ranks[4 * stage + 2 * replica + part]
            arrives = calls["Distributed.all_reduce.0.forward"]["out"]
            calls["Functional.linear.1.backward"] = {"in": arrives, "out": [gradient]}
            total = gradients[0] + gradients[1]
            total[0, 0] = np.nan if torn == 4 * stage + 2 * replica + part else total[0, 0]
            calls["Distributed.all_reduce.1.forward"] = {"in": [gradient], "out": [total]}
    return ranks


def joints_of(tmp_path, spoil=lambda folder: folder, **fault):
    for side, more in (("target", fault), ("golden", {})):
        for rank, operators in enumerate(parallel(**more)):
            write_run(tmp_path / side, operators, 3, rank)
        spoil(tmp_path / side)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", precheck=False)
    return [joint_of(one) for one in report.comparisons]


def statistics(folder):
    return with_statistics(folder, alone=True)


@pytest.mark.parametrize("spoil", [lambda folder: folder, statistics, with_checksums])
def test_a_rank_with_another_weight_is_named_in_every_kind_of_dump(tmp_path, spoil):
    joints = joints_of(tmp_path, spoil, stale=6)
    first, *others = odd_ones(joints)
    assert (first.step, first.first, first.what) == (3, ("Functional.linear.1.forward", "input:1"), "weight")
    assert (first.ranks, first.others, first.wrong, others) == ((6,), (4,), True, [])
    places = [Coordinates(rank // 4, rank % 2) for rank in range(8)]
    assert [*coordinates(joints).values()] == places


def test_ranks_that_differ_by_design_are_not_named(tmp_path):
    assert odd_ones(joints_of(tmp_path, wrong=6)) == []


def test_a_result_that_is_torn_on_one_rank_is_named(tmp_path):
    """Blocks that are equal to their golden are added up otherwise than those of a peer that are not."""
    (odd,) = odd_ones(joints_of(tmp_path, torn=3))
    assert odd == ReplicaMismatch(3, (3,), (1,), "result", ("Distributed.all_reduce.1.forward", "output:0"), 1, True)


def test_a_process_group_is_a_group_of_ranks(tmp_path):
    write_run(tmp_path, {"Distributed.all_reduce.0.forward": {"in": [np.ones(3, F32)], "out": [np.ones(3, F32)]}}, 0, 2)
    file = tmp_path / "step0/rank2/dump.json"
    dump = json.loads(file.read_text())
    record = dump["data"]["Distributed.all_reduce.0.forward"]
    record["input_kwargs"] = {"group": grouped(2, 3), "other": grouped("x"), "op": {"type": "str", "value": "SUM"}}
    file.write_text(json.dumps(dump))
    (run,) = npucmp.open_runs(tmp_path)
    assert run.operators[0].arguments == {"input:group": RankGroup((2, 3)), "input:other": None, "input:op": "SUM"}
