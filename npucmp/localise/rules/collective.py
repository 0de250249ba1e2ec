"""A collective or a receive propagates any error that descends from a root on another rank.

Evidence: an all-reduce whose own inputs agree adds the inputs of other ranks, which may be much larger than its own; a
receive reads no tensor of its own rank. localise/root_order.py gives the operator the tensors that arrive.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule

RULE = ErrorRule(
    "explanation",
    "collective",
    "a collective or receive propagates the errors of other ranks",
    applies=lambda case: case.node is not None and case.node.error_from_other_rank,
    bound=lambda case: math.inf,
)
