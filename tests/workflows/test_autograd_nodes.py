"""Backward records of another autograd node on one side: no root by themselves, and faults behind them are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npucmp import compare
from npucmp.model import Cause, Verdict
from tests.synthetic import with_statistics, write_run

LAYERS = 4


def training(folder: Path, node: str = "linear", wrong: int = -1, transposed: bool = False, flat: int = -1) -> Path:
    """A network of linear layers, forward and backward. The record of a backward holds the outputs of the node `linear`
    or of `view`, the last of its nodes. The layer `wrong` hands on a wrong gradient; `transposed` is its forward."""
    random = np.random.default_rng(2)
    weights = [random.normal(size=(6, 6)).astype(np.float32) / 2 for _ in range(LAYERS)]
    values = [random.normal(size=(2, 4, 6)).astype(np.float32)]
    operators = {}
    for layer, weight in enumerate(weights):
        values.append(values[-1] @ weight.T)
        written = values[-1].reshape(8, 6) if transposed and layer == wrong else values[-1]
        read = values[-2].reshape(8, 6) if layer == flat else values[-2]
        written = written.reshape(8, 6) if layer == flat else written
        operators[f"Functional.linear.{layer}.forward"] = {"in": [read, weight], "out": [written]}
    gradient = random.normal(size=(2, 4, 6)).astype(np.float32)
    for layer in reversed(range(LAYERS)):
        handed = (gradient @ weights[layer]) * np.float32(1.1 if layer == wrong else 1)
        own = [handed, gradient.reshape(8, 6).T @ values[layer].reshape(8, 6)]
        own[0] = handed.reshape(8, 6) if layer == flat else handed
        outputs = own if node == "linear" else [gradient.reshape(8, 6)]
        operators[f"Functional.linear.{layer}.backward"] = {"in": [gradient], "out": outputs}
        gradient = handed
    return write_run(folder, operators)


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("flat", [-1, 2])
@pytest.mark.parametrize("nodes", [("view", "linear"), ("linear", "view")])
def test_another_node_is_no_root_and_leaves_the_run_undecided(tmp_path, nodes, flat, statistics):
    target, golden = (training(tmp_path / name, node, flat=flat) for name, node in zip(("target", "golden"), nodes))
    if statistics:
        with_statistics(target, alone=True), with_statistics(golden, alone=True)
    report = compare(target, golden)
    assert not report.roots and report.exit_status == 2
    outputs = [one for one in report.comparisons[0].findings if "backward" in one.pair.operator.name and one.pair.target
               and one.pair.golden and one.pair.slot == "output:0"]  # fmt: skip
    assert len(outputs) == LAYERS and {one.verdict for one in outputs} == {Verdict.UNKNOWN}
    assert all("another autograd node" in one.because for one in outputs)


@pytest.mark.parametrize("nodes", [("view", "linear"), ("linear", "view")])
@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_a_wrong_gradient_is_found_at_its_next_reader(tmp_path, nodes, wrong):
    report = compare(training(tmp_path / "target", nodes[0], wrong), training(tmp_path / "golden", nodes[1]))
    first = report.roots[0]
    assert report.exit_status == 1
    assert (first.pair.operator.name, first.slot) == (f"Functional.linear.{wrong - 1}.backward", "input:0")


def test_a_wrong_gradient_of_the_same_node_is_born_where_it_was(tmp_path):
    report = compare(training(tmp_path / "target", wrong=2), training(tmp_path / "golden"))
    assert [(root.pair.operator.name, root.cause) for root in report.roots[:1]] == [
        ("Functional.linear.2.backward", Cause.BORN)
    ]


def test_a_shape_that_its_forward_has_too_is_a_root(tmp_path):
    report = compare(training(tmp_path / "target", wrong=3, transposed=True), training(tmp_path / "golden"))
    assert (report.roots[0].pair.operator.name, report.roots[0].cause) == ("Functional.linear.3.forward", Cause.BORN)
