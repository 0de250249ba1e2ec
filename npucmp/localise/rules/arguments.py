"""Non-tensor arguments that differ, on an operator whose output has a larger error than its inputs.

An argument rarely differs without a reason, and its effect may be below the limit: eps of a normalisation.

The output must differ by more than twice the error of the inputs and by more than one round-off of its own type.
"""

from __future__ import annotations

from npucmp.localise.rule_context import OUTLIER_FACTOR, ErrorRule, RuleContext
from npucmp.model.arguments import differing_arguments


def _accuses(case: RuleContext) -> bool:
    pair = case.pair
    if case.node is None or pair.target_op is None or pair.golden_op is None or pair.target is None:
        return False
    if case.finding.error is None or not any(True for _ in differing_arguments(pair.target_op, pair.golden_op)):
        return False
    return case.error > max(OUTLIER_FACTOR * case.input_error, case.own_round_off)


RULE = ErrorRule(
    "accusation",
    "arguments",
    f"an argument differs, and the output error is more than {OUTLIER_FACTOR:g} times the input error",
    applies=_accuses,
)
