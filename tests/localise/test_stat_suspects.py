"""Runs of which statistics are all there is: suspected, proven, or only noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.model import Cause
from tests.synthetic import with_statistics, write_run

WIDTH = 64
LAYERS = 40


def rounded(values):
    """As bfloat16 holds them, in float32: half to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def layers(fault=lambda layer, values: values, noise=0.0, dtype=rounded):
    """Layers of a product and an addition; `fault` is what happens to what the products write, and `noise` how far
    other roundings move each element, in u of bfloat16."""
    fixed, other = np.random.RandomState(0), np.random.RandomState(1)
    x, run = dtype(fixed.randn(128, WIDTH)), {}
    for layer in range(LAYERS):
        weight = dtype(fixed.randn(WIDTH, WIDTH) / 8)
        y = x @ weight.T * (1 + noise * 2.0**-8 * other.uniform(-1, 1, (128, WIDTH)))
        y = dtype(fault(layer, y))
        run[f"Functional.linear.{layer}.forward"] = {"in": [x, weight], "out": [y]}
        z = dtype((x + y) / np.float32(1.5))
        run[f"Tensor.add.{layer}.forward"] = {"in": [x, y], "out": [z]}
        x = z
    return run


def dumped(folder, run, dtype="bfloat16", **more) -> Path:
    """A dump of statistics of a run, as of that type."""
    place = with_statistics(write_run(folder, run, **more), alone=True)
    for file in place.rglob("dump.json"):
        file.write_text(file.read_text().replace('"float32"', f'"{dtype}"'))
    return place


def roots(report):
    return [(root.pair.operator.name, root.cause) for root in report.roots]


@pytest.mark.large
def test_a_suspect_is_named_on_all_ranks_and_steps(tmp_path):
    for name, fault in (("golden", lambda layer, y: y), ("target", lambda layer, y: y * 1.002 if layer >= 32 else y)):
        for step, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
            dumped(tmp_path / name, layers(fault), step=step, rank=rank)
    report = npucmp.compare(tmp_path / "target", tmp_path / "golden")
    assert roots(report) == [("Functional.linear.32.forward", Cause.SUSPECT)] * 4
    assert "the operator exceeds the noise on 1 of 1 other ranks too" in [
        one.sentence() for one in report.roots[0].evidence
    ]


def test_different_inputs_leave_one_place(tmp_path):
    def given(seed):
        x = np.random.RandomState(seed).randn(128, WIDTH).astype(np.float32)
        run = layers(dtype=np.float32)
        for name, operator in run.items():
            weight = operator["in"][1]
            y = x @ weight.T if "linear" in name else x
            run[name] = {"in": [x, weight], "out": [y]}
            x = y / np.float32(8)
        return run

    golden, target = (dumped(tmp_path / name, given(seed), "float32") for name, seed in (("golden", 1), ("target", 2)))
    report = npucmp.compare(target, golden)
    assert report.roots[0].pair.operator.name == "Functional.linear.0.forward"
    assert "may have read different inputs" in report.roots[0].because
    assert {root.cause for root in report.roots[1:]} <= {Cause.PROPAGATED}
