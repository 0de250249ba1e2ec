"""Find hypotheses that explain a GUILTY output: the same call with another epsilon, without its bias, in a lower
precision or without some terms; or the float64 result scaled or truncated, as a whole or in part. A hypothesis within
the rounding budget is reported with the remaining error. Only child processes import this.

Each hypothesis is computed, never inferred: up to CALLS more calls, for SECONDS at most.
"""

from __future__ import annotations

import math
import time
from functools import partial
from operator import methodcaller
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

import numpy as np
import torch

from npucmp.model import ReplayedOutput, ReplayVerdict, TensorRef
from npucmp.model.dtypes import DTYPES as KNOWN
from npucmp.model.dtypes import Dtype, lookup
from npucmp.recompute.arguments import CALL_ERRORS
from npucmp.recompute.error_budget import RMS, RMS_16, round_to
from npucmp.recompute.rounding_noise import map_tensors
from npucmp.recompute.torch_bind_call import DTYPES, Bound
from npucmp.recompute.torch_results import numpy_of

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
Again = Callable[[Bound], "Sequence[Any]"]  # results of another call, in the order of the rows


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
    rows: list[ReplayedOutput], tensors: Sequence[Optional[TensorRef]], recorded: Sequence[Any],
    exact: Sequence[Any], bound: Bound, again: Again,
) -> list[ReplayedOutput]:  # fmt: skip
    """Add to GUILTY rows the hypothesis that explains them, if any; all sequences are in the order of the rows."""
    subjects = [_subject(*one) for one in zip(rows, tensors, recorded, exact)]
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
    for number, (words, other, share) in enumerate(_of_calls(bound)):
        if number >= CALLS or time.monotonic() - started > SECONDS:
            break
        try:
            with torch.no_grad():
                results = again(other)
        except CALL_ERRORS:  # not every kernel exists for every type
            continue
        for at, (subject, result) in enumerate(zip(subjects, results)):
            if subject is not None and isinstance(result, torch.Tensor) and result.numel() == subject.exact.size:
                hold(at, words, numpy_of(result.to(torch.float64)).reshape(subject.exact.shape), share)
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


def _subject(row: ReplayedOutput, tensor: Optional[TensorRef], recorded: Any, exact: Any) -> Optional[Subject]:
    """The subject of a GUILTY row with an error of floats, else None. If the budget is zero, rounding replaces it."""
    dtype = lookup(tensor.dtype) if tensor is not None else None
    if tensor is None or dtype is None or dtype.kind != "f" or not isinstance(exact, torch.Tensor):
        return None
    if row.verdict is not ReplayVerdict.GUILTY or not row.rms_ratio or not row.rmse or not math.isfinite(row.rmse):
        return None
    actual, wide = recorded.astype(np.float64).reshape(tensor.shape), numpy_of(exact).reshape(tensor.shape)
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
            if KNOWN[name].round_off > one.dtype.round_off:
                yield f"rounded to {name}", round_to(one.exact, KNOWN[name])


def _is_low(one: Subject) -> str:
    """The 16-bit type that represents all values, "" if none does."""
    for name in LOW:
        low = KNOWN[name]
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


def _of_calls(bound: Bound) -> Iterator[tuple[str, Bound, float]]:
    """Other calls, in words, and the share of the error that may remain."""
    name = bound.row.call.rpartition(".")[2]
    yield from ((words, other, 0.0) for words, other in _other_arguments(bound, name))
    yield from _coarser(bound)
    yield from ((words, other, 0.0) for words, other in _fewer_terms(bound, name))


def _other_arguments(bound: Bound, name: str) -> Iterator[tuple[str, Bound]]:
    if name in EPS_AT:
        at = EPS_AT[name]
        recorded = bound.kwargs.get("eps", bound.args[at] if len(bound.args) > at else None)
        own = 1e-5 if recorded is None else float(recorded)
        for eps in EPSILONS:
            if abs(eps - own) > 1e-3 * own:
                yield f"eps {eps:g} instead of {own:.4g}", _with_argument(bound, at, "eps", eps)
    for at, words in ADDED.get(name, {}).items():
        if (len(bound.args) > at and bound.args[at] is not None) or bound.kwargs.get(words) is not None:
            yield f"{words} left out", _with_argument(bound, at, words, None)
    if name == "gelu":
        recorded = bound.kwargs.get("approximate", "none")
        other = "none" if recorded == "tanh" else "tanh"
        kwargs = {**bound.kwargs, "approximate": other}
        yield (
            f"{'tanh' if other == 'tanh' else 'erf'} instead of {'erf' if other == 'tanh' else 'tanh'}",
            bound._replace(kwargs=kwargs),
        )


def _with_argument(bound: Bound, at: int, key: str, value: Any) -> Bound:
    """The call with another value for an argument, by place or by keyword."""
    if len(bound.args) > at:
        return bound._replace(args=[*bound.args[:at], value, *bound.args[at + 1 :]])
    return bound._replace(kwargs={**bound.kwargs, key: value})


def _coarser(bound: Bound) -> Iterator[tuple[str, Bound, float]]:
    """Calls in lower precision: the whole call, or only its operands."""
    for name in LOW:
        dtype = KNOWN[name]
        if dtype.round_off > bound.unit:
            yield f"computed in {name}", _map_tensors(bound, methodcaller("to", DTYPES[name])), RESIDUAL_SHARE
            yield f"{name} operands", _map_tensors(bound, partial(_round_values, to=dtype)), RESIDUAL_SHARE
    if bound.unit < 2.0**-13 and bound.row.kind == "sum":
        for name, bits in SHORT.items():
            yield f"{name} operands", _map_tensors(bound, partial(_round_mantissa, bits=bits)), RESIDUAL_SHARE


def _map_tensors(bound: Bound, change: Callable[[Any], Any]) -> Bound:
    args, kwargs = map_tensors([bound.args, bound.kwargs], change)
    return bound._replace(args=args, kwargs=kwargs)


def _round_values(one: Any, to: Dtype) -> Any:
    return torch.from_numpy(round_to(one.numpy(), to))


def _round_mantissa(one: Any, bits: int) -> Any:
    """Round to `bits` bits after the leading bit."""
    fraction, exponent = torch.frexp(one)
    step = 2.0 ** (-bits - 1)  # of a fraction in [0.5, 1)
    return torch.ldexp(torch.round(fraction / step) * step, exponent)


def _fewer_terms(bound: Bound, name: str) -> Iterator[tuple[str, Bound]]:
    """Products without some of their first or last terms."""
    if name not in PRODUCTS or len(bound.args) < 2 or bound.args[0].dim() < 2 or bound.args[1].dim() < 2:
        return
    a, b = bound.args[:2]
    axis, terms = PRODUCTS[name], a.shape[-1]
    for count in DROPPED:
        if count < terms:
            for words, start in (("last", 0), ("first", count)):
                size = terms - count
                args = [a.narrow(-1, start, size), b.narrow(axis, start, size), *bound.args[2:]]
                yield f"the {words} {count} of {terms} terms left out", bound._replace(args=args)


# the hypothesis of a row again, for other inputs


def call_of(words: str, bound: Bound) -> Optional[Bound]:
    """Return the other call that a hypothesis names; None if it names none."""
    return next((other for name, other, _ in _of_calls(bound) if name == words), None)


def changed_result(row: ReplayedOutput, tensor: TensorRef, recorded: Any, exact: Any, other: Any) -> Any:
    """Return the changed result that the hypothesis of a row names, and the same change of another result; None if the
    hypothesis changes no result. `exact` and `other` are tensors of float64."""
    words, dtype = row.explained_by, lookup(tensor.dtype)
    subject = _subject(row, tensor, recorded, exact)
    if subject is None or dtype is None or not words:
        return None
    values = next((one for name, one in _of_values(subject) if name == words), None)
    if values is None:
        return None
    wide = numpy_of(other).reshape(subject.exact.shape)
    low = next((name for name in LOW if words == f"rounded to {name}"), "")
    with np.errstate(all="ignore"):
        if low:
            return values, round_to(wide, KNOWN[low])
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
