"""An in-place operator whose recorded input is its output shows nothing about the tensor that it read.

The same holds for the buffer that an operator writes to if no dumped operator wrote it: memory that was not cleared
holds any values. A later consumer reads the values at that time. The source of a copy is not overwritten.

Checksums are taken of live tensors while the run goes on (seen with mindstudio-probe 26.2): checksums of a tensor that
an operator overwrites differ between two identical runs.

Such an input has the error of the latest output of its shape. Checksums of overwritten tensors (running statistics,
operands of `add_`) are `unknown`.
"""

from __future__ import annotations

from npucmp.flow.contents import content_of, is_few, is_vector
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model.roles import running_statistics


def _applies(case: RuleContext) -> bool:
    node, finding = case.node, case.finding
    if node is None:
        return False
    if node.is_gradient:  # running statistics: the forward has updated them, and no gradient depends on them
        return node.op.has("averages") and case.no_producer and is_vector(finding) and not is_few(finding)
    if finding.metric == "checksum":
        in_place = node.op.has("in place") and finding.pair.slot == "input:0"
        return in_place or finding.pair.slot in running_statistics(node.operator)
    if not node.op.has("in place"):
        return False
    if case.no_producer and node.writes_to(finding):
        return True
    if node.op.has("overwrites", "copies") and not node.writes_to(finding):
        return False  # the values that are copied
    content = content_of(finding)
    return content != 0 and any(content_of(other) == content for other in node.outputs)


RULE = ErrorRule(
    "fact",
    "overwritten",
    "an input that an in-place operator overwrites is recorded afterwards and does not show the values that were read",
    applies=_applies,
)
