"""A module bears no error of its own when an operator inside it has it.

Evidence: in a dump of level mix each fault would be named once per module around it.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

RULE = Rule(
    "fact",
    "container",
    "a module has the error of the operator inside it",
    applies=lambda case: True,
)
