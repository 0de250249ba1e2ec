"""A few elements are off by as much as the largest value, while the other elements are as good as the inputs: a lost
tile.

A lost row or tile among thousands hardly shows in rel_l2; rounding never moves one element that far. Evidence: in 99.9
% of 7,088 outputs of silent clean pairs of the corpus the largest error is below 29 times the round-off, or the
incoming error, of the largest value; choices and sums that cancel are excluded. If an element of an input is off by as
large a share of the largest value, as behind a mask that flipped, the operator lost no element.

An element must be off by a quarter of the largest value, and by more than 32 max(u, κ e) of it, with the condition
number κ. The rule does not apply where masks flip or terms cancel.
"""

from __future__ import annotations

from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import AVERAGED_ELEMENTS as FEWEST
from npucmp.localise.rule_context import OUTLIER_FACTOR, ErrorRule, RuleContext

LOST_SHARE = 0.25  # of the largest value: chosen: an element that is off by more is lost, not measured
# times the error that came in, in units of the largest value: evidence: below 29 in 99.9 % of 7,088 outputs of clean
# pairs
LOST_GAIN = 32.0


def _accuses(case: RuleContext) -> bool:
    moments = case.moments
    if case.node is None or moments is None or not moments.yy or case.finding.error is None:
        return False
    if case.finding.metric != "rel_l2" or moments.compared < FEWEST or case.is_choice or case.is_non_smooth:
        return False
    if case.told_share or (case.changed_choice_share and (case.node.op.has("picks") or case.is_composed)):
        return False
    if moments.max_abs <= LOST_SHARE * case.scale.largest:
        return False
    if case.cancels:
        return False
    share = LOST_GAIN * max(case.own_round_off, case.input_error * case.amplification)
    share = max(share, OUTLIER_FACTOR * case.amplification * _input_error(case))
    return moments.max_abs > share * case.scale.largest


def _input_error(case: RuleContext) -> float:
    """The largest error of an input element, as a share of the largest value there; only of inputs with as many
    elements as the output."""
    shares = []
    for one in case.node.inputs if case.node is not None else ():
        moments, scale = one.measurement.moments, scale_of(one)
        if moments is not None and scale.largest and scale.elements == case.scale.elements:
            shares.append(moments.max_abs / scale.largest)
    return max(shares, default=0.0)


RULE = ErrorRule(
    "accusation",
    "lost_tile",
    f"single elements differ by {LOST_SHARE:.0%} of the largest value; the others have no larger error than the inputs",
    applies=_accuses,
)
