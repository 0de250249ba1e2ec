"""compare --truth where the third run is arranged otherwise than the golden."""

import numpy as np
import pytest

import npucmp
from tests.corpus.three_runs.kernels import to_bits
from tests.synthetic import write_run


def operators_of(bits, factor=1.0, ranks=1):
    """The operators of each rank: three layers of a column-parallel and a row-parallel product; the second layer has a
    factor."""
    random = np.random.default_rng(3)
    x = to_bits(random.standard_normal((32, 16)), 8)
    runs = [{} for _ in range(ranks)]
    for layer in range(3):
        up, down = (to_bits(random.standard_normal(shape) / 4, 8) for shape in ((64, 16), (16, 64)))
        parts = []
        for rank, run in enumerate(runs):
            own = slice(64 // ranks * rank, 64 // ranks * (rank + 1))
            h = to_bits((factor if layer == 1 else 1.0) * x @ up[own].T, bits)
            run[f"Functional.linear.{2 * layer}.forward"] = {"in": [x, up[own]], "out": [h]}
            r = np.maximum(h, 0)
            run[f"Functional.relu.{layer}.forward"] = {"in": [h], "out": [r]}
            parts.append((r, down[:, own], r @ down[:, own].T))
        total = to_bits(sum(part for *_, part in parts), bits)
        y = to_bits(x + total, bits)
        for run, (r, weight, part) in zip(runs, parts):
            out = part if ranks > 1 else total
            run[f"Functional.linear.{2 * layer + 1}.forward"] = {"in": [r, weight], "out": [out]}
            run[f"Tensor.__add__.{layer}.forward"] = {"in": [x, total], "out": [y]}
        x = y
    return [
        {
            name: {role: [one.astype(np.float32) for one in values] for role, values in operator.items()}
            for name, operator in run.items()
        }
        for run in runs
    ]


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_truth_on_two_ranks(tmp_path, factor):
    for name, runs in (
        ("golden", operators_of(8)),
        ("target", operators_of(8, factor)),
        ("truth", operators_of(24, 1.0, 2)),
    ):
        for rank, run in enumerate(runs):
            write_run(tmp_path / name, run, rank=rank if len(runs) > 1 else None)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden", truth=tmp_path / "truth", recompute="none")
    found = report.to_dict()["truth"]
    assert any("layout target 2 ranks" in note for note in found["notes"])
    assert [row["op"] for row in found["worse"]] == (["Functional.linear.2.forward"] if factor > 1 else [])
    assert report.exit_status == (1 if factor > 1 else 0)
