"""The case of a tensor by itself: no operator and no incoming error are known."""

from dataclasses import replace

import numpy as np

from npucmp.localise.rule_context import RuleContext
from npucmp.localise.rules import Rulebook
from tests.localise.rules.craft import case

X = np.random.default_rng(2).standard_normal((8, 8))


def test_nothing_explains_or_accuses_a_tensor_by_itself():
    """Whatever its error; an error that came in explains eight times as much."""
    rules = Rulebook()
    for error in (1e-7, 1e-3, 0.5):
        alone = RuleContext(case("linear", [], ((1 + error) * X, X)).finding)
        assert rules.explanation(alone) is None and rules.accusation(alone) is None
        came = replace(alone, input_error=error / 4)
        assert rules.explanation(came).rule == "growth"
        assert rules.explanation(replace(alone, input_error=error / 9)) is None
