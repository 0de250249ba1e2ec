"""The size and number of the terms of an output, so that the error of a sum that cancels is compared with its terms.

The gradient of a bias that softmax makes irrelevant is zero in exact arithmetic: both runs hold rounding noise there,
and rel_l2 is 1 or more. The error is then judged relative to the terms, not to their sum.
"""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Iterable, NamedTuple, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import terms_summed
from npucmp.localise.conditioning import Scale, scale_of
from npucmp.model import Finding
from npucmp.model.dtypes import random_walk
from npucmp.model.roles import is_parameter

# times their sum: chosen: terms of a centred gradient that are so much larger cancel, not measured
CANCELS = 4.0
CENTRED = 3.0  # terms of the gradient of a norm: definition: softmax has one less
ELEMENTWISE = ("exponential", "saturates", "rectifies")  # their gradient has the elements of the incoming gradient
HANDED_ON = ("masks", "drops", "copies", "hands on")  # so have these, if they read the output just before
MOST = 2.0**24  # terms: chosen: a shape with more is more likely wrong, not measured


class Terms(NamedTuple):
    """The size (rms) of one term of each element, and the number of terms; 0 if the output is not a sum."""

    size: float = 0.0
    many: float = 0.0

    @property
    def spread(self) -> float:
        """The size of the sum if the signs of its terms are random."""
        return self.size * math.sqrt(self.many)

    def walk(self, total: float, unit: float) -> float:
        """Return the rounding (rms) of sums of size `total` that were added one term after the other, for a round-off
        of `unit`."""
        return float(random_walk(total, self.many * self.size * self.size, self.many, unit))


def terms(node: OperatorFindings, finding: Finding) -> Terms:
    """The terms of an operator's output: of a plain sum, of a product, or of a gradient of either."""
    count = scale_of(finding).elements
    if not count or not (node.is_gradient or node.op.has("sums", "sums ranks", "contracts")):
        return Terms()
    arrived = node.context if node.arrived else ()  # a sum over ranks also reads the inputs of other ranks
    reads = _scales([*(node.inputs or node.presumed), *arrived])
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
        yield from (one for one in _of_centred(node, reads, count) if one.size > CANCELS * scale_of(finding).rms)
    if not node.op.has(*ELEMENTWISE, *(() if node.inputs else HANDED_ON)):
        larger = [read for read in reads if read.elements > count]
        if node.op.has("normalises") and not node.context:  # graphs: incoming gradient times values of size 1
            larger = sorted(larger, key=lambda read: read.rms)[:1]
        yield from (_terms(read.rms, read.elements / count) for read in larger)
    if not node.op.has("contracts"):
        return
    operands = [one for one in node.context if not one.pair.slot.startswith("output") and one.pair.golden is not None]
    for place, operand in enumerate(operands):
        if operand.pair.golden is not None and operand.pair.golden.shape == shape and reads:
            others = _scales(other for at, other in enumerate(operands) if at != place)
            for other in others:
                if other.elements > 1:
                    arrived = max(reads, key=lambda read: read.elements)
                    is_filter = is_parameter(operand.pair) and len(shape) > 2
                    yield _of_filter(arrived, other, shape) if is_filter else _product(arrived, other, count)


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
    context = [one for one in node.context if one.pair.slot.startswith("output") != is_norm]
    weight = max((one.rms for one in _scales(node.context or node.inputs) if 1 < one.elements < count), default=1.0)
    others = [one for one in _scales(context) if one.elements == count]
    pairs = [(whole[0], other) for other in others] if node.context else permutations(whole, 2)
    if is_norm:
        spreads = ((one, other.deviation or other.rms) for one, other in pairs)
        sizes = [one.rms * weight / spread for one, spread in spreads if spread]
    else:
        sizes = [one.rms * other.rms for one, other in pairs]
    yield _terms(min(sizes, default=0.0), CENTRED)


def _product(one: Scale, other: Scale, count: int) -> Terms:
    """The terms of a product: (m, k) × (k, n) → (m, n) has k = √(mk · kn / mn) terms per element."""
    return _terms(one.rms * other.rms, math.sqrt(one.elements * other.elements / count))


def _of_filter(arrived: Scale, other: Scale, shape: Sequence[int]) -> Terms:
    """The terms of the gradient (out, in, …) of a filter: each element sums over the positions of the batch, as many as
    one channel of the incoming gradient has, separately for each tap of the filter."""
    return _terms(arrived.rms * other.rms, min(arrived.elements / shape[0], other.elements / shape[1]))


def _terms(size: float, count: float) -> Terms:
    return Terms(size, min(max(count, 1.0), MOST))


def _scales(findings: Iterable[Finding] | Sequence[Finding]) -> list[Scale]:
    return [scale for scale in map(scale_of, findings) if scale.elements]
