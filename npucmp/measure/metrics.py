"""The metrics: each is a small pure function of Moments, in one table. To add a metric, change METRICS only: the
columns of tensors.csv and the direction of tolerances follow it. Packages add metrics by the entry point group
`npucmp.metrics`: a Metric, which is loaded if a user names it.

x is the target, y the golden; sums cover positions that are finite on both sides. A formula without a value returns
NaN. A position that is NaN or Inf on one side only makes rel_l2 infinite, so that no rule accepts it. Where a formula
differs from that of an Ascend tool, docs/metrics.md explains why.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Callable, Iterable, Literal, NamedTuple, Optional, Sequence, Union

from npucmp.errors import UsageError, nearest
from npucmp.model import Moments, Side

if TYPE_CHECKING:
    from npucmp.model.entry_points import Extension

Value = Optional[Union[float, int, bool]]
NAN = float("nan")


def cosine(m: Moments) -> float:
    """Σxy / (‖x‖‖y‖), in [-1, 1]; 1 if both sides are zero, 0 if one is.

    NaN if no element was compared, or if squares leave the range of float64.
    """
    if not m.compared:
        return NAN
    if not m.xx or not m.yy:
        if m.compared == m.elements and _magnitude(m.target) > 0 and _magnitude(m.golden) > 0:
            return NAN  # squares fell below float64
        return 1.0 if m.xx == m.yy and not m.max_abs else 0.0
    if m.equal == m.elements:
        return 1.0
    ratio = m.xy / (math.sqrt(m.xx) * math.sqrt(m.yy))
    return max(-1.0, min(1.0, ratio)) if math.isfinite(ratio) else NAN


def rel_l2(m: Moments) -> float:
    """‖x-y‖ / ‖y‖ (CANN: RelativeEuclideanDistance). If the golden is zero: inf unless x is zero too. 0 for empty
    tensors."""
    if m.mismatched:
        return math.inf
    if not m.max_abs:
        return 0.0
    if not m.yy and _all_zero(m):
        return math.inf
    if not m.sum_dd or not m.yy:
        return m.max_abs / _magnitude(m.golden)  # squares fell below float64
    ratio = math.sqrt(m.sum_dd) / math.sqrt(m.yy)
    return ratio if math.isfinite(ratio) else m.max_abs / _magnitude(m.golden)  # squares rose above float64


def _all_zero(m: Moments) -> bool:
    """Return whether the golden is zero at all compared positions; masks are not zero, but are not compared."""
    return m.masked > 0 or not _magnitude(m.golden)


def _magnitude(side: Side) -> float:
    """The largest finite magnitude; 0 if nothing is finite."""
    return max(abs(side.minimum), abs(side.maximum)) if side.minimum == side.minimum else 0.0


def gain(m: Moments) -> float:
    """Σxy / Σy² - 1: the relative scale error of the whole target. Noise leaves it near 0, a wrong factor does not."""
    return m.xy / m.yy - 1.0 if m.yy and m.max_abs else 0.0


def max_abs_err(m: Moments) -> Value:
    """max |x-y|; an exact integer for integer tensors."""
    if m.max_abs_exact is not None:
        return m.max_abs_exact
    return m.max_abs if m.compared else NAN


def max_rel_err(m: Moments) -> float:
    """max |x-y| / max(|y|, smallest normal of the narrower type)."""
    return m.max_rel if m.compared else NAN


def mean_abs_err(m: Moments) -> float:
    """Σ|x-y| / n (CANN: MeanAbsoluteError)."""
    return _mean(m.sum_abs, m)


def mean_rel_err(m: Moments) -> float:
    """Mean of |x-y| / max(|y|, smallest normal) (CANN: MeanRelativeError, which omits zeros of y)."""
    return _mean(m.sum_rel, m)


def rmse(m: Moments) -> float:
    """√(Σ(x-y)² / n) (CANN: RootMeanSquareError)."""
    return math.sqrt(m.sum_dd / m.compared) if m.compared else NAN


def err_1e3_ratio(m: Moments) -> float:
    """Share of positions with a relative error below 0.001 (msprobe: One Thousandth Err Ratio)."""
    return _mean(m.below_1e3, m)


def err_5e3_ratio(m: Moments) -> float:
    """Share of positions with a relative error below 0.005 (msprobe: Five Thousandths Err Ratio)."""
    return _mean(m.below_5e3, m)


def allclose(m: Moments) -> bool:
    """Return whether |x-y| ≤ atol + rtol·|y| everywhere, with equal NaN and Inf; rtol and atol by the narrower type."""
    return not m.outside and not m.mismatched


def mismatch_ratio(m: Moments) -> float:
    """The share of elements outside the bar of allclose."""
    return (m.outside + m.mismatched) / m.elements if m.elements else 0.0


def max_ulp(m: Moments) -> Value:
    """The largest distance in units in the last place of the narrower type; only if both sides are floats."""
    return m.max_ulp


def exact_ratio(m: Moments) -> float:
    """The share of positions with equal bits."""
    return m.equal / m.elements if m.elements else 1.0


def nonfinite_mismatch(m: Moments) -> int:
    """The number of positions that are NaN or Inf on one side only, or differ in kind."""
    return m.mismatched


def euclidean(m: Moments) -> float:
    """‖x-y‖ (msprobe: EucDist)."""
    return math.sqrt(m.sum_dd)


def snr(m: Moments) -> float:
    """10·log10(Σy² / Σ(x-y)²) in dB; inf when there is no error."""
    if not m.sum_dd:
        return math.inf
    ratio = m.yy / m.sum_dd
    return 10.0 * math.log10(ratio) if ratio > 0 else NAN if math.isnan(ratio) else -math.inf


def accumulated_rel_err(m: Moments) -> float:
    """Σ|x-y| / max(|y|, smallest normal) (CANN: AccumulatedRelativeError, which omits zeros of y)."""
    return m.sum_rel


def standard_deviation(m: Moments) -> float:
    """Population standard deviation of x-y."""
    if not m.compared:
        return NAN
    mean = m.sum_d / m.compared
    variance = m.sum_dd / m.compared - mean * mean
    return math.sqrt(max(0.0, variance)) if not math.isnan(variance) else NAN


def _mean(total: float, m: Moments) -> float:
    return total / m.compared if m.compared else NAN


class Metric(NamedTuple):
    """A metric: its column, its formula, whether less or more is better (the side on which a tolerance fails), and
    whether tensors.csv always has it."""

    name: str
    function: Callable[[Moments], Value]
    better: Literal["less", "more"] = "less"
    always: bool = True


METRICS = (
    Metric("cosine", cosine, better="more"),
    Metric("rel_l2", rel_l2),
    Metric("max_abs_err", max_abs_err),
    Metric("max_rel_err", max_rel_err),
    Metric("mean_abs_err", mean_abs_err),
    Metric("mean_rel_err", mean_rel_err),
    Metric("rmse", rmse),
    Metric("err_1e3_ratio", err_1e3_ratio, better="more"),
    Metric("err_5e3_ratio", err_5e3_ratio, better="more"),
    Metric("allclose", allclose, better="more"),
    Metric("mismatch_ratio", mismatch_ratio),
    Metric("max_ulp", max_ulp),
    Metric("exact_ratio", exact_ratio, better="more"),
    Metric("nonfinite_mismatch", nonfinite_mismatch),
    Metric("gain", gain, always=False),
    Metric("euclidean", euclidean, always=False),
    Metric("snr", snr, better="more", always=False),
    Metric("accumulated_rel_err", accumulated_rel_err, always=False),
    Metric("standard_deviation", standard_deviation, always=False),
)
_BY_NAME = {metric.name: metric for metric in METRICS}
GROUP = "npucmp.metrics"  # of entry points


def by_name(name: str) -> Metric:
    """The metric of a column, of METRICS or of an installed package. Raises KeyError for an unknown name, UsageError
    for a metric of a package that cannot be loaded."""
    return _BY_NAME[name] if name in _BY_NAME else _load(_extensions()[name])


def require_metric(name: str, words: str) -> None:
    """Raise UsageError with these words and the closest names if there is no metric of a name."""
    try:
        by_name(name)
    except KeyError:
        known = [*_BY_NAME, *(name for name in _extensions() if name not in _BY_NAME)]
        raise UsageError(words, nearest(name, known) or known) from None


def columns(extra: Sequence[str] = ()) -> list[Metric]:
    """The metrics of a table with optional columns, in its order."""
    own = [metric for metric in METRICS if metric.always or metric.name in extra]
    return [*own, *(by_name(name) for name in extra if name not in _BY_NAME)]


def requested_columns(names: Iterable[str]) -> list[str]:
    """The optional columns that a user requests, in the order of the table; those of installed packages come last.
    Raises UsageError with the closest names for an unknown name."""
    wanted = {name.strip() for name in names if name.strip()}
    others = sorted(wanted - {*_BY_NAME})
    for name in others:
        require_metric(name, f"no metric {name!r:.60}")
    return [*(metric.name for metric in METRICS if metric.name in wanted and not metric.always), *others]


@cache
def _extensions() -> dict[str, Extension]:
    from npucmp.model.entry_points import find_extensions

    return find_extensions(GROUP)


@cache
def _load(one: Extension) -> Metric:
    """Return the metric of an installed package, as a column on request. Raises UsageError if it is none."""
    from npucmp.model.entry_points import load_extension

    found = load_extension(one)
    if not isinstance(found, Metric) or found.better not in ("less", "more") or not callable(found.function):
        raise UsageError(f"{one.words}: is not a Metric; docs/extending.md has an example")
    if found.name != one.name:
        raise UsageError(f"{one.words}: its name is {found.name!r:.60}, not {one.name!r}")
    return found._replace(function=partial(_value, one, found.function), always=False)


def _value(one: Extension, function: Callable[[Moments], Any], moments: Moments) -> Value:
    """Return the value of a formula of an installed package. Raises UsageError if it fails or returns no number."""
    from npucmp.model.entry_points import call_extension

    found = call_extension(one, function, moments)
    if hasattr(found, "item") and getattr(found, "ndim", 0) == 0:  # a scalar of numpy
        found = found.item()
    if found is None or isinstance(found, (bool, int, float)):
        return found
    raise UsageError(f"{one.words}: returned {type(found).__name__}, not a number")
