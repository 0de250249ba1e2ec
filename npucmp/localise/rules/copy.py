"""An operator that only forwards its input wrote different values, by any amount.

A copy changes no bit. The tolerance covers the sums of its error, which are taken in another order.
"""

from __future__ import annotations

from npucmp.flow.contents import content_of
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model.dtypes import SUM_ROUNDING


def _accuses(case: RuleContext) -> bool:
    node, finding = case.node, case.finding
    if node is None or not node.op.has("copies") or len(node.inputs) != 1 or finding.error is None:
        return False
    read = node.inputs[0]
    target, golden = finding.pair.target, finding.pair.golden
    if target is None or golden is None or read.pair.target is None or read.pair.golden is None:
        return False
    if finding.metric == "noise" or read.pair.target.dtype != target.dtype:
        return False
    same_file = bool(golden.file) and (read.pair.golden.file, read.pair.golden.shape) == (golden.file, golden.shape)
    is_copy = same_file or 0 != content_of(read) == content_of(finding)
    return is_copy and case.error > (1.0 + SUM_ROUNDING) * case.input_error


RULE = ErrorRule(
    "accusation",
    "copy",
    "the golden copies its input unchanged; the target's output has a larger error than its input",
    applies=_accuses,
)
