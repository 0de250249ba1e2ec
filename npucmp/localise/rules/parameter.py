"""A parameter differs by more than its own type and the other parameters tell.

A parameter is stored, not computed: at the first step of a run it owes nothing to the working precision, and in later
ones no more than the others. Evidence: at later steps of clean pairs of the corpus nine of ten parameters
differ by less than 3.3 times their median.
"""

from __future__ import annotations

import math

from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import Case, Rule

AMONG = 8.0  # times the median error of the parameters


def _accuses(case: Case) -> bool:
    if case.node is not None or not case.is_parameter or case.finding.error is None or not math.isfinite(case.error):
        return False
    return case.error > max(FACTOR * case.own_round_off, AMONG * case.usual)


RULE = Rule(
    "accusation",
    "parameter",
    f"a parameter differs by more than 8 round-offs of its own type and {AMONG:g} times what others differ by",
    applies=_accuses,
)
