"""Parameters that one update of the optimizer moved are one place; other movements are not called an update."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from tests.command import npucmp
from tests.corpus.reports.kinds._torch_files import torch_save
from tests.corpus.reports.kinds.training_state import _update

RATE = 1e-3


def trained(adam):
    """A training before and after an update."""
    random = np.random.default_rng(3)
    shapes = {"fc.weight": (6, 4), "fc.bias": (12,), "head.weight": (4, 6)}
    keys = ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)
    parameters = {name: random.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    state = {at: {key: np.square(random.standard_normal(shape)).astype("f4") for key in keys}
             for at, shape in enumerate(shapes.values())}  # fmt: skip
    for own in state.values():
        own.update({"step": np.full((), 7, "f4")} if adam else {})
    groups = [{"lr": RATE, "weight_decay": 0.01, "params": [0, 1, 2]}]
    before = {"model": parameters, "optimizer": {"state": state, "param_groups": groups}}
    after = copy.deepcopy(before)
    _update(random, after["model"], after["optimizer"]["state"], RATE, adam)
    return before, after


def answer(tmp_path, target, golden):
    for name, value in (("target.pt", target), ("golden.pt", golden)):
        torch_save(tmp_path / name, value)
    got = npucmp("compare", "target.pt", "golden.pt", cwd=tmp_path)
    assert got.returncode == 1
    return got.stdout


@pytest.mark.parametrize("adam", [True, False])
def test_an_update_is_one_place(tmp_path, adam):
    before, after = trained(adam)
    further = answer(tmp_path, after, before)
    assert "one update of the optimizer further than the golden: 3, by the rate 0.001" in further
    assert "head.weight" not in further
    assert "one update of the optimizer behind the golden: 3, by the rate 0.001" in answer(tmp_path, before, after)


@pytest.mark.parametrize("adam", [True, False])
def test_what_the_state_does_not_make_is_no_update(tmp_path, adam):
    before, after = trained(adam)
    after["model"]["fc.weight"][2, 1] += np.float32(1e-4)  # one element beside the update
    shown = answer(tmp_path, after, before)
    assert "further than the golden: 2, by" in shown and "fc.weight" in shown
    twice = copy.deepcopy(after)
    _update(np.random.default_rng(4), twice["model"], twice["optimizer"]["state"], RATE, adam)
    assert "one update" not in answer(tmp_path, twice, before)
