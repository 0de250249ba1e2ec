"""The facts about a tensor that rules read: sizes, terms of sums, choices, factors and errors."""

import numpy as np

from npucmp.localise import rule_context
from tests.localise.rules.craft import case

X = np.random.default_rng(2).standard_normal((8, 8))


def test_a_rule_without_a_bound_bounds_nothing_and_marks_the_finding():
    rule = rule_context.ErrorRule("fact", "own", "why", lambda case: True)
    one = case("tanh", [], (1.25 * X, X))
    assert rule.bound(one) == 0.0 and rule.judged(one) == rule_context.mark_diverged(one.finding)
