"""An operator may turn an error e into 8 e; into 3 e and its limit if all inputs agree or the run is quantised.

Evidence: in silent clean pairs of the corpus (open seeds) 99.9 % of 5,497 outputs have less than 2.1 times the incoming
error, none 2.4, if that error exceeds one round-off; sums that cancel and the operators of conditioning.py are
excluded. Smaller errors grow by the operator's own rounding, by up to 9 times. Inputs that agree explain no more than
that: in coarse types (bfloat16, 8 bits) 8 times the limit would hide any fault. Steps of 8 bits are rounded anew in
each operator and do not grow.

The growth of an error, not its size, shows where it is born. e is the largest error of the inputs and parameters; for a
backward operator also of the tensors of its forward. If these were not compared, e is at least 2 u in float32, u in 16
bits, and the usual error so far. An operand of a sum counts by its share of the sum. The gradient of a product depends
neither on its bias nor on the product; the gradient of an operand does not depend on that operand. In later steps e is
at least the error that earlier steps may have made in parameters that were not recorded or whose statistics agree.
"""

from __future__ import annotations

from npucmp.localise.rule_context import CARRIED, ErrorRule, RuleContext

# growth of error: evidence: 2.4 was not seen in 5,497 outputs of clean pairs; smaller errors grow by rounding, up to 9
# times
GROWTH = 8.0


def _bound(case: RuleContext) -> float:
    grown = GROWTH * case.input_error
    return min(grown, CARRIED * case.input_error + case.finding.limit) if case.carries_little else grown


RULE = ErrorRule(
    "explanation",
    "growth",
    f"up to {GROWTH:g} times the incoming error, {CARRIED:g} times and the limit if all inputs agree or the run is "
    "quantised; none of 5,497 outputs of clean runs reached 2.4 times",
    applies=lambda case: not case.is_choice or not case.input_error,
    bound=_bound,
)
