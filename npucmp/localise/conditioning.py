"""The factor by which an operator may enlarge the error it reads (condition numbers), and the size and number of the
terms of a sum. Both are estimated from the golden's Moments.

exp of 20 turns a relative error e of its input into 20 e; a difference of near-equal numbers enlarges it without limit.
Both cases are properties of the operator and its values, not faults; the formulas are those of forward error analysis
(Higham, Accuracy and Stability of Numerical Algorithms, §1.6), with norms in place of elements.

Examples of the condition number: max |x| for exp, rms(x) / std(x) for a norm, rms(x) / rms(y) for silu, sigmoid and
softplus, whose slope is bounded; ‖x‖ / ‖y‖ for a slice y of x, which may hold all of the error.

The error of a sum that cancels is judged relative to its terms, not to the sum. Example: the gradient of a bias that
softmax makes irrelevant is zero in exact arithmetic: both runs hold rounding noise there, and rel_l2 is 1 or more.
"""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Iterable, NamedTuple, Optional, Sequence

from npucmp.flow.operators import OperatorFindings, of_row
from npucmp.judge.precision import terms_summed
from npucmp.model import Finding
from npucmp.model.dtypes import MOST, SINGLE, random_walk
from npucmp.model.roles import is_parameter

CONDITIONED = {"exponential", "bounded slope", "norm", "logarithm", "quotient", "reciprocal", "tangent", "power",
               "picks"}  # fmt: skip


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
    elements, moments = measurement.pair.elements, measurement.moments
    if not 0 < elements < MOST:
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
    elif op.has("picks"):
        is_slice = op.has("views") and not node.is_gradient and y.elements < x.elements
        value = x.rms / y.rms * math.sqrt(x.elements / y.elements) if is_slice else 1.0
    elif op.has("power"):
        numbers = [one for one in node.operator.arguments.values() if type(one) in (int, float)]
        value = max((abs(float(one)) for one in numbers if abs(one) < 1.0 / SINGLE), default=1.0)
    return max(1.0, value) if math.isfinite(value) else 1.0


def _operand(node: OperatorFindings) -> Optional[Scale]:
    """The operand of the operator: its first floating input, or that of its forward if it is a backward."""
    source = node.extra_inputs if node.is_gradient else node.inputs
    scales = [scale_of(finding) for finding in source if finding.pair.slot.startswith("input")]
    return next((scale for scale in scales if scale.elements), None)


def _result(node: OperatorFindings) -> Optional[Scale]:
    source = node.extra_inputs if node.is_gradient else node.outputs
    scales = [scale_of(finding) for finding in source if finding.pair.slot.startswith("output")]
    return next((scale for scale in scales if scale.elements), None)


# times their sum: chosen: terms of a centred gradient that are so much larger cancel, not measured
CANCELLATION = 4.0
NORM_TERMS = 3.0  # terms of the gradient of a norm: definition: softmax has one less
ELEMENTWISE = ("exponential", "saturates", "rectifies")  # their gradient has the elements of the incoming gradient
PROPAGATING = ("masks", "drops", "copies", "hands on")  # so have these, if they read the output just before
SUMMATION_MOST = 2.0**24  # terms: chosen: a shape with more is more likely wrong, not measured


class Terms(NamedTuple):
    """The size (rms) of one term of each element, and the number of terms; 0 if the output is not a sum."""

    size: float = 0.0
    many: float = 0.0

    @property
    def spread(self) -> float:
        """The size of the sum if the signs of its terms are random."""
        return self.size * math.sqrt(self.many)

    def random_walk_error(self, total: float, unit: float) -> float:
        """Return the rounding (rms) of sums of size `total` that were added one term after the other, for a round-off
        of `unit`."""
        return float(random_walk(total, self.many * self.size * self.size, self.many, unit))


def terms(node: OperatorFindings, finding: Finding) -> Terms:
    """The terms of an operator's output: of a plain sum, of a product, or of a gradient of either."""
    count = scale_of(finding).elements
    if not count or not (node.is_gradient or node.op.has("sums", "sums ranks", "contracts")):
        return Terms()
    arrived = (
        node.extra_inputs if node.has_remote_inputs else ()
    )  # a sum over ranks also reads the inputs of other ranks
    reads = _scales([*(node.inputs or node.assumed_inputs), *arrived])
    found = _of_gradient(node, finding, reads, count) if node.is_gradient else _of_forward(node, finding, reads, count)
    return max(found, key=lambda one: one.spread, default=Terms())


def _of_forward(node: OperatorFindings, finding: Finding, reads: list[Scale], count: int) -> Iterable[Terms]:
    if not reads:
        return
    if node.op.has("sums", "sums ranks") and (node.inputs or reads[0].elements >= count):
        yield _terms(max(read.rms for read in reads), sum(read.elements for read in reads) / count)
    large = [read for read in reads if read.elements > 1]
    if node.op.has("contracts") and 2 <= len(large) <= 3 and finding.pair.golden is not None:
        one, other = sorted(large, key=lambda read: read.elements)[-2:]
        if len(large) == 2 or min(read.elements for read in large) < min(one.elements, other.elements):
            yield _terms(one.rms * other.rms, terms_summed(node.operator, finding.pair.golden))


def _of_gradient(node: OperatorFindings, finding: Finding, reads: list[Scale], count: int) -> Iterable[Terms]:
    """The terms of the gradient of an operand that was broadcast, or of an operand of a product: incoming gradient
    times the other operand."""
    shape = finding.pair.golden.shape if finding.pair.golden else ()
    if node.reads_operands and len(shape) > 1:  # sums of products of its own inputs
        pairs = combinations([read for read in reads if read.elements > 1], 2)
        found = [_product(one, other, count) for one, other in pairs]
        yield min(found, key=lambda one: one.spread, default=Terms())  # the incoming gradient is among the smallest
        return
    if node.op.has("exponential", "normalises"):
        yield from (one for one in _of_centred(node, reads, count) if one.size > CANCELLATION * scale_of(finding).rms)
    if not node.op.has(*ELEMENTWISE, *(() if node.inputs else PROPAGATING)):
        larger = [read for read in reads if read.elements > count]
        if node.op.has("normalises") and not node.extra_inputs:  # graphs: incoming gradient times values of size 1
            larger = sorted(larger, key=lambda read: read.rms)[:1]
        yield from (_terms(read.rms, read.elements / count) for read in larger)
    if not node.op.has("contracts"):
        return
    operands = [
        one for one in node.extra_inputs if not one.pair.slot.startswith("output") and one.pair.golden is not None
    ]
    for place, operand in enumerate(operands):
        if operand.pair.golden is not None and operand.pair.golden.shape == shape and reads:
            for other in _scales(other for at, other in enumerate(operands) if at != place):
                if other.elements > 1:
                    arrived = max(reads, key=lambda read: read.elements)
                    is_filter = is_parameter(operand.pair) and len(shape) > 2
                    # each element of a filter (out, in, …) sums over as many positions as one channel has
                    many = min(arrived.elements / shape[0], other.elements / shape[1]) if is_filter else 0.0
                    yield _terms(arrived.rms * other.rms, many) if is_filter else _product(arrived, other, count)


def _of_centred(node: OperatorFindings, reads: list[Scale], count: int) -> Iterable[Terms]:
    """The terms of a gradient from which means were subtracted, so that it may be far smaller than the incoming
    gradient.

    softmax   y·(g - Σ g·y)
    norms     (g·w - mean(g·w) - x̂·mean(g·w·x̂)) / σ
    """
    whole = [read for read in reads if read.elements == count]
    if not node.inputs or not whole:
        return
    is_norm = node.op.has("normalises")
    context = [one for one in node.extra_inputs if one.pair.slot.startswith("output") != is_norm]
    weight = max(
        (one.rms for one in _scales(node.extra_inputs or node.inputs) if 1 < one.elements < count), default=1.0
    )
    others = [one for one in _scales(context) if one.elements == count]
    pairs = [(whole[0], other) for other in others] if node.extra_inputs else permutations(whole, 2)
    if is_norm:
        spreads = ((one, other.deviation or other.rms) for one, other in pairs)
        sizes = [one.rms * weight / spread for one, spread in spreads if spread]
    else:
        sizes = [one.rms * other.rms for one, other in pairs]
    yield _terms(min(sizes, default=0.0), NORM_TERMS)


def _product(one: Scale, other: Scale, count: int) -> Terms:
    """The terms of a product: (m, k) × (k, n) → (m, n) has k = √(mk · kn / mn) terms per element."""
    return _terms(one.rms * other.rms, math.sqrt(one.elements * other.elements / count))


def _terms(size: float, count: float) -> Terms:
    return Terms(size, min(max(count, 1.0), SUMMATION_MOST))


def _scales(findings: Iterable[Finding] | Sequence[Finding]) -> list[Scale]:
    return [scale for scale in map(scale_of, findings) if scale.elements]
