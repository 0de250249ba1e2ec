"""A tensor that is a choice itself, a mask or an index: an error e of what it was chosen by changes a share of √e.

Near ties flip; with larger errors than rounding to 11 bits makes, those of 16-bit types, any choice may. Where the
operator wrote what it chose as well, as top-k does, and these values agree, whatever fell otherwise was a tie, up to
half of it. Two elements are nothing to speak of.
Evidence: without it, nine pairs of the corpus sample with top-k routing are wrong.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules.reduced import REDUCED

# of choices that may flip, in √e: chosen: not measured; without the rule nine pairs of the sample with top-k routing
# are wrong
SHARE = 8.0
TIES = 0.5  # share of the places: chosen: more of them are wrong places of the right values, not measured


def _changed(case: RuleContext) -> float:
    """Share of elements that differ, two being nothing to speak of."""
    moments = case.moments
    if moments is None or moments.mismatched or not moments.elements:
        return math.inf
    return max(0, moments.differing - 2) / moments.elements


def _were_ties(case: RuleContext) -> bool:
    """Whether what was chosen agrees, though the places it was chosen at do not."""
    outputs = case.node.outputs if case.node is not None else ()
    return any(one.error is not None and one.limit > 0 and one.error <= one.limit for one in outputs)


def _bound(case: RuleContext) -> float:
    share = _changed(case)
    flips = math.isfinite(share) and (case.before > REDUCED or (share <= TIES and _were_ties(case)))
    return math.inf if flips or share <= SHARE * math.sqrt(case.before) else 0.0


RULE = ErrorRule(
    "explanation",
    "choice",
    f"an error e of what a mask or an index was chosen by changes up to {SHARE:g} √e of its elements",
    applies=lambda case: case.before > 0 and case.is_choice,
    bound=_bound,
)
