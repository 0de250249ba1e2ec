"""Words and figures of the evidence against an operator; each figure belongs to a tensor that has a row.

For WORSENED and PROPAGATED, the evidence names the tensor with the largest difference among those that reach the
output: an input, the incoming gradient, a saved tensor of the forward or the contribution of another rank. It also
names differing non-tensor arguments (eps, dim, scale), and an output "written as bfloat16, in the golden as float32".
An output in float32 "is rounded to bfloat16" (or float16) if all its values are numbers of that type that use its last
place, and the golden's are not. This hint decides nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence, Union

from npucmp.judge.precision import round_off_of, rounded_to
from npucmp.localise.effective_precision import float_types
from npucmp.localise.rule_context import COMMON_SHARE, WHOLE_BIN, RuleContext, error_size, gain_of
from npucmp.measure.recorded_stats import has_equal_xor
from npucmp.model import Cause, Evidence, Fact, Finding, Pair, Verdict
from npucmp.model.arguments import by_name, differing_arguments, draws_numbers
from npucmp.model.cause import UNKNOWN_INPUTS
from npucmp.model.dtypes import FACTOR, lookup
from npucmp.model.optypes import is_weight, op_type_of
from npucmp.model.roles import is_folded, is_output, is_parameter

BY_STATISTICS = "by their statistics"
SUMS_RESIDUAL = 1e-6  # of the error: definition: the residual that sums in float64 leave of a factor that is exact
FRACTION_CHANCE = 0.01  # share of quotients: chosen: so many are a simple fraction by chance, not measured
PLAIN = 10  # denominator: definition: a decimal number shows a fraction with a smaller denominator
FEW_DIFFER = 16  # elements: chosen: one of so many that differs is not the whole tensor, not measured
FEWEST_SCATTERED = 16  # elements: chosen: fewer have a common factor by chance, not measured


class WorstInput(NamedTuple):
    """The input with the largest difference. `saved`: it is not an input of the operator itself, but a tensor that its
    forward saved or another rank sent. If no input differs, it has the largest error; if no input has an error, `alike`
    says how the inputs are known to agree."""

    error: float = 0.0
    finding: Optional[Finding] = None
    differs: bool = False
    saved: bool = False
    alike: str = "bit for bit"


def worst_of(apart: Sequence[tuple[float, Finding, bool]], read: Sequence[Finding]) -> WorstInput:
    """Return the worst input. `apart` holds the inputs that differ: (error as far as it reaches the outputs, tensor,
    whether it is not an input of the operator itself); `read` holds all inputs."""
    if apart:
        _, worst, saved = max(apart, key=lambda one: (one[0], error_size(one[1])))
        return WorstInput(error_size(worst), worst, True, saved)
    largest = max(read, key=error_size, default=None)
    if largest is None or not error_size(largest):
        return WorstInput(alike=_alike(read))
    return WorstInput(error_size(largest), largest)


def _alike(read: Sequence[Finding]) -> str:
    """How tensors without error agree: in their bits, in their values, or only in their recorded statistics."""
    compared = [one for one in read if one.error is not None or one.measurement.bound is not None]
    if any(one.measurement.moments is None and one.measurement.same is None for one in compared):
        return BY_STATISTICS
    if any(has_other_masks(one) for one in compared):
        return "the same values except masks"
    return "bit for bit" if all(map(is_bit_equal, compared)) else "the same values"


def is_bit_equal(finding: Finding) -> bool:
    """Whether matching tensors match bit for bit; False if signs of zeros or types differ."""
    moments, sides = finding.measurement.moments, (finding.pair.target, finding.pair.golden)
    has_one_type = len({tensor.dtype for tensor in sides if tensor}) == 1
    return moments is None or (moments.equal == moments.elements and has_one_type)


def has_other_masks(finding: Finding) -> bool:
    """Whether the two sides represent minus infinity by different numbers, because of their types, and the tensor has
    some."""
    moments = finding.measurement.moments
    return moments is not None and bool(moments.masked) and moments.equal < moments.elements


def reason(kind: str, words: str, **facts: Union[str, int, float, Fact, None]) -> Evidence:
    """One reason; values that are not Facts become Facts without a tensor."""
    return Evidence(kind, words, {name: fact if isinstance(fact, Fact) else Fact(fact) for name, fact in facts.items()})


def tensor_fact(value: Union[str, float, None], finding: Finding) -> Fact:
    """A fact about a tensor."""
    return Fact(value, finding.pair.operator.name, finding.pair.slot)


def tensor_reason(finding: Finding) -> Evidence:
    """The reason with the words of the tensor's own row."""
    return row_reason(finding.pair, finding.because)


def row_reason(pair: Pair, because: str) -> Evidence:
    fact = Fact(because, pair.operator.name, pair.slot)
    return reason("tensor", "{slot}: {because}", slot=pair.slot, because=fact)


def own_reasons(pair: Pair, own: Finding, worst: WorstInput, reads: bool) -> list[Evidence]:
    """The evidence of an operator that bears an error: inputs, output, and other signs."""
    return [_inputs(own, worst, reads), tensor_reason(own), *argument_reasons(pair), *pattern_reasons(own)]


def draw_reasons(finding: Finding, read: float = 0.0) -> list[Evidence]:
    """The evidence that an operator drew other random numbers, or that these are not the reason; none for an operator
    that draws nothing. `read` is the error of its inputs."""
    operator, moments = finding.pair.operator, finding.measurement.moments
    if not draws_numbers(operator):
        return []
    remedy = reason("random", "fix the seed and the generator of both runs, or switch it off")
    if moments is None:
        words = (
            "a random operator: statistics and checksums do not show whether both runs drew the same mask or numbers"
        )
        return [reason("random", words), remedy]
    if RuleContext(finding).is_choice:
        return [reason("random", "a random operator: it drew another mask or other indices"), remedy]
    if not op_type_of(operator).has("drops") or not moments.compared:
        return [reason("random", "a random operator: it drew other random numbers"), remedy]
    counts = moments.histogram
    alone = counts[WHOLE_BIN] + counts[-1]  # the target or the golden alone is zero: off by the element, or infinitely
    is_scaled = moments.xy > (1 + finding.limit + read) * min(moments.xx, moments.yy)
    if not alone or (is_scaled and not counts[-1]):
        words = "a random operator that dropped the same elements in both runs: its mask is not the cause"
        return [reason("random", words)]
    if is_scaled or _kept_apart(counts, moments.compared, max(finding.limit, read)):
        words = "a random operator: its kept elements differ, and its mask may differ too"
        return [reason("random", words), remedy]
    words = "a random operator that drew another mask: {share} of its elements are zero in one run alone"
    return [reason("random", words, share=f"{100 * alone / moments.compared:.3g} %"), remedy]


def _kept_apart(counts: Sequence[int], compared: int, error: float) -> bool:
    """Whether more of the elements that both runs kept differ than an error of this size makes of the small ones: it
    reaches the decade d of relative error in a share error / d of them. One element more is no sign."""
    beyond = sum(counts[WHOLE_BIN + 1 : -1])
    if not error:
        return bool(beyond or sum(counts[1:WHOLE_BIN]))
    for decade in range(WHOLE_BIN, math.ceil(math.log10(error)) + WHOLE_BIN, -1):
        if beyond > 1 + error * 10.0 ** (WHOLE_BIN - decade) * compared:
            return True
        beyond += counts[decade - 1]
    return False


def _inputs(own: Finding, worst: WorstInput, reads: bool) -> Evidence:
    if not reads:
        return reason("inputs", "the operator reads no tensor")
    if worst.differs and worst.finding is not None:
        return _differing(own.pair, worst.finding, worst.saved)
    how = "agree" if worst.error <= own.limit else "differ no more than is explained"
    statement = "inputs agree" if how == "agree" else "inputs differ, but their errors are explained"
    if worst.error == 0 or worst.finding is None:
        if worst.alike == BY_STATISTICS:
            return reason(f"inputs {how}", "the statistics of the inputs agree; they do not show the order of elements")
        return reason(f"inputs {how}", f"{statement} ({worst.alike})")
    error, pair = tensor_fact(worst.error, worst.finding), worst.finding.pair
    if pair.order == own.pair.order:
        return reason(f"inputs {how}", f"{statement} (largest rel_l2 {{error}})", error=error)
    words = f"{statement} (largest rel_l2 {{error}}, of {{op}} {{slot}})"
    return reason(f"inputs {how}", words, error=error, op=pair.operator.name, slot=pair.slot)


def _differing(pair: Pair, read: Finding, saved: bool) -> Evidence:
    error = math.inf if read.rule == "whole_numbers" else error_size(read)
    return differing_reason(pair, read.pair, error, read.because, saved)


def differing_reason(pair: Pair, read: Pair, error: float, because: str, saved: bool = False) -> Evidence:
    """The evidence of the input that differs: an own input by its slot, another tensor also by its operator. If the
    size of its error is unknown, the evidence has the words of its row."""
    kind, what, backward = "inputs differ", "inputs differ", pair.operator.phase == "backward"
    if saved:
        origin = "saved by the forward pass" if backward else "of another rank"
        kind, what = "saved differs", f"a tensor {origin} differs"
    elif backward:
        what = "the incoming gradient differs"
    name = "{slot}" if read.order == pair.order and not saved else "{op} {slot}"
    known = math.isfinite(error)
    op, words = read.operator.name, f"{what}: {name}, {'rel_l2 ' if known else ''}{{error}}"
    fact = Fact(error if known else because, op, read.slot)
    return reason(kind, words, op=op, slot=read.slot, error=fact)


def unsaved_reasons(
    own: Finding, unread: Sequence[Finding], left_out: str, recomputed: str, is_rerun_lost: bool = False
) -> list[Evidence]:
    """The evidence of a gradient whose saved tensors are unknown. `left_out` names the forward if the user excluded it;
    `recomputed` names it if it ran again and its values were not compared; is_rerun_lost: this is another layer's."""
    words = "the tensors saved by the forward pass were not dumped"
    if recomputed:
        words = "its forward pass ran again as {names}, with other values that were not compared"
        if is_rerun_lost:
            words = (
                "its forward pass ran again without a record, as that of another layer did ({names}), and drew numbers"
            )
        elif op_type_of(own.pair.operator).has("random"):
            words = "its forward pass ran again as {names}, and what that drew was not compared"
        left_out = recomputed
    elif unread:
        words = "tensors saved by the forward pass could not be compared ({names})"
    elif left_out:
        words = "its forward pass was excluded by --include or --exclude ({names})"
    names = [f"{finding.pair.operator.name} {finding.pair.slot}" for finding in unread] or [left_out]
    return [tensor_reason(own), reason("unsaved", words, names=first_names(names))]


def unheard_reasons(own: Finding, reads: bool) -> list[Evidence]:
    """The evidence of an operator with inputs of other ranks, not all of which are compared."""
    words = "tensors of other ranks were not compared: compare all ranks of the step"
    return [tensor_reason(own), reason("unheard", f"its own inputs agree; {words}" if reads else words)]


def is_fed(root_cause: Cause, evidence: Sequence[Evidence]) -> bool:
    """Whether the root is an input of the network or a parameter that differs."""
    return root_cause is Cause.GAP and any(one.kind == "fed" for one in evidence)


def first_names(names: Sequence[str]) -> str:
    """The first three names in one line."""
    return f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def unknown_reasons(own: Finding, unseen: Sequence[Finding]) -> list[Evidence]:
    """The evidence of an operator whose inputs are unknown: which inputs, and their producers if a graph names them. A
    weight of a checkpoint has no inputs."""
    if is_weight(own.pair.operator):
        return [tensor_reason(own)]
    named = []
    for finding in unseen:
        source = next((tensor.source for tensor in (finding.pair.target, finding.pair.golden) if tensor), "")
        named.append(f"{finding.pair.slot} from {source}" if source else finding.pair.slot)
    words = "the inputs were not dumped or cannot be compared"
    if any(has_equal_xor(finding.pair) for finding in unseen):
        words = "the inputs have equal XOR checksums, which prove nothing"
    if not named:
        return [tensor_reason(own), reason(UNKNOWN_INPUTS, words)]
    return [tensor_reason(own), reason(UNKNOWN_INPUTS, f"{words} ({{names}})", names=first_names(named))]


def interval_reasons(words: str, high: float) -> list[Evidence]:
    """The upper end of the interval of unseen errors, which the error exceeds; `words` give the reason for that end."""
    return [reason("interval", words, high=high)] if words and 0.0 < high < math.inf else []


def passed_reasons(own: Finding, worst: WorstInput) -> list[Evidence]:
    """The evidence of an operator that propagates an error."""
    if worst.differs and worst.finding is not None:
        got = _differing(own.pair, worst.finding, worst.saved)
    elif worst.finding is not None:
        pair, error = worst.finding.pair, tensor_fact(worst.error, worst.finding)
        name = "{slot}" if pair.order == own.pair.order else "{op} {slot}"
        words = f"an input has an error below its limit (largest rel_l2 {{error}}, of {name})"
        got = reason("inputs differ", words, op=pair.operator.name, slot=pair.slot, error=error)
    else:
        got = reason("inputs differ", "the error starts upstream; some inputs of this operator were not compared")
    return [got, tensor_reason(own)]


def gradual_reasons(steepest: Finding, growth: float, most: float, worst: Finding) -> list[Evidence]:
    """The evidence of a run whose errors grow step by step without a single faulty operator."""
    words = "no operator increases the error of its inputs more than {most} times, but errors grow to {error} at {op}"
    op = f"{worst.pair.operator.name} {worst.pair.slot}"
    return [
        reason("gradual", words, most=f"{most:g}", error=tensor_fact(worst.error, worst), op=op),
        reason("steepest", "this operator has the largest increase: {growth} times", growth=f"{growth:.1f}"),
        tensor_reason(steepest),
    ]


def argument_reasons(pair: Pair) -> list[Evidence]:
    """The non-tensor arguments that differ: the most convincing evidence."""
    if pair.target_op is None or pair.golden_op is None:
        return []
    words = "argument {slot} is {target} in the target, {golden} in the golden"
    return [
        reason("argument", words, slot=by_name(pair.target_op, slot), target=_show(target), golden=_show(golden))
        for slot, target, golden in differing_arguments(pair.target_op, pair.golden_op)
    ]


def alone_reasons(inputs: Sequence[Finding]) -> list[Evidence]:
    """The tensors that one run passes to a call and the other does not, nor a number in their place; none if each run
    passes a tensor that the other lacks, because then their slots may correspond in another way."""
    missing = [one.pair for one in inputs if one.verdict is Verdict.MISSING and not is_folded(one.pair)]
    relations = (pair.golden.relation if pair.golden is not None else None for pair in missing)
    missing = [pair for pair, relation in zip(missing, relations) if relation is None or not relation.is_local]
    if len({pair.golden is None for pair in missing}) != 1:
        return []
    target, golden = missing[0].target_op, missing[0].golden_op
    if target is None or golden is None or target.op_type != golden.op_type:
        return []
    words, other = "only the golden passes {slot} to this call", target
    if missing[0].golden is None:
        words, other = "only the target passes {slot} to this call", golden
    absent = [pair.slot for pair in missing if other.reads_recorded and other.arguments.get(pair.slot) is None]
    return [reason("alone", words, slot=by_name(target, slot)) for slot in absent]


def pattern_reasons(finding: Finding) -> list[Evidence]:
    """The factor between the two sides, if one pass over the tensor shows it: exact if what remains after it is within
    the limit, else with the share of the difference that it explains. Ids, counts and positions have no factor."""
    moments = finding.measurement.moments
    if moments is None or not moments.max_abs or not moments.xx or not moments.yy or not moments.sum_dd:
        return []
    if _holds_ids(finding):
        return []
    gain, error, limit = gain_of(finding), math.sqrt(moments.sum_dd / moments.yy), _limit_of(finding)
    if moments.elements == 1:
        return [_quotient_reason(finding, moments.target.minimum, moments.golden.minimum, limit)]
    size = math.sqrt(moments.xx / moments.yy)  # of the target, in units of the golden
    if abs(gain) <= COMMON_SHARE * error or abs(1.0 + gain) <= COMMON_SHARE * size:
        return []
    rest = math.sqrt(max(0.0, error**2 - gain**2))
    is_whole = rest <= max(limit * size, SUMS_RESIDUAL * error) and moments.differing * FEW_DIFFER >= moments.compared
    if moments.mismatched:
        words = "the elements that are finite on both sides are {factor} times the golden"
        if not is_whole or abs(gain) <= limit:
            return []
    elif is_whole:
        words = "the whole target is {factor} times the golden"
    elif moments.compared < FEWEST_SCATTERED:
        return []
    else:
        share = min(99, math.floor(100.0 * (gain / error) ** 2))
        words = "a factor of about {factor} explains {share} of the difference"
        return [reason("factor", words, factor=tensor_fact(_rounded_factor(gain), finding), share=f"{share} %")]
    return [reason("factor", words, factor=tensor_fact(_exact_factor(gain, limit), finding))]


def _holds_ids(finding: Finding) -> bool:
    """Whether a tensor holds whole numbers that no product made: ids, labels, counts, positions, masks; also ids that
    an operator looks up, stored as floats. Codes of 8 bits are rounded numbers."""
    pair, moments = finding.pair, finding.measurement.moments
    op = op_type_of(pair.operator)
    if moments is not None and op.has("looks up") and not is_output(pair) and not is_parameter(pair):
        figures = [(side.minimum, side.maximum, side.total) for side in (moments.target, moments.golden)]
        if all(figure.is_integer() for side in figures for figure in side):
            return True
    dtypes = [lookup(tensor.dtype) for tensor in (pair.target, pair.golden) if tensor is not None]
    is_whole = any(row is not None and (row.kind == "b" or (row.kind in "iu" and row.itemsize > 1)) for row in dtypes)
    return is_whole and not op.has("contracts")


def _limit_of(finding: Finding) -> float:
    """The largest rel_l2 that rounding alone may make in the types of a tensor, or the limit of its row if larger."""
    own = finding.limit if finding.metric == "rel_l2" and math.isfinite(finding.limit) else 0.0
    return max(own, FACTOR * round_off_of(finding.pair))


def _quotient_reason(finding: Finding, target: float, golden: float, limit: float) -> Evidence:
    """The evidence of a tensor with one element: both values and their quotient."""
    words = "the target is {factor} times the golden: {target} against {golden}"
    factor = tensor_fact(_exact_factor(target / golden - 1.0, limit), finding)
    return reason("factor", words, factor=factor, target=f"{target:.6g}", golden=f"{golden:.6g}")


def _exact_factor(gain: float, limit: float) -> str:
    """A factor in digits, and as a simple fraction if it is one within the limit and hardly by chance."""
    factor = 1.0 + gain
    if abs(gain) < 1e-4:
        return f"1{gain:+.1e}"
    size, coarse = abs(factor), f"{factor:.4g}"
    digits = coarse if limit >= 1e-4 and coarse != "1" else f"{factor:.6g}"
    most = int(math.sqrt(FRACTION_CHANCE / max(limit, SUMS_RESIDUAL)))
    if most < 2 or not 1.0 / most <= size <= most:
        return digits
    from fractions import Fraction

    below = Fraction(min(size, 1.0 / size)).limit_denominator(most)
    simple = (below if size < 1.0 else 1 / below) * (1 if factor > 0 else -1)
    is_near = abs(float(simple) - factor) <= max(limit, SUMS_RESIDUAL) * size
    is_plain = simple == Fraction(digits) and simple.denominator <= PLAIN
    return f"{digits} ({simple})" if is_near and not is_plain else digits


def _rounded_factor(gain: float) -> str:
    """A factor to two digits of its distance from 1."""
    if abs(gain) < 1e-4:
        return f"1{gain:+.1e}"
    return f"{round(1.0 + gain, max(1, 1 - math.floor(math.log10(abs(gain))))):g}"


def type_reasons(read: Sequence[Finding], outputs: Sequence[Finding]) -> list[Evidence]:
    """The evidence of an operator that writes floats of another type than the golden's, or values that are rounded to
    one; no evidence if its inputs already are so, because an earlier operator decided it."""
    if any(len(float_types(one.pair)) > 1 for one in read):
        return []
    apart = [one.pair for one in outputs if len(float_types(one.pair)) > 1]
    if apart and apart[0].target and apart[0].golden:
        alone = (one.pair.target for one in read if one.pair.golden is None)
        if any(tensor is not None and tensor.dtype == apart[0].target.dtype for tensor in alone):
            return []
        words = "dtype of {slots}: {target} in the target, {golden} in the golden"
        slots = first_names([pair.slot for pair in apart])
        return [reason("type", words, slots=slots, target=apart[0].target.dtype, golden=apart[0].golden.dtype)]
    found = [(one, kind) for one in outputs if (kind := rounded_to(one.measurement))]
    if not found or any(rounded_to(one.measurement) for one in read):
        return []
    words = "{slot} is rounded to {dtype}: all its values are {dtype} numbers, those of the golden are not"
    return [reason("type", words, slot=one.pair.slot, dtype=tensor_fact(kind, one)) for one, kind in found[:1]]


def fused_reasons(pair: Pair) -> list[Evidence]:
    """The operators and passes that made a fused operator; empty for other operators."""
    operator = pair.target_op
    if operator is None or (len(operator.originals) < 2 and not operator.passes):
        return []
    names = ", ".join(operator.originals[:6]) + (" …" if len(operator.originals) > 6 else "")
    words = "fused from {names}" if len(operator.originals) > 1 else "produced"
    passes = ", ".join(operator.passes[:4])
    return [reason("fused", f"{words} by {{passes}}" if passes else words, names=names, passes=passes)]


def reordered_reason(read: Finding, alone: Sequence[Pair]) -> Evidence:
    """The evidence of an input whose statistics agree, and that an operator of one run, or another operator in each
    run, wrote in another order."""
    slot, names = read.pair.slot, [pair.operator.name for pair in alone]
    if len(alone) > 1:
        words = (
            "the statistics of {slot} agree; they do not show the order of elements; "
            "{name} (only in the target) and {other} (only in the golden) wrote it"
        )
        return reason("reordered", words, slot=slot, name=names[0], other=names[1])
    words = (
        "the statistics of {slot} agree; they do not show the order of elements; {name} (only in the golden) wrote it"
    )
    if alone[0].target_op:
        words = (
            "the statistics of {slot} agree; they do not show the order of elements; "
            "{name} (only in the target) wrote it"
        )
    return reason("reordered", words, slot=slot, name=names[0])


def folded_reasons(inputs: Sequence[Finding]) -> list[Evidence]:
    """The evidence of an operator that reads weights folded by the compiler: the error may be in them."""
    names = [finding.pair.slot for finding in inputs if is_folded(finding.pair)]
    words = "the error is in this operator or in its folded weights ({slots}), which the golden run does not have"
    return [reason("folded", words, slots=first_names(names))] if names else []


def uncompared_weights(names: Sequence[str]) -> list[Evidence]:
    """The evidence of an operator that reads weights of which only the golden has a record."""
    words = "weights that only the golden recorded were not compared and may be the cause: {names}"
    return [reason("weights", words, names=first_names(names))] if names else []


def follower_reasons(pair: Pair, after: Optional[Pair]) -> list[Evidence]:
    """The evidence of a graph operator known by its name alone: the next operator of the golden run, if it has the same
    output shapes and no partner, may be fused into it here."""
    target, golden = pair.target_op, after.golden_op if after is not None and after.target_op is None else None
    if target is None or target.phase or target.originals or golden is None:
        return []
    if [t.shape for t in target.tensors if t.is_output] != [t.shape for t in golden.tensors if t.is_output]:
        return []
    words = (
        "the next golden operator {name} has no partner and may be fused into this operator: pass --graph to find out"
    )
    return [reason("follower", words, name=golden.name)]


def _show(value: object) -> str:
    return f"{value!r:.60}"
