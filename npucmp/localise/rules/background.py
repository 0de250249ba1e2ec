"""What came in is not known: what was seen so far stands for it.

That is the 95 % quantile of the errors that descend from no root, or the largest just before (seen_errors.py); what
is left of sums that cancel stands for single numbers alone. Evidence: without it every uncaptured function of a clean
bfloat16 run is a GAP.
"""

from __future__ import annotations

from npucmp.localise.case import Rule
from npucmp.localise.seen_errors import QUANTILE

RULE = Rule(
    "fact",
    "background",
    f"an input of unknown origin has the error that {100 * QUANTILE:g} % of what was seen do not exceed, or the "
    "largest just before",
    applies=lambda case: True,
)
