"""The classes of a difference, in their order: the first rule that holds decides a step.

A rule is a module of this package with
    find(pair) -> a finding, or None if the rule does not hold
`clean` ends the search without a class. A rule never changes what later rules see: shift, mask and temperature are
findings, not corrections.
"""

from __future__ import annotations

from importlib import import_module
from typing import Callable, Optional

from npucmp.model.parity_result import ParityFinding
from npucmp.token_parity.token_pair import TokenPair

RULES = (
    "sum_mean", "nan", "tokens", "shift", "padding", "mask", "top_p", "clean", "other_context", "router",
    "temperature", "weights",
)  # fmt: skip


def first_finding(pair: TokenPair) -> ParityFinding:
    """Return the finding of the first rule that holds; the last rule always holds."""
    for name in RULES:
        find: Callable[[TokenPair], Optional[ParityFinding]] = import_module(f"{__name__}.{name}").find
        found = find(pair)
        if found is not None:
            return found
    raise AssertionError("the last rule holds for every pair")
