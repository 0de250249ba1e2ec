"""Calls of one type that differ by the same argument or factor are one suspect on the screen."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import npucmp
from npucmp.report import write_reports
from tests.reports import screen
from tests.synthetic import write_run

RANDOM = np.random.default_rng(8)
STATES = [RANDOM.standard_normal(24).astype(np.float32) for _ in range(4)]
MUL, DIV = "Tensor.mul_.{}.forward".format, "Tensor.div_.{}.forward".format


def decayed(betas):
    """An optimizer that decays each state by its beta."""
    return {
        MUL(at): {"in": [x, beta], "out": [x * np.float32(beta)]} for at, (x, beta) in enumerate(zip(STATES, betas))
    }


def unscaled(factors):
    """An optimizer that reads gradients which code that was not dumped has scaled."""
    grown = [np.tanh(x) for x in STATES]
    written = {f"Torch.tanh.{at}.forward": {"in": [x], "out": [y]} for at, (x, y) in enumerate(zip(STATES, grown))}
    read = {DIV(at): {"in": [y * np.float32(by), 2.0], "out": [y * np.float32(by / 2)]}
            for at, (y, by) in enumerate(zip(grown, factors))}  # fmt: skip
    return {**written, **read}


def compared(tmp_path, target, golden):
    return npucmp.compare(write_run(tmp_path / "t", target), write_run(tmp_path / "g", golden))


@pytest.mark.parametrize(
    "target, golden, words",
    [
        (decayed([0.9] * 4), decayed([0.99] * 4), "the same argument differs in 3 further calls of this type: "),
        (unscaled([1024.0] * 4), unscaled([1.0] * 4), "3 further calls of this type differ in the same way: "),
    ],
)
def test_calls_that_differ_in_the_same_way_are_one_suspect(tmp_path, target, golden, words):
    report = compared(tmp_path, target, golden)
    shown = screen(report)
    first, *others = [name for name in target if "tanh" not in name]
    assert f"  1  {report.roots[0].cause.value}" in shown and first in shown
    assert words + ", ".join(others) in shown
    assert shown.count("\n  2  ") == 0 and "error originates in 4 places" in shown
    write_reports(report, tmp_path / "out")
    with open(tmp_path / "out" / "roots.csv", encoding="utf-8-sig", newline="") as file:
        assert [row["op"] for row in csv.DictReader(file)] == [first, *others]
