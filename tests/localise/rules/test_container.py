"""A module has the error of the operator inside it."""

from __future__ import annotations

import numpy as np

import npucmp
from tests.localise.rules.craft import drawn
from tests.synthetic import write_run

normal, _ = drawn(__name__)
X, WRONG, RIGHT = (normal(8, 8).astype(np.float32) for _ in range(3))
INNER, OUTER, OTHER = (f"Cell.{name}.forward.0" for name in ("block.softmax.Softmax", "block.Attention", "next.Block"))


def run(y, outer):
    return {INNER: {"in": [X], "out": [y]}, outer: {"in": [X], "out": [y + y]}}


def roots(tmp_path, outer=OUTER, **options):
    target, golden = write_run(tmp_path / "t", run(WRONG, outer)), write_run(tmp_path / "g", run(RIGHT, outer))
    return [(root.pair.operator.name, root.cause.value) for root in npucmp.compare(target, golden, **options).roots]


def test_the_module_passes_it_on(tmp_path):
    assert roots(tmp_path) == [(INNER, "BORN"), (OUTER, "PROPAGATED")]


def test_another_module_does_not(tmp_path):
    assert roots(tmp_path, OTHER) == [(INNER, "BORN"), (OTHER, "BORN")]


def test_without_the_rule_it_is_blamed_too(tmp_path):
    assert roots(tmp_path, skip_rules=["container"]) == [(INNER, "BORN"), (OUTER, "BORN")]
