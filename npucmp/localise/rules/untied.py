"""Two operators share a parameter in the golden, and no longer do in the target, which updated two tensors.

An embedding and the head that is tied to it read one tensor. A tie that breaks changes both tensors by the step of an
optimizer, which is within the error that the noise of a gradient may make, so that rule `inherited` explains it. Equal
contents prove a tie: noise moves a shared tensor for all its readers. The target must have shared the tensor in the
step before, so that copies of another type, or on another rank, are no broken tie. The first reader whose tensor
exceeds its limit is reported.
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model import Finding, Verdict


def _accuses(case: RuleContext) -> bool:
    return case.node is None and bool(case.untied) and case.error > case.finding.limit


def _evaluate(case: RuleContext) -> Finding:
    words = f"{case.untied} shares this parameter in the golden, and did in the target in the step before: a broken tie"
    return case.finding._replace(verdict=Verdict.DIVERGED, because=words)


RULE = ErrorRule(
    "accusation",
    "untied",
    "two operators share a parameter in the golden, and in the target they did in the step before and no longer do: "
    "the tie is broken",
    applies=_accuses,
    judged=_evaluate,
)
