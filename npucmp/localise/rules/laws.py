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
from typing import Any, Callable, Iterator, NamedTuple, Optional

from npucmp.flow.contents import content_of
from npucmp.judge.precision import BOTH_SIDES, SINGLE, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import NO_VALUES, RuleContext, mark_diverged
from npucmp.model import Finding, Moments, Side, Verdict
from npucmp.model.arguments import named_arguments
from npucmp.model.dtypes import DTYPES, lookup
from npucmp.model.optypes import OpType
from npucmp.model.roles import is_argument, is_output, is_parameter

DEVIATIONS = 3.0  # standard deviations of a sum of errors of either sign: chosen: more is not chance, not measured
INPUT_ERROR = 0.1  # error of inputs: chosen: up to it the rows that a norm reads have the golden's spread, not measured
DOUBLE = DTYPES["float64"].round_off
PARAMETERS = 4  # parameters: work: the pairs of more are not tried as weight and bias
# (weight, bias) of a norm without parameters
AFFINE = NO_VALUES._replace(target=Side(squares=1.0), golden=Side(squares=1.0)), NO_VALUES


class Departure(NamedTuple):
    """The departure of each side from a law, and the largest departure that rounding may cause; `words` describe the
    target."""

    target: float
    golden: float
    tolerance: float
    words: str

    @property
    def is_broken(self) -> bool:
        """Whether the target alone departs from the law by more than rounding, and by so much more than the golden."""
        return self.golden <= self.tolerance < self.target - self.golden


def law(case: RuleContext) -> Optional[Finding]:
    """Accuse a tensor that breaks a law; the docstring of the module has the laws."""
    broken = (one for one in departures(case) if one.is_broken)
    found = max(broken, key=lambda one: one.target / one.tolerance, default=Departure(0.0, 0.0, 0.0, ""))
    if not found.is_broken:
        return None
    return mark_diverged(case.finding, f"{found.words}; rounding explains up to {found.tolerance:.1e}")


def departures(case: RuleContext) -> Iterator[Departure]:
    """Yield the departures from all laws of an operator that the moments of one of its tensors show; if a law has
    several readings, that which the golden keeps best."""
    node, values, writes = case.node, case.values, is_output(case.pair)
    if node is None or not values.compared or values.mismatched or case.finding.metric == "noise":
        return
    if writes and (apart := node.unequal.get(case.pair.slot)) is not None:
        yield Departure(apart.size, 0.0, apart.tolerance, apart.words)
    for check, more in _laws_of(node.op, node.is_gradient):
        if writes or check is _row_sums:  # no tensor keeps this law by chance: it also applies to inputs
            yield from sorted(check(case, *more), key=lambda one: one.golden)[:1]


def _round_off(case: RuleContext, *read: Finding) -> float:
    """The coarsest unit round-off of the tensor's types, of those read, and of the precision that computed it."""
    return max(case.own_round_off, case.round_off, DOUBLE, *map(round_off_of, (one.pair for one in read)))


def _pairs(read: Moments, wrote: Moments) -> tuple[tuple[Side, Side], tuple[Side, Side]]:
    """(read, written) of the target and of the golden."""
    return (read.target, wrote.target), (read.golden, wrote.golden)


def _mean(values: Moments, side: Side) -> float:
    return side.total / max(1, values.elements - side.nan - side.inf)


def _row_sums(case: RuleContext) -> Iterator[Departure]:
    """The rows sum to 1 along one axis, so the mean is 1 divided by the length of the axis. The golden shows which axis
    it is, because dumps of modules record no argument."""
    values, golden, unit, row = case.values, case.values.golden, _round_off(case), lookup(case.golden.dtype)
    x, y = _mean(values, values.target), _mean(values, golden)
    length = min((n for n in case.golden.shape if n > 1), key=lambda n: abs(n * y - 1.0), default=0)
    if length and row is not None:
        walk = DEVIATIONS * BOTH_SIDES * unit * math.sqrt(golden.squares) / abs(golden.total or 1.0)
        room = BOTH_SIDES * unit + math.sqrt(length) * min(unit, SINGLE) + length * row.tiny * row.round_off + walk
        yield Departure(
            abs(length * x - 1.0),
            abs(length * y - 1.0),
            room,
            f"rows sum to {length * x:.6g}, in the golden to {length * y:.6g}",
        )


def _range(case: RuleContext, low: float, high: float) -> Iterator[Departure]:
    """All elements lie within a range."""
    target, golden = case.values.target, case.values.golden
    x, y = (max(low - one.minimum, one.maximum - high, 0.0) for one in (target, golden))
    bound, worst, side = (low, target.minimum, "below") if math.isfinite(low) else (high, target.maximum, "above")
    # a loss is a small difference of logits, which are rounded
    logits = [scale_of(one).largest for one in case.own.inputs] if case.own.op.has("loss") else []
    room = FACTOR * _round_off(case) * max(abs(bound), case.scale.largest, *logits)
    yield Departure(x, y, room, f"an element is {worst:.6g}, but no output of this operator is {side} {bound:g}")


def _spread(case: RuleContext) -> Iterator[Departure]:
    """The mean square of a normalised tensor is that of its weight and of its bias together."""
    values = case.values
    for made in _affine(case) if case.input_error <= INPUT_ERROR else ():
        sides = zip((values.target, values.golden), made)
        x, y = (math.sqrt(side.squares / values.elements / square) if square else 0.0 for side, (_, square) in sides)
        yield Departure(
            abs(x - 1.0),
            abs(y - 1.0),
            _norm_room(case),
            f"the spread is {x:.6g} times that expected of a norm, in the golden {y:.6g} times",
        )


def _centre(case: RuleContext) -> Iterator[Departure]:
    """The mean of a normalised tensor is that of its bias."""
    for made in _affine(case) if case.scale.rms else ():
        sides = zip((case.values.target, case.values.golden), made)
        x, y = ((_mean(case.values, side) - mean) / case.scale.rms for side, (mean, _) in sides)
        yield Departure(
            abs(x),
            abs(y),
            _norm_room(case),
            f"the mean deviates by {x:.2e} of the size from that expected of a norm, in the golden by {y:.2e}",
        )


def _norm_room(case: RuleContext) -> float:
    """The tolerance of a norm, which subtracts a rounded mean and divides by a rounded deviation."""
    unit, length = _round_off(case), max(case.golden.shape, default=1)
    return FACTOR * unit + FACTOR * case.amplification * (math.sqrt(length) * min(unit, SINGLE))


def _affine(case: RuleContext) -> Iterator[list[tuple[float, float]]]:
    """Yield (mean, mean square) of the target and of the golden that weight and bias make of the mean 0 and the mean
    square 1, for each choice of weight and bias among the parameters, because names do not always identify them. Yield
    nothing if a weight differs among the elements that are normalised together, or if one run alone recorded an
    input."""
    read = [one.measurement.moments for one in case.own.inputs if is_parameter(one.pair) and not is_argument(one.pair)]
    known = [one for one in read if one is not None]
    is_known = len(known) == len(read) <= PARAMETERS and Verdict.MISSING not in {one.verdict for one in case.own.inputs}
    sides = [side for one in known for side in (one.target, one.golden)]
    is_even = case.own.op.has("averages") or all(side.minimum == side.maximum for side in sides)
    for chosen in permutations(known, min(2, len(known))) if is_known and is_even else ():
        weight, bias = (*chosen, *AFFINE[len(chosen) :])
        scales, shifts = max(1, weight.elements), max(1, bias.elements)
        yield [(b.total / shifts, a.squares / scales + b.squares / shifts) for a, b in _pairs(weight, bias)]


def _beyond(source: Moments, wrote: Moments, largest: float) -> Iterator[float]:
    """The largest excess of the elements of the target and of the golden over those read, in units of `largest`."""
    return (max(a.minimum - b.minimum, b.maximum - a.maximum, 0.0) / largest for a, b in _pairs(source, wrote))


def _extremes(case: RuleContext) -> Iterator[Departure]:
    """An operator that picks among the elements that it reads writes no element beyond them."""
    for one, source in case.floats_read if len(case.floats_read) == 1 and case.scale.largest else ():
        x, y = _beyond(source, case.values, case.scale.largest)
        yield Departure(
            x,
            y,
            BOTH_SIDES * _round_off(case, one),
            f"elements exceed the range of the input by {x:.2e} of the largest",
        )


def _no_larger(case: RuleContext) -> Iterator[Departure]:
    """A gradient that forwards some of the incoming elements, and zeros for the others, writes no element beyond them.
    The incoming tensor is the one whose extreme the golden forwards."""
    golden, largest = case.values.golden, case.scale.largest
    for one, source in case.floats_read if largest else ():
        rounding = max(case.own_round_off, round_off_of(one.pair)) * largest
        ends = (source.golden.minimum, golden.minimum), (source.golden.maximum, golden.maximum)
        if any(abs(a - b) <= rounding < abs(a) for a, b in ends):
            x, y = _beyond(source, case.values, largest)
            yield Departure(
                x,
                y,
                BOTH_SIDES * _round_off(case, *(each for each, _ in case.floats_read)),
                f"elements exceed the range of the incoming gradient by {x:.2e} of the largest",
            )
            return


def _distances(source: Moments, wrote: Moments) -> Iterator[float]:
    """The largest difference between the figures of two tensors, each relative to the size of the first, of the target
    and of the golden."""
    for a, b in _pairs(source, wrote):
        largest, norm = max(abs(a.minimum), abs(a.maximum)), math.sqrt(a.squares)
        if largest and norm:
            extremes = max(abs(a.minimum - b.minimum), abs(a.maximum - b.maximum)) / largest
            sums = abs(a.total - b.total) / (norm * math.sqrt(wrote.elements))
            yield max(extremes, sums, abs(math.sqrt(b.squares) / norm - 1.0))
        else:
            yield 1.0 if b.squares else 0.0


def _moving_law(case: RuleContext) -> Iterator[Departure]:
    """An operator that moves elements keeps their extremes and sums. Rule `copy` judges copies."""
    is_law = (
        len(case.floats_read) == 1
        and case.floats_read[0][1].elements == case.values.elements
        and not case.own.op.has("copies")
    )
    for one, source in case.floats_read if is_law and case.values.golden.squares else ():
        x, y = _distances(source, case.values)
        words = f"extremes or sums differ from those of the input by {x:.2e}"
        yield Departure(x, y, BOTH_SIDES * _round_off(case, one), words)


def _sent_tensor_law(case: RuleContext) -> Iterator[Departure]:
    """A rank receives the tensor that another rank sent."""
    content = content_of(case.finding)
    sent = [RuleContext(one) for one in case.own.extra_inputs if content and content_of(one) == content]
    for one in [one for one in sent if one.moments is not None][:1]:
        x, y = _distances(one.values, case.values)
        is_same = one.pair.target is not None and one.target.dtype == case.target.dtype
        unit = DOUBLE if is_same else max(case.own_round_off, one.own_round_off)
        yield Departure(x, y, BOTH_SIDES * unit, f"extremes or sums differ from those of the sent tensor by {x:.2e}")


def _extreme(case: RuleContext, choose: Callable[..., float], name: str) -> Iterator[Departure]:
    """The output contains the largest or the smallest of all elements that are read, along any axis of the operator."""
    for written in [case.values] if case.floats_read and case.scale.largest else []:
        sides = (
            ([one.target for _, one in case.floats_read], written.target),
            ([one.golden for _, one in case.floats_read], written.golden),
        )
        ends = [(choose(getattr(one, name) for one in source), getattr(wrote, name)) for source, wrote in sides]
        x, y = (abs(source - wrote) / case.scale.largest for source, wrote in ends)
        yield Departure(
            x,
            y,
            BOTH_SIDES * _round_off(case, *(one for one, _ in case.floats_read)),
            f"the {name} element is {ends[0][1]:.6g}, that of the inputs {ends[0][0]:.6g}",
        )


def _dropout_scale(case: RuleContext) -> Iterator[Departure]:
    """Dropout divides a kept element by the share that it keeps, and enlarges it no further."""
    shares = [one for one in case.own.operator.arguments.values() if type(one) is float and 0.0 < one < 1.0]
    for _, source in case.floats_read if len(shares) == len(case.floats_read) == 1 and case.scale.largest else ():
        factor, sides = 1.0 / (1.0 - shares[0]), _pairs(source, case.values)
        ends = [(max(abs(a.minimum), abs(a.maximum)) * factor, max(abs(b.minimum), abs(b.maximum))) for a, b in sides]
        x, y = (max(0.0, b - a) / case.scale.largest for a, b in ends)
        yield Departure(
            x,
            y,
            BOTH_SIDES * _round_off(case),
            f"an element is {ends[0][1]:.6g}, but no kept element exceeds {ends[0][0]:.6g}",
        )


def _kept_sum_law(case: RuleContext) -> Iterator[Departure]:
    """A gradient that adds each incoming element to one element, or spreads it over several, keeps their sum. An
    operator that reads several tensors and is not a gradient by its type adds or joins gradients."""
    # the gradient of a table adds every incoming row to it if the forward call is recorded, drops no padding index and
    # divides by no frequency
    saved = [one.pair for one in case.own.extra_inputs][:1]
    calls = [one for pair in saved for one in (pair.target_op, pair.golden_op) if one is not None and not one.path]
    named = [named_arguments(call) for call in calls] if case.own.op.has("looks up") else [{}]
    drops = any(one.get("scale_grad_by_freq") or one.get("padding_idx") is not None for one in named)
    joins = len(case.floats_read) > 1 and not case.own.op.has("gradient")
    signs = (1.0, -1.0) if case.own.op.name == "sub" else (1.0,)  # of a subtrahend
    for one, source in case.floats_read if named and not drops and not joins else ():
        x, y = (min(abs(b.total - sign * a.total) for sign in signs) for a, b in _pairs(source, case.values))
        sizes = [math.sqrt(min(a.squares, b.squares)) for a, b in _pairs(source, case.values)]
        if sizes[1]:
            unit, squares = max(case.own_round_off, round_off_of(one.pair), DOUBLE), source.golden.squares
            if abs(squares - case.values.golden.squares) > BOTH_SIDES * unit * squares:  # elements were added or spread
                unit = max(unit, _round_off(case))
            added = math.sqrt(max(1.0, source.elements / case.values.elements))
            room = unit * (DEVIATIONS * added + abs(source.golden.total) / sizes[1])
            room += min(unit, SINGLE) * added * math.sqrt(squares) / sizes[1]
            yield Departure(
                x / max(sizes),
                y / sizes[1],
                BOTH_SIDES * room,
                f"the sum differs from that of the incoming gradient by {x / max(sizes):.2e} of its size",
            )


LAWS: tuple[tuple[Any, ...], ...] = (  # whether an operator has a law, the law, and its values
    (lambda op: op.has("rows sum to 1"), _row_sums),
    (lambda op: op.has("at least 0"), _range, 0.0, math.inf),
    (lambda op: op.has("at least -1"), _range, -1.0, math.inf),
    (lambda op: op.has("at most 1"), _range, -math.inf, 1.0),
    (lambda op: op.has("at most 0"), _range, -math.inf, 0.0),
    (lambda op: op.has("normalises"), _spread),
    (lambda op: op.has("centres"), _centre),
    (lambda op: op.has("views", "hands on", "permutes"), _moving_law),
    (lambda op: op.has("picks", "looks up"), _extremes),
    (lambda op: op.has("largest"), _extreme, max, "maximum"),
    (lambda op: op.has("smallest"), _extreme, min, "minimum"),
    (lambda op: op.has("drops"), _dropout_scale),
    (lambda op: op.has("receives"), _sent_tensor_law),
)
GRADIENT_LAWS: tuple[tuple[Any, ...], ...] = (
    (lambda op: op.has("keeps sums", "views", "hands on", "permutes"), _kept_sum_law),
    (lambda op: op.has("rectifies", "ranks"), _no_larger),
)


@lru_cache(maxsize=1 << 12)
def _laws_of(op: OpType, is_gradient: bool) -> list[tuple[Callable[..., Iterator[Departure]], list[Any]]]:
    return [(check, more) for applies, check, *more in (GRADIENT_LAWS if is_gradient else LAWS) if applies(op)]
