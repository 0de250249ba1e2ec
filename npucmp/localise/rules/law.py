"""The target breaks a law of its operator that the golden keeps: rows of a softmax that sum to 1.01.

A law holds for any values that an operator reads, so an error of its inputs does not explain a broken law. Each law is
one figure of the moments of both sides, with the tolerance of rounding in the coarser type of the two. Sources: the
definitions of the operators, in which inputs and outputs, a quotient and its dividend, round once each; for sums
Higham, Accuracy and Stability of Numerical Algorithms, §4.2. Gradients have laws of their own: the gradient of an
operator that moves or adds elements keeps the sum of the incoming gradient.

A law needs no recorded inputs. If only outputs were recorded, the cause of a broken law is UNKNOWN. If only inputs were
recorded, the law of the softmax just before an input is checked, and the cause is GAP. Laws do not apply to statistics
and to tensors with NaN on one side. In clean dumps the departures are at most 0.4 of the tolerance; 3,600 gradients of
clean pairs depart from their sum by at most 0.21 of it.

    softmax                                rows sum to 1: the mean times the length n of the axis. Rows of NaN
                                           on both sides do not count; a golden with rows of zeros keeps no law.
                                           2 u + √n · 2^-24, and three standard deviations of errors of 2 u in single
                                           elements
    softmax, sigmoid                       elements in [0, 1]. 8 u of the bound or of the largest element
    tanh, erf, sin, cos                    elements in [-1, 1]. The same
    relu, exp, square, sqrt, abs, norms    elements ≥ 0. The same; for losses also of the largest logit
    of vectors, softplus, losses
    log_softmax                            elements ≤ 0. The same
    layer, rms, batch, group, instance     the mean square is that of weight and bias, the mean that of the bias
    norm                                   (not rms_norm). Not for weights that differ within a row, nor for inputs more
                                           than 10 % apart. 8 u, and 8 κ √n · 2^-24 with the condition number κ
    transpose, reshape, cast, sort         extremes, sum and norm are those of the input. 2 u
    gather, embedding, slice               no element lies beyond those of the input. 2 u
    max, topk, min                         the largest of the output is the largest of the input. 2 u
    dropout with a recorded probability p  no element lies beyond x / (1 - p). 2 u
    recv, broadcast                        extremes, sum and norm are those of the sent tensor, if the golden received
                                           what another rank sent. 0; 2 u between types
    gradients of add, mean, pools, topk,   the sum is that of the incoming gradient; a sum of several gradients has no
    sort, gather, embedding, slice,        law, that of a subtrahend has the other sign. 2 u (3 √K + the sum) of the
    interpolate, repeat, views, casts      smaller norm, K elements added to one; and 2 · 2^-24 √K of the incoming
                                           gradient. Not for an embedding with a padding
                                           index, or one whose forward is not recorded: its gradient drops rows
    gradients of relu, topk, sort          no element lies beyond the incoming ones, one of whose extremes the golden
                                           propagates. 2 u
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations
from typing import Callable, Iterator, NamedTuple, Optional

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import BOTH_SIDES, SINGLE, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model import Finding, Moments, Side, Verdict
from npucmp.model.arguments import named_arguments
from npucmp.model.dtypes import DTYPES, lookup
from npucmp.model.optypes import OpType
from npucmp.model.roles import is_argument, is_parameter

DEVIATIONS = 3.0  # standard deviations of a sum of errors of either sign: chosen: more is not chance, not measured
INPUT_ERROR = 0.1  # error of inputs: chosen: up to it the rows that a norm reads have the golden's spread, not measured
DOUBLE = DTYPES["float64"].round_off
PARAMETERS = 4  # parameters: work: the pairs of more are not tried as weight and bias


class Departure(NamedTuple):
    """The departure of each side from a law, and the largest departure that rounding may cause; `words` describe the
    target."""

    target: float
    golden: float
    tolerance: float
    words: str

    @property
    def is_broken(self) -> bool:
        """Whether the target alone departs from the law by more than rounding."""
        return self.golden <= self.tolerance < self.target


def departures(case: RuleContext) -> Iterator[Departure]:
    """Yield the departures from all laws of an operator that the moments of one of its tensors show."""
    node, moments = case.node, case.moments
    if node is None or moments is None:
        return
    if not moments.compared or moments.mismatched or case.finding.metric == "noise":
        return
    if case.is_output and (apart := node.unequal.get(case.pair.slot)) is not None:
        yield Departure(apart.size, 0.0, apart.tolerance, apart.words)
    for law in _laws_of(node.op, node.is_gradient):
        found = law(case, moments) if case.is_output or law in INPUT_LAWS else None
        if found is not None:
            yield found


def _round_off(case: RuleContext) -> float:
    """The coarsest unit round-off of the tensor's types and of the precision that computed it."""
    return max(case.own_round_off, case.round_off, DOUBLE)


def _mean(moments: Moments, side: Side) -> float:
    return side.total / max(1, moments.elements - side.nan - side.inf)


def _sum_room(terms: int, unit: float) -> float:
    """The relative rounding of a sum of positive terms; every device accumulates in float32 at least."""
    return math.sqrt(terms) * min(unit, SINGLE)


def _row_sums(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """The rows sum to 1 along one axis, so the mean is 1 divided by the length of the axis. The golden shows which axis
    it is, because dumps of modules record no argument."""
    golden = case.pair.golden
    row = lookup(golden.dtype) if golden is not None else None
    x, y = _mean(moments, moments.target), _mean(moments, moments.golden)
    length = min((n for n in golden.shape if n > 1), key=lambda n: abs(n * y - 1.0), default=0) if golden else 0
    if not length or row is None:
        return None
    unit = _round_off(case)
    subnormal = length * row.tiny * row.round_off  # elements below the smallest normal number round by this
    words = f"rows sum to {length * x:.6g}, in the golden to {length * y:.6g}"
    walk = DEVIATIONS * BOTH_SIDES * unit * math.sqrt(moments.golden.squares) / abs(moments.golden.total or 1.0)
    room = BOTH_SIDES * unit + _sum_room(length, unit) + subnormal + walk
    return Departure(abs(length * x - 1.0), abs(length * y - 1.0), room, words)


def _range_law(low: float, high: float) -> Callable[[RuleContext, Moments], Departure]:
    """The law that all elements lie within a range."""

    def law(case: RuleContext, moments: Moments) -> Departure:
        x, y = (max(low - one.minimum, one.maximum - high, 0.0) for one in (moments.target, moments.golden))
        bound, worst = (low, moments.target.minimum) if math.isfinite(low) else (high, moments.target.maximum)
        node = case.node  # a loss is a small difference of logits, which are rounded
        read = [scale_of(one).largest for one in node.inputs] if node is not None and node.op.has("loss") else []
        room = FACTOR * _round_off(case) * max(abs(bound), case.scale.largest, *read)
        side = "below" if math.isfinite(low) else "above"
        return Departure(x, y, room, f"an element is {worst:.6g}, but no output of this operator is {side} {bound:g}")

    return law


def _spread(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """The mean square of a normalised tensor is that of its weight and of its bias together."""
    found = []
    for target, golden in _affine(case) if case.input_error <= INPUT_ERROR else ():
        sides = zip((moments.target, moments.golden), (target, golden))
        x, y = (math.sqrt(one.squares / moments.elements / by.square) if by.square else 0.0 for one, by in sides)
        words = f"the spread is {x:.6g} times that expected of a norm, in the golden {y:.6g} times"
        found.append(Departure(abs(x - 1.0), abs(y - 1.0), _norm_room(case), words))
    return min(found, key=lambda one: one.golden, default=None)


def _centre(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """The mean of a normalised tensor is that of its bias."""
    found = []
    for target, golden in _affine(case) if case.scale.rms else ():
        x, y = (
            (_mean(moments, one) - by.mean) / case.scale.rms
            for one, by in zip((moments.target, moments.golden), (target, golden))
        )
        words = f"the mean deviates by {x:.2e} of the size from that expected of a norm, in the golden by {y:.2e}"
        found.append(Departure(abs(x), abs(y), _norm_room(case), words))
    return min(found, key=lambda one: one.golden, default=None)


def _norm_room(case: RuleContext) -> float:
    """The tolerance of a norm, which subtracts a rounded mean and divides by a rounded deviation."""
    unit, length = _round_off(case), max(case.pair.golden.shape, default=1) if case.pair.golden else 1
    return FACTOR * unit + FACTOR * case.amplification * _sum_room(length, unit)


class _Affine(NamedTuple):
    """The mean and the mean square that weight and bias make of the mean 0 and the mean square 1."""

    mean: float = 0.0
    square: float = 1.0


def _affine(case: RuleContext) -> Iterator[tuple[_Affine, _Affine]]:
    """Yield the pair of target and golden for each choice of weight and bias among the parameters, because names do not
    always identify them. Yield nothing if a weight differs among the elements that are normalised together, or if one
    run alone recorded an input."""
    if case.node is not None and any(one.verdict is Verdict.MISSING for one in case.node.inputs):
        return
    read = [] if case.node is None else [one for one in case.node.inputs if is_parameter(one.pair)]
    read = [one for one in read if not is_argument(one.pair)]
    known = [one.measurement.moments for one in read if one.measurement.moments is not None]
    if case.node is None or len(known) < len(read) or len(known) > PARAMETERS:
        return
    if not case.node.op.has("averages"):
        flat = all(one.target.minimum == one.target.maximum for one in known)
        if not flat or any(one.golden.minimum != one.golden.maximum for one in known):
            return
    for chosen in permutations(known, min(2, len(known))):
        sides = []
        for at in (0, 1):
            held = [((one.target, one.golden)[at], max(1, one.elements)) for one in chosen]
            square = held[0][0].squares / held[0][1] if held else 1.0
            bias, count = held[1] if len(held) > 1 else (Side(), 1)
            sides.append(_Affine(bias.total / count, square + bias.squares / count))
        yield sides[0], sides[1]


def _input_floats(case: RuleContext) -> list[tuple[Finding, Moments]]:
    """The float tensors that an operator reads; empty if some were not compared or hold NaN or infinities."""
    read = [] if case.node is None else [one for one in case.node.inputs if round_off_of(one.pair)]
    both = [one for one in read if one.pair.target is not None and one.pair.golden is not None]
    known = [(one, moments) for one in both if (moments := one.measurement.moments) is not None]
    finite = all(not (m.golden.nan + m.golden.inf + m.target.nan + m.target.inf) for _, m in known)
    return known if finite and len(known) == len(read) and case.own_round_off else []


def _tolerance_of(case: RuleContext, read: list[tuple[Finding, Moments]]) -> float:
    """The tolerance of one rounding on either side, in the coarser type."""
    return BOTH_SIDES * max([_round_off(case), *(round_off_of(one.pair) for one, _ in read)])


def _extremes(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """An operator that picks among the elements that it reads writes no element beyond them."""
    read = _input_floats(case)
    if len(read) != 1 or not case.scale.largest:
        return None
    (_, source), largest = read[0], case.scale.largest
    sides = (source.target, moments.target), (source.golden, moments.golden)
    x, y = (max(a.minimum - b.minimum, b.maximum - a.maximum, 0.0) / largest for a, b in sides)
    words = f"elements exceed the range of the input by {x:.2e} of the largest"
    return Departure(x, y, _tolerance_of(case, read), words)


def _moving_law(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """An operator that moves elements keeps their extremes and sums."""
    read = _input_floats(case)
    if len(read) != 1 or read[0][1].elements != moments.elements or not moments.golden.squares:
        return None
    source = read[0][1]
    sides = (source.target, moments.target), (source.golden, moments.golden)
    x, y = (_distance(a, b, moments.elements) for a, b in sides)
    return Departure(x, y, _tolerance_of(case, read), f"extremes or sums differ from those of the input by {x:.2e}")


def _distance(a: Side, b: Side, elements: int) -> float:
    """The largest difference between the figures of two tensors, each relative to the size of the first."""
    largest, norm = max(abs(a.minimum), abs(a.maximum)), math.sqrt(a.squares)
    if not largest or not norm:
        return 1.0 if b.squares else 0.0
    extremes = max(abs(a.minimum - b.minimum), abs(a.maximum - b.maximum)) / largest
    sums = abs(a.total - b.total) / (norm * math.sqrt(elements))
    return max(extremes, sums, abs(math.sqrt(b.squares) / norm - 1.0))


def _extreme(choose: Callable[..., float], name: str) -> Callable[[RuleContext, Moments], Optional[Departure]]:
    """The law that the output contains the largest or the smallest of all elements that are read, along any axis of the
    operator."""

    def law(case: RuleContext, moments: Moments) -> Optional[Departure]:
        read = _input_floats(case)
        if not read or not case.scale.largest:
            return None
        sides = [([one.target for _, one in read], moments.target), ([one.golden for _, one in read], moments.golden)]
        ends = [(choose(getattr(one, name) for one in source), getattr(wrote, name)) for source, wrote in sides]
        x, y = (abs(source - wrote) / case.scale.largest for source, wrote in ends)
        words = f"the {name} element is {ends[0][1]:.6g}, that of the inputs {ends[0][0]:.6g}"
        return Departure(x, y, _tolerance_of(case, read), words)

    return law


def _dropout_scale(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """Dropout divides a kept element by the share that it keeps, and enlarges it no further."""
    numbers = [] if case.node is None else [one for one in case.node.operator.arguments.values() if type(one) is float]
    shares = [one for one in numbers if 0.0 < one < 1.0]
    read = _input_floats(case)
    if len(shares) != 1 or len(read) != 1 or not case.scale.largest:
        return None
    factor, source = 1.0 / (1.0 - shares[0]), read[0][1]
    sides = (source.target, moments.target), (source.golden, moments.golden)
    ends = [(max(abs(a.minimum), abs(a.maximum)) * factor, max(abs(b.minimum), abs(b.maximum))) for a, b in sides]
    x, y = (max(0.0, b - a) / case.scale.largest for a, b in ends)
    words = f"an element is {ends[0][1]:.6g}, but no kept element exceeds {ends[0][0]:.6g}"
    return Departure(x, y, BOTH_SIDES * _round_off(case), words)


def _sent_tensor_law(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """A rank receives the tensor that another rank sent."""
    content = content_of(case.finding)
    for sent in case.node.extra_inputs if case.node is not None and content else ():
        source = sent.measurement.moments
        if source is not None and content_of(sent) == content:
            x, y = (
                _distance(a, b, moments.elements)
                for a, b in ((source.target, moments.target), (source.golden, moments.golden))
            )
            target, other = case.pair.target, sent.pair.target
            is_cast = target is None or other is None or target.dtype != other.dtype
            unit = max(case.own_round_off, round_off_of(sent.pair)) if is_cast else DOUBLE
            return Departure(
                x, y, BOTH_SIDES * unit, f"extremes or sums differ from those of the sent tensor by {x:.2e}"
            )
    return None


def _kept_sum_law(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """A gradient that adds each incoming element to one element, or spreads it over several, keeps their sum. An
    operator that reads several tensors and is not a gradient by its type adds or joins gradients."""
    found, read = [], _input_floats(case)
    if len(read) > 1 and (case.node is None or not case.node.op.has("gradient")):
        return None
    if case.node is not None and case.node.op.has("looks up") and not _adds_every_row(case.node):
        return None
    for one, source in read:
        sides = (source.target, moments.target), (source.golden, moments.golden)
        sizes = [math.sqrt(min(a.squares, b.squares)) for a, b in sides]
        arrived, size = math.sqrt(source.golden.squares), sizes[1]
        if not size:
            continue
        signs = (1.0, -1.0) if case.node is not None and case.node.op.name == "sub" else (1.0,)  # of a subtrahend
        x = min(abs(moments.target.total - sign * source.target.total) for sign in signs) / max(sizes)
        y = min(abs(moments.golden.total - sign * source.golden.total) for sign in signs) / size
        unit, squares = max(case.own_round_off, round_off_of(one.pair), DOUBLE), source.golden.squares
        if abs(squares - moments.golden.squares) > BOTH_SIDES * unit * squares:  # elements were added or spread
            unit = max(unit, _round_off(case))
        added = math.sqrt(max(1.0, source.elements / moments.elements))
        room = unit * (DEVIATIONS * added + abs(source.golden.total) / size)
        room = BOTH_SIDES * (room + min(unit, SINGLE) * added * arrived / size)
        found.append(
            Departure(x, y, room, f"the sum differs from that of the incoming gradient by {x:.2e} of its size")
        )
    return min(found, key=lambda one: one.golden, default=None)


def _adds_every_row(node: OperatorFindings) -> bool:
    """Whether the gradient of a table adds every incoming row to it: the forward call is recorded, drops no padding
    index and divides by no frequency."""
    known = [one.pair for one in node.extra_inputs]
    calls = [operator for pair in known[:1] for operator in (pair.target_op, pair.golden_op) if operator is not None]
    arguments = [named_arguments(operator) for operator in calls if not operator.path]
    return bool(arguments) and not any(
        one.get("scale_grad_by_freq") or one.get("padding_idx") is not None for one in arguments
    )


def _no_larger(case: RuleContext, moments: Moments) -> Optional[Departure]:
    """A gradient that forwards some of the incoming elements, and zeros for the others, writes no element beyond them.
    The incoming tensor is the one whose extreme the golden forwards."""
    read, largest = _input_floats(case), case.scale.largest
    for one, source in read if largest else ():
        sides = (source.target, moments.target), (source.golden, moments.golden)
        rounding = max(case.own_round_off, round_off_of(one.pair)) * largest
        ends = (source.golden.minimum, moments.golden.minimum), (source.golden.maximum, moments.golden.maximum)
        if any(abs(a - b) <= rounding < abs(a) for a, b in ends):
            x, y = (max(a.minimum - b.minimum, b.maximum - a.maximum, 0.0) / largest for a, b in sides)
            words = f"elements exceed the range of the incoming gradient by {x:.2e} of the largest"
            return Departure(x, y, _tolerance_of(case, read), words)
    return None


Law = Callable[[RuleContext, Moments], Optional[Departure]]
LAWS: tuple[tuple[Callable[[OpType], bool], Law], ...] = (  # condition of the operator → its law; copy.py checks copies
    (lambda op: op.has("rows sum to 1"), _row_sums),
    (lambda op: op.has("at least 0"), _range_law(0.0, math.inf)),
    (lambda op: op.has("at least -1"), _range_law(-1.0, math.inf)),
    (lambda op: op.has("at most 1"), _range_law(-math.inf, 1.0)),
    (lambda op: op.has("at most 0"), _range_law(-math.inf, 0.0)),
    (lambda op: op.has("normalises"), _spread),
    (lambda op: op.has("centres"), _centre),
    (lambda op: op.has("views", "hands on", "permutes") and not op.has("copies"), _moving_law),
    (lambda op: op.has("picks", "looks up"), _extremes),
    (lambda op: op.has("largest"), _extreme(max, "maximum")),
    (lambda op: op.has("smallest"), _extreme(min, "minimum")),
    (lambda op: op.has("drops"), _dropout_scale),
    (lambda op: op.has("receives"), _sent_tensor_law),
)


GRADIENT_LAWS: tuple[tuple[Callable[[OpType], bool], Law], ...] = (
    (lambda op: op.has("keeps sums", "views", "hands on", "permutes"), _kept_sum_law),
    (lambda op: op.has("rectifies", "ranks"), _no_larger),
)


@lru_cache(maxsize=1 << 12)
def _laws_of(op: OpType, is_gradient: bool) -> tuple[Law, ...]:
    return tuple(law for has, law in (GRADIENT_LAWS if is_gradient else LAWS) if has(op))


INPUT_LAWS = (_row_sums,)  # no tensor keeps these by chance: they also apply to inputs, which an earlier operator wrote


def _largest_departure(case: RuleContext) -> Optional[Departure]:
    """The broken law with the largest departure of the target in units of its tolerance."""
    broken = [one for one in departures(case) if one.is_broken]
    return max(broken, key=lambda one: one.target / one.tolerance, default=None)


def _evaluate(case: RuleContext) -> Finding:
    found = _largest_departure(case)
    words = f"{found.words}; rounding explains up to {found.tolerance:.1e}" if found else ""
    return case.finding._replace(verdict=Verdict.DIVERGED, because=words)


RULE = ErrorRule(
    "accusation",
    "law",
    "the target violates a law of the operator that the golden satisfies (example: softmax rows sum to 1)",
    applies=lambda case: _largest_departure(case) is not None,
    judged=_evaluate,
)
