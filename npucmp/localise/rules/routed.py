"""Rows that a choice selected: if a near tie flipped, the tensor holds other rows, and another number of them.

Examples are tokens routed to another expert and boxes that pass a threshold. If the shape differs along one axis, no
rows can be compared until they are scattered back to their origin; such tensors are unknown, not wrong. If a share s of
the choices flipped and the number of rows is equal, that share of the rows differs: rel_l2 is √(2 s).

An operator that reads rows at given indices, or chooses by a mask, returns other values where these differ, as large as
the table has them; a fill by a mask has any size. If no more elements of its output differ than the share s of indices
allows, it read the given rows.

The bound is 4 √s, and none if at most a share 2 s of the elements differs. Inputs of unknown origin have it too.
"""

from __future__ import annotations

import math

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.localise.rules.choice import SHARE
from npucmp.localise.rules.reduced import REDUCED_ROUND_OFF
from npucmp.model import Finding, Verdict

PLACES = 2.0  # in s: definition: an element that is written elsewhere leaves one place and takes another
ROWS = 4.0  # in √s: definition: √2 for a share s of other rows, with room for rows of unequal size


def _applies(case: RuleContext) -> bool:
    if case.finding.verdict is Verdict.SHAPE:
        return _is_routed(case)
    if case.told_share > 0:
        return not case.is_parameter
    picks = (case.node.op.has("picks") and not case.chose_alike) if case.node is not None else True
    return case.changed_choice_share > 0 and picks and not case.is_parameter


def _is_routed(case: RuleContext) -> bool:
    """Whether shapes differ along one axis, and a flipped choice may be the reason."""
    share = share_of_rows(case.finding)
    return share > 0 and (
        case.changed_choice_share > 0
        or (case.input_error > REDUCED_ROUND_OFF and share <= SHARE * math.sqrt(case.input_error))
    )


def _bound(case: RuleContext) -> float:
    if case.finding.verdict is Verdict.SHAPE:
        return math.inf
    told = case.told_share
    if told and case.node is not None and case.node.op.has("masks") and not case.node.op.has("picks"):
        return math.inf
    if 0 < case.share_changed <= PLACES * told:
        return math.inf
    return ROWS * math.sqrt(max(case.changed_choice_share, told))


def share_of_rows(finding: Finding) -> float:
    """The share of additional rows on one side, along the one axis in which shapes differ; 0 if shapes do not differ
    so."""
    target, golden = finding.pair.target, finding.pair.golden
    if target is None or golden is None or len(target.shape) != len(golden.shape):
        return 0.0
    axes = [(a, b) for a, b in zip(target.shape, golden.shape) if a != b]
    return abs(axes[0][0] - axes[0][1]) / max(axes[0]) if len(axes) == 1 else 0.0


RULE = ErrorRule(
    "explanation",
    "routed",
    f"a share s of the selections (experts, boxes) differs, so other rows were taken: rel_l2 up to {ROWS:g} √s",
    applies=_applies,
    bound=_bound,
)
