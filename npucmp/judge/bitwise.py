"""Make Findings of repeated runs without any tolerance: the values are the same or not.

    the same bytes, or equal hashes           match, "the same bits"
    the same values in other bits (0 and -0,  match; `because` describes it. If an operator that reads them is BORN, its
    NaN payloads)                             evidence names it: 1/x differs for 0 and -0
    bytes differ beyond the logical shape     match, "uninitialised padding" as a hint
    recorded minimum or maximum differ, or    diverged. Smaller differences of mean and norm may be roundings of the
    sums by more than 2^-17                   statistics themselves
    recorded statistics agree; XOR checksums  unknown
    anything else                             diverged, nonfinite, shape

Tensors of the same type, shape and layout that lie in one piece are compared as bytes; only differing tensors are
measured. Strided or chunked tensors are always measured.
"""

from __future__ import annotations

import math
from typing import Optional

from npucmp.dump.limits import ANYWHERE, ReadContext
from npucmp.errors import NpucmpError
from npucmp.judge.precision import coarser_round_off
from npucmp.judge.tolerance import undecided_reason
from npucmp.measure.bitwise import differences, in_one_piece, measure_bits
from npucmp.measure.pairs import payload_of
from npucmp.measure.recorded_stats import SUMS_SLACK
from npucmp.model import Finding, Measurement, Moments, Pair, TensorRef, Verdict

HALF = 0.5  # of a value: definition: a difference of so many ulp is as large as the value
# times the ulp of a usual value: chosen: an element with more is so much smaller than the rms, not measured
SMALL_VALUE = 1024.0


def judge_bits(measurement: Measurement, context: ReadContext = ANYWHERE) -> Finding:
    """Return a Finding without any tolerance: the values are the same or not. Differences in the sign of a zero or the
    payload of a NaN are reported and do not count as a difference; padding beyond the logical shape does not count
    either."""
    pair, moments = measurement.pair, measurement.moments
    if measurement.problem:
        return Finding(measurement, Verdict.UNREADABLE, measurement.problem)
    if pair.target is None or pair.golden is None:
        return Finding(measurement, Verdict.UNKNOWN if pair.is_inside else Verdict.MISSING, pair.note)
    if measurement.unlike:
        verdict = Verdict.SHAPE if measurement.shapes_differ else Verdict.DTYPE
        return Finding(measurement, verdict, measurement.unlike, math.inf if measurement.shapes_differ else None)
    if measurement.same is not None:
        if measurement.same:
            return Finding(measurement, Verdict.MATCH, "the same bits", 0.0)
        return Finding(measurement, Verdict.DIVERGED, "checksums differ", math.nan, metric="checksum")
    if moments is None:
        return _by_statistics(measurement)
    try:
        return _by_values(measurement, moments, pair.target, pair.golden, context)
    except NpucmpError as error:  # the payload was readable during measurement
        return Finding(measurement, Verdict.UNREADABLE, str(getattr(error, "because", error)))


def _by_statistics(measurement: Measurement) -> Finding:
    """Judge statistics: extremes that differ prove a difference; sums prove one only beyond their own rounding."""
    pair, bound = measurement.pair, measurement.bound
    if bound is None:
        return Finding(measurement, Verdict.UNKNOWN, undecided_reason(measurement))
    extremes = [None if one is None else one[:2] for one in measurement.statistics]
    recorded = not any(tensor is None or tensor.file for tensor in (pair.target, pair.golden))
    if bound > SUMS_SLACK or (recorded and bound and extremes[0] != extremes[1]):
        return Finding(measurement, Verdict.DIVERGED, "its statistics differ", math.nan, metric="rel_l2")
    return Finding(measurement, Verdict.UNKNOWN, "only statistics are known, which cannot prove equal bits")


def _by_values(
    measurement: Measurement, moments: Moments, target: TensorRef, golden: TensorRef, context: ReadContext
) -> Finding:
    differing = moments.elements - moments.equal
    if not differing:
        words = "the same bits" if target.dtype == golden.dtype else f"equal values, in {target.dtype} {golden.dtype}"
        if _is_padded(target, golden, context):
            words = "the same values; only the padding beyond the logical shape differs; hint: uninitialised padding"
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    if moments.mismatched:
        words = f"{moments.mismatched:,} of {moments.elements:,} positions are NaN or Inf in one run only"
        return Finding(measurement, Verdict.NONFINITE, words, math.inf, metric="nonfinite_mismatch")
    masks = differences(target, golden, context).number if moments.masked and not moments.max_abs else 0
    if masks:
        words = (
            f"{masks:,} of {moments.elements:,} elements differ, all of them masks (minus infinity or similar values)"
        )
        return Finding(measurement, Verdict.DIVERGED, words, math.nan, metric="exact_ratio")
    if not moments.max_abs:
        words = (
            f"the same values; {differing:,} differ in the sign of a zero or the payload of a NaN, which is harmless"
        )
        return Finding(measurement, Verdict.MATCH, words, 0.0)
    error = math.sqrt(moments.sum_dd / moments.yy) if moments.yy else math.inf
    size = _size(moments, coarser_round_off(target.dtype, golden.dtype))
    words = f"{differing:,} of {moments.elements:,} elements differ, by up to {moments.max_abs:.3g}{size}"
    return Finding(measurement, Verdict.DIVERGED, words, error, metric="exact_ratio")


def _size(moments: Moments, round_off: float) -> str:
    """Return the largest difference in ulp, or in rms of the tensor where a value around zero has the most ulp: steps
    between numbers around zero measure nothing."""
    rms = math.sqrt(moments.yy / moments.compared) if moments.compared else 0.0
    if moments.max_ulp is None or not round_off or not rms:
        return "" if moments.max_ulp is None else f", {moments.max_ulp:,} ulp"
    usual = max(1.0, moments.max_abs / (2 * round_off * rms))
    if moments.max_ulp * round_off < HALF and moments.max_ulp <= SMALL_VALUE * usual:
        return f", {moments.max_ulp:,} ulp"
    return f", {moments.max_abs / rms:.2g} times the rms"


def _is_padded(target: TensorRef, golden: TensorRef, context: ReadContext) -> bool:
    """Whether both tensors are stored in the same padded layout; their bytes were then compared first, and differ."""
    try:
        x, y = payload_of(target, context=context), payload_of(golden, context=context)
    except NpucmpError:
        return False
    return x is not None and y is not None and in_one_piece(x) and x.device is not None and x.device == y.device


def same(one: TensorRef, other: TensorRef, pair: Pair, context: ReadContext = ANYWHERE) -> Optional[bool]:
    """Whether two tensors of one slot hold the same values; None if this is not known."""
    pair = Pair(pair.order, pair.slot, pair.target_op, pair.golden_op, one, other, pair.via)
    verdict = judge_bits(measure_bits(pair, context), context).verdict
    return {Verdict.MATCH: True, Verdict.DIVERGED: False, Verdict.NONFINITE: False}.get(verdict)
