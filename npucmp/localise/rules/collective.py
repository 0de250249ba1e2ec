"""What communicates hands on any error that descends from a root on another rank.

Evidence: an all-reduce whose own inputs agree sums what another rank put in, however large that is beside its own; a
receive reads nothing here. localise/multi_rank.py tells the operator what arrives.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule

RULE = ErrorRule(
    "explanation",
    "collective",
    "a collective or receive hands on what other ranks put in",
    applies=lambda case: case.node is not None and case.node.carried,
    bound=lambda case: math.inf,
)
