"""How much an operator may enlarge the error it reads: condition numbers, estimated from the golden's Moments.

exp of 20 turns a relative error e of its input into 20 e, a difference of near-equals into anything. Both are
properties of the operator and its values, not faults; the formulas are those of forward error analysis
(Higham, Accuracy and Stability of Numerical Algorithms, §1.6), with norms in place of elements.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple, Optional

from npucmp.localise.nodes import Node
from npucmp.model import Finding

SUMS = re.compile(r"^(i?add|i?sub|rsub|sum|mean|cumsum|lerp)_*$")
EXPONENTIALS = re.compile(r"^(exp|expm1|exp2|sigmoid|softmax|log_softmax|logsumexp|cosh|sinh|silu|softplus)$")
BOUNDED_SLOPE = re.compile(r"^(sin|cos|remainder|fmod|frac|mod)$")
NORMS = re.compile(r"^(layer_?norm|batch_?norm[123]?d?|group_?norm|instance_?norm[123]?d?|std|var|var_mean)$")
LOGARITHMS = re.compile(r"^(log|log2|log10|log1p)$")
QUOTIENTS = re.compile(r"^(reciprocal|i?div|i?truediv|rdiv|rtruediv|rsqrt)$")


class Scale(NamedTuple):
    """The golden side of a tensor: root mean square, standard deviation, largest magnitude, elements."""

    rms: float = 0.0
    deviation: float = 0.0
    largest: float = 0.0
    elements: int = 0


def scale_of(finding: Finding) -> Scale:
    """Of values or recorded statistics; masks do not count. All zero where nothing is known."""
    golden, moments = finding.pair.golden, finding.measurement.moments
    count = math.prod(golden.shape) if golden is not None else 0
    if golden is None or not count:
        return Scale()
    if moments is not None:
        side, compared = moments.golden, max(1, moments.compared)
        rms = math.sqrt(moments.yy / compared) if moments.masked else math.sqrt(side.squares / count)
        mean = 0.0 if moments.masked else side.total / count
        largest = abs(side.maximum) if moments.masked else max(abs(side.minimum), abs(side.maximum))
        largest = max(largest, rms) if largest == largest else rms
        return Scale(rms, math.sqrt(max(0.0, rms * rms - mean * mean)), largest, count)
    recorded = golden.statistics
    if recorded is None or recorded.norm is None:
        return Scale()
    rms = recorded.norm / math.sqrt(count)
    largest = max(abs(recorded.max or 0.0), abs(recorded.min or 0.0), rms)
    return Scale(rms, math.sqrt(max(0.0, rms * rms - (recorded.mean or 0.0) ** 2)), largest, count)


def terms(node: Node, finding: Finding) -> float:
    """Size (rms) of the terms that an output was summed from; 0 where its operator is no plain sum.

    The gradient of a bias that softmax makes irrelevant is zero in exact arithmetic: both runs hold rounding noise
    there, and rel_l2 says 1 or more. The error is then to be seen against the terms, not against their sum.
    """
    reads = [scale for scale in map(scale_of, node.inputs) if scale.elements]
    count = scale_of(finding).elements
    if not reads or not count:
        return 0.0
    if node.operator.phase == "backward":  # of a broadcast operand: summed over what it was broadcast over
        most = max(reads, key=lambda read: read.elements)
        return most.rms * math.sqrt(most.elements / count) if count < most.elements else 0.0
    return max(read.rms for read in reads) if SUMS.search(_plain(node)) else 0.0


def amplification(node: Node) -> float:
    """By how much the operator may multiply a relative error of its input; 1 for what is well-conditioned."""
    x, y = _operand(node), _result(node)
    if x is None or y is None or not x.rms or not y.rms:
        return 1.0
    name, value = _plain(node), 1.0
    if EXPONENTIALS.search(name):
        value = x.largest
    elif BOUNDED_SLOPE.search(name):
        value = x.rms / y.rms
    elif NORMS.search(name):
        value = x.rms / x.deviation if x.deviation else 1.0
        value *= 2.0 if name.startswith("var") else 1.0
    elif LOGARITHMS.search(name):
        value = 1.0 / y.rms
    elif QUOTIENTS.search(name):
        value = x.rms * y.largest if name == "reciprocal" else y.largest / y.rms
    elif name == "tan":
        value = x.largest * (1.0 + y.largest**2) / y.rms
    elif name in ("pow", "ipow", "rpow"):
        value = max((abs(float(v)) for v in node.operator.arguments.values() if type(v) in (int, float)), default=1.0)
    return max(1.0, value) if math.isfinite(value) else 1.0


def _plain(node: Node) -> str:
    return node.operator.op_type.strip("_").lower()


def _operand(node: Node) -> Optional[Scale]:
    """What the operator works on: its first floating input, of the forward if it is a backward."""
    source = node.context if node.operator.phase == "backward" else node.inputs
    scales = [scale_of(finding) for finding in source if finding.pair.slot.startswith("input")]
    return next((scale for scale in scales if scale.elements), None)


def _result(node: Node) -> Optional[Scale]:
    source = node.context if node.operator.phase == "backward" else node.outputs
    scales = [scale_of(finding) for finding in source if finding.pair.slot.startswith("output")]
    return next((scale for scale in scales if scale.elements), None)
