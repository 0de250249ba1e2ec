"""Recompute an operator in float64 from its own recorded inputs, and compare its outputs with the result.

A bound limits how large an error may be; a recomputation gives the operator's own error. So the search needs no bound
for an operator that is recomputed:

    one run beyond the expected rounding, the other not     BORN: the operator bears an error, in the named run
    both within, and their own errors make up less than     no root: the error came in with the inputs; the operator
    half of the error between the runs in each output       may have amplified it
    that differs
    target within, golden not recomputed                    PROPAGATED: the output follows from its inputs
    target beyond, golden not recomputed                    BORN if bounds suspect it too

If both are beyond, nothing follows: the formula may differ. Rounding errors of two runs add up at most (triangle
inequality), so if their own errors make up at most half, the rest came in.

If a gradient is beyond, its forward is checked first (`forward_of`): autograd gives the gradient tensors that the
forward saved (a root, a mask, an epsilon), which dumps do not record, so one fault of a forward makes both wrong.

The search recomputes an operator that is suspected, whose errors have a direction, whose error exceeds the rounding of
its own type behind a coarser type, or whose error is above the limit and explained by another rule than `growth`. Among
the other operators it recomputes the first of each type (of three or more; of fewer, if each element of the result
depends on the same element of the operands alone) and every sixteenth. An operator that nothing else suspects must be
twice as far beyond the expected rounding. If a gradient is beyond, the forward is BORN and the gradient PROPAGATED if
the forward is beyond too, or if the forward has other arguments than in the golden and the gradient is the float64
gradient for the golden's arguments. If the golden alone is beyond, the operator is BORN and the evidence names the
golden output. If an input has no data, UNKNOWN and WORSENED become PROPAGATED where the target is within.

If arguments differ and each run is within, the evidence says that the call differs, not the kernel.

A recomputation acquits an operator only if its inputs differ, because what agrees explains nothing, and never one that
draws random numbers: it reads the mask from the output that it would explain.

Rounding to one side (truncation, always up or down) accuses an operator below every limit: more than a quarter of the
results that need rounding are not the nearest number of their type, 24 or more, and 95 % of these lie on one side of
float64. The results of all operators of a kind count together: if most of them have it, the first is BORN and the
evidence calls it a setting.

If the error of an output is that of one side alone (its distance from float64 is at least half of the error between
the runs, and four times that of the other side), the evidence names that side first, target or golden.

Small values may be wrong under a large norm. A function of one element (`function` in model/optypes.py) that reads
equal bits is BORN if 8 elements and 1 % are farther apart than 2.5 units in the last place of a 16-bit type and than
its steps in float32 may differ (recompute/estimator.py). Sums are left out, because they may cancel.

A recomputation does not revoke an accusation that does not depend on the size of an error: `arguments`, `coarser`,
`copy`, `equal_bits`, `given`, `law`, `common_factor`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Protocol, Sequence

from npucmp.flow.operators import OperatorFindings, nodes_of
from npucmp.judge.precision import SINGLE, round_off_of
from npucmp.judge.tolerance import FACTOR
from npucmp.localise.evidence import argument_reasons, reason, tensor_fact
from npucmp.localise.rule_context import RuleContext, differs, error_size, gain_of, is_still
from npucmp.localise.rules.limits import REDUCED_ROUND_OFF
from npucmp.model import GUILTY_ABOVE, REPLAYED, Cause, Evidence, Finding, Operator, ReplayedOutput, ReplayVerdict
from npucmp.model.arguments import draws_numbers
from npucmp.model.dtypes import DTYPES, ROUNDING, lookup
from npucmp.model.finding import OTHER_NODE
from npucmp.model.moments import SINGLE_BITS
from npucmp.model.replayed_output import DIRECTIONS, SIDED_RESULTS, VERSIONS, FarElements

BFLOAT16 = DTYPES["bfloat16"]
NAME = "recompute"  # the rule name in roots.csv and tensors.csv
# accusations that do not rest on the size of an error
UNREFUTED = ("law", "arguments", "coarser", "copy", "equal_bits", "given", "common_factor")
# times the budgets of a replay: chosen: an operator without other suspicion must be farther beyond, not measured
BUDGET_FACTOR = 2.0
# round-offs: definition: one-sided rounding has 0.7 in common, rounding to nearest none; more than this is recomputed
COMMON = 0.4
FEW = 8  # elements: chosen: fewer may be far off by chance, not measured
FAR_SHARE = 0.01  # share of elements: chosen: right functions have none, not measured
PERCENT = 18  # bin of the histogram: definition: from here on an element is off by 1 %, two units of bfloat16
CLOSER = 0.25  # of the larger distance from float64: chosen: then the other side makes the difference, not measured
TWICE = 2.0  # times: chosen: as far from float64 as the other side, which rounds once: nothing is nearer, not measured
OWN_SHARE = 0.5  # share of the error between two runs: definition: more than the other half came in with the inputs


class Estimator(Protocol):
    """The interface that recomputes operators: npucmp/recompute/estimator.py."""

    def rows(self, side: int, operator: Optional[Operator]) -> Sequence[ReplayedOutput]:
        """Return a row for each output of an operator of the target (0) or the golden (1); empty if it is not
        recomputed."""

    def gradients_as_golden(self, target: Operator, golden: Operator) -> Sequence[ReplayedOutput]:
        """Return the rows of a gradient of the target, computed with the arguments that the golden gave its forward."""

    def far_elements(self, target: Operator, golden: Operator, slot: str) -> Optional[FarElements]:
        """Return the elements of an output that two right functions of the same bits do not give."""

    def is_sampled(self, operator: Optional[Operator]) -> bool:
        """Whether an operator of the target is recomputed independently of the search."""

    def is_setting(self, operator: Optional[Operator]) -> bool:
        """Whether coarser arithmetic causes the error of a recomputed operator of the target and of all operators of
        its kind."""


class RecomputedRows(NamedTuple):
    """The rows of an operator in both runs, computed from the target's and the golden's own inputs; empty if it is not
    recomputed. is_setting: coarser arithmetic causes equal errors in all operators of its kind in the target."""

    target: Sequence[ReplayedOutput]
    golden: Sequence[ReplayedOutput]
    is_setting: bool = False

    def guilty(self, outputs: Sequence[Finding], is_suspected: bool) -> Optional[tuple[Finding, list[Evidence]]]:
        """The output that is farthest beyond the expected rounding in one run alone, with the evidence; None if neither
        run has one."""
        for side, own, other in ((0, self.target, self.golden), (1, self.golden, self.target)):
            if not (_is_within(other, VERSIONS) or (is_suspected and side == 0 and not other)):
                continue
            slots = {tensor.slot: (one, tensor.dtype) for one in outputs
                     if (tensor := (one.pair.target, one.pair.golden)[side]) is not None
                     and one.rule != OTHER_NODE}  # fmt: skip
            wrong = [row for row in own if row.verdict is ReplayVerdict.GUILTY and row.slot in slots]
            if not is_suspected:
                wrong = [row for row in wrong if is_sided(row) or _is_far_beyond(row, slots[row.slot][1])]
            if wrong:
                worst = max(wrong, key=lambda row: row.rms_ratio or 0.0)
                return slots[worst.slot][0], _guilty_reasons(worst, "golden " * side)
        return None

    def is_innocent(self, node: OperatorFindings, rule: str, accused: Finding, is_known: bool) -> bool:
        """Whether an operator of which `rule` accuses an output only propagates its inputs, which all were compared and
        differ if `is_known`; or whether it is a product that rounds its operands to 11 bits as all products do."""
        if rule in UNREFUTED or argument_reasons(node.pair) or draws_numbers(node.operator):
            return False
        if self.is_setting and node.op.has("contracts"):
            return all(error_size(one) <= FACTOR * REDUCED_ROUND_OFF for one in node.outputs)
        return is_known and self._came_in(node.outputs, accused)

    def _came_in(self, outputs: Sequence[Finding], accused: Finding) -> bool:
        """Whether the errors of all outputs that differ, or are accused, came in with the inputs; the other outputs
        need only be within the expected rounding in both runs."""
        target, golden = ({row.slot: row for row in side} for side in (self.target, self.golden))
        shares = (OWN_SHARE if one.row == accused.row or differs(one) else math.inf for one in outputs)
        return bool(outputs) and all(_incoming_error(one, target, golden, share) for one, share in zip(outputs, shares))

    @property
    def blames_golden(self) -> bool:
        """Whether the golden alone is beyond the expected rounding."""
        is_known = _is_within(self.target, VERSIONS)
        return is_known and any(row.verdict is ReplayVerdict.GUILTY for row in self.golden)

    def less_accurate(self, finding: Finding) -> list[Evidence]:
        """Return which side is farther from float64 of its own inputs, if that makes up the error of an output."""
        found: list[ReplayedOutput] = []
        for rows, tensor in ((self.target, finding.pair.target), (self.golden, finding.pair.golden)):
            found += [row for row in rows if tensor is not None and row.slot == tensor.slot and row.rel_l2 is not None]
        if len(found) < 2:
            return []
        (target, x), (golden, y) = ((row, row.rel_l2 or 0.0) for row in found)
        is_golden, known = x < y, tensor_fact
        right = target if is_golden else golden
        rounds_once = right.rel_l2_u is not None and right.rel_l2_u <= ROUNDING
        is_closer = min(x, y) <= CLOSER * max(x, y) or (rounds_once and TWICE * min(x, y) <= max(x, y))
        if max(x, y) < OWN_SHARE * error_size(finding) or not is_closer:
            return []
        if right.verdict is not ReplayVerdict.CLEAN:
            return []
        words = (
            "the target {slot} differs from float64 of its recorded inputs by rel_l2 {worst}, "
            "the golden by {best}: the target is the inaccurate side"
        )
        if is_golden:
            words = (
                "the golden {slot} differs from float64 of its recorded inputs by rel_l2 {worst}, "
                "the target by {best}: the golden is the inaccurate side"
            )
        slot, worst, best = (golden if is_golden else target).slot, max(x, y), min(x, y)
        return [reason(NAME, words, slot=slot, worst=known(worst, finding), best=known(best, finding))]

    def cause(self, node: OperatorFindings, cause: Cause, finding: Finding) -> tuple[Cause, list[Evidence]]:
        """Return the cause of a suspected operator after recomputation: an operator within the expected rounding may
        become PROPAGATED, unless the recomputation read the drawn mask from its output. If its kind has equal errors,
        add the explanation of that kind."""
        alike = [row.explanation for row in self.target if row.verdict is ReplayVerdict.AMPLIFIER and row.explanation]
        if alike:
            return cause, [reason(NAME, "{why}", why=alike[0])]
        less_accurate = self.less_accurate(finding)
        if less_accurate or not _is_clean(self.target):
            return cause, less_accurate
        share = max((row.rms_ratio for row in self.target if row.rms_ratio is not None), default=0.0)
        words = "the outputs match float64 of the recorded inputs within {ratio:.2g} of the expected rounding"
        if draws_numbers(node.operator):
            words = (
                "given the mask in its output, the output matches float64 within {ratio:.2g} of the expected rounding"
            )
            return cause, [reason(NAME, words, ratio=share)]
        passes_on = not self.golden and cause in (Cause.UNKNOWN, Cause.WORSENED)
        return Cause.PROPAGATED if passes_on else cause, [reason(NAME, words, ratio=share)]

    def own_argument_reasons(self) -> list[Evidence]:
        """The evidence that an operator whose arguments differ between the runs is right with its own arguments; empty
        if a run is beyond the expected rounding, or if the target is not recomputed."""
        if not _is_within(self.target) or (self.golden and not _is_within(self.golden)):
            return []
        rows = [*self.target, *self.golden]
        ratio = max((row.rms_ratio for row in rows if row.rms_ratio is not None), default=0.0)
        words = (
            "with its own arguments, the outputs match float64 of the recorded inputs within {ratio:.2g} of the "
            "expected rounding: the call differs, not the kernel"
        )
        if self.golden:
            words = (
                "with the arguments of each run, its outputs match float64 of its recorded inputs within {ratio:.2g} "
                "of the expected rounding: the call differs, not the kernel"
            )
        sampled = next((row.sampled for row in rows if row.sampled), "")
        found = [reason(NAME, words, ratio=ratio)]
        return found + ([reason(NAME, "{share} of its elements were recomputed", share=sampled)] if sampled else [])


class Recomputation:
    """The recomputation of the operators of one step and rank; without an estimator none, and bounds alone decide."""

    def __init__(self, estimator: Optional[Estimator]) -> None:
        self._estimator = estimator
        self._guilty: set[str] = set()  # calls of operators that bear an error

    def applies(self, node: OperatorFindings) -> bool:
        """Whether an operator may be recomputed: values of its outputs were compared."""
        return self._estimator is not None and any(one.measurement.moments for one in node.outputs)

    def is_sampled(self, node: OperatorFindings) -> bool:
        """Whether an operator is recomputed independently of the search."""
        estimator = self._estimator
        return estimator is not None and self.applies(node) and estimator.is_sampled(node.pair.target_op)

    def of(self, node: OperatorFindings) -> Optional[RecomputedRows]:
        """The rows of an operator; None if the target's operator is not recomputed."""
        estimator = self._estimator
        if estimator is None or node.pair.target_op is None or node.pair.golden_op is None:
            return None
        target = _computed_rows(estimator.rows(0, node.pair.target_op))
        golden = _computed_rows(estimator.rows(1, node.pair.golden_op)) if target else ()
        return RecomputedRows(target, golden, estimator.is_setting(node.pair.target_op)) if target else None

    def is_directed(self, node: OperatorFindings) -> bool:
        """Whether the errors of an output lie on one side, by more than those of the inputs: one-sided rounding has
        half a unit in the last place in common."""
        if max(map(_unit_of, node.outputs), default=0.0) <= SINGLE and not node.op.has("elementwise"):
            return False  # sums in float32 have larger errors than the rounding of their results
        came = max((_common_error(one) for one in (*node.inputs, *node.extra_inputs)), default=0.0)
        return any(_common_error(one) - came > COMMON * _unit_of(one) > 0.0 for one in node.outputs)

    def is_finer(self, node: OperatorFindings) -> bool:
        """Whether the error of an output exceeds the rounding of its own type and may come from a coarser type
        upstream, which would hide an error of the operator."""
        units = [(_unit_of(output), output) for output in node.outputs]
        return any(unit < output.working and 0.0 < FACTOR * unit < error_size(output) for unit, output in units)

    def small_values(self, node: OperatorFindings) -> Optional[tuple[Finding, list[Evidence]]]:
        """Return the output of a function of one element that differs in many elements by more than rounding, although
        it reads the same bits and its norm agrees; None if there is none."""
        target, golden = node.pair.target_op, node.pair.golden_op
        if self._estimator is None or target is None or golden is None or node.is_gradient or not node.inputs:
            return None
        if not node.op.has("function") or not all(map(is_still, node.inputs)):
            return None
        for finding in node.outputs:
            if _may_be_far(finding) and not RuleContext(finding, node).is_composed:
                far = self._estimator.far_elements(target, golden, finding.pair.slot)
                if far is not None and far.far >= max(FEW, FAR_SHARE * far.elements):
                    return finding, _far_reasons(finding, far)
        return None

    def blame(self, node: OperatorFindings) -> None:
        """Record that an operator bears an error."""
        self._guilty.add(node.operator.call)

    def follows(self, node: OperatorFindings) -> bool:
        """Whether an operator is a gradient of a call whose forward bears an error."""
        return node.is_gradient and node.operator.call in self._guilty

    def forward_of(self, node: OperatorFindings) -> Optional[tuple[OperatorFindings, Finding, list[Evidence]]]:
        """The forward of a gradient beyond the expected rounding, if the forward bears the error: it is beyond too, or
        its arguments differ from the golden's and the gradient follows the golden's arguments. Return it with its
        output and the evidence; None if the gradient alone is faulty, or if the forward is known to be."""
        if not node.is_gradient or self.follows(node):
            return None
        call = node.operator.call
        forward = next((one for one in nodes_of(node.extra_inputs) if call and one.operator.call == call), None)
        known = self.of(forward) if forward is not None else None
        if forward is None or self._estimator is None or not forward.outputs:
            return None
        found = known.guilty(forward.outputs, True) if known is not None else None
        if found is not None:
            return forward, *found
        arguments = argument_reasons(forward.pair)
        target, golden = node.pair.target_op, node.pair.golden_op
        if not arguments or target is None or golden is None:
            return None
        if _is_clean(self._estimator.gradients_as_golden(target, golden)):
            words = "the gradient of this call matches a float64 recomputation with the arguments of the golden"
            return forward, max(forward.outputs, key=error_size), [*arguments, reason(NAME, words)]
        return None


def _common_error(finding: Finding) -> float:
    """The error that all elements have in common, toward zero or in one direction, relative to the size of the
    values; 0 if it is unknown, or of few elements."""
    moments = finding.measurement.moments
    if moments is None or moments.mismatched or moments.compared < SIDED_RESULTS or not moments.yy:
        return 0.0
    return max(abs(gain_of(finding)), abs(moments.sum_d) / math.sqrt(moments.compared * moments.yy))


def _unit_of(finding: Finding) -> float:
    """The round-off of the coarser type of both sides; of a 16-bit type if float32 holds its values."""
    moments = finding.measurement.moments
    bits = 0 if moments is None else min(moments.target.bits or SINGLE_BITS, moments.golden.bits or SINGLE_BITS)
    return max(round_off_of(finding.pair), 2.0**-bits if 0 < bits < SINGLE_BITS else 0.0)


def _may_be_far(finding: Finding) -> bool:
    """Whether enough elements of an output may be farther off than rounding to 16 bits moves them."""
    moments = finding.measurement.moments
    if moments is None or _unit_of(finding) <= SINGLE or not moments.compared:
        return False
    bfloat16 = _unit_of(finding) >= BFLOAT16.round_off
    count = sum(moments.histogram[PERCENT:]) if bfloat16 else moments.compared - moments.below_1e3
    return count >= max(FEW, FAR_SHARE * moments.compared)


def _far_reasons(finding: Finding, far: FarElements) -> list[Evidence]:
    """Return the evidence of elements that differ by more than rounding."""
    words = (
        "{count} of {elements} elements of {slot} differ by more than 2 units in the last place of {dtype}, "
        "by up to {most:,.0f}, although the inputs match bit for bit"
    )
    count, elements = tensor_fact(f"{far.far:,}", finding), f"{far.elements:,}"
    return [reason(NAME, words, count=count, elements=elements, slot=finding.pair.slot, dtype=far.dtype, most=far.most)]


def _computed_rows(rows: Sequence[ReplayedOutput]) -> Sequence[ReplayedOutput]:
    return rows if any(row.status == REPLAYED for row in rows) else ()


def _is_clean(rows: Sequence[ReplayedOutput]) -> bool:
    """Whether all outputs were judged in full, and are within the expected rounding."""
    return _is_within(rows) and not any(row.sampled for row in rows)


def _is_within(rows: Sequence[ReplayedOutput], but: str = "") -> bool:
    """Whether all outputs are within the expected rounding, possibly by a sample of their elements; `but` is an
    explanation that leaves no doubt."""
    return bool(rows) and all(row.verdict is ReplayVerdict.CLEAN and row.explanation in ("", but) for row in rows)


def _guilty_reasons(row: ReplayedOutput, side: str) -> list[Evidence]:
    """Return the evidence of an output that differs from float64 of the operator's own inputs."""
    if is_sided(row) and row.rounding is not None:
        words = "{slot} is {how}, against float64 of its recorded inputs"
        found = [reason(NAME, words, how=DIRECTIONS[row.rounding.direction], slot=side + row.slot)]
        return [*found, reason(NAME, "{why}", why=row.explanation)]
    words = "{slot} differs from float64 of its recorded inputs by {ratio:,.2g} times the expected rounding"
    if row.rms_ratio is None or row.budget == "exact":
        words = "{slot} differs from float64 of its recorded inputs"
    found = [reason(NAME, words, ratio=row.rms_ratio, slot=side + row.slot)]
    if row.sampled:
        found.append(reason(NAME, "{share} of its elements were recomputed", share=row.sampled))
    return found + ([reason(NAME, "{why}", why=row.explanation)] if row.explanation else [])


def is_sided(row: ReplayedOutput) -> bool:
    """Whether an output is accused because its results are rounded to one side."""
    return row.verdict is ReplayVerdict.GUILTY and row.rounding is not None and bool(row.rounding.direction)


def _is_far_beyond(row: ReplayedOutput, name: str) -> bool:
    """Whether an output of that type is so far beyond the expected rounding that no other suspicion is needed."""
    if row.budget == "exact" or row.nonfinite:
        return True
    dtype = lookup(name)
    is_16_bits = dtype is not None and dtype.itemsize <= 2
    figures = (row.rms_ratio, row.max_ratio), (GUILTY_ABOVE["rms_ratio"], GUILTY_ABOVE["max_ratio"])
    return any((ratio or 0.0) > BUDGET_FACTOR * most[is_16_bits] for ratio, most in zip(*figures))


def _incoming_error(
    finding: Finding, target: dict[str, ReplayedOutput], golden: dict[str, ReplayedOutput], share: float
) -> bool:
    """Whether both runs compute an output within the expected rounding, and their own errors make up at most `share` of
    the error between them."""
    if math.isinf(error_size(finding)):  # a type may be too narrow for the result
        return False
    sides = finding.pair.target, finding.pair.golden
    own = 0.0
    for tensor, rows in zip(sides, (target, golden)):
        row = rows.get(tensor.slot) if tensor is not None else None
        if (
            row is None
            or row.status != REPLAYED
            or row.verdict is not ReplayVerdict.CLEAN
            or row.sampled
            or row.explanation
        ):
            return False
        own += row.rel_l2 or 0.0
    return math.isinf(share) or own <= share * error_size(finding)
