"""The distributions differ by a temperature, or by another function of the logits.

A temperature moves a token of probability a to a^β / Z with one β for all tokens. Z is unknown, but bounded by a: the
rest of the distribution is one token, or spread over the largest vocabulary. What lies outside these bounds remains. A
curve through d by the log-probability has to show it as well, unless the bounds leave no other β. If both sides record
their most likely tokens, the ratio of differences within a position is exact.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import Evidence, outside_of
from npucmp.token_parity.outliers import WITHIN
from npucmp.token_parity.systematic_fit import SystematicFit
from npucmp.token_parity.top_log_probs import TopRelation

LARGEST = 5.0  # ratio of temperatures: chosen, of 0.2 and 1
STEPS = 33  # temperatures on each side of 1: work, 5 % between two
NEAREST = 1.025  # ratio of temperatures: chosen, nearer to 1 is found by a curve
LOG_VOCABULARY = 12.5  # natural logarithm of tokens: definition, the largest vocabularies have 262,144
NARROW = 3.5  # ratio of the highest to the lowest temperature within bounds: chosen, softly capped logits leave more
LEAST_TOKENS = 20  # tokens whose noise shows: chosen
MOST_TOKENS = 20_000  # tokens: work
EXPLAINED = 0.6  # R² that shows a temperature without bounds: evidence, softly capped logits have up to 0.5
DEPENDS = 0.1  # R² that a temperature within narrow bounds has: chosen, scattered tokens have less
UNRELATED = 0.05  # R² that refutes a function of the log-probability: evidence, temperatures have 0.2 and more
A_FUNCTION = 0.25  # R² that shows a function of the logits: evidence, other weights have less than 0.22
EXPLAINED_IN_NOISE = 0.05  # R² of a difference within noise: evidence, clean pairs have less than 0.03
SIGNIFICANT = 20.0  # F statistic of two coefficients: chosen, chance alone has 2e-9
LEAST_SLOPE = 0.005  # d by the log-probability: chosen, a temperature of 0.99 has 0.005 to 0.01
LEAST_ONE_WAY = 8  # tokens beyond noise, all in one direction: chosen
CERTAINLY_REMOVED = 5.0  # standard errors: chosen, chance alone has 3e-7
EXACT_ERRORS = 6.0  # standard errors of the slope between tokens of a position: chosen
EXACT_SLOPE = 0.005  # slope: chosen, a temperature of 0.995
EXACT_REST = 0.1  # standard deviation of a logit that the slope may leave: chosen, above it the logits differ otherwise


class Bounded(NamedTuple):
    """Temperatures of the rollout over the trainer's: the smallest remainder, and the range that leaves noise only."""

    remains: float
    low: float
    high: float

    @property
    def is_narrow(self) -> bool:
        """Whether the range has an end on both sides, and is not around 1."""
        is_open = self.low <= 1.01 / LARGEST or self.high >= 0.99 * LARGEST
        return not is_open and self.high <= NARROW * self.low and not self.low < 1 < self.high


def fit(evidence: Evidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fits of a temperature and of another function of the logits."""
    exact, curve = evidence.tops, evidence.systematic
    if exact is not None:
        return (_exact(evidence, exact),)
    if int(evidence.unsure.sum()) < LEAST_TOKENS:
        return None
    bounded = bounded_temperature(evidence.target, evidence.golden, evidence.noise)
    shows = curve is not None and shows_in_noise(curve)
    r2 = 0.0 if curve is None else curve.r2
    is_curve = r2 >= EXPLAINED and curve is not None and curve.rest <= 3.0
    is_proven = is_curve or (bounded.is_narrow and r2 >= DEPENDS) or (shows and evidence.is_quiet)
    refuted = list(evidence.refuted_by_parts)
    one_way = _one_way(evidence)
    if one_way:
        refuted.append(one_way)
    explained = f"a curve in the log-probability explains {100 * max(r2, 0):.0f} % of the variance of d"
    words = [explained]
    if bounded.is_narrow:
        words.insert(0, f"the rollout's temperature is {bounded.low:.2g} to {bounded.high:.2g} times the trainer's")
    lacks = ""
    if not is_proven:
        what = f"any ratio from {bounded.low:.2g} to {bounded.high:.2g} fits" if bounded.low <= bounded.high else ""
        lacks = "; ".join(filter(None, (what, explained)))
        if r2 < UNRELATED:
            refuted.append(lacks)
    of_function = list(evidence.refuted_by_parts)
    if r2 < UNRELATED:
        of_function.append(explained)
    if one_way:
        of_function.append(one_way)
    if is_proven and not refuted and bounded.remains <= 3.0:
        of_function.append("a temperature alone explains the difference")
    one = CandidateFit(
        "another temperature", TokenClass.TEMPERATURE, bounded.remains, tuple(refuted), tuple(words), lacks, shows
    )
    because = ("the logits are another function of the same numbers: a temperature, soft-capping, a scale", explained)
    remains = bounded.remains if r2 >= A_FUNCTION else None
    return one, CandidateFit("another function of the logits", TokenClass.LOGITS, remains, tuple(of_function), because)


def _one_way(evidence: Evidence) -> str:
    """Return why tokens that all move in one direction are of no temperature: the rollout, or the trainer, lacks
    probability."""
    most, least = max(evidence.rises, evidence.falls), min(evidence.rises, evidence.falls)
    sign = 1 if evidence.rises >= evidence.falls else -1
    if least or most < LEAST_ONE_WAY or evidence.removed(sign)[1] < CERTAINLY_REMOVED:
        return ""
    return f"no token {'falls' if sign > 0 else 'rises'} beyond noise, {most} {'rise' if sign > 0 else 'fall'}"


def _exact(evidence: Evidence, exact: TopRelation) -> CandidateFit:
    refuted = [*evidence.refuted_by_parts]
    words = f"between tokens of a position the rollout has {exact.slope:.4f} times the differences of the trainer"
    if not is_exact(exact):
        refuted.append(f"{words}, with a standard error of {exact.error:.2g}")
    words += f": temperature {1 / exact.slope:.3f}" if exact.slope > 0 else ""
    remains = exact.rest / evidence.pair.floor
    return CandidateFit(
        "another temperature", TokenClass.TEMPERATURE, remains, tuple(refuted), (words,), shows=is_exact(exact)
    )


def is_exact(exact: TopRelation) -> bool:
    """Return whether the most likely tokens have another temperature."""
    apart = abs(exact.slope - 1)
    return apart > max(EXACT_SLOPE, EXACT_ERRORS * exact.error) and exact.rest < EXACT_REST


def shows_in_noise(curve: SystematicFit) -> bool:
    """Return whether a difference within noise depends on the log-probability."""
    found = curve.weighted > EXPLAINED_IN_NOISE and curve.ratio > SIGNIFICANT
    return found and abs(curve.slope) > LEAST_SLOPE and curve.rest < WITHIN


def bounded_temperature(target: Floats, golden: Floats, noise: Floats) -> Bounded:
    """Return the temperatures whose bounds hold all tokens but noise."""
    stride = -(-len(target) // MOST_TOKENS)
    target, golden, noise = target[::stride], golden[::stride], noise[::stride]
    own = np.minimum(golden, -1e-9)
    others = np.log(-np.expm1(own))
    half = np.geomspace(NEAREST, LARGEST, STEPS)
    ratios = np.concatenate([1 / half[::-1], half])
    found = []
    for beta in 1 / ratios:
        alone = np.logaddexp(beta * own, beta * others)
        spread = np.logaddexp(beta * own, beta * others + (1 - beta) * LOG_VOCABULARY)
        low, high = beta * golden - np.maximum(alone, spread), beta * golden - np.minimum(alone, spread)
        outside = np.maximum(np.maximum(low - target, target - high), 0.0)
        found.append(outside_of(outside / noise))
    remains = np.array(found)
    within = ratios[remains <= 3.0]
    return Bounded(
        float(remains.min()),
        float(within.min()) if len(within) else np.inf,
        float(within.max()) if len(within) else 0.0,
    )
