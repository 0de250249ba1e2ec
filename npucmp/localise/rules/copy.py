"""An operator that only hands on what it reads wrote something else, however little.

A copy changes no bit; the room of 1 % is for its error, which is summed in another order.
"""

from __future__ import annotations

from npucmp.flow.contents import content_of
from npucmp.localise.case import Case, Rule

COPIED = 1.01  # growth of error: chosen: sums of a copy are taken in another order, not measured


def _accuses(case: Case) -> bool:
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
    return is_copy and case.error > COPIED * case.before


RULE = Rule(
    "accusation",
    "copy",
    f"the golden values are handed on unchanged, the target's have more than {COPIED:g} times the error of its input",
    applies=_accuses,
)
