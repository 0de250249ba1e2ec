"""The distributions differ by a temperature, or by another function of the logits.

A temperature moves a token of probability a to a^β / Z with one β for all tokens. Z is unknown, but bounded by a: the
rest of the distribution is one token, or spread over the largest vocabulary. Tokens outside these bounds remain. A
curve through d by the log-probability has to show it as well, unless the bounds leave no other β. If both sides record
their most likely tokens, the ratio of differences within a position is exact.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Floats
from npucmp.token_parity.candidates.evidence import StepEvidence, outside_of
from npucmp.token_parity.outliers import WITHIN
from npucmp.token_parity.systematic_fit import SystematicFit
from npucmp.token_parity.top_log_probs import TopRelation

FUNCTION = "another function of the logits (soft-cap, top-p, penalty)"
LARGEST = 5.0  # ratio of temperatures: chosen, of 0.2 and 1
STEPS = 33  # temperatures on each side of 1: work, 5 % between two
NEAREST = 1.025  # ratio of temperatures: chosen, nearer to 1 is found by a curve
LOG_VOCABULARY = 12.5  # natural logarithm of tokens: definition, the largest vocabularies have 262,144
NARROW = 3.5  # ratio of the highest to the lowest temperature within bounds: chosen, softly capped logits leave more
LEAST_TOKENS = 20  # tokens whose noise shows: chosen
MOST_TOKENS = 20_000  # tokens: work
MOST = 0.75  # share of tokens of a temperature beside another cause: chosen
DEPENDS = 0.1  # R² that a temperature within narrow bounds has: chosen, scattered tokens have less
UNRELATED = 0.05  # R² that refutes a function of the log-probability: evidence, temperatures have 0.2 and more
A_FUNCTION = 0.25  # R² of a function of the logits: evidence, other weights have less than 0.22
EXPLAINED_IN_NOISE = 0.05  # R² of a difference within noise: evidence, clean pairs have less than 0.03
SIGNIFICANT = 20.0  # F statistic of two coefficients: chosen, chance alone has 2e-9
LEAST_SLOPE = 0.005  # d by the log-probability: chosen, a temperature of 0.99 has 0.005 to 0.01
LEAST_ONE_WAY = 8  # tokens beyond noise, all in one direction: chosen
CERTAINLY_REMOVED = 6.5  # standard errors: evidence, low temperatures and few tokens have up to 6
EXACT_ERRORS = 6.0  # standard errors of the slope between tokens of a position: chosen
EXACT_SLOPE = 0.005  # slope: chosen, a temperature of 0.995
EXACT_REST = 0.1  # standard deviation of a logit that the slope may leave: chosen, above it the logits differ otherwise


class Range(NamedTuple):
    """Temperatures of the rollout over the trainer's that leave noise only; none if low is above high."""

    low: float
    high: float

    @property
    def is_narrow(self) -> bool:
        """Whether the range has an end on both sides, and is not around 1."""
        is_open = self.low <= 1.01 / LARGEST or self.high >= 0.99 * LARGEST
        return not is_open and self.high <= NARROW * self.low and not self.low < 1 < self.high


class Bounded(NamedTuple):
    """The remainder of the best temperature, the range that leaves noise only, and that of most tokens."""

    remains: float
    of_all: Range
    most: Range


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fits of a temperature and of another function of the logits."""
    exact, curve = evidence.tops, evidence.systematic
    if exact is not None:
        return (_exact(evidence, exact),)
    if int(evidence.unsure.sum()) < LEAST_TOKENS:
        few = f"{int(evidence.unsure.sum())} tokens are too few"
        kinds = (("another temperature", TokenClass.TEMPERATURE), (FUNCTION, TokenClass.LOGITS))
        return tuple(CandidateFit(name, kind, None, evidence.refuted_by_parts, (), few) for name, kind in kinds)
    bounded = bounded_temperature(evidence.target, evidence.golden, evidence.noise)
    shows = curve is not None and shows_in_noise(curve)
    r2 = 0.0 if curve is None else curve.r2
    explained = f"a curve in the log-probability explains {100 * max(r2, 0):.0f} % of the variance of d"
    refuted = tuple(filter(None, (*evidence.refuted_by_parts, _one_way(evidence))))
    is_unrelated = curve is not None and r2 < UNRELATED and not (shows and evidence.is_quiet)
    is_proven = (bounded.of_all.is_narrow and r2 >= DEPENDS) or (shows and evidence.is_quiet)
    lacks = ""
    remains: Optional[float] = bounded.remains
    if not is_proven:
        lacks = (
            f"any ratio from {bounded.of_all.low:.2g} to {bounded.of_all.high:.2g} fits"
            if bounded.of_all.low <= bounded.of_all.high
            else explained
        )
        remains = bounded.remains if r2 >= A_FUNCTION else None
        if bounded.remains > 3.0 and bounded.most.is_narrow:  # beside tokens that differ otherwise
            lacks, remains = "a quarter of the tokens differ by more", None
    words = [f"the rollout's temperature is {bounded.of_all.low:.2g} to {bounded.of_all.high:.2g} times the trainer's"]
    because = (*words[: bounded.of_all.is_narrow], explained)
    unrelated = (explained,) if is_unrelated else ()
    one = CandidateFit(
        "another temperature", TokenClass.TEMPERATURE, remains, (*refuted, *unrelated), because, lacks, shows=shows
    )
    if is_proven and not one.refuted and bounded.remains <= 3.0:
        unrelated = ("a temperature alone explains the difference",)
    lacks = "no model of it" if evidence.has_ids else "the ids are not recorded"
    reasons = (*evidence.refuted_by_parts, *(unrelated if evidence.has_ids or is_proven else ()))
    other = CandidateFit(FUNCTION, TokenClass.LOGITS, None, reasons, (), lacks)
    return one, other


def is_within_bounds(evidence: StepEvidence) -> bool:
    """Return whether one temperature bounds all tokens but noise."""
    return bounded_temperature(evidence.target, evidence.golden, evidence.noise).remains <= 3.0


def _one_way(evidence: StepEvidence) -> str:
    """Return why tokens that all move in one direction are of no temperature: the rollout, or the trainer, lacks
    probability."""
    most, least = max(evidence.rises, evidence.falls), min(evidence.rises, evidence.falls)
    sign = 1 if evidence.rises >= evidence.falls else -1
    if least or most < LEAST_ONE_WAY or evidence.removed(sign)[1] < CERTAINLY_REMOVED:
        return ""
    return f"no token {'falls' if sign > 0 else 'rises'} beyond noise, {most} {'rise' if sign > 0 else 'fall'}"


def _exact(evidence: StepEvidence, exact: TopRelation) -> CandidateFit:
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
        margins = outside / noise
        found.append((outside_of(margins), float(np.quantile(margins, MOST))))
    remains = np.array(found)
    return Bounded(
        float(remains[:, 0].min()), *(_range(ratios[left <= limit]) for left, limit in zip(remains.T, (3.0, 1.0)))
    )


def _range(ratios: Floats) -> Range:
    return Range(float(ratios.min()), float(ratios.max())) if len(ratios) else Range(np.inf, 0.0)
