"""What the errors that an operator reads explain of the error that it writes. docs/localisation.md has the evidence."""

from __future__ import annotations

import math
import re
from typing import Optional

from npucmp import metrics
from npucmp.dtypes import lookup
from npucmp.judge import FACTOR
from npucmp.model import Finding
from npucmp.nodes import Node, differing_arguments
from npucmp.precision import SINGLE, round_off_of

GROWTH = 8.0  # an operator may turn an input error e into 8 e
KINKED_GROWTH = 4.0  # one with a kink or a choice into 4 √e: a mask bit that flips moves a whole element
EQUAL_BITS = 3.0  # round-offs between two right results from the same bits, in types that are summed in a wider one
ARGUED = 2.0  # growth of error that is suspicious where an argument differs
SCALED = 4.0  # round-offs by which rounding may scale a tensor as a whole; also growth of such a factor
SCALED_NOISE = 2.0  # the factor must stand out of the error that comes in
WHOLE_SCALE = 0.9  # share of the error that one common factor must make up

KINKED = re.compile(
    r"relu|hardtanh|hardswish|hardsigmoid|(?<!soft)max|(?<!soft)min|clamp|clip|topk|sort|argm|where|mask|"
    r"^_*(sign|round|floor|ceil)_*$|dropout",
    re.IGNORECASE,
)
SUMS = re.compile(r"^_*(i?add|i?sub|rsub|sum|mean|cumsum|lerp)_*$")


def explained(finding: Finding, before: float, node: Optional[Node] = None) -> bool:
    """Whether an operator may turn an error `before` into this one; without a node, any operator."""
    bar = GROWTH * before
    if node is not None:
        bar = max(bar, GROWTH * max(before, finding.limit / FACTOR) * cancellation(node, finding))
    if before > 0 and (is_choice(finding) or (node is not None and is_kinked(node))):
        bar = max(bar, KINKED_GROWTH * math.sqrt(before), one_flip(finding))
    return size_of(finding) <= bar or math.isinf(before)


def scaled(node: Node, finding: Finding, before: float) -> bool:
    """Whether the whole output is off by one factor, far beyond what rounding and the inputs give.

    Rounding errors cancel in Σxy/Σy², a wrong factor does not: this sees a 2 % fault under bfloat16.
    """
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or finding.error is None or finding.metric != "rel_l2":
        return False
    factor = abs(metrics.gain(moments))
    if factor < WHOLE_SCALE * size_of(finding):
        return False
    inherited = max((abs(_gain(other)) for other in [*node.inputs, *node.context]), default=0.0)
    return factor > max(scale_limit(finding), SCALED * inherited, SCALED_NOISE * before)


def common_factor(finding: Finding, before: float) -> bool:
    """The same of a tensor of unknown origin, `before` being the errors seen so far."""
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or finding.error is None or finding.metric != "rel_l2":
        return False
    factor = abs(metrics.gain(moments))
    return factor >= WHOLE_SCALE * size_of(finding) and factor > max(scale_limit(finding), SCALED_NOISE * before)


def wrong_parameter(finding: Finding, usual: float) -> bool:
    """Whether a parameter differs by more than its own type and the other parameters tell, `usual` being their median.

    A parameter is stored, not computed: at the first step of a run it owes nothing to the working precision.
    """
    error, own = size_of(finding), FACTOR * round_off_of(finding.pair)
    return finding.error is not None and math.isfinite(error) and error > max(own, GROWTH * usual)


def from_equal_bits(finding: Finding, before: float) -> bool:
    """Whether an operator that read the same bits wrote more than roundings of them apart, in 8 or 16 bits.

    Such types are summed in float32, so that two right results differ by one rounding here and there. The limit of
    8 u is for what gathered along the way, and here nothing did.
    """
    target, golden = finding.pair.target, finding.pair.golden
    if before or target is None or golden is None or target.dtype != golden.dtype or finding.error is None:
        return False
    row = lookup(golden.dtype)
    return row is not None and row.round_off > SINGLE and size_of(finding) > EQUAL_BITS * row.round_off


def by_arguments(node: Node, finding: Finding, before: float) -> bool:
    """Whether an operator whose non-tensor arguments differ wrote more apart than it read, be it little."""
    pair = finding.pair
    if finding.error is None or pair.target_op is None or pair.golden_op is None or pair.target is None:
        return False
    if not any(True for _ in differing_arguments(pair.target_op, pair.golden_op)):
        return False
    return size_of(finding) > max(ARGUED * before, round_off_of(pair))


def scale_limit(finding: Finding) -> float:
    """The common factor that rounding alone may give."""
    return SCALED * finding.limit / FACTOR


def error_of(finding: Finding) -> Optional[float]:
    """The error that a rule sees; None if nothing is known. Differing checksums are an error of unknown size."""
    if finding.error is None:
        return None
    return math.inf if math.isnan(finding.error) else finding.error


def _gain(finding: Finding) -> float:
    moments = finding.measurement.moments
    return metrics.gain(moments) if moments is not None else 0.0


def size_of(finding: Finding) -> float:
    """error_of, 0 where nothing is known."""
    error = error_of(finding)
    return 0.0 if error is None else error


def cancellation(node: Node, finding: Finding) -> float:
    """How much smaller an output is than the terms it was summed from; 0 where its operator is no plain sum.

    The gradient of a bias that softmax makes irrelevant is zero in exact arithmetic: both runs hold rounding noise
    there, and rel_l2 says 1 or more. The error is then to be seen against the terms, not against their sum.
    """
    reads = [(rms, count) for rms, count in map(_golden_rms, node.inputs) if count]
    size, count = _golden_rms(finding)
    if not reads or not count:
        return 0.0
    if node.operator.phase == "backward":  # of a broadcast operand: summed over what it was broadcast over
        rms, most = max(reads, key=lambda read: read[1])
        terms = rms * math.sqrt(most / count) if count < most else 0.0
    else:
        terms = max(rms for rms, _ in reads) if SUMS.search(node.operator.op_type) else 0.0
    return terms / size if size else (math.inf if terms else 0.0)


def _golden_rms(finding: Finding) -> tuple[float, int]:
    """(root mean square, elements) of the golden side, (0, 0) if unknown."""
    golden = finding.pair.golden
    count = math.prod(golden.shape) if golden is not None else 0
    moments = finding.measurement.moments
    if moments is not None and count:
        return math.sqrt(moments.golden.squares / count), count
    if golden is not None and golden.statistics is not None and golden.statistics.norm is not None and count:
        return golden.statistics.norm / math.sqrt(count), count
    return 0.0, 0


def is_kinked(node: Node) -> bool:
    """A backward through a choice, whose mask flips where the forward was near its kink."""
    return node.operator.phase == "backward" and bool(KINKED.search(node.operator.op_type))


def is_choice(finding: Finding) -> bool:
    """A tensor that is a choice itself: a mask, an index."""
    golden = lookup(finding.pair.golden.dtype) if finding.pair.golden else None
    return golden is not None and golden.kind in "biu"


def one_flip(finding: Finding) -> float:
    """The error that two elements give which are there on one side only; small tensors cannot err by less."""
    moments = finding.measurement.moments
    if moments is None or not moments.yy:
        return 0.0
    largest = max(abs(moments.golden.minimum), abs(moments.golden.maximum))
    return math.sqrt(2.0) * largest / math.sqrt(moments.yy)
