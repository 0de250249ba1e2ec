"""The facts that a rule may read: one tensor, its operator, and what the search found upstream.

Errors are rel_l2, from 0 to infinity. A rule reads a RuleContext and nothing else, so that a test can construct one and
no rule depends on another or on their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Callable, NamedTuple, Optional

from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import SINGLE, Precision, round_off_of, terms_summed
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import Scale, Terms, amplification, scale_of, terms
from npucmp.measure import metrics
from npucmp.model import HISTOGRAM_BINS, Finding, Moments, Pair, Verdict
from npucmp.model.dtypes import AVERAGED_ELEMENTS as AVERAGED_ELEMENTS
from npucmp.model.dtypes import lookup
from npucmp.model.roles import is_output, is_parameter

QUANTISED = "quantised"  # the rule of the limit of a quantised run
MIN_ELEMENTS = 64  # elements: chosen: shares and factors of as many are not chance, not measured
# share: chosen: a factor that makes up as much of an error scales the whole tensor, and a factor that as many
# parameters have scales all of them, not measured
COMMON_SHARE = 0.9
# times the incoming error: chosen: a larger error exceeds it clearly, not measured; of the largest element, a flipped
# mask made 0.76, and batch_norm behind it 0.85
OUTLIER_FACTOR = 2.0
CANCELLATION = 2.0  # times a sum: chosen: terms so much larger cancel, not measured
# roundings of the sum of one side: chosen: both sides round, and one element may lie far out, not measured
SUM_ROUNDINGS = 4.0
LARGE_ELEMENTS = 4.0  # elements as large as the largest: chosen: rounding of fewer does not average out, not measured
# growth of an error that agrees: evidence: none of 5,497 outputs of clean pairs reached 2.4 (rules/growth.py)
CARRIED = 3.0
# share of elements that may flip, in an error e: evidence: gradients of clean pairs are off by 2.6 √e at most, a share
# of 7 e (rules/non_smooth.py)
FLIP_SHARE = 16.0
FLIP_COUNT = 3.0  # elements: chosen: as many may be off in any tensor, not measured
WHOLE_BIN = 20  # bin of the histogram: definition: from here on the error of an element is as large as the element
# standard deviations of a common factor: evidence: one factor in all parameters of clean pairs is off by 5.8, that of a
# weight decay that is lost in bfloat16 by 16 (localise/parameter_drift.py)
FACTOR_DEVIATIONS = 8.0


@dataclass(eq=False)  # no code changes an instance; a frozen class would cost three times as much to construct
class RuleContext:
    """One tensor that may differ.

    finding               the tensor with its measurement; also with its verdict, except for rules that set its limit
    node                  the operator that wrote it, or that is assumed to read it; None for a tensor by itself
    input_error           the largest error that the operator read; for a tensor by itself, that of its producer
    precision             the precision of the runs up to this tensor
    inherited             the largest error that earlier steps may have made in a parameter; 0 in the first step
    factor                common factor of all parameters of the step, minus 1; 0 if noise would give it
    untied                an operator that shares the parameter in the golden, and no longer does in the target
    downcast_share        share of the other operators that begin a coarser type than the golden's
    no_producer           no dumped operator wrote it, and no error exists yet from which its error could descend
    grew_stepwise         the error grew over earlier operators, each within the growth that a rule explains
    changed_choice_share  the largest share of an earlier choice that flipped, as near ties do
    inputs_agree          all that the operator reads was compared, is within its limit and descends from no root
    flipped_inside        an operator inside this module has an error that a flipped choice explains
    """

    finding: Finding
    node: Optional[OperatorFindings] = None
    input_error: float = 0.0
    precision: Precision = Precision()
    inherited: float = 0.0
    factor: float = 0.0
    untied: str = ""
    downcast_share: float = 1.0
    no_producer: bool = False
    grew_stepwise: bool = False
    changed_choice_share: float = 0.0
    inputs_agree: bool = False
    flipped_inside: bool = False

    @property
    def pair(self) -> Pair:
        return self.finding.pair

    @property
    def moments(self) -> Optional[Moments]:
        return self.finding.measurement.moments

    @cached_property
    def error(self) -> float:
        """The proven error: the lower bound if only statistics exist."""
        return proven_size(self.finding)

    @cached_property
    def absolute(self) -> float:
        """Root mean square of x - y; inf if unknown."""
        moments = self.moments
        if moments is not None and not moments.mismatched and moments.compared:
            return math.sqrt(moments.sum_dd / moments.compared)
        return self.error * self.scale.rms if moments is None else math.inf

    @cached_property
    def scale(self) -> Scale:
        """The size of the golden values."""
        return scale_of(self.finding)

    @cached_property
    def amplification(self) -> float:
        """The factor by which the operator may multiply a relative error, from its condition number; at least 1."""
        return 1.0 if self.node is None else amplification(self.node)

    @cached_property
    def rounding_of_terms(self) -> float:
        """The error, as rel_l2, that a sum may have because of the errors and the rounding of its terms; 0 if the
        tensor is not a sum, or if terms of random signs would give a smaller sum."""
        if self.terms.spread <= self.scale.rms or math.isinf(self.absolute):
            return 0.0
        accumulated = min(self.own_round_off, SINGLE) or SINGLE  # sums accumulate in float32 at least
        grown = FACTOR * max(self.input_error, self.round_off)
        if self.carries_little:
            grown = min(grown, CARRIED * self.input_error + FACTOR * self.round_off)
        bound = grown * self.terms.spread
        bound += SUM_ROUNDINGS * self.terms.random_walk_error(self.scale.rms, accumulated)
        if math.isinf(self.error) or not self.absolute:
            return math.inf if self.absolute <= bound else 0.0
        return self.error * bound / self.absolute

    @property
    def carries_little(self) -> bool:
        """Whether the incoming error grows by no more than was seen: all inputs agree, or both errors are steps of 8
        bits, which each operator rounds anew."""
        return self.inputs_agree or self.finding.rule == QUANTISED

    @property
    def cancels(self) -> bool:
        """Whether the tensor is a sum much smaller than terms of random signs give, and its error is that of the
        terms."""
        return self.terms.spread > CANCELLATION * self.scale.rms and 0 < self.error <= self.rounding_of_terms

    @cached_property
    def terms(self) -> Terms:
        """The terms of the tensor, if it is a sum."""
        return Terms() if self.node is None else terms(self.node, self.finding)

    @property
    def terms_summed(self) -> float:
        """Estimate the number of terms in each element, from shapes alone; 1 if the tensor is not a sum."""
        operator, golden = self.pair.golden_op, self.pair.golden
        return 1.0 if operator is None or golden is None else terms_summed(operator, golden)

    @property
    def round_off(self) -> float:
        """One unit round-off of the precision from which the limit was made."""
        return self.finding.limit / FACTOR

    @property
    def own_round_off(self) -> float:
        """The coarser unit round-off of the tensor's two types; 0 if neither is a float."""
        return round_off_of(self.pair)

    @property
    def gain(self) -> float:
        """The factor of the whole target tensor, minus 1; 0 if unknown."""
        return gain_of(self.finding)

    @property
    def input_gain(self) -> float:
        """The largest factor, minus 1, of the tensors that the operator read."""
        read = [] if self.node is None else [*self.node.inputs, *self.node.extra_inputs]
        return max((abs(gain_of(finding)) for finding in read), default=0.0)

    @property
    def has_many(self) -> bool:
        """Whether enough elements make up the norm for roundings to cancel: not one huge element, not a few."""
        moments, largest = self.moments, self.scale.largest
        return (
            moments is not None
            and moments.compared >= AVERAGED_ELEMENTS
            and moments.yy >= LARGE_ELEMENTS * largest * largest
        )

    @property
    def is_measured(self) -> bool:
        """Whether values were compared by rel_l2."""
        moments = self.moments
        known = self.finding.error is not None and self.finding.metric == "rel_l2"
        return known and moments is not None and bool(moments.max_abs)

    @property
    def is_choice(self) -> bool:
        """Whether the tensor is a choice itself: a mask or an index."""
        golden = lookup(self.pair.golden.dtype) if self.pair.golden else None
        return golden is not None and golden.kind in "biu"

    @property
    def is_mask(self) -> bool:
        """Whether the tensor is boolean."""
        golden = lookup(self.pair.golden.dtype) if self.pair.golden else None
        return golden is not None and golden.kind == "b"

    @cached_property
    def told_share(self) -> float:
        """The largest share of differing elements in the indices or the mask that the operator reads; 0 if none
        differs."""
        if self.node is None:
            return 0.0
        by_index = self.node.op.has("picks", "looks up")
        read = (one for one in (*self.node.inputs, *self.node.extra_inputs) if not self.node.writes_to(one))
        told = [
            one
            for one in map(RuleContext, read)
            if one.moments is not None and one.is_choice and (by_index or one.is_mask)
        ]
        return max((one.share_changed for one in told), default=0.0)

    @property
    def share_changed(self) -> float:
        """The share of elements that differ; 1 if values are unknown."""
        moments = self.moments
        if moments is None or not moments.elements:
            return 1.0
        return moments.differing / moments.elements

    @property
    def is_output(self) -> bool:
        """Whether its operator wrote the tensor."""
        return is_output(self.pair)

    @property
    def is_parameter(self) -> bool:
        """Whether the tensor is a weight, a bias or a running statistic."""
        return is_parameter(self.pair)

    @property
    def is_non_smooth(self) -> bool:
        """Whether the tensor is a gradient of a choice, whose mask flips where the forward was near its kink.

        The operators inside a module with a path are unknown, unless its class is that of a smooth layer.
        """
        if self.node is None or not self.node.is_gradient:
            return False
        return self.is_composed or (self.node.op.has("non-smooth") and not self.chose_alike)

    @property
    def is_composed(self) -> bool:
        """Whether a module with unknown operators inside wrote the tensor: it may choose."""
        return self.node is not None and bool(self.node.operator.path) and not self.node.op.has("smooth")

    @property
    def chose_alike(self) -> bool:
        """Whether the operator read the recorded choice itself, a mask or indices, and it is equal on both sides."""
        node = self.node
        read = [] if node is None else [RuleContext(one) for one in (*node.inputs, *node.extra_inputs)]
        choices = [one for one in read if one.is_choice and one.moments is not None]
        choices = [one for one in choices if one.moments is not None and one.moments.elements >= AVERAGED_ELEMENTS]
        return bool(choices) and all(one.share_changed == 0.0 for one in choices)


class ErrorRule(NamedTuple):
    """One fact about errors.

    kind     "limit"        bound: the largest error that rounding alone may make
             "explanation"  bound: the largest error that incoming errors may make
             "accusation"   applies: a fault although the error is small or explained
             "fact"         applies: a property of the tensor; the code that queries the fact acts on it
    name     the name for --skip-rule and in the tables
    why      the evidence, in a sentence
    judged   for an accusation: the finding with the words of the rule
    """

    kind: str
    name: str
    why: str
    applies: Callable[[RuleContext], bool]
    bound: Callable[[RuleContext], float] = lambda case: 0.0
    judged: Callable[[RuleContext], Finding] = lambda case: mark_diverged(case.finding)


def mark_diverged(finding: Finding) -> Finding:
    """Mark a finding as diverged for another reason than the limit of rel_l2."""
    because = f"rel_l2 {proven_size(finding):.2e}, more than rounding explains"
    if finding.error is None or math.isnan(finding.error):
        because = f"rel_l2 is at least {proven_size(finding):.2e}, more than rounding explains"
    return finding._replace(verdict=Verdict.DIVERGED, because=because)


def error_of(finding: Finding) -> Optional[float]:
    """The error that a rule reads; None if unknown. Differing checksums are an infinite error."""
    if finding.error is None:
        return None
    return math.inf if math.isnan(finding.error) else finding.error


def error_size(finding: Finding) -> float:
    """The error of `error_of`; 0 if unknown."""
    error = error_of(finding)
    return 0.0 if error is None else error


def proven_size(finding: Finding) -> float:
    """The proven error: the lower bound if only statistics exist."""
    bound = finding.measurement.bound
    if finding.error is not None and math.isnan(finding.error) and bound is not None:
        return bound
    return error_size(finding)


def deviations_of(finding: Finding) -> float:
    """The factor of the whole tensor, minus 1, in standard deviations of the factor that its error alone would give; 0
    if unknown."""
    moments, error = finding.measurement.moments, proven_size(finding)
    if moments is None or not 0.0 < error < math.inf:
        return 0.0
    return gain_of(finding) * math.sqrt(moments.compared) / error


def shares_beyond(finding: Finding) -> list[float]:
    """Return the share of elements that reach each decade of relative error; empty where values were not compared."""
    moments = finding.measurement.moments
    if moments is None or not moments.compared:
        return []
    above = list(accumulate(reversed(moments.histogram)))
    return [above[HISTOGRAM_BINS - 1 - decade] / moments.compared for decade in range(HISTOGRAM_BINS)]


def gain_of(finding: Finding) -> float:
    """The factor of the whole target tensor, minus 1; 0 if unknown."""
    moments = finding.measurement.moments
    return metrics.gain(moments) if moments is not None else 0.0
