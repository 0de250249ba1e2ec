"""A parameter of a later step holds what the steps before made of it: the noise of its gradient, handed on.

Evidence: parameters of later steps of silent clean pairs of the corpus (open seeds); the formulas are in
localise/updates.py. A parameter whose gradient is noise alone (a key's bias, a bias before a normalisation) wanders,
and means nothing.
"""

from __future__ import annotations

from npucmp.localise.case import Rule

RULE = Rule(
    "explanation",
    "inherited",
    "an update makes of a gradient's error e up to a tenth of √e of its parameter, and of noise anything",
    applies=lambda case: case.node is None and case.inherited > 0,
    bound=lambda case: case.inherited,
)
