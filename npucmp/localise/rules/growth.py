"""An operator may turn an error e into 8 e.

Evidence: of clean operators whose inputs differ, 99.9 % grow the error by less than 4; residual sums that cancel and
what condition.py knows aside, none by more than 8.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

GROWTH = 8.0

RULE = Rule(
    "explanation",
    "growth",
    f"operators of clean runs make at most {GROWTH:g} times the error that they read",
    applies=lambda case: not case.is_choice or not case.before,
    bound=lambda case: GROWTH * case.before,
)
