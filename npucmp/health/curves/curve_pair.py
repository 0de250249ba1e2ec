"""Compare two curves of the same figure: whether they differ by more than their own noise, and from which step on.

Single steps of two healthy runs differ widely if their batches come in another order: by 17 to 19 % on average, while
the vendor's rule allows 1 %. The mean over a window of steps is stable, and its error follows from the scatter within
the window. A window differs if its means differ by more than 1 % and by more than four errors.

Evidence: a 4-layer network, 600 steps, 3 seeds × 30 pairs. Exact repeats and rounding: silent in 15 of 15; another data
order or seed: silent in 9 of 9, 0 of 108 windows differ; learning rate × 0.5 to 1.5, frozen layers, dropout left on,
label smoothing and similar faults: found in 33 of 33 with the same batches, in 17 of 18 with others.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from npucmp.health.curves.curve import Curve, Steps, Values

Flags = NDArray[np.bool_]

FEWEST = 10  # fewest common steps of a verdict
STEP_TOLERANCE = 0.01  # relative difference of a mean or a step: the vendor's limit of losses
ERRORS = 4.0  # errors of a mean, for the usual number of windows
WINDOWS = 12  # windows of a curve
SAME_BATCHES = 0.5  # least correlation of runs with the same batches: measured 0.85 to 1, others -0.11 to 0.27
FIRST, OF_FIRST = 10, 6  # OF_FIRST of FIRST steps beyond APART: the runs differ from here on
REPEAT_FACTOR = 3.0  # times the difference between two golden runs
SPIKE, BEFORE = 5.0, 20  # median deviations above the running median of BEFORE steps
BLOCK = 1 << 16  # steps per block
LARGEST_LAG = 0.9


class CurveWindow(NamedTuple):
    """The means of both curves over some steps; `relative` difference and its error in units of the golden mean."""

    step_from: int
    step_to: int
    target: float
    golden: float
    relative: float
    error: float
    differs: bool


class CurveComparison(NamedTuple):
    """The comparison of two curves.

    status      "same" (bits), "close", "differs", "unknown" (too few common steps)
    because     the reason in one sentence
    paired      whether both runs see the same batches in the same order, by `correlation` of their step-to-step
                differences; None if unknown
    first_step  the step from which they differ; `first_apart` is the first single step that differs by more than 1 %;
                None if there is none
    mean, largest, last  relative differences: of single steps (absolute), of the last window (signed); NaN if unknown
    spikes, nonfinite    steps, of target and golden
    """

    status: str
    because: str
    common: int
    paired: Optional[bool]
    correlation: float
    windows: tuple[CurveWindow, ...] = ()
    first_step: Optional[int] = None
    first_apart: Optional[int] = None
    mean: float = float("nan")
    largest: float = float("nan")
    last: float = float("nan")
    spikes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    nonfinite: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@np.errstate(all="ignore")  # infinite and NaN values
def compare_curves(target: Curve, golden: Curve, repeat: Optional[Curve] = None) -> CurveComparison:
    """Compare a curve to the golden one; `repeat` is the curve of a second golden run, whose differences are noise."""
    steps, x, y = _common(target, golden)
    odd = _steps(steps[~np.isfinite(x)]), _steps(steps[~np.isfinite(y)])
    finite, common, nan = np.isfinite(x) & np.isfinite(y), len(steps), float("nan")
    same = np.array_equal(x, y, equal_nan=True)
    steps, x, y = steps[finite], x[finite], y[finite]
    one_sided = sorted({*odd[0]} ^ {*odd[1]})
    if one_sided:
        side = "target" if one_sided[0] in odd[0] else "golden"
        found = f"the {side} is not finite at step {one_sided[0]}, but the other run is"
    elif len(steps) < FEWEST:
        words = f"{common} common steps, {len(steps)} of them finite; {FEWEST} are needed"
        return CurveComparison("unknown", words, common, None, nan, nonfinite=odd)
    correlation = _correlation(x, y)
    paired = None if math.isnan(correlation) and not same else correlation >= SAME_BATCHES or same
    least = 0.0
    if repeat is not None:
        repeated, a, b = _common(repeat, golden)
        known = np.isfinite(a) & np.isfinite(b)
        noise = [abs(one.relative) for one in _windows(repeated[known], a[known], b[known], False)]
        least = REPEAT_FACTOR * max(noise, default=0.0)
    windows = _windows(steps, x, y, bool(paired), least)
    parted = [one for one in windows if one.differs]
    relative = _relative(x - y, y)
    size = np.abs(relative)
    apart = size > STEP_TOLERANCE
    first = _first(steps, apart, paired, parted)
    if one_sided:
        first = [min([one_sided[0], *first])]
    else:
        found = _why(paired, parted, len(windows), float(size[:FIRST].mean()) if least < STEP_TOLERANCE else 0.0)
    return CurveComparison(
        "differs" if found else "same" if same else "close",
        found or _silent(paired, same, apart),
        common,
        paired,
        correlation,
        windows,
        first[0] if found and first else None,
        int(steps[apart][0]) if apart.any() else None,
        float(size.mean()) if len(size) else nan,
        float(size.max()) if len(size) else nan,
        windows[-1].relative if windows else nan,
        (spikes(target, SPIKE), spikes(golden, SPIKE)),
        odd,
    )


def _steps(steps: Steps) -> tuple[int, ...]:
    return tuple(map(int, steps))


@np.errstate(all="ignore")
def spikes(curve: Curve, deviations: float, times: float = 1.0) -> tuple[int, ...]:
    """Steps whose value exceeds the median of the 20 preceding steps by `deviations` median deviations and by the
    factor `times`."""
    found: list[int] = []
    for begin in range(0, len(curve.values) - BEFORE, BLOCK):
        values, steps = (column[begin : begin + BLOCK + BEFORE] for column in (curve.values, curve.steps))
        before = np.lib.stride_tricks.sliding_window_view(values, BEFORE)[:-1]
        now, known = values[BEFORE:], np.isfinite(before).all(axis=1)
        median = np.median(before, axis=1)
        spread = np.median(np.abs(before - median[:, None]), axis=1)
        high = np.isfinite(now) & (now > median + deviations * spread) & (now > times * median)
        found += _steps(steps[BEFORE:][known & high])
    return tuple(found)


def mean_error(x: Values) -> float:
    """The error of a mean whose values scatter about a straight line. It is widened if neighbouring residuals correlate
    by more than chance. Infinite for fewer than three values."""
    if len(x) < 3:
        return float("inf")
    rest = x - x.mean() - slope(x) * (np.arange(len(x)) - (len(x) - 1) / 2)
    rho = lag(rest)
    return float(np.sqrt((rest * rest).sum() / (len(x) - 2) / len(x))) * _error_factor(
        rho if rho > 2 / len(x) ** 0.5 else 0
    )


def slope(x: Values) -> float:
    """The slope of the straight line through the values, per step."""
    place = np.arange(len(x)) - (len(x) - 1) / 2
    return float((place * x).sum() / (place * place).sum())


def lag(x: Values) -> float:
    """The autocorrelation at one step, clipped to 0 … 0.9."""
    deviation = x - x.mean()
    size = float((deviation * deviation).sum())
    found = float((deviation[1:] * deviation[:-1]).sum()) / size if size > 0 else 0.0
    return min(LARGEST_LAG, max(0.0, found))


def _error_factor(rho: float) -> float:
    """The factor by which autocorrelation increases the error of a mean."""
    return math.sqrt((1 + rho) / (1 - rho))


def percent(share: float, sign: str = "") -> str:
    """Format a share as a percentage."""
    return f"{share:{sign}.2%}" if abs(share) < 100 else f"{100 * share:{sign}.3g}%"


def _common(target: Curve, golden: Curve) -> tuple[Steps, Values, Values]:
    steps, mine, theirs = np.intersect1d(target.steps, golden.steps, assume_unique=True, return_indices=True)
    return steps, target.values[mine], golden.values[theirs]


def _correlation(x: Values, y: Values) -> float:
    """The correlation of the ranks of step-to-step differences. Ranks keep the first drop of two losses, or divergence,
    from dominating. NaN if either curve is constant."""
    a, b = np.diff(x), np.diff(y)
    if not a.any() or not b.any():
        return float("nan")
    a, b = _ranks(a), _ranks(b)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size > 0 else float("nan")


def _ranks(x: Values) -> Values:
    """The rank of each value; equal values share the mean rank."""
    _, places, counts = np.unique(x, return_inverse=True, return_counts=True)
    last: Values = np.cumsum(counts).astype(np.float64)
    return (last - (counts - 1) / 2)[places]


def _windows(steps: Steps, x: Values, y: Values, paired: bool, least: float = 0.0) -> tuple[CurveWindow, ...]:
    """Windows of 10 to 50 steps, a twelfth of the whole; remaining steps belong to the last window."""
    width = max(FEWEST, min(50, len(steps) // WINDOWS))
    starts = [*range(0, len(steps) - width + 1, width)]
    ends = [*starts[1:], len(steps)]
    errors = (ERRORS**2 + 2 * np.log(max(1.0, len(starts) / WINDOWS))) ** 0.5  # same false alarms for more windows
    return tuple(_window(steps[at:to], x[at:to], y[at:to], paired, least, errors) for at, to in zip(starts, ends))


def _window(steps: Steps, x: Values, y: Values, paired: bool, least: float, errors: float) -> CurveWindow:
    unit = float(max(np.abs(x).max(), np.abs(y).max())) or 1.0  # squares of huge values would be infinite
    x, y = x / unit, y / unit
    target, golden = float(x.mean()), float(y.mean())
    if paired:
        error = float(np.std(x - y, ddof=1)) / len(x) ** 0.5 * _error_factor(lag(x - y))
    else:
        error = float(np.hypot(mean_error(x), mean_error(y)))
    relative, error = float(_relative(target - golden, golden)), float(_relative(error, golden))
    parts = abs(relative) > max(STEP_TOLERANCE, least) and abs(relative) > errors * error
    return CurveWindow(int(steps[0]), int(steps[-1]), target * unit, golden * unit, relative, error, parts)


def _relative(difference: Values | float, golden: Values | float) -> Values:
    """A difference in units of the golden value: infinite if only the golden value is 0, and 0 if the difference is
    0."""
    return np.where(np.equal(difference, 0), 0.0, np.divide(difference, np.abs(golden)))


def _why(paired: Optional[bool], parted: list[CurveWindow], windows: int, first: float) -> str:
    """The reason why the curves differ; "" if they do not."""
    if len(parted) >= (1 if paired else 2):
        worst = max(parted, key=lambda one: abs(one.relative))
        return (f"{len(parted)} of {windows} windows differ, by up to {percent(worst.relative, '+')} "
                f"(steps {worst.step_from} to {worst.step_to}; error {percent(worst.error)})")  # fmt: skip
    if paired and first > STEP_TOLERANCE:
        return f"the first {FIRST} steps differ by {percent(first)} on average"
    return ""


def _silent(paired: Optional[bool], same: bool, apart: Flags) -> str:
    if same:
        return "equal at every step"
    if paired is False:
        return "the runs do not read the same batches in the same order; their means agree"
    return (
        "single steps differ, but the mean does not"
        if apart.any()
        else f"no step differs by more than {STEP_TOLERANCE:.0%}"
    )


def _first(steps: Steps, apart: Flags, paired: Optional[bool], parted: list[CurveWindow]) -> list[int]:
    """The first step that differs, as a list: by single steps if the runs see the same batches, else by windows. Empty
    if none differs."""
    found: list[int] = []
    if paired and len(apart) >= FIRST:
        many = np.lib.stride_tricks.sliding_window_view(apart, FIRST).sum(axis=1) >= OF_FIRST
        begins = steps[: len(many)][many & apart[: len(many)]]
        found += [int(step) for step in begins[:1]]
        found = found or [int(step) for step in steps[apart][:1] if not parted]
    return found or [one.step_from for one in parted[:1]]
