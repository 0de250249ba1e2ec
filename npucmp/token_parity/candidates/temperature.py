"""The distributions differ by a temperature, or by another function of the logits.

A temperature moves a token of probability a to a^β / Z with one β for all tokens. Z is unknown, but bounded by a: the
rest of the distribution is one token, or spread over the largest vocabulary. Tokens outside these bounds remain. A
curve through d by the log-probability has to show it as well, and the bounds have to leave few β: a soft-cap is within
the bounds of many. If both sides record their most likely tokens, the ratio of differences within a position is exact.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import StepEvidence, outside_of, remains_of
from npucmp.token_parity.noise import BEYOND
from npucmp.token_parity.outliers import WITHIN
from npucmp.token_parity.systematic_fit import SystematicFit
from npucmp.token_parity.top_log_probs import TopTokens

NAME = "another temperature"
FUNCTION = "another function of the logits (soft-cap, top-p, penalty)"
LARGEST = 5.0  # ratio of temperatures: chosen, of 0.2 and 1
STEPS = 33  # temperatures on each side of 1: work, 5 % between two
NEAREST = 1.025  # ratio of temperatures: chosen, nearer to 1 is found by a curve
LOG_VOCABULARY = 12.5  # natural logarithm of tokens: definition, the largest vocabularies have 262,144
NARROW = 3.0  # ratio of the highest to the lowest temperature within bounds: evidence, softly capped logits leave 3.3
LEAST_TOKENS = 20  # tokens whose noise shows: chosen
MOST_TOKENS = 20_000  # tokens: work
DEPENDS = 0.3  # R² that a temperature has: evidence, temperatures have 0.34 and more, a penalty has 0.2
UNRELATED = 0.05  # R² that refutes a function of the log-probability: evidence, temperatures have 0.2 and more
A_FUNCTION = 0.25  # R² of a function of the logits: evidence, other weights have less than 0.22
DEPENDS_IN_NOISE = 0.2  # R² of a temperature within noise: chosen, a penalty has 0.15
EXPLAINED_IN_NOISE = 0.05  # R² of a difference within noise: evidence, clean pairs have less than 0.03
SIGNIFICANT = 20.0  # F statistic of two coefficients: chosen, chance alone has 2e-9
LEAST_SLOPE = 0.005  # d by the log-probability: chosen, a temperature of 0.99 has 0.005 to 0.01
LEAST_ONE_WAY = 8  # tokens beyond noise, all in one direction: chosen
CERTAINLY_REMOVED = 6.5  # standard errors: evidence, low temperatures and few tokens have up to 6


class Bounded(NamedTuple):
    """The rest of each token that the best temperature leaves, and that of all tokens. `low` and `high` are the ends of
    the temperatures of the rollout over the trainer's that leave noise only, infinity and 0 if none does."""

    left: Floats
    remains: float
    low: float
    high: float

    @property
    def is_narrow(self) -> bool:
        """Whether the range has an end on both sides, and is not around 1."""
        is_open = self.low <= 1.01 / LARGEST or self.high >= 0.99 * LARGEST
        return not is_open and self.low <= self.high <= NARROW * self.low and not self.low < 1 < self.high


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fits of a temperature and of another function of the logits."""
    if not len(evidence.target):
        return None
    exact, curve = evidence.tops, evidence.systematic
    one = _bounded(evidence, curve) if exact is None else _exact(evidence, exact)
    unrelated = curve is not None and curve.r2 < UNRELATED and not one.shows
    reasons = list(evidence.refuted_by_parts)
    if not one.lacks and not one.refuted and one.remains is not None and one.remains <= BEYOND:
        reasons.append("a temperature alone explains the difference")
    elif unrelated and evidence.has_ids:
        reasons.append(_explained(curve))
    lacks = "no model of it" if evidence.has_ids else "the ids are not recorded"
    return one, evidence.candidate(FUNCTION, TokenClass.LOGITS, None, (), refuted=tuple(reasons), lacks=lacks)


def _explained(curve: Optional[SystematicFit]) -> str:
    r2 = 0.0 if curve is None else curve.r2
    return f"a curve in the log-probability explains {100 * max(r2, 0):.0f} % of the variance of d"


def _bounded(evidence: StepEvidence, curve: Optional[SystematicFit]) -> CandidateFit:
    """Return the fit of a temperature to the sampled tokens."""
    bounded = bounded_temperature(evidence.target, evidence.golden, evidence.noise)
    shows = curve is not None and shows_in_noise(curve)
    r2 = 0.0 if curve is None else curve.r2
    in_noise = shows and evidence.is_quiet and r2 >= DEPENDS_IN_NOISE
    refuted = [*evidence.refuted_by_parts, *filter(None, [_one_way(evidence)])]
    if curve is not None and r2 < UNRELATED and not in_noise:
        refuted.append(_explained(curve))
    lacks = ""
    if int(evidence.unsure.sum()) < LEAST_TOKENS:
        lacks = f"{int(evidence.unsure.sum())} tokens are too few"
    elif not in_noise and not (bounded.is_narrow and r2 >= DEPENDS):
        fits = f"any ratio from {bounded.low:.2g} to {bounded.high:.2g} fits"
        lacks = _explained(curve) if bounded.is_narrow or bounded.low > bounded.high else fits
    is_other = curve is not None and r2 < A_FUNCTION and not in_noise  # bounds hold what it does not explain
    words = f"the rollout's temperature is {bounded.low:.2g} to {bounded.high:.2g} times the trainer's"
    because = (*[words][: bounded.is_narrow], _explained(curve))
    fit_of = evidence.candidate(
        NAME, TokenClass.TEMPERATURE, bounded.left, because, refuted=tuple(refuted), lacks=lacks,
        remains=bounded.remains, shows=shows,
    )  # fmt: skip
    return fit_of._replace(remains=None) if is_other and bounded.remains <= BEYOND else fit_of


def is_within_bounds(evidence: StepEvidence) -> bool:
    """Return whether one temperature bounds all tokens but noise."""
    return bounded_temperature(evidence.target, evidence.golden, evidence.noise).remains <= BEYOND


def _one_way(evidence: StepEvidence) -> str:
    """Return why tokens that all move in one direction are of no temperature: the rollout, or the trainer, lacks
    probability."""
    most, least = max(evidence.rises, evidence.falls), min(evidence.rises, evidence.falls)
    sign = 1 if evidence.rises >= evidence.falls else -1
    if least or most < LEAST_ONE_WAY or evidence.removed(sign)[1] < CERTAINLY_REMOVED:
        return ""
    return f"no token {'falls' if sign > 0 else 'rises'} beyond noise, {most} {'rise' if sign > 0 else 'fall'}"


def _exact(evidence: StepEvidence, exact: TopTokens) -> CandidateFit:
    """Return the fit of a temperature to the most likely tokens."""
    bounded = bounded_temperature(evidence.target, evidence.golden, evidence.noise)
    words = f"between tokens of a position the rollout has {exact.slope:.4f} times the differences of the trainer"
    refuted = [*evidence.refuted_by_parts, *filter(None, [_one_way(evidence)])]
    if not exact.is_tilted:
        refuted.append(f"{words}, with a standard error of {exact.error:.2g}")
    words += f": temperature {1 / exact.slope:.3f}" if exact.slope > 0 else ""
    remains = max(remains_of(exact.of_temperature(evidence.pair.floor)), bounded.remains)
    return evidence.candidate(
        NAME, TokenClass.TEMPERATURE, bounded.left, (words,), refuted=tuple(refuted), remains=remains,
        shows=exact.is_tilted,
    )  # fmt: skip


def shows_in_noise(curve: SystematicFit) -> bool:
    """Return whether a difference within noise depends on the log-probability."""
    found = curve.weighted > EXPLAINED_IN_NOISE and curve.ratio > SIGNIFICANT
    return found and abs(curve.slope) > LEAST_SLOPE and curve.rest < WITHIN


def sum_bounds(log_probs: Floats, power: float) -> tuple[Floats, Floats]:
    """Return bounds of the logarithm of the sum of p^power over a vocabulary, by the probability of one token: the
    others are one token, or spread over the largest vocabulary."""
    own = np.minimum(log_probs, -1e-9)
    others = np.log(-np.expm1(own))
    alone = np.logaddexp(power * own, power * others)
    spread = np.logaddexp(power * own, power * others + (1 - power) * LOG_VOCABULARY)
    return np.minimum(alone, spread), np.maximum(alone, spread)


def bounded_temperature(target: Floats, golden: Floats, noise: Floats) -> Bounded:
    """Return the temperatures whose bounds hold all tokens but noise."""

    def left(ratio: float, stride: int = 1) -> Floats:
        one, other = target[::stride], golden[::stride] / ratio
        low, high = sum_bounds(golden[::stride], 1 / ratio)
        return np.maximum(np.maximum(other - high - one, one - other + low), 0.0) / noise[::stride]

    stride = -(-len(target) // MOST_TOKENS)
    half = np.geomspace(NEAREST, LARGEST, STEPS)
    ratios = np.concatenate([1 / half[::-1], half])
    remains = np.array([outside_of(left(ratio, stride)) for ratio in ratios])
    fits, best = ratios[remains <= BEYOND], int(np.argmin(remains))
    ends = (float(fits.min()), float(fits.max())) if len(fits) else (np.inf, 0.0)
    return Bounded(left(float(ratios[best])), float(remains[best]), *ends)
