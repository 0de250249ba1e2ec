"""A layer norm writes rounding where the rows that it reads are constant up to rounding.

measure/constant_rows.py reads such rows again and compares each with the rounding that it may contain. The error of the
other rows still needs an explanation.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules.growth import GROWTH

NAME = "constant_rows"


def _bound(case: RuleContext) -> float:
    settled = case.finding.measurement.settled
    return math.inf if settled is not None and settled <= max(case.finding.limit, GROWTH * case.input_error) else 0.0


RULE = ErrorRule(
    "explanation",
    NAME,
    "if input rows are constant up to rounding, a layer norm outputs only rounding there; the other rows agree",
    applies=lambda case: case.finding.measurement.settled is not None and case.node is not None,
    bound=_bound,
)
