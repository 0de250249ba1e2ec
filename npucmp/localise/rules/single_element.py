"""One or two elements of a tensor differ by more than rounding moves an element, and all others hold the same bits.

The norm of a large tensor hides a single wrong element: one flipped bit of a float32 among a million values leaves
rel_l2 below the limit. Rounding changes many elements a little, or a few of them by a step of their type. A flipped
choice and a sum that cancels also change single elements, but both need an incoming error. A parameter is not a result:
rounding changes none of its elements, unless an earlier step updated it.

The tensor has 64 elements or more, no input differs, and the elements are off by more than the limit times the largest
value. For a parameter that no earlier step updated, 8 u of the element itself suffice. Zeros of another sign count as
equal.
"""

from __future__ import annotations

from npucmp.judge.tolerance import FACTOR
from npucmp.localise.rule_context import MIN_ELEMENTS, ErrorRule, RuleContext
from npucmp.model import Finding, Verdict

ELEMENTS = 2  # elements: chosen: rounding changes more, not measured


def _accuses(case: RuleContext) -> bool:
    moments, finding = case.moments, case.finding
    if moments is None or moments.compared < MIN_ELEMENTS or not case.is_measured or finding.metric != "rel_l2":
        return False
    if moments.differing > ELEMENTS or case.is_choice or not finding.limit:
        return False
    if case.is_parameter:
        return not case.inherited and moments.max_rel > FACTOR * case.round_off
    return not (case.input_error or case.cancels) and moments.max_abs > finding.limit * case.scale.largest


def _evaluate(case: RuleContext) -> Finding:
    moments = case.moments
    assert moments is not None
    differing = moments.differing
    others = "bits" if differing == moments.elements - moments.equal else "values"
    words = f"{differing} of {moments.elements} elements {'differs' if differing == 1 else 'differ'}, by up to "
    words += f"{moments.max_abs:.2e} ({moments.max_rel:.1e} of the golden value); all others have the same {others}"
    return case.finding._replace(verdict=Verdict.DIVERGED, because=words)


RULE = ErrorRule(
    "accusation",
    "single_element",
    f"at most {ELEMENTS} elements differ, by more than rounding explains, and all others match bit for bit",
    applies=_accuses,
    judged=_evaluate,
)
