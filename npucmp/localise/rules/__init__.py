"""The rules about errors: one table. localise/rule_context.py defines its columns and what a rule may read.

    limit        the largest error that rounding alone may make: the largest bound of the rules that apply
    explanation  the largest error that incoming errors may make: the smallest bound that contains the error
    accusation   a fault although the error is small or explained: one rule is enough
    fact         a property of a tensor, or an option of the search; localise/search.py and intervals.py act on it

No rule calls another. The order of RULES is the order of the list, and decides which of several accusations is named;
nothing else depends on it. --skip-rule switches a rule off.
"""

from __future__ import annotations

import math
from typing import Iterable, Optional

from npucmp.errors import UsageError, nearest
from npucmp.judge.precision import BOTH_SIDES, SINGLE, STEP_BITS
from npucmp.judge.tolerance import FACTOR, Limit
from npucmp.localise.parameter_drift import ERROR_GROWTH, UPDATE, UPDATE_FACTOR
from npucmp.localise.rule_context import (
    AVERAGED_ELEMENTS,
    CARRIED,
    FLIP_SHARE,
    MIN_ELEMENTS,
    OUTLIER_FACTOR,
    QUANTILE,
    QUANTISED,
    RECENT_OPERATORS,
    ErrorRule,
    RuleContext,
)
from npucmp.localise.rules import accusations, explanations, laws, limits
from npucmp.model import Finding, Verdict
from npucmp.model.dtypes import SHORT_SUM
from npucmp.model.roles import is_meaningless, is_output, is_parameter

RULES = (
    ErrorRule(
        "limit",
        "round_off",
        f"{FACTOR:g} unit round-offs of the coarsest float type upstream; nine of ten outputs of clean runs are below "
        "6.7",
        limits.round_off,
    ),
    ErrorRule(
        "limit",
        "long_sums",
        f"float32 sums of K terms in another order differ by up to √K/{SHORT_SUM:g} times the limit of short sums",
        limits.long_sums,
        lambda case: (
            case.moments is not None
            and 0 < case.precision.round_off <= SINGLE
            and not case.precision.reduced
            and not case.precision.quantised
        ),
    ),
    ErrorRule(
        "limit",
        "subnormal",
        "values below the smallest normal number of their type are rounded to the spacing of its subnormal numbers",
        limits.subnormal,
        lambda case: case.values.compared,
    ),
    ErrorRule(
        "limit",
        "reduced",
        f"products by HF32 or TF32 units, which keep {-math.log2(limits.REDUCED_ROUND_OFF):g} bits of each operand: "
        f"limit {FACTOR:g} · "
        "2^-11, if most products of the run have errors of this size",
        limits.reduced,
        lambda case: case.precision.reduced,
    ),
    ErrorRule(
        "limit",
        QUANTISED,
        f"one run is quantised to {STEP_BITS} bits: limit {FACTOR:g} · 2^-{STEP_BITS}",
        limits.quantised,
        lambda case: case.precision.quantised,
    ),
    ErrorRule(
        "explanation",
        "growth",
        f"up to {explanations.GROWTH:g} times the incoming error, {CARRIED:g} times and the limit if all inputs agree "
        "or the run is quantised; none of 5,497 outputs of clean runs reached 2.4 times",
        explanations.growth,
        lambda case: not case.is_choice or not case.input_error,
    ),
    ErrorRule(
        "explanation",
        "condition",
        f"the incoming error times {explanations.CONDITION_FACTOR:g} times the condition number of the operator for "
        "these values",
        explanations.condition,
        lambda case: case.input_error and not case.is_choice and case.amplification > 1,
    ),
    ErrorRule(
        "explanation",
        "constant_rows",
        "if input rows are constant up to rounding, a layer norm outputs only rounding there; the other rows agree",
        explanations.constant_rows,
        lambda case: case.node and case.finding.measurement.settled is not None,
    ),
    ErrorRule(
        "explanation",
        "non_smooth",
        "gradients of relu, max, clamp, where: an input error e moves elements across the threshold; these elements "
        f"are completely wrong, rel_l2 up to {math.sqrt(FLIP_SHARE):g} √e",
        explanations.non_smooth,
        lambda case: case.is_non_smooth and case.input_error and not case.is_choice,
    ),
    ErrorRule(
        "explanation",
        "choice",
        f"masks and indices: if the compared values have the error e, up to {explanations.CHOICE_SHARE:g} √e of the "
        "elements may change",
        explanations.choice,
        lambda case: case.input_error and case.is_choice and not case.own.op.has("drops"),
    ),
    ErrorRule(
        "explanation",
        "cancellation",
        "a sum that cancels contains the rounding of its terms: key-bias gradients have rel_l2 1.2 in clean float32 "
        "runs",
        explanations.cancellation,
        lambda case: not case.is_choice and case.rounding_of_terms > 0,
    ),
    ErrorRule(
        "explanation",
        "reduced_alike",
        "both runs round operands to 11 bits; where operands differ by e, some are rounded to another number, which "
        "enlarges the error to √(2^-10 e)",
        explanations.reduced_alike,
        lambda case: (
            case.input_error and not case.is_choice and case.own.op.has("contracts") and case.own_round_off == SINGLE
        ),
    ),
    ErrorRule(
        "explanation",
        "inherited",
        f"the error of a parameter may grow {ERROR_GROWTH:g} times in each step, plus {UPDATE:g} √e if its gradient "
        f"had the error e; if the gradient is only noise, plus {UPDATE_FACTOR:g} optimizer steps instead",
        explanations.inherited,
        lambda case: case.node is None and case.inherited,
        states=(
            "localise.parameter_drift.ERROR_GROWTH",
            "localise.parameter_drift.UPDATE",
            "localise.parameter_drift.UPDATE_FACTOR",
        ),
    ),
    ErrorRule(
        "explanation",
        "routed",
        f"a share s of the selections (experts, boxes) differs, so other rows were taken: rel_l2 up to "
        f"{explanations.ROWS:g} √s",
        explanations.routed,
        lambda case: (
            case.finding.verdict is Verdict.SHAPE
            or ((case.changed_choice_share or case.told_share) and not is_parameter(case.pair))
        ),
    ),
    ErrorRule(
        "explanation",
        "collective",
        "a collective or receive propagates the errors of other ranks",
        explanations.collective,
        lambda case: case.own.error_from_other_rank,
    ),
    ErrorRule(
        "accusation",
        "coarser",
        "the target computes this operator in a coarser type than the golden, and hardly any other operator does so",
        accusations.coarser,
        lambda case: case.downcast_share <= accusations.DOWNCAST_SHARE and accusations.is_coarser(case.finding),
        states=("localise.rules.accusations.DOWNCAST_SHARE", "localise.rules.accusations.RUN_SHARE"),
    ),
    ErrorRule(
        "accusation",
        "common_factor",
        "one factor scales all parameters of a step, which noise of their gradients cannot do",
        accusations.common_factor,
        lambda case: case.node is None and case.no_producer and case.factor,
    ),
    ErrorRule(
        "accusation",
        "untied",
        "two operators share a parameter in the golden, and in the target they did in the step before and no longer "
        "do: the tie is broken",
        accusations.untied,
        lambda case: case.node is None and case.untied,
    ),
    ErrorRule(
        "accusation",
        "scaled",
        "the whole tensor is too large or too small by one factor, by more than rounding and the inputs explain",
        accusations.scaled,
        lambda case: case.is_measured and (case.node or case.no_producer),
    ),
    ErrorRule(
        "accusation",
        "arguments",
        f"an argument differs, and the output error is more than {OUTLIER_FACTOR:g} times the input error",
        accusations.arguments,
        lambda case: case.node and case.finding.error is not None,
    ),
    ErrorRule(
        "accusation",
        "equal_bits",
        f"inputs match bit for bit, but 8- or 16-bit outputs differ by more than {accusations.ROUND_OFFS:g} roundings "
        "or in too many elements",
        accusations.equal_bits,
        lambda case: (
            not case.input_error
            and case.own.inputs
            and case.finding.error is not None
            and case.finding.metric != "noise"
        ),
    ),
    ErrorRule(
        "accusation",
        "copy",
        "the golden copies its input unchanged; the target's output has a larger error than its input",
        accusations.copy,
        lambda case: (
            case.own.op.has("copies")
            and len(case.own.inputs) == 1
            and case.finding.error is not None
            and case.finding.metric != "noise"
        ),
    ),
    ErrorRule(
        "accusation",
        "lost_tile",
        f"single elements differ by {accusations.LOST_SHARE:.0%} of the largest value; the others have no larger error "
        "than the inputs",
        accusations.lost_tile,
        lambda case: (
            case.node
            and case.is_measured
            and case.values.compared >= AVERAGED_ELEMENTS
            and case.values.yy
            and not case.is_choice
        ),
    ),
    ErrorRule(
        "accusation",
        "single_element",
        f"at most {accusations.ELEMENTS} elements differ, by more than rounding explains, and all others match bit for "
        "bit",
        accusations.single_element,
        lambda case: (
            case.is_measured
            and case.values.compared >= MIN_ELEMENTS
            and case.values.differing <= accusations.ELEMENTS
            and case.finding.limit
            and not case.is_choice
        ),
        states=("localise.rules.accusations.ELEMENTS",),
    ),
    ErrorRule(
        "accusation",
        "law",
        "the target violates a law of the operator that the golden satisfies (example: softmax rows sum to 1)",
        laws.law,
        text=laws.__doc__,
        states=("localise.rules.laws.DEVIATIONS", "localise.rules.laws.INPUT_ERROR", "model.dtypes.FACTOR"),
    ),
    ErrorRule(
        "accusation",
        "given",
        "a parameter in its initial state, in the same 16-bit type in both runs, differs by more than rounding it once "
        f"on each side ({BOTH_SIDES:g} round-offs): the runs started from different weights",
        accusations.given,
        lambda case: case.node is None and is_parameter(case.pair) and not case.inherited,
    ),
    ErrorRule(
        "accusation",
        "gradual",
        f"no single operator enlarges the error much, but together they exceed {accusations.ERROR_LIMIT:g} √u (1.6 % "
        "in float32): the operator with the steepest growth is named",
        accusations.gradual,
        lambda case: case.grew_stepwise,
    ),
    ErrorRule(
        "fact",
        "overwritten",
        "an input that an in-place operator overwrites is recorded afterwards and does not show the values that were "
        "read",
        explanations.overwritten,
        lambda case: case.node,
    ),
    ErrorRule(
        "fact",
        "broadcast",
        "an operand has another shape because one side repeats it along some axes: no difference if the output agrees",
        explanations.broadcast,
        lambda case: (
            case.node
            and not case.own.is_gradient
            and not case.own.operator.path
            and case.finding.verdict is Verdict.SHAPE
            and not is_output(case.pair)
            and not is_parameter(case.pair)
        ),
    ),
    ErrorRule(
        "fact",
        "background",
        f"for an input whose producer was not recorded, npucmp assumes the error that {100 * QUANTILE:g} % of the "
        f"earlier tensors do not exceed, or the largest error of the last {RECENT_OPERATORS} operators "
        "if that is larger",
        text="The incoming error is unknown: errors seen so far are assumed (localise/intervals.py, seen_errors.py). "
        "Evidence: without it every uncaptured function of a clean bfloat16 run is a GAP.",
        states=("localise.rule_context.QUANTILE", "localise.rule_context.RECENT_OPERATORS"),
    ),
    ErrorRule(
        "fact",
        "behind_root",
        "after a root cause, an input below its limit is counted as if its error were at the limit, so that later "
        "operators are not named again",
        text="Behind a root, inputs whose error has fallen below the limit count as being at the limit. Evidence: else "
        "each operator behind a normalisation that shrinks the error would be BORN again.",
    ),
    ErrorRule(
        "fact",
        "meaningless",
        "uninitialised memory and workspaces differ between any two runs",
        lambda case: is_meaningless(case.pair),
        text="Uninitialised memory and a device's workspaces hold undefined content. Source: the documentation of "
        "torch.empty; reserve_space of fused batch norms in TensorFlow's raw_ops.",
    ),
    ErrorRule(
        "fact",
        "container",
        "a module has no error of its own if an operator in it has it",
        text="A module has no error of its own if an operator inside it has the error. Evidence: in a dump of level "
        "mix each fault would be named once per module around it.",
    ),
    ErrorRule(
        "fact",
        "suspected",
        "with statistics only, the first operator that exceeds the upstream noise is suspected; earlier differences "
        "prove nothing",
        lambda case: case.moments is None,
        text="If only statistics exist, the first operator that exceeds the noise before it is suspected "
        "(localise/stat_test.py has the model and the evidence for its numbers).",
    ),
)


class Rulebook:
    """The rules in force; `reduced_alike` is among them if products keep 11 bits on both sides. Raises UsageError for
    an unknown name in `skip`."""

    def __init__(self, skip: Iterable[str] = (), alike: bool = False) -> None:
        left_out, names = [*skip, *(() if alike else ["reduced_alike"])], [rule.name for rule in RULES]
        for name in left_out:
            if name not in names:
                raise UsageError(f"no rule {name!r:.60}", nearest(name, names))
        self.rules = {rule.name: rule for rule in RULES if rule.name not in left_out}
        self._of = {
            kind: [rule for rule in self.rules.values() if rule.kind == kind] for kind in {rule.kind for rule in RULES}
        }
        # an infinite incoming error makes these bounds infinite, as it makes that of growth, which comes before them
        follows = ("condition", "constant_rows", "choice", "cancellation", "collective") if self.uses("growth") else ()
        self._of["unlimited"] = [rule for rule in self._of["explanation"] if rule.name not in follows]

    def uses(self, name: str) -> bool:
        """Whether a rule is in force."""
        return name in self.rules

    def _bounds(self, kind: str, case: RuleContext) -> list[Limit]:
        return [Limit(rule.decide(case), rule.name) for rule in self._of[kind] if rule.when(case)]

    def limit(self, case: RuleContext) -> Limit:
        """The largest error that rounding alone may make; 0 if no rule applies."""
        return max([Limit(0.0), *self._bounds("limit", case)], key=lambda limit: limit.value)

    def explanation(self, case: RuleContext) -> Optional[Limit]:
        """The smallest bound that contains the error, and its rule; None if no rule explains the error."""
        kind = "explanation" if case.input_error < math.inf or case.is_choice else "unlimited"
        bounds = [bound for bound in self._bounds(kind, case) if case.error <= bound.value]
        return min(bounds, key=lambda bound: bound.value, default=None)

    def accusation(self, case: RuleContext, only: str = "") -> Optional[Finding]:
        """The finding with the words of the first rule in the list that accuses; None if no rule does. `only` names a
        single rule to try."""
        rules = [rule for rule in self._of["accusation"] if only in ("", rule.name)]
        accused = ((rule.decide(case), rule.name) for rule in rules if rule.when(case))
        return next((found._replace(rule=name) for found, name in accused if found is not None), None)

    def holds(self, name: str, case: RuleContext) -> bool:
        """Whether a fact or an accusation applies; False for a rule that is switched off."""
        rule = self.rules.get(name)
        return rule is not None and bool(rule.when(case) and rule.decide(case))
