"""Judge a single curve without a second run.

Sources: checklists of Ascend and MindSpore (loss diverges, does not converge), SageMaker's rules LossNotDecreasing and
Overfit (0.1). The limits were measured on pairs of curves (curve_pair.py), not on single curves.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

import numpy as np

from npucmp.health.curves.curve import Curve, Steps, Values
from npucmp.health.curves.curve_pair import ERRORS, FEWEST, SPIKE, STEP_TOLERANCE, mean_error, slope, spikes

FLAT_SLOPE, FLAT_SCATTER = 0.01, 1e-6  # relative to the mean: drift, scatter
HIGH, TIMES = 2 * SPIKE, 1.5  # limits of a spike without a second run
FIFTH = 5
AMPLITUDE = 0.05
OVERFIT, EVALUATIONS = 0.1, 3
SEARCH = 0.1  # share of a curve in which a loss scale may fall to its working level
FALLS = 2  # consecutive falls of a loss scale


class CurveEvent(NamedTuple):
    """A finding in a curve: its first step, the deciding figure, the number of steps, and a sentence."""

    step: int
    value: float
    steps: int
    because: str


def nonfinite(curve: Curve) -> Optional[CurveEvent]:
    """NaN and infinite values."""
    odd = ~np.isfinite(curve.values)
    if not odd.any():
        return None
    step, value, count = int(curve.steps[odd][0]), float(curve.values[odd][0]), int(odd.sum())
    last = "to the end" if odd[np.argmax(odd) :].all() else f"at {count} of {len(odd)} steps"
    return CurveEvent(step, value, count, f"{curve.name} is {value:g} from step {step} on, {last}")


@np.errstate(all="ignore")
def flat(curve: Curve, chance: tuple[float, ...] = ()) -> Optional[CurveEvent]:
    """A curve without slope and scatter; `chance` are the losses of random guessing."""
    steps, x = _finite(curve)
    if len(x) < FEWEST:
        return None
    mean = float(x.mean())
    moved, size = abs(slope(x)) * len(x), abs(mean) or 1.0
    if moved >= FLAT_SLOPE * size or mean_error(x) * len(x) ** 0.5 >= FLAT_SCATTER * size:
        return None
    guess = next((one for one in chance if abs(mean - one) < STEP_TOLERANCE * one), None)
    words = "" if guess is None else ", the loss of random guessing: the network does not learn"
    return CurveEvent(int(steps[0]), mean, len(x), f"{curve.name} stays at {mean:.6g} over {len(x)} steps{words}")


def spiking(curve: Curve) -> Optional[CurveEvent]:
    """Values far above the preceding steps."""
    found = spikes(curve, HIGH, TIMES)
    if not found:
        return None
    worst = max(found, key=lambda step: _at(curve, step))
    others = f" and at {len(found) - 1} more" if found[1:] else ""
    words = f"{curve.name} jumps to {_at(curve, worst):.4g} at step {worst}{others}"
    return CurveEvent(found[0], _at(curve, worst), len(found), words)


@np.errstate(all="ignore")
def rising(curve: Curve) -> Optional[CurveEvent]:
    """A last fifth that is higher than the first by more than its scatter explains."""
    steps, x = _finite(curve)
    fifth = len(x) // FIFTH
    if len(x) < FIFTH * 3:
        return None
    first, last = x[:fifth], x[-fifth:]
    rise, error = float(last.mean() - first.mean()), float(np.hypot(mean_error(first), mean_error(last)))
    if not (rise > ERRORS * error and rise > STEP_TOLERANCE * abs(float(first.mean()))):
        return None
    words = f"{curve.name} rises from {first.mean():.4g} in the first fifth to {last.mean():.4g} in the last"
    return CurveEvent(int(steps[-fifth]), rise, fifth, words)


@np.errstate(all="ignore")
def oscillating(curve: Curve, limit: float) -> Optional[CurveEvent]:
    """Reversals by more than 5 % of the value at a larger share of the steps than `limit`."""
    steps, x = _finite(curve)
    moves = np.diff(x)
    large = np.abs(moves) > AMPLITUDE * np.abs(x[:-1])
    turns = large[1:] & large[:-1] & (np.sign(moves[1:]) != np.sign(moves[:-1]))
    share = float(turns.mean()) if len(turns) >= FEWEST else 0.0
    if share <= limit:
        return None
    words = f"{curve.name} reverses by more than {AMPLITUDE:.0%} at {share:.0%} of the steps"
    return CurveEvent(int(steps[1:-1][turns][0]), share, int(turns.sum()), words)


@np.errstate(all="ignore")
def diverging_validation(training: Curve, validation: Curve) -> Optional[CurveEvent]:
    """A validation loss that exceeds the training loss in each of the last three evaluations."""
    found = []
    steps, values = _finite(validation)
    begins = np.concatenate([[-(2**62)], steps[:-1]])
    own, x = _finite(training)
    for begin, step, value in [*zip(begins, steps, values)][-EVALUATIONS:]:
        since = x[(own > begin) & (own <= step)]
        before = since if len(since) else x[own <= step][-1:]
        train = float(before.mean()) if len(before) else math.inf
        if not value - train > OVERFIT * abs(train):
            return None
        found.append((int(step), float(value - train) / abs(train) if train else math.inf))
    if len(found) < EVALUATIONS:
        return None
    step, more = found[-1]
    words = f"{validation.name} is {more:.0%} above {training.name} at step {step}, and {EVALUATIONS - 1} times before"
    return CurveEvent(found[0][0], more, EVALUATIONS, words)


@np.errstate(all="ignore")
def falls(scale: Curve) -> tuple[CurveEvent, ...]:
    """Repeated falls of a loss scale without a rise between, and falls to 1.

    Repeated falls in the first tenth of a curve are ignored: there the scaler searches for its working level.
    """
    steps, x = _finite(scale)
    change = np.sign(np.diff(x))
    found, row = [], 0
    for at in np.flatnonzero(change):
        row = row + 1 if change[at] < 0 else 0
        if (row >= FALLS and at + 1 > SEARCH * len(x)) or (row and x[at + 1] <= 1):
            words = f"{scale.name} falls from {x[at]:g} to {x[at + 1]:g} at step {steps[at + 1]}"
            found.append(CurveEvent(int(steps[at + 1]), float(x[at + 1]), row, words))
    return tuple(found)


def _finite(curve: Curve) -> tuple[Steps, Values]:
    known = np.isfinite(curve.values)
    return curve.steps[known], curve.values[known]


def _at(curve: Curve, step: int) -> float:
    return float(curve.values[np.searchsorted(curve.steps, step)])
