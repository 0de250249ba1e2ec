"""What ranks have in common: who should hold the same, and where each stands, on crafted dumps."""

import numpy as np

import npucmp
from npucmp.localise.rank_digest import ReplicaMismatch, joint_of, odd_ones
from tests.synthetic import write_run

F32 = np.float32


def product(a, b):
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(F32)


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


def test_a_result_that_is_torn_on_one_rank_is_named(tmp_path):
    """Blocks that are equal to their golden are added up otherwise than those of a peer that are not."""
    (odd,) = odd_ones(joints_of(tmp_path, torn=3))
    assert odd == ReplicaMismatch(3, (3,), (1,), "result", ("Distributed.all_reduce.1.forward", "output:0"), 1, True)
