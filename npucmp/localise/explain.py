"""What the errors that an operator reads explain of the error that it writes. docs/localisation.md has the evidence."""

from __future__ import annotations

import math
import re
from typing import Optional

from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.judge.verdicts import FACTOR
from npucmp.localise.condition import amplification, scale_of, terms
from npucmp.localise.nodes import Node, differing_arguments
from npucmp.measure import metrics
from npucmp.model import Finding
from npucmp.model.dtypes import lookup

GROWTH = 8.0  # an operator may turn an input error e into 8 e
CONDITIONED = 3.0  # times the estimated condition number
CHOICE_GROWTH = 8.0  # share of choices that may flip, in √e
COARSE = 2.0**-12  # with errors above this, those of 16-bit types, any choice may flip
LOST = 0.25  # of the largest value, that an element must be off by to count as lost
TORN = 32.0  # times the error that came in, that one element may be off by, in units of the largest
FEW = 16  # elements below which rounding does not cancel in a common factor
FEW_GIANTS = 4.0  # the same, of elements as large as the largest
REAL_CANCELLATION = 4.0  # terms this much larger than their sum
KINKED_GROWTH = 4.0  # one with a kink or a choice into 4 √e: a mask bit that flips moves a whole element
EQUAL_BITS = 3.0  # round-offs between two right results from the same bits, in types that are summed in a wider one
ARGUED = 2.0  # growth of error that is suspicious where an argument differs
SCALED = 4.0  # round-offs by which rounding may scale a tensor as a whole; also growth of such a factor
SCALED_NOISE = 2.0  # the factor must stand out of the error that comes in
WHOLE_SCALE = 0.9  # share of the error that one common factor must make up

COPIES = {"TransData", "TransDataD", "TensorMove", "Identity", "MemcpyAsync"}
COPIED = 1.01  # growth of error in a copy: sums are taken in another order

KINKED = re.compile(
    r"relu|hardtanh|hardswish|hardsigmoid|(?<!soft)max|(?<!soft)min|clamp|clip|topk|sort|argm|where|mask|"
    r"^_*(sign|round|floor|ceil)_*$|dropout",
    re.IGNORECASE,
)
SMOOTH = re.compile(r"Linear$|Dense$|Norm|Conv|Embedding|Softmax|GELU|SiLU|Tanh|Sigmoid", re.IGNORECASE)


def explained(finding: Finding, before: float, node: Optional[Node] = None) -> bool:
    """Whether an operator may turn an error `before` into this one; without a node, any operator."""
    if math.isinf(before):
        return True
    error = proven_size(finding)
    bar = GROWTH * before
    if before > 0 and is_choice(finding):
        return before > COARSE or _changed(finding) <= CHOICE_GROWTH * math.sqrt(before)
    if node is None:
        return error <= bar
    if before > 0:
        bar = max(bar, CONDITIONED * before * amplification(node))
        if is_kinked(node) and flipped(finding, before):
            return True
    return error <= bar or cancelled(node, finding, before)


def flipped(finding: Finding, before: float) -> bool:
    """Whether an error is what flipped mask bits make of `before`; an undumped gradient may have passed any mask."""
    return proven_size(finding) <= max(KINKED_GROWTH * math.sqrt(before), one_flip(finding))


def cancelled(node: Node, finding: Finding, before: float) -> bool:
    """Whether an error is rounding of the terms that an output was summed from, however small their sum is."""
    size = terms(node, finding)
    return size > 0 and absolute_error(finding) <= GROWTH * max(before, finding.limit / FACTOR) * size


def absolute_error(finding: Finding) -> float:
    """Root mean square of x - y, inf if unknown."""
    moments = finding.measurement.moments
    if moments is not None and not moments.mismatched and moments.compared:
        return math.sqrt(moments.sum_dd / moments.compared)
    return proven_size(finding) * scale_of(finding).rms if moments is None else math.inf


def proven_size(finding: Finding) -> float:
    """The error as far as it is proven: the lower bound where statistics are all there is."""
    bound = finding.measurement.bound
    if finding.error is not None and math.isnan(finding.error) and bound is not None:
        return bound
    return size_of(finding)


def _changed(finding: Finding) -> float:
    """Share of elements that differ, two being nothing to speak of."""
    moments = finding.measurement.moments
    if moments is None or moments.mismatched or not moments.elements:
        return math.inf
    return max(0, moments.elements - moments.equal - 2) / moments.elements


def scaled(node: Node, finding: Finding, before: float) -> bool:
    """Whether the whole output is off by one factor, far beyond what rounding and the inputs give.

    Rounding errors cancel in Σxy/Σy², a wrong factor does not: this sees a 2 % fault under bfloat16.
    """
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or finding.error is None or finding.metric != "rel_l2":
        return False
    factor = abs(metrics.gain(moments))
    if factor < WHOLE_SCALE * size_of(finding) or not _many(finding):
        return False
    if terms(node, finding) > REAL_CANCELLATION * scale_of(finding).rms and cancelled(node, finding, before):
        return False
    inherited = max((abs(_gain(other)) for other in [*node.inputs, *node.context]), default=0.0)
    return factor > max(scale_limit(finding), SCALED * inherited, SCALED_NOISE * before)


def _many(finding: Finding) -> bool:
    """Whether enough elements make up the norm for their roundings to cancel: not one giant, not a handful."""
    moments, largest = finding.measurement.moments, scale_of(finding).largest
    return moments is not None and moments.compared >= FEW and moments.yy >= FEW_GIANTS * largest * largest


def common_factor(finding: Finding, before: float) -> bool:
    """The same of a tensor of unknown origin, `before` being the errors seen so far."""
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or finding.error is None or finding.metric != "rel_l2":
        return False
    factor = abs(metrics.gain(moments))
    return (
        _many(finding)
        and factor >= WHOLE_SCALE * size_of(finding)
        and factor > max(scale_limit(finding), SCALED_NOISE * before)
    )


def wrong_parameter(finding: Finding, usual: float) -> bool:
    """Whether a parameter differs by more than its own type and the other parameters tell, `usual` being their median.

    A parameter is stored, not computed: at the first step of a run it owes nothing to the working precision.
    """
    error, own = size_of(finding), FACTOR * round_off_of(finding.pair)
    return finding.error is not None and math.isfinite(error) and error > max(own, GROWTH * usual)


def from_equal_bits(node: Node, finding: Finding, before: float) -> bool:
    """Whether an operator that read the same bits wrote more than roundings of them apart, in 8 or 16 bits.

    Such types are summed in float32, so that two right results differ by one rounding here and there. The limit of
    8 u is for what gathered along the way, and here nothing did.
    """
    target, golden = finding.pair.target, finding.pair.golden
    if before or not node.inputs or finding.error is None or finding.metric == "noise":
        return False
    if target is None or golden is None or (target.dtype != golden.dtype and not node.operator.inserted):
        return False  # an inserted operator does nothing but one rounding, whatever the wider side is
    row = max((lookup(golden.dtype), lookup(target.dtype)), key=lambda one: one.round_off if one else 0.0)
    return row is not None and row.round_off > SINGLE and size_of(finding) > EQUAL_BITS * row.round_off


def unlike_copy(node: Node, finding: Finding, before: float) -> bool:
    """Whether an operator that only moves what it reads wrote something else, however little."""
    target, golden = finding.pair.target, finding.pair.golden
    if node.operator.op_type not in COPIES or len(node.inputs) != 1 or finding.error is None:
        return False
    read = node.inputs[0].pair
    if None in (target, golden, read.target, read.golden) or finding.metric == "noise":
        return False
    assert target and golden and read.target and read.golden
    one_tensor = (read.golden.file, read.golden.shape, read.target.dtype) == (golden.file, golden.shape, target.dtype)
    return one_tensor and size_of(finding) > COPIED * before


def by_arguments(node: Node, finding: Finding, before: float) -> bool:
    """Whether an operator whose non-tensor arguments differ wrote more apart than it read, be it little."""
    pair = finding.pair
    if finding.error is None or pair.target_op is None or pair.golden_op is None or pair.target is None:
        return False
    if not any(True for _ in differing_arguments(pair.target_op, pair.golden_op)):
        return False
    return size_of(finding) > max(ARGUED * before, round_off_of(pair))


def torn(node: Node, finding: Finding, before: float) -> bool:
    """Whether a few elements are off by as much as the largest value, while the rest is as good as its inputs.

    A lost row or tile among thousands hardly shows in rel_l2; rounding never moves one element that far.
    """
    moments = finding.measurement.moments
    if moments is None or not moments.yy or finding.error is None or finding.metric != "rel_l2":
        return False
    if is_kinked(node) or is_choice(finding) or cancelled(node, finding, before) or moments.compared < FEW:
        return False
    share = max(LOST, TORN * max(round_off_of(finding.pair), before * amplification(node)))
    return moments.max_abs > share * scale_of(finding).largest


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


def is_kinked(node: Node) -> bool:
    """A backward through a choice, whose mask flips where the forward was near its kink.

    What a module with a path does inside is not known, unless its class is that of a smooth layer.
    """
    operator = node.operator
    inside = bool(operator.path) and not SMOOTH.search(operator.op_type)
    return operator.phase == "backward" and (inside or bool(KINKED.search(operator.op_type)))


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
