"""A parameter of one 16-bit type on both sides is off by more than rounding it once on each side makes it.

No operator computed a parameter of the first step: both runs received the same numbers, and each rounded them once to
the type of the parameter. So 8 round-offs, the limit of computed tensors, do not apply here. Rule `inherited` judges a
parameter that earlier steps have updated. Evidence: all weights × 0.986 in bfloat16 lie within 8 round-offs; rounding
to the nearest on one side and toward zero on the other makes 1.2 at most.
"""

from __future__ import annotations

from npucmp.judge.precision import BOTH_SIDES, SINGLE
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model import Finding, Verdict


def _accuses(case: RuleContext) -> bool:
    target, golden = case.pair.target, case.pair.golden
    if case.node is not None or not case.is_parameter or case.inherited or target is None or golden is None:
        return False
    return target.dtype == golden.dtype and case.own_round_off > SINGLE and case.error > BOTH_SIDES * case.own_round_off


def _evaluate(case: RuleContext) -> Finding:
    words = (
        f"rel_l2 {case.error:.2e}, more than one rounding on each side explains: {BOTH_SIDES * case.own_round_off:.2e}"
    )
    return case.finding._replace(verdict=Verdict.DIVERGED, because=words, limit=BOTH_SIDES * case.own_round_off)


RULE = ErrorRule(
    "accusation",
    "given",
    "a parameter in its initial state, in the same 16-bit type in both runs, differs by more than rounding it once on "
    f"each side ({BOTH_SIDES:g} round-offs): the runs started from different weights",
    applies=_accuses,
    judged=_evaluate,
)
