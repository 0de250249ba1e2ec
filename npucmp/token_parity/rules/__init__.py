"""Facts of the records, without a fit, in this order: numbers of another kind, values, masks, ids, places.

A rule is a module of this package with
    find(pair) -> a finding, or None if the rule does not hold
    without(pair, finding) -> the pair without what the finding explains, and words for it
The rest is judged by itself, so that a second cause is not hidden behind the first. `sum_mean` leaves none.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Optional

from npucmp.model.parity_result import ParityFinding
from npucmp.token_parity.token_pair import TokenPair

RULES = ("sum_mean", "nan", "tokens", "shift", "padding", "mask")


def first_fact(pair: TokenPair) -> Optional[tuple[ParityFinding, ModuleType]]:
    """Return the finding of the first rule that holds, and its rule."""
    for name in RULES:
        rule = import_module(f"{__name__}.{name}")
        found = rule.find(pair)
        if found is not None:
            return found, rule
    return None
