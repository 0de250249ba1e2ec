"""Faults although the error of a tensor is small, or explained by the errors of its inputs.

Each function without an underscore is a rule of the table in __init__.py. It returns the finding with the words of the
rule, None if it does not accuse. laws.py has the rule `law`.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import BOTH_SIDES, SINGLE, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import scale_of
from npucmp.localise.rule_context import (
    COMMON_SHARE,
    FACTOR_DEVIATIONS,
    MIN_ELEMENTS,
    OUTLIER_FACTOR,
    RuleContext,
    deviations_of,
    gain_of,
    mark_diverged,
    proven_size,
)
from npucmp.localise.rules.explanations import GROWTH
from npucmp.model import Finding
from npucmp.model.arguments import differing_arguments
from npucmp.model.dtypes import SUM_ROUNDING, lookup
from npucmp.model.roles import is_output, is_parameter

# share of the other operators: evidence: a tenth and more begin a coarser type in clean pairs of mixed precision
DOWNCAST_SHARE = 0.05
RUN_SHARE = 0.25  # share of the operators: chosen: if as many have a coarser type, the whole run is in it, not measured
# round-offs: evidence: 2.1 in 99 % of 8,550 tensors of clean pairs; also growth of such a factor
SCALE_ROUND_OFFS = 4.0
# share of the error: chosen: one of two to six terms of equal size makes as much common to the whole, not measured
TERM_SHARE = 0.4
ROUND_OFFS = 1.5  # round-offs: evidence: 0.5 at most between right results from the same bits
CHANGED_SHARE = 0.4  # share of elements: evidence: at most 0.12 are rounded differently
BIAS = 0.25  # round-offs in common: evidence: 0.05 at most
LOST_SHARE = 0.25  # of the largest value: chosen: an element that is off by more is lost, not measured
# times the error that came in, in units of the largest value: evidence: below 29 in 99.9 % of 7,088 outputs of clean
# pairs
LOST_GAIN = 32.0
ELEMENTS = 2  # elements: chosen: rounding changes more, not measured
ERROR_LIMIT = 64.0  # in √u: chosen: 1.6 % in float32, not measured


def coarser(case: RuleContext) -> Optional[Finding]:
    """The target writes a coarser type than the golden but reads none, and hardly any other operator does so.

    A run in mixed precision has many such operators; a single one is an accident, whose error the limit of its own type
    hides. The consumers of its output and its gradient read the coarser type already and do not count. An input that
    holds the golden's numbers in the coarser type is one that the golden alone casts up: the operator begins the
    coarser type. A gradient that arrives has the type that the forward wrote. A cast is meant to round: a cast that
    rounds each input element once, to the nearest, is correct. The rule applies if at most 5 % of the other operators
    do so, and less than a quarter of all operators have a coarser type. If only inputs were recorded, the first reader
    of the tensor bears the error. A note names the type of a correct cast. Evidence: in clean pairs of the corpus in
    mixed precision (open seeds) at least a tenth of the operators begin a coarser type.
    """
    golden, read = lookup(case.golden.dtype), _tensors_read(case.own)
    arrives = case.pair.operator.phase == "backward" and not is_output(case.pair)
    begins = not any(map(_is_rounded, read)) if read else case.node is None and case.no_producer and not arrives
    is_large = golden is not None and case.error > golden.round_off
    return mark_diverged(case.finding) if is_large and begins and not is_rounded_once(case) else None


def downcast_share(nodes: Sequence[OperatorFindings]) -> float:
    """The share of other operators that begin a coarser type than the golden's: they write in it, and read in none, or
    the golden's numbers. Modules count only if there are no other operators, because operators inside them write their
    outputs. 0 if there are no operators."""
    counted = [node for node in nodes if not node.operator.path] or nodes
    have = [node for node in counted if any(map(is_coarser, node.outputs or node.inputs))]
    if len(counted) == 1 or len(have) >= max(2.0, RUN_SHARE * len(counted)):  # a single operator differs from no other
        return 1.0
    begins = sum(any(map(is_coarser, one.outputs)) and not any(map(_is_rounded, _tensors_read(one))) for one in have)
    if not any(node.outputs for node in nodes):  # inputs alone: each tensor once
        begins = len({content_of(one) for node in have for one in node.inputs if is_coarser(one)})
    return max(0, begins - 1) / max(1, len(counted))


def _tensors_read(node: OperatorFindings) -> list[Finding]:
    return [*(node.inputs or node.assumed_inputs), *node.extra_inputs]


def is_coarser(finding: Finding) -> bool:
    """Whether the target has a coarser type than the golden."""
    target, golden = (lookup(one.dtype) if one else None for one in (finding.pair.target, finding.pair.golden))
    return bool(target and golden and target.round_off > golden.round_off > 0)


def _is_rounded(finding: Finding) -> bool:
    """Whether the target has a coarser type than the golden, and other numbers."""
    target, golden = finding.measurement.recorded(0), finding.measurement.recorded(1)
    same = finding.error == 0.0 if finding.measurement.moments else target is not None and target == golden
    return is_coarser(finding) and not same


def is_rounded_once(case: RuleContext) -> bool:
    """Whether an operator that only forwards its input wrote each element rounded once to the nearest; for statistics,
    whether these allow it. Relative errors u and e combine to u + e + u e."""
    rounding = sum(row.round_off for row in map(lookup, (case.target.dtype, case.golden.dtype)) if row is not None)
    read = [_largest(one) for one in case.own.inputs if round_off_of(one.pair)]
    largest = (1.0 + rounding) * (rounding + max(read, default=case.input_error))
    return case.own.op.has("hands on") and not case.own.op.has("copies") and _largest(case.finding) <= largest


def _largest(finding: Finding) -> float:
    """The largest relative error of one element; without values, the proven error of the tensor."""
    moments = finding.measurement.moments
    return proven_size(finding) if moments is None or moments.mismatched else moments.max_rel


def common_factor(case: RuleContext) -> Optional[Finding]:
    """One factor scales all parameters of a step: an update without weight decay, a checkpoint that was scaled.

    Each parameter may be within its limit, or within the error that its update explains. Noise of gradients does not
    scale parameters, so factors of one sign in all parameters are evidence together; the first parameter in order is
    reported. Evidence: localise/parameter_drift.py, which counts the factors in standard deviations.

    Nine of ten parameters must have a factor of the same sign, and all factors together must be 8 standard deviations
    of noise away from zero. Only parameters of one type on both sides count, because a coarser type loses a small
    update. An input that is not known to be a parameter must exceed its noise by itself.
    """
    own, noise = deviations_of(case.finding), 0.0 if is_parameter(case.pair) else FACTOR_DEVIATIONS
    words = f"all parameters are scaled by about 1 {'+' if case.factor > 0 else '-'} {abs(case.factor):.1e}"
    return mark_diverged(case.finding, words) if own * math.copysign(1.0, case.factor) > noise else None


def untied(case: RuleContext) -> Optional[Finding]:
    """Two operators share a parameter in the golden, and no longer do in the target, which updated two tensors.

    An embedding and the head that is tied to it read one tensor. A tie that breaks changes both tensors by the step of
    an optimizer, which is within the error that the noise of a gradient may make, so that rule `inherited` explains it.
    Equal contents prove a tie: noise moves a shared tensor for all its readers. The target must have shared the tensor
    in the step before, so that copies of another type, or on another rank, are no broken tie. The first reader whose
    tensor exceeds its limit is reported.
    """
    words = f"{case.untied} shares this parameter in the golden, and did in the target in the step before: a broken tie"
    return mark_diverged(case.finding, words) if case.error > case.finding.limit else None


def scaled(case: RuleContext) -> Optional[Finding]:
    """The whole tensor is off by one factor (a gain error), far beyond the error of rounding and the inputs.

    Rounding errors cancel in Σxy/Σy², a wrong factor does not: this detects a 2 % fault under bfloat16. Evidence: in 99
    % of 8,550 tensors of silent clean pairs of the corpus the factor is below 2.1 times one round-off, or the factor of
    the inputs.

    An output of 16 elements or more is diverged if its factor exceeds 4 u, 4 times the factor of any input and twice e,
    and makes up 90 % of its error. If the error beside the factor is less than the round-off of the working precision,
    u is that error or the round-off of the output's type. If inputs were not recorded, the factor must exceed twice the
    errors seen before, and no root may precede the operator. In a sum over ranks one term may
    be scaled: 40 % suffice if all inputs are within its limit.
    """
    gain, u = gain_of(case.finding), case.round_off
    adds = bool(case.terms_rounding) or case.sums_over_ranks
    is_sum = adds and case.input_error <= case.finding.limit
    is_whole = abs(gain) >= COMMON_SHARE * case.error
    if not (is_whole or (is_sum and abs(gain) >= TERM_SHARE * case.error)) or not case.has_many or case.cancels:
        return None
    if case.node:  # roundings scatter; code that was not dumped may multiply by a number that it rounded
        u = min(u, max(case.own_round_off, math.sqrt(max(0.0, case.error**2 - gain**2))))
    limit, read = SCALE_ROUND_OFFS * u, max((abs(gain_of(one)) for one in case.read), default=0.0)
    largest = max(limit, SCALE_ROUND_OFFS * read, OUTLIER_FACTOR * case.input_error)
    sign, rest = "+" if gain > 0 else "-", math.sqrt(max(0.0, case.error**2 - gain**2))
    words = f"whole tensor scaled by 1 {sign} {abs(gain):.1e}, limit ±{limit:.1e}"
    if not is_whole:
        words = (
            f"scaled by 1 {sign} {abs(gain):.1e}, limit ±{limit:.1e}, and {rest:.1e} beside it: as if one term of the "
            "sum over ranks were scaled"
        )
    return mark_diverged(case.finding, words, metric="gain", limit=limit) if abs(gain) > largest else None


def arguments(case: RuleContext) -> Optional[Finding]:
    """Non-tensor arguments that differ, on an operator whose output has a larger error than its inputs.

    An argument rarely differs without a reason, and its effect may be below the limit: eps of a normalisation.

    The output must differ by more than twice the error of the inputs and by more than one round-off of its own type.
    """
    target, golden = case.pair.target_op, case.pair.golden_op
    is_large = case.error > max(OUTLIER_FACTOR * case.input_error, case.own_round_off)
    if not is_large or case.pair.target is None or target is None or golden is None:
        return None
    return mark_diverged(case.finding) if [*differing_arguments(target, golden)] else None


def equal_bits(case: RuleContext) -> Optional[Finding]:
    """The operator read equal bits, and its outputs in 8 or 16 bits differ by more than roundings.

    Such types are summed in float32, so two correct results differ by one rounding in a few elements. Three signs show
    a fault: the size of the error, the share of elements that differ (accumulation in the type itself, a weak erf or
    exp), and a common factor that rounding to the nearest does not have (truncation). Evidence: 9,786 outputs of 16
    bits with equal inputs in clean pairs of the corpus (open seeds), without modules: up to 0.5 u, 12 % of the
    elements, 0.05 u in common.

    Outputs in bfloat16, float16 or float8 are diverged if they are more than 1.5 u apart, differ in more than 40 % of
    the elements, or have 0.25 u in common. For modules, for sums over ranks inside an operator, for fewer than 64
    elements and between two types only an error above 2 u counts. The output of a module that an operator in it wrote
    is judged there: errors of many operators add up in the module.
    """
    values, unit, gain = case.values, case.own_round_off, gain_of(case.finding)
    # statistics that are not equal prove no difference, nor equal bits
    may_differ = any(one.error is None and len({*map(repr, one.measurement.statistics)}) > 1 for one in case.read)
    is_cast = case.target.dtype != case.golden.dtype  # an inserted operator only rounds once, from any wider type
    if may_differ or unit <= SINGLE or case.written_inside or (is_cast and not case.own.operator.inserted):
        return None
    largest, words, deviations = ROUND_OFFS * unit, "", abs(gain) * math.sqrt(values.compared)
    if case.terms_rounding:  # each rank rounds its term
        largest *= case.terms_rounding
    elif case.is_composed or is_cast or values.compared < MIN_ELEMENTS or case.sums_over_ranks:
        largest = BOTH_SIDES * unit if not (case.is_composed and case.changed_choice_share) else math.inf
    elif case.share_changed > CHANGED_SHARE:
        words = (
            f"{case.share_changed:.3%} of the elements differ (rel_l2 {case.error:.2e}), more than one rounding of "
            "equal inputs explains"
        )
    elif case.has_many and abs(gain) > BIAS * unit and deviations > FACTOR_DEVIATIONS * case.error:
        words = f"rel_l2 {case.error:.2e}, {gain:+.1e} in common, which rounding to nearest does not have"
    is_large = case.error > largest
    return mark_diverged(case.finding, "" if is_large else words) if is_large or words else None


def copy(case: RuleContext) -> Optional[Finding]:
    """An operator that only forwards its input wrote different values, by any amount.

    A copy changes no bit. The tolerance covers the sums of its error, which are taken in another order.
    """
    read, file = RuleContext(case.own.inputs[0]), (case.golden.file, case.golden.shape)
    is_copy = (file[0] and (read.golden.file, read.golden.shape) == file) or (
        0 != content_of(read.finding) == content_of(case.finding)
    )
    is_paired = None not in (case.pair.target, case.pair.golden, read.pair.target, read.pair.golden)
    is_large = case.error > (1.0 + SUM_ROUNDING) * case.input_error and read.target.dtype == case.target.dtype
    return mark_diverged(case.finding) if is_copy and is_paired and is_large else None


def lost_tile(case: RuleContext) -> Optional[Finding]:
    """A few elements are off by as much as the largest value, while the other elements are as good as the inputs: a
    lost tile.

    A lost row or tile among thousands hardly shows in rel_l2; rounding never moves one element that far. Evidence: in
    99.9 % of 7,088 outputs of silent clean pairs of the corpus the largest error is below 29 times the round-off, or
    the incoming error, of the largest value; choices and sums that cancel are excluded. If an element of an input is
    off by as large a share of the largest value, as behind a mask that flipped, the operator lost no element.

    An element must be off by a quarter of the largest value, and by more than 32 max(u, κ e) of it, with the condition
    number κ. The rule does not apply where masks flip or terms cancel.
    """
    values, scale = case.values, case.scale
    flips = bool(case.changed_choice_share) and (case.own.op.has("picks") or case.is_composed)
    if values.max_abs <= LOST_SHARE * scale.largest or flips or case.told_share or case.is_non_smooth or case.cancels:
        return None
    known = [(scale_of(one), RuleContext(one).values.max_abs) for one in case.own.inputs]
    read = [size / one.largest for one, size in known if one.largest and one.elements == scale.elements]
    error = LOST_GAIN * max(case.own_round_off, case.input_error * case.amplification)
    share = max(error, OUTLIER_FACTOR * case.amplification * max(read, default=0.0))
    return mark_diverged(case.finding) if values.max_abs > share * scale.largest else None


def single_element(case: RuleContext) -> Optional[Finding]:
    """One or two elements of a tensor differ by more than rounding moves an element, and all others hold the same bits.

    The norm of a large tensor hides a single wrong element: one flipped bit of a float32 among a million values leaves
    rel_l2 below the limit. Rounding changes many elements a little, or a few of them by a step of their type. A flipped
    choice and a sum that cancels also change single elements, but both need an incoming error. A parameter is not a
    result: rounding changes none of its elements, unless an earlier step updated it.

    The tensor has 64 elements or more, no input differs, and the elements are off by more than the limit times the
    largest value. For a parameter that no earlier step updated, 8 u of the element itself suffice. Zeros of another
    sign count as equal.
    """
    values, finding, differing = case.values, case.finding, case.values.differing
    is_large = not (case.input_error or case.cancels) and values.max_abs > finding.limit * case.scale.largest
    if is_parameter(case.pair):
        is_large = not case.inherited and values.max_rel > FACTOR * case.round_off
    others = "bits" if differing == values.elements - values.equal else "values"
    words = (
        f"{differing} of {values.elements} elements {'differs' if differing == 1 else 'differ'}, by up to "
        f"{values.max_abs:.2e} ({values.max_rel:.1e} of the golden value); all others have the same {others}"
    )
    return mark_diverged(finding, words) if is_large else None


def given(case: RuleContext) -> Optional[Finding]:
    """A parameter of one 16-bit type on both sides is off by more than rounding it once on each side makes it.

    No operator computed a parameter of the first step: both runs received the same numbers, and each rounded them once
    to the type of the parameter. So 8 round-offs, the limit of computed tensors, do not apply here. Rule `inherited`
    judges a parameter that earlier steps have updated. Evidence: all weights × 0.986 in bfloat16 lie within 8
    round-offs; rounding to the nearest on one side and toward zero on the other makes 1.2 at most.
    """
    limit, is_same = BOTH_SIDES * case.own_round_off, case.target.dtype == case.golden.dtype
    words = f"rel_l2 {case.error:.2e}, more than one rounding on each side explains: {limit:.2e}"
    is_apart = is_same and case.own_round_off > SINGLE and case.error > limit
    return mark_diverged(case.finding, words, limit=limit) if is_apart else None


def gradual(case: RuleContext) -> Optional[Finding]:
    """Errors that no single operator enlarges much, but that reach 64 √u: slow growth is not harmless.

    64 √u is 1.6 % in float32, and more than 1 in bfloat16, where size alone decides nothing.

    The operator with the steepest growth is WORSENED.
    """
    return mark_diverged(case.finding) if case.error > _too_large(case) and is_step(case) else None


def is_step(case: RuleContext) -> bool:
    """Whether an explained error grew from a smaller error that was itself not too large. More growth is not one of
    many steps but cancellation or flipped masks."""
    return 0 < case.input_error <= _too_large(case) and case.error <= GROWTH * case.input_error


def _too_large(case: RuleContext) -> float:
    return ERROR_LIMIT * math.sqrt(max(case.round_off, case.finding.working))
