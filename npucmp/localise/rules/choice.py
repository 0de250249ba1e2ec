"""A tensor that is itself a choice, a mask or an index: an error e of the values that it compares changes a share √e.

Near ties flip. If the error exceeds rounding to 11 bits, as errors of 16-bit types do, any choice may flip. If the
operator also wrote the chosen values, as top-k does, and these agree, then all changed places were ties, up to half of
the places. Two changed elements are not counted, but for a short tensor that no recorded operator wrote, as labels are.
Evidence: without the rule, nine pairs of the corpus sample with top-k routing are wrong.

The mask of a dropout depends on no input. Random numbers flip with their probabilities, by a share 8 √e at most.

A share of 8 √e of the elements may differ, and any share if e exceeds 2^-11.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules.reduced import REDUCED_ROUND_OFF
from npucmp.model.arguments import draws_numbers

# of choices that may flip, in √e: chosen: not measured; without the rule nine pairs of the sample with top-k routing
# are wrong
SHARE = 8.0
MANY = 64  # elements: chosen: two of them are a small share
TIES = 0.5  # share of the places: chosen: if more places differ, right values are in wrong places, not measured


def _share_changed(case: RuleContext) -> float:
    """The share of elements that differ, without the first two of a tensor that an operator wrote, or of many."""
    moments = case.moments
    if moments is None or moments.mismatched or not moments.elements:
        return math.inf
    is_given = case.no_producer and moments.elements < MANY  # labels: one of seven is no near tie
    return max(0, moments.differing - (0 if is_given else 2)) / moments.elements


def _were_ties(case: RuleContext) -> bool:
    """Whether the chosen values agree although the chosen places differ."""
    outputs = case.node.outputs if case.node is not None else ()
    return any(one.error is not None and one.limit > 0 and one.error <= one.limit for one in outputs)


def _bound(case: RuleContext) -> float:
    share = _share_changed(case)
    flips = (
        math.isfinite(share)
        and not (case.node and draws_numbers(case.node.operator))
        and (case.input_error > REDUCED_ROUND_OFF or (share <= TIES and _were_ties(case)))
    )
    return math.inf if flips or share <= SHARE * math.sqrt(case.input_error) else 0.0


RULE = ErrorRule(
    "explanation",
    "choice",
    f"masks and indices: if the compared values have the error e, up to {SHARE:g} √e of the elements may change",
    applies=lambda case: case.input_error > 0 and case.is_choice and not (case.node and case.node.op.has("drops")),
    bound=_bound,
)
