"""The factor by which an operator may enlarge the error it reads: condition numbers, estimated from the golden's
Moments.

exp of 20 turns a relative error e of its input into 20 e; a difference of near-equal numbers enlarges it without limit.
Both are properties of the operator and its values, not faults; the formulas are those of forward error analysis
(Higham, Accuracy and Stability of Numerical Algorithms, §1.6), with norms in place of elements.

Examples of the condition number: max |x| for exp, rms(x) / std(x) for a norm, rms(x) / rms(y) for silu, sigmoid and
softplus, whose slope is bounded.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from npucmp.flow.operators import OperatorFindings
from npucmp.flow.row_cache import of_row
from npucmp.model import Finding
from npucmp.model.dtypes import MOST, SINGLE

CONDITIONED = {"exponential", "bounded slope", "norm", "logarithm", "quotient", "reciprocal", "tangent", "power"}


class Scale(NamedTuple):
    """The golden side of a tensor: root mean square, standard deviation, largest magnitude, elements."""

    rms: float = 0.0
    deviation: float = 0.0
    largest: float = 0.0
    elements: int = 0


@of_row
def scale_of(finding: Finding) -> Scale:
    """The Scale from values or recorded statistics, without masks; all zero if nothing is known."""
    measurement = finding.measurement
    golden, moments = measurement.pair.golden, measurement.moments
    elements = math.prod(golden.shape) if golden is not None else 0
    if golden is None or not 0 < elements < MOST:
        return Scale()
    count = float(elements)
    if moments is not None:
        side, compared = moments.golden, max(1, moments.compared)
        rms = math.sqrt(moments.yy / compared) if moments.masked else math.sqrt(side.squares / count)
        mean = 0.0 if moments.masked else side.total / count
        largest = abs(side.maximum) if moments.masked else max(abs(side.minimum), abs(side.maximum))
        largest = max(largest, rms) if largest == largest else rms
        return Scale(rms, math.sqrt(max(0.0, rms * rms - mean * mean)), largest, int(count))
    recorded = measurement.recorded(1)
    if recorded is None or recorded.norm is None:
        return Scale()
    rms = recorded.norm / math.sqrt(count)
    largest, mean = max(abs(recorded.max or 0.0), abs(recorded.min or 0.0), rms), recorded.mean or 0.0
    return Scale(rms, math.sqrt(max(0.0, rms * rms - mean * mean)), largest, int(count))


def amplification(node: OperatorFindings) -> float:
    """The factor by which the operator may multiply a relative error of its input; 1 for well-conditioned operators.
    Exponents that would leave no digit of float32 are ignored."""
    if node.op.traits.isdisjoint(CONDITIONED):
        return 1.0
    x, y = _operand(node), _result(node)
    if x is None or y is None or not x.rms or not y.rms:
        return 1.0
    op, value = node.op, 1.0
    if op.has("bounded slope") and not (op.has("exponential") and node.is_gradient):  # gradients of sigmoid saturate
        value = x.rms / y.rms
    elif op.has("exponential"):
        value = x.largest
    elif op.has("norm"):
        value = x.rms / x.deviation if x.deviation else 1.0
        value *= 2.0 if op.has("spread") else 1.0
    elif op.has("logarithm"):
        value = 1.0 / y.rms
    elif op.has("quotient"):
        value = y.largest / y.rms
    elif op.has("reciprocal"):
        value = x.rms * y.largest
    elif op.has("tangent"):
        value = x.largest * (1.0 + y.largest * y.largest) / y.rms
    elif op.has("power"):
        numbers = [one for one in node.operator.arguments.values() if type(one) in (int, float)]
        value = max((abs(float(one)) for one in numbers if abs(one) < 1.0 / SINGLE), default=1.0)
    return max(1.0, value) if math.isfinite(value) else 1.0


def _operand(node: OperatorFindings) -> Optional[Scale]:
    """The operand of the operator: its first floating input, or that of its forward if it is a backward."""
    source = node.context if node.is_gradient else node.inputs
    scales = [scale_of(finding) for finding in source if finding.pair.slot.startswith("input")]
    return next((scale for scale in scales if scale.elements), None)


def _result(node: OperatorFindings) -> Optional[Scale]:
    source = node.context if node.is_gradient else node.outputs
    scales = [scale_of(finding) for finding in source if finding.pair.slot.startswith("output")]
    return next((scale for scale in scales if scale.elements), None)
