"""What came in is not known: what was seen so far stands for it."""

from __future__ import annotations

import numpy as np

import npucmp
from tests.localise.rules.craft import drawn
from tests.synthetic import write_run

normal, noisy = drawn(__name__)
X = [normal(32, 32).astype(np.float16) for _ in range(6)]


def run(off):
    """Three operators that hand on what they got, then one whose input no dumped code wrote."""
    x = [noisy(x.astype(float), error).astype(np.float16) if error else x for x, error in zip(X, off)]
    names = (f"Functional.linear.{n}.forward" for n in range(4))
    return {name: {"in": [x[place]], "out": [x[place + 1]]} for name, place in zip(names, (0, 1, 2, 4))}


def roots(tmp_path, off, **options):
    target, golden = write_run(tmp_path / "target", run(off)), write_run(tmp_path / "golden", run([0] * 6))
    return [root.cause.value for root in npucmp.compare(target, golden, **options).roots]


GROWN = (1e-3, 1e-3, 1e-3, 1e-3, 6e-3, 6e-3)


def test_an_error_like_those_before_is_no_gap(tmp_path):
    assert roots(tmp_path, GROWN) == []


def test_without_the_rule_it_is_one(tmp_path):
    assert roots(tmp_path, GROWN, skip_rules=["background"]) == ["GAP"]


def test_a_larger_one_is_a_gap(tmp_path):
    assert roots(tmp_path, (1e-3, 1e-3, 1e-3, 1e-3, 0.1, 0.1)) == ["GAP"]
