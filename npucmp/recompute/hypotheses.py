"""Find hypotheses that explain a GUILTY output: the same call with another epsilon, without its bias, in a lower
precision or without some terms; or the float64 result scaled or truncated, as a whole or in part. A hypothesis within
the rounding budget is reported with the remaining error. Only child processes import this.

Each hypothesis is computed, never inferred: up to CALLS more calls, for SECONDS at most.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.readers.values import Array
from npucmp.model import Call, ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import DTYPES, Dtype, lookup
from npucmp.recompute.arguments import RefusedRecord
from npucmp.recompute.call_inputs import CallInputs
from npucmp.recompute.computation import Computation, same_versions
from npucmp.recompute.error_budget import RMS, RMS_16, round_to
from npucmp.recompute.table import row_of

if TYPE_CHECKING:
    from npucmp.recompute.numpy_inputs import OperatorInputs

CALLS, SECONDS = 40, 10.0
RESIDUAL_SHARE = 0.25  # share of the error that may remain: kernels of a lower precision differ from each other
SHORT = {"HF32": 11, "TF32": 10}  # bits after the leading bit that float32 matrix units keep
LOW = ("float16", "bfloat16")
EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.0)
EPS_AT = {"layer_norm": 4, "rms_norm": 3, "group_norm": 4, "batch_norm": 7, "instance_norm": 7}
ADDED = {  # places of optional arguments
    "linear": {2: "bias"}, "conv1d": {2: "bias"}, "conv2d": {2: "bias"}, "conv3d": {2: "bias"},
    "layer_norm": {2: "weight", 3: "bias"}, "group_norm": {2: "weight", 3: "bias"}, "rms_norm": {2: "weight"},
    "batch_norm": {3: "weight", 4: "bias"}, "scaled_dot_product_attention": {3: "mask"},
}  # fmt: skip
PRODUCTS = {"linear": -1, "matmul": -2, "mm": -2, "bmm": -2, "__matmul__": -2}  # summed axis of the 2nd operand
DROPPED = (1, 2, 4, 8, 16, 32, 64)


class OtherCall(NamedTuple):
    """A call that may have been made instead: its inputs, and the share of the error that may remain. `low`: its
    results are rounded to that type, and each of its steps too, if `in_steps`."""

    words: str
    inputs: CallInputs | OperatorInputs
    share: float = 0.0
    low: Optional[Dtype] = None
    in_steps: bool = False

    def results(self, work: Computation, exact: Sequence[Any]) -> list[Any]:
        """The results in the order of the record. Raises RefusedRecord, MemoryError."""
        made = work.results(self.inputs, narrow=self.low if self.in_steps else None)
        found = same_versions([*exact], made)
        low = self.low
        return found if low is None else [None if one is None else round_to(np.asarray(one), low) for one in found]


class Subject(NamedTuple):
    """A GUILTY output: recorded values and float64 result, both in its shape; due is the rms of its budget."""

    actual: Any
    exact: Any
    dtype: Dtype
    due: float

    def left(self, other: Any) -> float:
        """The rms error that another result does not explain."""
        away = self.actual - other
        away = away[np.isfinite(away)]
        return math.sqrt(float(np.mean(away * away))) if away.size else math.inf


def with_hypotheses(
    rows: list[ReplayedOutput], call: Optional[Call], work: Computation, exact: Sequence[Any]
) -> list[ReplayedOutput]:
    """Add to GUILTY rows the hypothesis that explains them, if any. The rows are in the order of `work.recorded`;
    `call` is the recorded call, of a gradient that of its forward, None for an operator of a graph."""
    subjects = [
        _subject(row, tensor, work.values[at], exact[at] if at < len(exact) else None)
        for row, (at, tensor) in zip(rows, work.recorded.items())
    ]
    if all(one is None for one in subjects):
        return rows
    best: list[tuple[float, str]] = [(math.inf, "")] * len(rows)

    def hold(at: int, words: str, values: Any, share: float = 0.0) -> None:
        subject = subjects[at]
        assert subject is not None
        left, error = subject.left(values), subject.left(subject.exact)
        limit = (RMS_16 if subject.dtype.itemsize <= 2 else RMS) * subject.due
        if left <= max(limit, share * error) and left < 0.5 * error and left < 0.9 * best[at][0]:
            best[at] = left, words

    for at, subject in enumerate(subjects):
        for words, values in _of_values(subject) if subject is not None else ():
            hold(at, words, values, RESIDUAL_SHARE if words.startswith("rounded") else 0.0)
    started = time.monotonic()
    for number, other in enumerate(_other_calls(call, work)):
        if number >= CALLS or time.monotonic() - started > SECONDS:
            break
        try:
            results = other.results(work, exact)
        except (RefusedRecord, MemoryError):  # the record does not fit without a bias
            continue
        for at, (subject, place) in enumerate(zip(subjects, work.recorded)):
            result = results[place] if place < len(results) else None
            if subject is not None and result is not None and np.size(result) == subject.exact.size:
                hold(at, other.words, np.reshape(result, subject.exact.shape), other.share)
    return [
        row if subject is None else _with_explanation(row, subject, words, left)
        for row, subject, (left, words) in zip(rows, subjects, best)
    ]


def _with_explanation(row: ReplayedOutput, subject: Subject, words: str, left: float) -> ReplayedOutput:
    if not words:
        low = _is_low(subject)
        words = f"all values are {low} numbers" if low else ""
        return row._replace(explanation=words, explained_by=words) if low else row
    size = math.sqrt(float(np.mean(np.square(subject.actual[np.isfinite(subject.actual)]))))
    units = left / (size * subject.dtype.round_off) if size else 0.0
    explanation = f"{words} explains it within {units:.2g} u" if units else f"{words} explains it bit for bit"
    return row._replace(explanation=explanation, explained_by=words)


def _subject(row: ReplayedOutput, tensor: TensorRef, recorded: Array, exact: Optional[Array]) -> Optional[Subject]:
    """The subject of a GUILTY row with an error of floats, else None. If the budget is zero, rounding replaces it."""
    dtype = lookup(tensor.dtype)
    if dtype is None or dtype.kind != "f" or exact is None or np.size(exact) != np.size(recorded):
        return None
    if row.verdict is not ReplayVerdict.GUILTY or not row.rms_ratio or not row.rmse or not math.isfinite(row.rmse):
        return None
    actual, wide = (np.reshape(one, tensor.shape).astype(np.float64) for one in (recorded, exact))
    finite = wide[np.isfinite(wide)]
    rounding = 0.3 * dtype.round_off * math.sqrt(float(np.mean(finite * finite))) if finite.size else 0.0
    return Subject(actual, wide, dtype, max(row.rmse / row.rms_ratio, rounding))


# changes of the result


def _of_values(one: Subject) -> Iterator[tuple[str, Any]]:
    """Changes of the correct result, in words and values."""
    with np.errstate(all="ignore"):
        factor = _factor(one.actual, one.exact)
        if one.actual.size > 1:  # a single number fits any factor
            yield "negated" if abs(factor + 1) < 1e-6 else f"scaled by {factor:.6g}", factor * one.exact
        if one.actual.ndim:
            yield from _of_columns(one)
            yield from _of_box(one)
        yield "truncated instead of rounded", _truncate(one.exact, one.dtype)
        for name in LOW:
            if DTYPES[name].round_off > one.dtype.round_off:
                yield f"rounded to {name}", round_to(one.exact, DTYPES[name])


def _is_low(one: Subject) -> str:
    """The 16-bit type that represents all values, "" if none does."""
    for name in LOW:
        low = DTYPES[name]
        if low.round_off > one.dtype.round_off and np.array_equal(round_to(one.actual, low), one.actual):
            return name
    return ""


def _factor(actual: Any, exact: Any) -> float:
    use = np.isfinite(actual) & np.isfinite(exact)
    size = float(np.dot(exact[use], exact[use]))
    return float(np.dot(actual[use], exact[use])) / size if size else 0.0


def _of_columns(one: Subject) -> Iterator[tuple[str, Any]]:
    """First or last columns that are scaled, or two columns that are swapped."""
    columns = one.exact.shape[-1]
    away = (one.actual - one.exact).reshape(-1, columns)
    bad = np.flatnonzero(np.sqrt(np.nanmean(away * away, axis=0)) > 8 * one.due)
    if not 0 < bad.size < columns:
        return
    if bad.size == 2:
        turned = one.exact.copy()
        turned[..., bad] = one.exact[..., bad[::-1]]
        yield f"columns {bad[0]} and {bad[1]} swapped", turned
    for name, part in (("first", slice(0, bad[-1] + 1)), ("last", slice(bad[0], columns))):
        other = one.exact.copy()
        count = other[..., part].shape[-1]
        if count < columns:
            factor = _factor(one.actual[..., part], one.exact[..., part])
            other[..., part] *= factor
            yield f"{name} {_columns(count)} {_times(factor)}", other


def _columns(count: int) -> str:
    return "column" if count == 1 else f"{count} columns"


def _times(factor: float) -> str:
    return "left at zero" if factor == 0 else f"x {factor:.5g}"


def _of_box(one: Subject) -> Iterator[tuple[str, Any]]:
    """A tile that is scaled or zero, or a single wrong element."""
    away = np.abs(one.actual - one.exact)
    places = np.argwhere(away > 8 * (one.due + one.dtype.round_off * np.abs(one.exact)))
    if not len(places) or len(places) == one.exact.size:
        return
    box = tuple(slice(int(a), int(b) + 1) for a, b in zip(places.min(0), places.max(0)))
    if one.exact[box].size > one.exact.size // 2:
        return
    words = ", ".join(f"{span.start}:{span.stop}" if span.stop - span.start > 1 else f"{span.start}" for span in box)
    other = one.exact.copy()
    if other[box].size == 1:
        other[box] = one.actual[box]
        yield f"one element, [{words}],", other
        return
    factor = _factor(one.actual[box], one.exact[box])
    other[box] *= factor
    yield f"[{words}] {_times(factor)}", other


def _truncate(exact: Any, dtype: Dtype) -> Any:
    """Truncate toward zero in a type."""
    rounded = round_to(exact, dtype)
    inner = round_to(exact - 0.999 * dtype.round_off * exact, dtype)
    return np.where(np.abs(rounded) > np.abs(exact), inner, rounded)


# changes of the call


def _other_calls(call: Optional[Call], work: Computation) -> Iterator[OtherCall]:
    name = call.name if call is not None else ""
    if isinstance(work.inputs, CallInputs):
        yield from _other_arguments(work.inputs, name)
    row = row_of(call) if call is not None else None
    yield from _coarser(work, row is not None and row.kind == "sum")
    if isinstance(work.inputs, CallInputs):
        yield from _fewer_terms(work.inputs, name)


def _other_arguments(inputs: CallInputs, name: str) -> Iterator[OtherCall]:
    args, kwargs = inputs.args, inputs.kwargs
    if name in EPS_AT:
        at = EPS_AT[name]
        recorded = kwargs.get("eps", args[at] if len(args) > at else None)
        own = 1e-5 if recorded is None else float(recorded)
        for eps in EPSILONS:
            if abs(eps - own) > 1e-3 * own:
                yield OtherCall(f"eps {eps:g} instead of {own:.4g}", _with_argument(inputs, at, "eps", eps))
    for at, words in ADDED.get(name, {}).items():
        if (len(args) > at and args[at] is not None) or kwargs.get(words) is not None:
            yield OtherCall(f"{words} left out", _with_argument(inputs, at, words, None))
    if name == "gelu":
        is_tanh = kwargs.get("approximate", "none") == "tanh"
        other = replace(inputs, kwargs={**kwargs, "approximate": "none" if is_tanh else "tanh"})
        yield OtherCall("erf instead of tanh" if is_tanh else "tanh instead of erf", other)


def _with_argument(inputs: CallInputs, at: int, key: str, value: Any) -> CallInputs:
    """The call with another value for an argument, by place or by keyword."""
    if len(inputs.args) > at:
        return replace(inputs, args=(*inputs.args[:at], value, *inputs.args[at + 1 :]))
    return replace(inputs, kwargs={**inputs.kwargs, key: value})


def _coarser(work: Computation, is_sum: bool) -> Iterator[OtherCall]:
    """Calls in lower precision: the whole call, with or without its steps, or only its operands."""
    for name in LOW:
        dtype = DTYPES[name]
        if dtype.round_off > work.unit:
            low = _operands(work.inputs, lambda one, to=dtype: round_to(one, to))
            for in_steps in (False, True):
                yield OtherCall(f"computed in {name}", low, RESIDUAL_SHARE, dtype, in_steps)
            yield OtherCall(f"{name} operands", low, RESIDUAL_SHARE)
    for name, bits in SHORT.items() if work.unit < 2.0**-13 and is_sum else ():
        short = _operands(work.inputs, lambda one, bits=bits: _round_mantissa(one, bits))
        yield OtherCall(f"{name} operands", short, RESIDUAL_SHARE)


def _operands(inputs: Any, change: Any) -> Any:
    """The inputs with their floats changed; of a gradient the incoming gradients and saved results too."""
    with np.errstate(all="ignore"):
        return inputs.map_floats(change)


def _round_mantissa(one: Array, bits: int) -> Array:
    """Round to `bits` bits after the leading bit."""
    fraction, exponent = np.frexp(one)
    step = 2.0 ** (-bits - 1)  # of a fraction in [0.5, 1)
    found: Array = np.ldexp(np.rint(fraction / step) * step, exponent)
    return found


def _fewer_terms(inputs: CallInputs, name: str) -> Iterator[OtherCall]:
    """Products without some of their first or last terms."""
    if name not in PRODUCTS or len(inputs.args) < 2 or inputs.gradients or min(one.ndim for one in inputs.args[:2]) < 2:
        return
    a, b = inputs.args[:2]
    axis, terms = PRODUCTS[name], a.shape[-1]
    for count in DROPPED:
        if count < terms:
            for words, start in (("last", 0), ("first", count)):
                kept = np.arange(start, start + terms - count)
                args = (np.take(a, kept, -1), np.take(b, kept, axis), *inputs.args[2:])
                yield OtherCall(f"the {words} {count} of {terms} terms left out", replace(inputs, args=args))


# the hypothesis of a row again, for other inputs


def call_of(words: str, call: Call, work: Computation) -> Optional[OtherCall]:
    """Return the other call that a hypothesis names; None if it names none."""
    return next((other for other in _other_calls(call, work) if other.words == words), None)


def changed_result(row: ReplayedOutput, tensor: TensorRef, recorded: Any, exact: Any, other: Any) -> Any:
    """Return the changed result that the hypothesis of a row names, and the same change of another result; None if the
    hypothesis changes no result."""
    words, dtype = row.explained_by, lookup(tensor.dtype)
    subject = _subject(row, tensor, recorded, exact)
    if subject is None or dtype is None or not words:
        return None
    values = next((one for name, one in _of_values(subject) if name == words), None)
    if values is None:
        return None
    wide = np.reshape(other, subject.exact.shape)
    low = next((name for name in LOW if words == f"rounded to {name}"), "")
    with np.errstate(all="ignore"):
        if low:
            return values, round_to(wide, DTYPES[low])
        if words.startswith("truncated"):
            return values, _truncate(wide, dtype)
        if words.endswith("swapped"):
            a, b = (int(one) for one in words.split() if one.isdecimal())
            turned = wide.copy()
            turned[..., [a, b]] = wide[..., [b, a]]
            return values, turned
        return values, _scaled_alike(subject.exact, values, wide)


def _scaled_alike(exact: Any, values: Any, other: Any) -> Any:
    """Return another result, scaled in the box in which `values` is a multiple of `exact`."""
    places = np.argwhere((values != exact) & np.isfinite(exact))
    if not len(places):
        return other
    found = np.array(other)
    box = tuple(slice(int(a), int(b) + 1) for a, b in zip(places.min(0), places.max(0)))
    use = (exact[box] != 0) & np.isfinite(exact[box])
    if use.any():
        found[box] *= np.median(values[box][use] / exact[box][use])
    else:
        found[box] += values[box] - exact[box]
    return found
