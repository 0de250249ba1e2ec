"""The noise over steps and over positions.

A declared floor bounds what two engines may differ by; it says nothing of a pair whose first steps are far quieter.
The quietest step is a floor that the pair itself shows: noise that grows from it is of weights that drift apart.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.noise import BEYOND, noise_of
from npucmp.token_parity.outliers import is_few
from npucmp.token_parity.token_pair import TokenPair, first_place

LEAST_STEPS = 3  # steps: chosen, fewer have no order
GROWS = 2.0  # ratio of the last step to the first, if steps rise in order: evidence, vime#64 grew from 0.011 to 0.036
JUMPS = 3.0  # ratio to the quietest step, in any order: chosen
GRADUAL = 1.3  # ratio of each step to the one before: chosen, a jump may have any cause
ORDERED = 0.8  # rank correlation of noise and step: chosen
ERRORS = 6.0  # standard errors between two steps: chosen, chance alone has 1e-9
LEAST_TOKENS = 50  # tokens of a step: chosen
NAMED = 1.5  # ratio from which a trend has a direction: chosen
PARTS = 4  # parts of the positions: chosen, the first and the last are compared


class StepNoise(NamedTuple):
    """Mean of |d| over its noise in a step, and its standard error."""

    mean: float
    error: float
    tokens: int


def noise_of_step(pair: TokenPair) -> StepNoise:
    """Return the noise of a step; NaN without tokens."""
    margins = pair.margin[pair.counted]
    if not len(margins):
        return StepNoise(float("nan"), float("nan"), 0)
    return StepNoise(float(margins.mean()), float(margins.std() / np.sqrt(len(margins))), len(margins))


def growing_noise(pairs: Sequence[TokenPair]) -> Optional[ParityFinding]:
    """Return the finding of the first step whose noise has grown; None if it has not."""
    steps = [noise_of_step(pair) for pair in pairs]
    if len(steps) < LEAST_STEPS or min(one.tokens for one in steps) < LEAST_TOKENS:
        return None
    means = np.array([one.mean for one in steps])
    quiet = steps[int(np.argmin(means))]
    is_ordered = _rank_correlation(means) >= ORDERED and means[-1] >= GROWS * means[0]
    limit = NAMED if is_ordered else JUMPS
    if quiet.mean <= 0:
        return None
    for at, one in enumerate(steps):
        apart = one.mean - quiet.mean
        if one.mean >= limit * quiet.mean and apart > ERRORS * float(np.hypot(one.error, quiet.error)):
            pair = pairs[at]
            floor = pair.floor * quiet.mean
            far = pair.counted & (np.abs(pair.difference) > BEYOND * noise_of(pair.lower, floor))
            times = f"{one.mean / quiet.mean:.1f} times that of the quietest step"
            words = f"mean |d| over its noise is {one.mean:.2f}, {times}"
            place, trend = first_place(far), steps_in_words([*means])
            is_within = all(is_few(one) for one in pairs)
            if is_within and is_ordered and bool((means[1:] >= GRADUAL * means[:-1]).all()):
                return finding_at(pair, TokenClass.WEIGHTS, place, words, trend)
            causes = "another context, other weights, dropout or another computation; these are not refuted"
            return finding_at(pair, TokenClass.DIFFERS, place, f"{words}: {causes}", trend)
    return None


def _rank_correlation(values: Floats) -> float:
    ranks = np.argsort(np.argsort(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def steps_in_words(values: Sequence[float]) -> str:
    """Return the direction of a quantity over steps, "" for fewer than two steps."""
    if len(values) < 2:
        return ""
    for before, after in zip(range(len(values)), range(1, len(values))):
        sides = values[:after], values[after:]
        is_jump = _direction(values[before], values[after]) == "grows" == _direction(max(sides[0]), min(sides[1]))
        if len(values) > 2 and is_jump and all(max(side) <= NAMED * min(side) for side in sides):
            low, high = f"{values[before]:.3g}", f"{values[after]:.3g}"
            return f"mean |d| over steps: grows between two steps ({low} to {high}), flat before and after"
    return f"mean |d| over steps: {_direction(values[0], values[-1])} ({values[0]:.3g} to {values[-1]:.3g})"


def positions_in_words(pair: TokenPair) -> str:
    """Return the direction of mean |d| over the positions of a step, "" for few positions."""
    width = pair.counted.shape[1]
    if width < 2 * PARTS:
        return ""
    ends = []
    for part in (slice(0, width // PARTS), slice(width - width // PARTS, width)):
        used = pair.counted[:, part]
        if used.sum() < LEAST_TOKENS / 2:
            return ""
        ends.append(float(np.abs(pair.difference[:, part][used]).mean()))
    return f"mean |d| over positions: {_direction(*ends)} ({ends[0]:.3g} to {ends[1]:.3g})"


def _direction(first: float, last: float) -> str:
    if last > NAMED * first:
        return "grows"
    return "falls" if first > NAMED * last else "flat"
