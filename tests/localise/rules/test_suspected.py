"""Where statistics are all there is, the first operator that stands out of the noise before it is suspected."""

from __future__ import annotations

import numpy as np

import npucmp
from tests.localise.rules.craft import drawn
from tests.synthetic import with_statistics, write_run

normal, _ = drawn(__name__)
X = [normal(64, 64).astype(np.float32) for _ in range(7)]
NAMES = [f"Functional.linear.{n}.forward" for n in range(6)]


def run(factor=1.0):
    """Six products; what the fourth writes is off by a factor, within the limit of float32."""
    x = [one * np.float32(factor) if place == 4 else one for place, one in enumerate(X)]
    return {name: {"in": [x[place]], "out": [x[place + 1]]} for place, name in enumerate(NAMES)}


def roots(tmp_path, factor, **options):
    target, golden = write_run(tmp_path / "target", run(factor)), write_run(tmp_path / "golden", run())
    both = with_statistics(target, alone=True), with_statistics(golden, alone=True)
    return [(root.pair.operator.name, root.rule) for root in npucmp.compare(*both, **options).roots]


def test_what_moved_while_nothing_before_did_is_suspected(tmp_path):
    assert roots(tmp_path, 1 + 2e-6) == [(NAMES[3], "suspected")]


def test_without_the_rule_statistics_prove_nothing(tmp_path):
    assert roots(tmp_path, 1 + 2e-6, skip_rules=["suspected"]) == []


def test_what_did_not_move_is_not_suspected(tmp_path):
    assert roots(tmp_path, 1.0) == []
