"""The verdict on each operator, and on all: is the target further from the truth than its golden, and where first?

The error of an output contains what entered the operator. An operator is worse only by what it adds:

    recomputed      the errors that both runs add to float64 of their own inputs. Their ratio is beyond ALARM, or beyond
                    NOTICE and beyond that of its kind by as much; or the target adds a scale error, which roundings
                    to nearest do not
    not recomputed  the ratio of the output's errors grows over that of each input, by NOTICE and beyond its kind

each by DEVIATIONS standard deviations, since all operators of a network are asked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median, median_low
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.model.dtypes import unit_of
from npucmp.model.three_runs import BETTER, CARRIED, GOLDEN, SAME, UNDECIDED, WORSE, ThreeRunRow
from npucmp.recompute.error_budget import vendor_level
from npucmp.three_runs.operator_errors import OperatorErrors
from npucmp.three_runs.sums import GF, GG, TF, TT, UNKNOWN, Array, ErrorSums, Estimate, G, T

# ratios of errors: literature: AWS Neuron reads a ratio of target and golden, each against float32 on a CPU
NEURON = (1.2, "noise"), (1.5, "watch"), (3.0, "possible bug"), (10.0, "likely bug"), (100.0, "wrong formula")
NOTICE, ALARM = 1.2, 1.5  # ratios of errors: literature: the first two of NEURON
DEVIATIONS = 4.5  # standard deviations: chosen: one in 100,000 right operators is beyond, not measured
SPREAD = 4.0  # robust deviations of a kind: chosen: not measured
GAIN = 0.15  # unit round-offs: measured: kernels without a fault add a scale error of 0.05 at most
CARRIES = 3.0  # times: chosen: an operator may multiply the scale error of its inputs by so much, not measured
# mean over root mean square of an input's error: chosen: errors of one sign become a scale error, not measured
SHIFT = 0.2
PART = 0.1  # of the golden's own error: measured: float8 products without a fault add 0.15, within their deviation
# unit round-offs: measured: rms relative error of values that are rounded to nearest, 0.38 to 0.42 by their spread
ROUNDED = 0.4
# relative error: chosen: beyond what one operator in bfloat16, or with float8 operands, adds; less in wider types, not
# measured
APART = 0.125
AMPLIFIED = 8.0  # times the error of the inputs: chosen: an operator may amplify errors by so much, not measured
ALIKE = 0.95  # correlation of both errors: chosen: roundings of two kernels are less alike, not measured
FEWEST = 64  # elements: chosen: fewer do not show a ratio, not measured
PEERS = 4  # operators of a kind: chosen: so many give a median, not measured


def reading(ratio: float) -> str:
    """Return AWS Neuron's reading of a ratio of errors."""
    if ratio < 1.0 / NOTICE:
        return "more precise"
    return next((words for limit, words in NEURON if ratio < limit), "wrong computation")


class TruthDeparture(NamedTuple):
    """A tensor in which both runs depart from the truth alike, and the golden's error."""

    op: str
    slot: str
    error: float


def departure(operators: Sequence[OperatorErrors]) -> Optional[TruthDeparture]:
    """Return the first tensor in which both runs have one error that rounding does not make: the truth has other
    weights or inputs, or another computation. Any difference of the two runs is small beside such an error."""
    before = 0.0
    for operator in sorted(operators, key=lambda operator: (operator.rank or 0, operator.order)):
        entered = max((sums.error(GG) for sums in operator.inputs.values()), default=0.0)
        for slot, sums in (*operator.inputs.items(), *operator.outputs.items()):
            rounding = APART if sums.bits[0] <= 11 else APART * 2.0 ** (8 - sums.bits[0])
            usual = entered if slot in operator.outputs and operator.reads else before
            error = sums.error(GG)
            if error > max(rounding, AMPLIFIED * usual) and sums.correlation > ALIKE:
                return TruthDeparture(operator.name, slot, error)
        before = max(before, entered, *(sums.error(GG) for sums in operator.outputs.values()), 0.0)
    return None


class Judged(NamedTuple):
    """The figures that decide about an output: logarithms of ratios, and the unit round-off of its type."""

    operator: OperatorErrors
    slot: str
    sums: ErrorSums
    unit: float
    ratio: Estimate
    carried: Optional[Estimate]
    own: Optional[Estimate]

    @property
    def growth(self) -> Estimate:
        """How much the ratio grows over that of the inputs, or over 1."""
        before = self.carried or Estimate(0.0, 0.0)
        if before.value < 0.0:
            before = Estimate(0.0, before.deviation)
        return Estimate(self.ratio.value - before.value, math.hypot(self.ratio.deviation, before.deviation))


def judged_rows(operators: Sequence[OperatorErrors]) -> list[ThreeRunRow]:
    """Return a row for each output, in the order of execution."""
    outputs = [*_outputs(sorted(operators, key=lambda operator: (operator.rank or 0, operator.order)))]
    kinds = _Kinds(outputs)
    return [_row(one, kinds) for one in outputs]


def _outputs(operators: Sequence[OperatorErrors]) -> Iterator[Judged]:
    before = Estimate(0.0, 0.0)  # the largest ratio of earlier outputs, for operators without recorded inputs
    bits = [sums.bits[0] for operator in operators for sums in (*operator.outputs.values(), *operator.own.values())]
    short = 2.0 ** -median_low(bits) if bits and median_low(bits) <= 11 else 0.0  # 16-bit numbers in wider files
    for operator in operators:
        inputs = [sums.log_ratio() for sums in operator.inputs.values() if sums.total[GG] and sums.total[TT]]
        inputs = [one for one in inputs if one.is_known]
        carried = max(inputs, key=lambda one: one.value, default=None) if operator.reads else before
        for slot in dict.fromkeys((*operator.outputs, *operator.own)):
            own = operator.own.get(slot)
            unit = max(short, unit_of(operator.dtypes.get(slot, "")))
            estimate = _own_ratio(own, unit) if own is not None else None
            sums = operator.outputs.get(slot, own)
            assert sums is not None
            ratio = sums.log_ratio()
            yield Judged(operator, slot, sums, unit, ratio, carried, estimate)
            if ratio.is_known and ratio.value > before.value:
                before = ratio


def _own_ratio(sums: ErrorSums, unit: float) -> Estimate:
    """Return the logarithm of a ratio of own errors. An operator that is exact, or in a wider type, counts with one
    rounding to the type of the target."""
    return sums.log_ratio(ROUNDED * unit) if sums.elements >= FEWEST else UNKNOWN


class _Kinds:
    """The usual figures of operators of a kind: the medians of growth and of own ratios, and the spread of growth."""

    def __init__(self, outputs: Sequence[Judged]) -> None:
        growths: dict[str, list[float]] = defaultdict(list)
        owns: dict[str, list[float]] = defaultdict(list)
        for one in outputs:
            if one.growth.is_known:
                growths[one.operator.op_type].append(one.growth.value)
            if one.own is not None and one.own.is_known:
                owns[one.operator.op_type].append(one.own.value)
        self._every = [value for values in growths.values() for value in values]
        self._growths: Mapping[str, list[float]] = growths
        self._owns: Mapping[str, list[float]] = owns

    def growth(self, kind: str) -> tuple[float, float]:
        """Return the median of the growth of a kind and its robust deviation; of all operators for a rare kind."""
        values = self._growths[kind]
        values = values if len(values) >= PEERS else self._every
        if len(values) < PEERS:
            return 0.0, 0.0
        middle = median(values)
        return middle, 1.48 * median(abs(value - middle) for value in values)

    def own(self, kind: str) -> Optional[float]:
        """Return the median of the own ratios of a kind; None for a rare kind."""
        values = self._owns.get(kind, [])
        return median(values) if len(values) >= PEERS else None


def _row(one: Judged, kinds: _Kinds) -> ThreeRunRow:
    verdict, because = _verdict(one, kinds)
    operator, sums, own = one.operator, one.sums, one.operator.own.get(one.slot)
    kind = kinds.own(operator.op_type)
    mare, mere, rmse = (
        _ratio(*both) for both in (sums.most[2:], sums.relative, (sums.total[TT] ** 0.5, sums.total[GG] ** 0.5))
    )
    return ThreeRunRow(
        rank=operator.rank,
        order=operator.order,
        op=operator.name,
        op_type=operator.op_type,
        phase=operator.phase,
        slot=one.slot,
        steps=sums.steps,
        elements=sums.elements,
        target_error=sums.error(TT),
        golden_error=sums.error(GG),
        ratio=one.ratio.ratio,
        input_ratio=math.exp(one.carried.value) if one.carried is not None and operator.reads else None,
        own_target=own.error(TT) if own is not None else None,
        own_golden=own.error(GG) if own is not None else None,
        own=one.own.ratio if one.own is not None else None,
        kind_own=math.exp(kind) if kind is not None else None,
        target_gain=sums.gain(TF),
        golden_gain=sums.gain(GF),
        target_bias=sums.bias(T, TT),
        golden_bias=sums.bias(G, GG),
        overlap=sums.overlap,
        largest=_ratio(*sums.most[:2]),
        mare=mare,
        mere=mere,
        rmse=rmse,
        level=vendor_level(mare, mere, rmse),
        verdict=verdict,
        because=because,
        stack=operator.stack,
        shares=sums.shares.tobytes(),
        own_shares=own.shares.tobytes() if own is not None else b"",
    )


def _ratio(target: float, golden: float) -> Optional[float]:
    return float(target / golden) if golden else None if target else 1.0


def _verdict(one: Judged, kinds: _Kinds) -> tuple[str, str]:
    operator, sums = one.operator, one.sums
    total = sums.total
    if sums.odd[0] != sums.odd[1]:
        words = f"{max(sums.odd):,} elements are NaN or infinite where the truth is finite"
        return WORSE if sums.odd[0] > sums.odd[1] else GOLDEN, words
    if not total[TT] or _are_equal(total):
        return SAME, "both runs have the same error" if total[TT] else "the target has no error"
    own = operator.own.get(one.slot)
    if own is not None and one.own is not None:
        return _of_own(one, own, kinds)
    if not one.ratio.is_known or sums.elements < FEWEST:
        return UNDECIDED, "too few elements, or the golden has no error"
    if _stands_out(one, kinds):
        return WORSE, _growth_words(one, kinds)
    if _adds_scale(one):
        gains = f"{sums.gain(TF):+.2e}, the golden {sums.gain(GF):+.2e}"
        return WORSE, f"a scale error of {gains}, which its inputs lack; ratio {math.exp(one.ratio.value):.3g}"
    return _of_ratio(one)


def _adds_scale(one: Judged) -> bool:
    """Return whether an output has a scale error that neither its inputs nor the golden have."""
    inputs = [sums for sums in one.operator.inputs.values() if sums.total[GG] and sums.total[TT]]
    shifts = [abs(sums.bias(T, TT) or 0.0) - abs(sums.bias(G, GG) or 0.0) for sums in inputs]
    if not one.operator.reads or max(shifts, default=0.0) > SHIFT:
        return False
    before = sum(abs(sums.gain_excess().value) for sums in inputs)
    bar = max(GAIN * one.unit, PART * one.sums.error(GG)) + CARRIES * before
    return one.sums.gain_excess().low(DEVIATIONS) > bar


def _are_equal(total: Array) -> bool:
    """Return whether both errors are equal."""
    return bool(total[TT] == total[GG] and total[TF] == total[GF])


def _of_own(one: Judged, own: ErrorSums, kinds: _Kinds) -> tuple[str, str]:
    assert one.own is not None
    usual = kinds.own(one.operator.op_type)
    sizes = f"own errors {own.error(TT):.2e} and {own.error(GG):.2e}"
    ratio = one.own
    words = f"; its kind {math.exp(usual):.3g} times" if usual is not None else ""
    if ratio.is_known and _is_beyond(ratio.low(DEVIATIONS), usual):
        return WORSE, f"it adds {math.exp(ratio.value):.3g} times the golden's error, {sizes}{words}"
    if ratio.is_known and _is_beyond(-ratio.high(DEVIATIONS), None if usual is None else -usual):
        return GOLDEN, f"the golden adds {math.exp(-ratio.value):.3g} times the target's error, {sizes}"
    bar = max(GAIN * one.unit, PART * min(own.error(GG), own.error(TT)))
    excess = own.gain_excess()
    gains = f"{own.gain(TF):+.2e}, the golden {own.gain(GF):+.2e}"
    if excess.is_known and excess.low(DEVIATIONS) > bar:
        return WORSE, f"it adds a scale error of {gains}; {sizes}"
    if excess.is_known and excess.high(DEVIATIONS) < -bar:
        return GOLDEN, f"a scale error of {gains}; {sizes}"
    return _of_ratio(one)


def _is_beyond(least: float, usual: Optional[float]) -> bool:
    """Return whether the logarithm of a ratio of own errors, which is at least `least`, is beyond ALARM, or beyond
    NOTICE and as much beyond the usual one of its kind."""
    if least > math.log(ALARM):
        return True
    return usual is not None and least > math.log(NOTICE) + max(0.0, usual)


def _of_ratio(one: Judged) -> tuple[str, str]:
    """Return the verdict on an output whose operator adds no more error than the golden's."""
    if not one.ratio.is_known:
        return UNDECIDED, "too few elements, or the golden has no error"
    if one.ratio.low(DEVIATIONS) > math.log(NOTICE):
        return CARRIED, f"its inputs carry the error: ratio {math.exp(one.ratio.value):.3g}"
    if one.ratio.high(DEVIATIONS) < -math.log(NOTICE):
        return BETTER, f"the golden has {math.exp(-one.ratio.value):.3g} times the error"
    return SAME, f"ratio {math.exp(one.ratio.value):.3g}"


def _stands_out(one: Judged, kinds: _Kinds) -> bool:
    middle, deviation = kinds.growth(one.operator.op_type)
    growth = one.growth
    least = math.log(NOTICE) + max(0.0, middle) + SPREAD * deviation
    return (
        growth.is_known and growth.low(DEVIATIONS) > 0.0 and growth.value > least and one.ratio.value > math.log(ALARM)
    )


def _growth_words(one: Judged, kinds: _Kinds) -> str:
    middle, _ = kinds.growth(one.operator.op_type)
    before = "the inputs have" if one.operator.reads else "earlier outputs have"
    carried = math.exp(max(0.0, one.carried.value if one.carried is not None else 0.0))
    return (
        f"ratio {math.exp(one.ratio.value):.3g}, {before} {carried:.3g}; "
        f"its kind grows {math.exp(max(0.0, middle)):.3g} times"
    )
