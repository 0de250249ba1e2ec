"""What communicates bears the error only if its inputs agree on every rank of the step.

Evidence: an all-reduce whose own inputs agree sums what another rank put in.
"""

from __future__ import annotations

from npucmp.localise.case import Rule
from npucmp.model.optypes import op_type_of

RULE = Rule(
    "fact",
    "collective",
    "a collective hands on what any rank put in",
    applies=lambda case: op_type_of(case.pair.operator).has("collective"),
)
