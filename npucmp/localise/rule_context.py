"""The facts that a rule may read: one tensor, its operator, and what the search found upstream.

Errors are rel_l2, from 0 to infinity. A rule reads a RuleContext and nothing else, so that a test can construct one and
no rule depends on another or on their order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, NamedTuple, Optional

from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import SINGLE, Precision, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.conditioning import Scale, Terms, amplification, scale_of, terms
from npucmp.measure import metrics
from npucmp.model import DIFFERS, Finding, Moments, Operator, Pair, TensorRef, Verdict
from npucmp.model.dtypes import AVERAGED_ELEMENTS as AVERAGED_ELEMENTS
from npucmp.model.roles import kind_of

QUANTILE = 0.9  # share of the errors seen: chosen: larger errors are outliers, not measured
RECENT_OPERATORS = 8  # operators: chosen: code that was not dumped most likely reads their outputs, not measured
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
# growth of an error that agrees: evidence: none of 5,497 outputs of clean pairs reached 2.4 (rules/explanations.py)
CARRIED = 3.0
# share of elements that may flip, in an error e: evidence: gradients of clean pairs are off by 2.6 √e at most, a share
# of 7 e (rules/explanations.py)
FLIP_SHARE = 16.0
FLIP_COUNT = 3.0  # elements: chosen: as many may be off in any tensor, not measured
WHOLE_BIN = 20  # bin of the histogram: definition: from here on the error of an element is as large as the element
# standard deviations of a common factor: evidence: one factor in all parameters of clean pairs is off by 5.8, that of a
# weight decay that is lost in bfloat16 by 16 (localise/parameter_drift.py)
FACTOR_DEVIATIONS = 8.0


def _is_split_last(tensor: TensorRef) -> bool:
    """Whether each rank has some columns of a tensor."""
    placed = tensor.relation.placements if tensor.relation is not None else ()
    return any(one.is_split and one.dim == len(tensor.shape) - 1 > 0 for one in placed)


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
    written_inside        an operator inside this module wrote the tensor, and was judged by what it read
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
    written_inside: bool = False

    @property
    def pair(self) -> Pair:
        return self.finding.pair

    @property
    def target(self) -> TensorRef:
        return self.pair.target or NO_TENSOR

    @property
    def golden(self) -> TensorRef:
        return self.pair.golden or NO_TENSOR

    @property
    def moments(self) -> Optional[Moments]:
        return self.finding.measurement.moments

    @property
    def values(self) -> Moments:
        """The moments; those of no element if values were not compared."""
        return self.finding.measurement.moments or NO_VALUES

    @property
    def own(self) -> OperatorFindings:
        """The operator; one without tensors and traits for a tensor by itself."""
        return self.node or NO_NODE

    @property
    def read(self) -> list[Finding]:
        """The tensors that the operator and, for a gradient, its forward read."""
        return [*self.own.inputs, *self.own.extra_inputs]

    @cached_property
    def floats_read(self) -> list[tuple[Finding, Moments]]:
        """The float inputs of the operator; empty if some were not compared or hold NaN or infinities."""
        floats = [one for one in self.own.inputs if round_off_of(one.pair)]
        known = [
            (one, moments)
            for one in floats
            if one.pair.target and one.pair.golden and (moments := one.measurement.moments) is not None
        ]
        is_finite = not any(side.nan + side.inf for _, values in known for side in (values.target, values.golden))
        return known if is_finite and len(known) == len(floats) and self.own_round_off else []

    @cached_property
    def terms_rounding(self) -> float:
        """The rounding of the terms that ranks summed, over that of a tensor that was rounded once: of the side that
        has more of it. 0.0 if no ranks of either side hold terms."""
        sides = [one.relation for one in (self.pair.target, self.pair.golden) if one is not None]
        return max((one.rounding for one in sides if one is not None and one.is_partial), default=0.0)

    @property
    def sums_over_ranks(self) -> bool:
        """Whether ranks that read parts of a tensor all have the whole of what is made of them on a side, or parts of
        it along another axis: they added terms inside the operator, each of which is rounded."""
        for side in ("target", "golden"):
            own, *read = [getattr(one.pair, side) for one in (self.finding, *self.own.inputs)]
            held = own.relation if own is not None else None
            if held is None or len(held.ranks) < 2 or _is_split_last(own):
                continue
            is_last = any(one is not None and _is_split_last(one) for one in read)
            if is_last or (not held.is_split and any(one and one.relation and one.relation.is_split for one in read)):
                return True
        return False

    @cached_property
    def error(self) -> float:
        """The proven error: the lower bound if only statistics exist."""
        return proven_size(self.finding)

    @cached_property
    def scale(self) -> Scale:
        """The size of the golden values."""
        return scale_of(self.finding)

    @cached_property
    def amplification(self) -> float:
        """The factor by which the operator may multiply a relative error, from its condition number; at least 1."""
        return amplification(self.own)

    @cached_property
    def terms(self) -> Terms:
        """The terms of the tensor, if it is a sum."""
        return terms(self.own, self.finding)

    @cached_property
    def rounding_of_terms(self) -> float:
        """The error, as rel_l2, that a sum may have because of the errors and the rounding of its terms; 0 if the
        tensor is not a sum, or if terms of random signs would give a smaller sum."""
        values, rms = self.values, self.scale.rms
        unknown = self.error * rms if self.moments is None else math.inf
        is_known = values.compared and not values.mismatched
        absolute = math.sqrt(values.sum_dd / values.compared) if is_known else unknown  # root mean square of x - y
        if self.terms.spread <= rms or math.isinf(absolute):
            return 0.0
        little = CARRIED * self.input_error + FACTOR * self.round_off if self.carries_little else math.inf
        grown = min(FACTOR * max(self.input_error, self.round_off), little)
        accumulated = min(self.own_round_off, SINGLE) or SINGLE  # sums accumulate in float32 at least
        bound = grown * self.terms.spread + SUM_ROUNDINGS * self.terms.random_walk_error(rms, accumulated)
        if math.isinf(self.error) or not absolute:
            return math.inf if absolute <= bound else 0.0
        return self.error * bound / absolute

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

    @property
    def round_off(self) -> float:
        """One unit round-off of the precision from which the limit was made."""
        return self.finding.limit / FACTOR

    @property
    def own_round_off(self) -> float:
        """The coarser unit round-off of the tensor's two types; 0 if neither is a float."""
        return round_off_of(self.pair)

    @property
    def has_many(self) -> bool:
        """Whether enough elements make up the norm for roundings to cancel: not one huge element, not a few."""
        largest = self.scale.largest
        return self.values.compared >= AVERAGED_ELEMENTS and self.values.yy >= LARGE_ELEMENTS * largest * largest

    @property
    def is_measured(self) -> bool:
        """Whether values were compared by rel_l2, and some differ."""
        return self.finding.error is not None and self.finding.metric == "rel_l2" and bool(self.values.max_abs)

    @cached_property
    def is_choice(self) -> bool:
        """Whether the tensor is a choice itself: a mask or an index."""
        return kind_of(self.golden.dtype) in ("b", "i", "u")

    @cached_property
    def told_share(self) -> float:
        """The largest share of differing elements in the indices or the mask that the operator reads; 0 if none
        differs."""
        kinds = ("b", "i", "u") if self.own.op.has("picks", "looks up") else ("b",)
        told = [RuleContext(one) for one in self.read if one.measurement.moments and not self.own.writes_to(one)]
        return max((one.share_changed for one in told if kind_of(one.golden.dtype) in kinds), default=0.0)

    @property
    def share_changed(self) -> float:
        """The share of elements that differ; 1 if values are unknown."""
        return self.values.differing / self.values.elements if self.values.elements else 1.0

    @property
    def is_non_smooth(self) -> bool:
        """Whether the tensor is a gradient of a choice, whose mask flips where the forward was near its kink."""
        return self.own.is_gradient and (self.is_composed or (self.own.op.has("non-smooth") and not self.chose_alike))

    @property
    def is_composed(self) -> bool:
        """Whether a module with unknown operators inside wrote the tensor, which may choose: it has a path, and its
        class is not that of a smooth layer."""
        return bool(self.own.operator.path) and not self.own.op.has("smooth")

    @property
    def chose_alike(self) -> bool:
        """Whether the operator read the recorded choice itself, a mask or indices, and it is equal on both sides."""
        choices = [
            one for one in map(RuleContext, self.read) if one.is_choice and one.values.elements >= AVERAGED_ELEMENTS
        ]
        return bool(choices) and not any(one.share_changed for one in choices)


NO_TENSOR, NO_VALUES = TensorRef("", "", ()), Moments()
NO_NODE = OperatorFindings(Pair(0, "", Operator("", "", "", "", 0, ()), None, None, None), [], [])
NOTHING = -math.inf  # the bound of an explanation that does not apply: it contains no error, not even 0


class ErrorRule(NamedTuple):
    """A row of the table of rules.

    kind    what `decide` returns:
            "limit"        the largest error that rounding alone may make
            "explanation"  the largest error that incoming errors may make; NOTHING if the rule does not apply
            "accusation"   the finding with the words of the rule, if it is a fault although the error is small or
                           explained; None otherwise
            "fact"         whether the tensor has a property; the code that queries the fact acts on it
    name    the name for --skip-rule and in the tables
    why     the evidence, in a sentence
    decide  the rule, a function whose docstring has the reasons; none for an option of the search
    when    the tensors that the rule is for
    text    the reasons of a rule without such a docstring
    states  the constants of other modules that the rule states, as "room.module.NAME"
    """

    kind: str
    name: str
    why: str
    decide: Callable[[RuleContext], Any] = lambda case: True
    when: Callable[[RuleContext], Any] = lambda case: True
    text: str = ""
    states: tuple[str, ...] = ()


def mark_diverged(finding: Finding, because: str = "", **fields: Any) -> Finding:
    """Mark a finding as diverged for another reason than the limit of rel_l2; by default because of its size."""
    words = f"rel_l2 {proven_size(finding):.2e}, more than rounding explains"
    if finding.error is None or math.isnan(finding.error):
        words = f"rel_l2 is at least {proven_size(finding):.2e}, more than rounding explains"
    return finding._replace(verdict=Verdict.DIVERGED, because=because or words, **fields)


def error_of(finding: Finding) -> Optional[float]:
    """The error that a rule reads; None if unknown. Differing checksums are an infinite error."""
    return math.inf if finding.error != finding.error else finding.error  # NaN


def error_size(finding: Finding) -> float:
    """The error of `error_of`; 0 if unknown."""
    return error_of(finding) or 0.0


def proven_size(finding: Finding) -> float:
    """The proven error: the lower bound if only statistics exist."""
    bound = finding.measurement.bound
    is_open = finding.error is not None and math.isnan(finding.error)
    return bound if is_open and bound is not None else error_size(finding)


def deviations_of(finding: Finding) -> float:
    """The factor of the whole tensor, minus 1, in standard deviations of the factor that its error alone would give; 0
    if unknown."""
    moments, error = finding.measurement.moments, proven_size(finding)
    compared = moments.compared if moments is not None and 0.0 < error < math.inf else 0
    return gain_of(finding) * math.sqrt(compared) / error if compared else 0.0


def gain_of(finding: Finding) -> float:
    """The factor of the whole target tensor, minus 1; 0 if unknown."""
    return metrics.gain(finding.measurement.moments or NO_VALUES)


def differs(finding: Finding) -> bool:
    """Whether the verdict says that the two sides differ."""
    return finding.verdict in DIFFERS


def is_still(finding: Finding) -> bool:
    """Whether the two sides hold the same bits, or statistics that prove no difference."""
    if finding.verdict is not Verdict.MATCH and finding.verdict is not Verdict.UNKNOWN:
        return False
    if finding.error is None:
        return True
    moments = finding.measurement.moments
    return finding.error == 0.0 and (moments is None or moments.equal == moments.elements)
