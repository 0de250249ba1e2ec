"""An operator may turn an error e into 8 e.

Evidence: in silent clean pairs of the corpus (open seeds) 99.9 % of 5,497 outputs have less than 2.1 times the incoming
error, none 2.4, if that error exceeds one round-off; sums that cancel and the operators of conditioning.py are
excluded. Smaller errors grow by the operator's own rounding, by up to 9 times.
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule

# growth of error: evidence: 2.4 was not seen in 5,497 outputs of clean pairs; smaller errors grow by rounding, up to 9
# times
GROWTH = 8.0

RULE = ErrorRule(
    "explanation",
    "growth",
    f"up to {GROWTH:g} times the incoming error; none of 5,497 outputs of clean runs reached 2.4 times",
    applies=lambda case: not case.is_choice or not case.before,
    bound=lambda case: GROWTH * case.before,
)
