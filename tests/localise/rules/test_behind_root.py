"""Behind a root, inputs below their limit may carry as much as the limit."""

from __future__ import annotations

import numpy as np

import npucmp
from tests.localise.rules.craft import drawn
from tests.synthetic import write_run

normal, noisy = drawn(__name__)
X = [normal(32, 32).astype(np.float16) for _ in range(5)]


def run(off):
    """A chain of operators: what one writes the next one reads."""
    x = [noisy(x.astype(float), error).astype(np.float16) if error else x for x, error in zip(X, off)]
    return {f"Functional.linear.{n}.forward": {"in": [x[n]], "out": [x[n + 1]]} for n in range(4)}


def roots(tmp_path, off, **options):
    target, golden = write_run(tmp_path / "target", run(off)), write_run(tmp_path / "golden", run([0] * 5))
    return [root.cause.value for root in npucmp.compare(target, golden, **options).roots]


SHRUNK = (0, 0.2, 1e-3, 0.02, 0.02)  # born at once, below the limit of 3.9e-3 behind the second, seen again behind it


def test_what_comes_back_is_not_born_anew(tmp_path):
    assert roots(tmp_path, SHRUNK) == ["BORN"]


def test_without_the_rule_it_is(tmp_path):
    assert roots(tmp_path, SHRUNK, skip_rules=["behind_root"]) == ["BORN", "BORN", "PROPAGATED"]


def test_far_more_is_worsened(tmp_path):
    assert len([cause for cause in roots(tmp_path, (0, 0.2, 1e-3, 0.5, 0.5)) if cause != "PROPAGATED"]) == 2
