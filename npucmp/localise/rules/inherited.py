"""A parameter of a later step contains the result of earlier updates: the noise of its gradient, propagated.

Evidence: parameters of later steps of silent clean pairs of the corpus (open seeds); the formulas are in
localise/parameter_drift.py. A parameter whose gradient is pure noise (a key's bias, a bias before a normalisation)
drifts by as much as the golden's own step.
"""

from __future__ import annotations

from npucmp.localise.parameter_drift import GREW, REACH, UPDATE
from npucmp.localise.rule_context import ErrorRule

RULE = ErrorRule(
    "explanation",
    "inherited",
    f"a parameter error is at most {GREW:g} times that of the previous step plus {UPDATE:g} √e for a gradient error e; "
    f"if the gradient is noise, plus {REACH:g} steps of the optimizer",
    applies=lambda case: case.node is None and case.inherited > 0,
    bound=lambda case: case.inherited,
)
