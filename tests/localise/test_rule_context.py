"""The facts about a tensor that rules read: sizes, terms of sums, choices, factors and errors."""

import numpy as np

from npucmp.localise import rule_context
from tests.localise.rules.craft import case

X = np.random.default_rng(2).standard_normal((8, 8))


def test_a_finding_is_marked_for_its_size_or_another_reason():
    one = case("tanh", [], (1.25 * X, X))
    found = rule_context.mark_diverged(one.finding)
    assert found.verdict.value == "diverged" and found.because == "rel_l2 2.50e-01, more than rounding explains"
    unknown = rule_context.mark_diverged(one.finding._replace(error=None))
    assert unknown.because == "rel_l2 is at least 0.00e+00, more than rounding explains"
    assert rule_context.mark_diverged(one.finding, "why", limit=0.5)[1:3] == (found.verdict, "why")
