"""An operand that one side repeats along the axes in which the shapes differ, of an operator whose output agrees.

An attention mask is [s, s] in one implementation and [b, 1, s, s] in another; cosines of positions are [s, d] and [b,
s, d]. Their elements have no partners, so the operand is unknown, not wrong. The output was compared; if it does not
agree, the operand is not excused.

Operands of the same shapes that operators of this type read in other layers are `unknown` too. The golden tensor stays
open in the coverage.
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model import Finding, Verdict
from npucmp.model.roles import is_output, is_parameter


def _applies(case: RuleContext) -> bool:
    node, finding = case.node, case.finding
    if node is None or finding.verdict is not Verdict.SHAPE or is_output(case.pair) or is_parameter(case.pair):
        return False
    if node.is_gradient or node.operator.path or not node.outputs:
        return False
    return all(_agrees(output) and _repeats(finding, output) for output in node.outputs)


def _agrees(output: Finding) -> bool:
    return output.verdict is Verdict.MATCH and output.measurement.moments is not None


def _repeats(finding: Finding, output: Finding) -> bool:
    """Whether both operands broadcast to the output, whose shape is the same on both sides."""
    sides = finding.pair.target, finding.pair.golden, output.pair.target, output.pair.golden
    target, golden, *written = [one.shape for one in sides if one is not None]
    return written == written[:1] * 2 and all(_broadcasts(one, written[0]) for one in (target, golden))


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1]))


RULE = ErrorRule(
    "fact",
    "broadcast",
    "an operand has another shape because one side repeats it along some axes: no difference if the output agrees",
    applies=_applies,
)
