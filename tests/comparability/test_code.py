"""Rows of the code that was run, on a few records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from npucmp import open_runs
from npucmp.comparability import code
from npucmp.comparability.run_pair import RunPair, UserInput
from npucmp.model import Operator, Run, TensorRef
from npucmp.workflows.select_runs import pair_runs
from tests.health.craft import Writer


def both(targets, goldens, **given):
    return RunPair(targets, goldens, pair_runs(targets, goldens)[0], user_input=UserInput(**given))


def kernels(folder, rate):
    """An optimizer within the graph: weight, moment, learning rate, gradient, momentum."""
    dump = Writer(folder / "step0" / "rank0", True)
    weight, gradient = np.arange(6, dtype="f4"), np.ones(6, "f4")
    numbers = [np.asarray(rate, "f4"), gradient, np.asarray(0.9, "f4")]
    dump.record("Cell.ApplyMomentum.0.forward", [weight, gradient * 2, *numbers], [weight - 1])
    dump.write("L1")
    return open_runs(folder)


@pytest.mark.parametrize(("rate", "status", "words"), [(0.1, "same", "2 numbers"), (0.2, "DIFFERS", "0.2 against 0.1")])
def test_numbers_of_an_optimizer_in_the_graph(tmp_path, rate, status, words):
    found = code.optimizer(both(kernels(tmp_path / "t", rate), kernels(tmp_path / "g", 0.1)))
    assert found.status.value == status and words in found.because


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ({"optim": {"learning_rate": 1e-4}}, "same", "lr 0.0001"),
        ({"lr": 2e-4}, "DIFFERS", "lr is 0.0002 against 0.0001"),
        ({"layers": 4}, "unknown", "needs kernel dumps"),
    ],
    ids=["same", "another", "not told"],
)
def test_numbers_of_a_configuration(tmp_path, target, status, words):
    for name, tree in (("t.json", target), ("g.json", {"lr": 1e-4})):
        (tmp_path / name).write_text(json.dumps(tree))
    found = code.optimizer(
        RunPair((), (), user_input=UserInput(config=(str(tmp_path / "t.json"), str(tmp_path / "g.json"))))
    )
    assert found.status.value == status and words in found.because


def stacked(line, text):
    operator = Operator(
        "Tensor.add.0.forward", "add", "Tensor.add.forward", "forward", 0, (TensorRef("output:0", "float32", (8,)),),
        stack=(f"File /somewhere/model.py, line {line}, in forward, {text}",), unique=False,
    )  # fmt: skip
    return [Run("run", "msprobe", (operator,))]


@pytest.mark.parametrize(
    ("line", "text", "status"), [(7, "x = a + b", "same"), (9, "x = a + b", "same"), (7, "x = b + c", "DIFFERS")]
)
def test_lines_by_file_and_text_and_not_by_number(line, text, status):
    assert code.scripts(both(stacked(line, text), stacked(7, "x = a + b"))).status.value == status


def fused(*passes):
    operator = Operator("a", "Conv2D", "a", "", 0, (), originals=("x", "y") if passes else (), passes=passes)
    return [Run("run", "cann", (operator,))]


@pytest.mark.parametrize(
    ("target", "golden", "status"),
    [
        (fused("P"), fused("P"), "same"),
        (fused("P"), fused(), "DIFFERS"),
        (fused("P"), fused("Q"), "DIFFERS"),
        (fused(), fused(), "n/a"),
    ],
    ids=["same", "one side", "others", "none"],
)
def test_passes_of_compilers(target, golden, status):
    assert code.fusion(RunPair(target, golden)).status.value == status
