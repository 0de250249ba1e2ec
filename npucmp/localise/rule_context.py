"""What a rule may see: one tensor, the operator around it, and what has been found out on the way there.

Errors are rel_l2, from 0 to infinity. A rule reads a Case and nothing else, so that a test can make one by hand and
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
from npucmp.localise.conditioning import Scale, amplification, scale_of
from npucmp.localise.summation import Terms, terms
from npucmp.measure import metrics
from npucmp.model import HISTOGRAM_BINS, Finding, Moments, Pair, Verdict
from npucmp.model.dtypes import FEW as FEW
from npucmp.model.dtypes import lookup
from npucmp.model.roles import is_output, is_parameter

MANY = 64  # elements: chosen: shares and factors of as many are no chance, not measured
# share: chosen: a factor that makes up as much of an error scales the tensor as a whole, and one that as many
# parameters have all of them, not measured
WHOLE = 0.9
# times what came in: chosen: an error that is larger stands out of it, not measured; of the largest element, a flipped
# mask made 0.76, and batch_norm behind it 0.85
STANDS_OUT = 2.0
CANCELLATION = 2.0  # times a sum: chosen: terms so much larger cancel, not measured
WALKS = 4.0  # roundings of the sum of one side: chosen: both sides round, and one element may lie far out, not measured
FEW_GIANTS = 4.0  # elements as large as the largest: chosen: rounding of fewer does not average out, not measured
# share of elements that may flip, in an error e: evidence: gradients of clean pairs are off by 2.6 √e at most, a share
# of 7 e (rules/non_smooth.py)
FLIPPING = 16.0
FEW_FLIPS = 3.0  # elements: chosen: as many may be off in any tensor, not measured
WHOLE_BIN = 20  # bin of the histogram: definition: from it on an element is off by as much as it is large
# standard deviations of a common factor: evidence: one factor in all parameters of clean pairs is off by 5.8, that of a
# weight decay that is lost in bfloat16 by 16 (localise/parameter_drift.py)
TOGETHER = 8.0


@dataclass(eq=False)  # nobody changes one; frozen, making one would cost three times as much
class RuleContext:
    """One tensor that may differ.

    finding     the tensor, measured; judged too, but for the rules that set its limit
    node        the operator that wrote it, or whose input it is told to be; None for a tensor by itself
    before      largest error of what that operator read; for a tensor by itself, of where it comes from
    nowhere     nothing that was dumped wrote it, and no error is about yet that it could descend from
    grown       the error is what operators before made of theirs, each within what explains it
    flipped     the largest share of a choice before that fell otherwise, as near ties do
    precision   in which the runs worked up to here
    habit       share of the other operators that turn to a coarser type than the golden's
    factor      by which all parameters of the step are off together, minus 1; 0 where noise would give it
    inherited   how large the steps before may have made the error of a parameter; 0 in the first
    """

    finding: Finding
    node: Optional[OperatorFindings] = None
    before: float = 0.0
    precision: Precision = Precision()
    inherited: float = 0.0
    factor: float = 0.0
    habit: float = 1.0
    nowhere: bool = False
    grown: bool = False
    flipped: float = 0.0

    @property
    def pair(self) -> Pair:
        return self.finding.pair

    @property
    def moments(self) -> Optional[Moments]:
        return self.finding.measurement.moments

    @cached_property
    def error(self) -> float:
        """The error as far as it is proven: the lower bound where statistics are all there is."""
        return proven_size(self.finding)

    @cached_property
    def absolute(self) -> float:
        """Root mean square of x - y, inf if unknown."""
        moments = self.moments
        if moments is not None and not moments.mismatched and moments.compared:
            return math.sqrt(moments.sum_dd / moments.compared)
        return self.error * self.scale.rms if moments is None else math.inf

    @cached_property
    def scale(self) -> Scale:
        """How large the golden values are."""
        return scale_of(self.finding)

    @cached_property
    def amplification(self) -> float:
        """By how much the operator may multiply a relative error, from its condition number; at least 1."""
        return 1.0 if self.node is None else amplification(self.node)

    @cached_property
    def rounding_of_terms(self) -> float:
        """The error, as rel_l2, that a sum may have by what came in with its terms and by their rounding; 0 for what is
        none, and where terms of any signs would sum up to less."""
        if self.terms.spread <= self.scale.rms or math.isinf(self.absolute):
            return 0.0
        accumulated = min(self.own_round_off, SINGLE) or SINGLE  # nothing is summed in less than float32
        bound = FACTOR * max(self.before, self.round_off) * self.terms.spread
        bound += WALKS * self.terms.walk(self.scale.rms, accumulated)
        if math.isinf(self.error) or not self.absolute:
            return math.inf if self.absolute <= bound else 0.0
        return self.error * bound / self.absolute

    @property
    def cancels(self) -> bool:
        """Whether it is a sum much smaller than terms of any signs would make it, and its error one of theirs."""
        return self.terms.spread > CANCELLATION * self.scale.rms and 0 < self.error <= self.rounding_of_terms

    @cached_property
    def terms(self) -> Terms:
        """Of what terms it is a sum."""
        return Terms() if self.node is None else terms(self.node, self.finding)

    @property
    def terms_summed(self) -> float:
        """About how many terms went into each element, from shapes alone; 1 for no sum."""
        operator, golden = self.pair.golden_op, self.pair.golden
        return 1.0 if operator is None or golden is None else terms_summed(operator, golden)

    @property
    def round_off(self) -> float:
        """One unit round-off of the precision that the limit stands for."""
        return self.finding.limit / FACTOR

    @property
    def own_round_off(self) -> float:
        """That of the tensor's own types, the coarser of both; 0 without floats."""
        return round_off_of(self.pair)

    @property
    def gain(self) -> float:
        """The factor that the target as a whole is off by, minus 1; 0 where it is not known."""
        return gain_of(self.finding)

    @property
    def gain_before(self) -> float:
        """The largest of those of what the operator read."""
        read = [] if self.node is None else [*self.node.inputs, *self.node.context]
        return max((abs(gain_of(finding)) for finding in read), default=0.0)

    @property
    def has_many(self) -> bool:
        """Whether enough elements make up the norm for their roundings to cancel: not one giant, not a handful."""
        moments, largest = self.moments, self.scale.largest
        return moments is not None and moments.compared >= FEW and moments.yy >= FEW_GIANTS * largest * largest

    @property
    def is_measured(self) -> bool:
        """Whether values were compared, by rel_l2."""
        moments = self.moments
        known = self.finding.error is not None and self.finding.metric == "rel_l2"
        return known and moments is not None and bool(moments.max_abs)

    @property
    def is_choice(self) -> bool:
        """A tensor that is a choice itself: a mask, an index."""
        golden = lookup(self.pair.golden.dtype) if self.pair.golden else None
        return golden is not None and golden.kind in "biu"

    @property
    def share_changed(self) -> float:
        """Share of the elements that hold two numbers; 1 where values are not known."""
        moments = self.moments
        if moments is None or not moments.elements:
            return 1.0
        return moments.differing / moments.elements

    @property
    def is_output(self) -> bool:
        """Whether it was written by its operator."""
        return is_output(self.pair)

    @property
    def is_parameter(self) -> bool:
        """A weight, a bias, a running statistic."""
        return is_parameter(self.pair)

    @property
    def is_non_smooth(self) -> bool:
        """A gradient of a choice, whose mask flips where the forward was near its kink.

        What a module with a path does inside is not known, unless its class is that of a smooth layer.
        """
        if self.node is None or not self.node.is_gradient:
            return False
        return self.is_composed or (self.node.op.has("non-smooth") and not self.chose_alike)

    @property
    def is_composed(self) -> bool:
        """Of a module with others inside, for all that is known: it may choose."""
        return self.node is not None and bool(self.node.operator.path) and not self.node.op.has("smooth")

    @property
    def chose_alike(self) -> bool:
        """Whether the choice itself, a mask or indices, was recorded among what the operator reads, and is the same."""
        node = self.node
        read = [] if node is None else [RuleContext(one) for one in (*node.inputs, *node.context)]
        choices = [one for one in read if one.is_choice and one.moments is not None]
        choices = [one for one in choices if one.moments is not None and one.moments.elements >= FEW]
        return bool(choices) and all(one.share_changed == 0.0 for one in choices)


class ErrorRule(NamedTuple):
    """One thing that is known about errors.

    kind     "limit"        bound: how large rounding alone may make the error
             "explanation"  bound: how large the errors that came in may make it
             "accusation"   applies: what is wrong although the error is small or explained
             "fact"         applies: what this tensor is; what follows from it stands where it is asked for
    name     under which it is switched off, and stands in the tables
    why      the evidence, in a sentence
    judged   of an accusation: the finding, told as it sees it
    """

    kind: str
    name: str
    why: str
    applies: Callable[[RuleContext], bool]
    bound: Callable[[RuleContext], float] = lambda case: 0.0
    judged: Callable[[RuleContext], Finding] = lambda case: diverged(case.finding)


def diverged(finding: Finding) -> Finding:
    """A finding that is diverged for another reason than the limit of rel_l2."""
    because = f"rel_l2 {error_size(finding):.2e}, more than rounding gives here"
    return finding._replace(verdict=Verdict.DIVERGED, because=because)


def error_of(finding: Finding) -> Optional[float]:
    """The error that a rule sees; None if nothing is known. Differing checksums are an error of unknown size."""
    if finding.error is None:
        return None
    return math.inf if math.isnan(finding.error) else finding.error


def error_size(finding: Finding) -> float:
    """error_of, 0 where nothing is known."""
    error = error_of(finding)
    return 0.0 if error is None else error


def proven_size(finding: Finding) -> float:
    """The error as far as it is proven: the lower bound where statistics are all there is."""
    bound = finding.measurement.bound
    if finding.error is not None and math.isnan(finding.error) and bound is not None:
        return bound
    return error_size(finding)


def deviations_of(finding: Finding) -> float:
    """The factor minus 1 that a tensor as a whole is off by, in standard deviations of what its error alone would give;
    0 where it is not known."""
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
    """The factor that the target as a whole is off by, minus 1; 0 where it is not known."""
    moments = finding.measurement.moments
    return metrics.gain(moments) if moments is not None else 0.0
