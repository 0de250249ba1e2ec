"""What came in is not known: the 95 % quantile of the errors seen so far stands for it.

Evidence: without it every uncaptured function of a clean bfloat16 run is a GAP.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

QUANTILE = 0.95

RULE = Rule(
    "fact",
    "background",
    "an input of unknown origin has the error that 95 % of what was seen before it do not exceed",
    applies=lambda case: True,
)
