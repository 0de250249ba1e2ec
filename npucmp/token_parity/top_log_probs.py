"""Two distributions by their most likely tokens. Temperature and top-p do not depend on the noise of a logit.

Between two tokens of one position, the differences of log-probabilities of one side are those of the other, divided by
the temperature. A nucleus (top-p, top-k) removes tokens and adds one number to the others of a position: minus the
logarithm of the probability that it keeps.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.token_batch import Bools, Floats, Integers, TopLogProbs
from npucmp.token_parity.noise import SMALLEST, SPREAD
from npucmp.token_parity.token_pair import TokenPair

LEAST_POSITIONS = 20  # positions: chosen, of a standard error
LEAST_COMMON = 2  # tokens of a position on both sides: definition, a difference has two
EXACT_ERRORS = 6.0  # standard errors of a slope: chosen
LEVEL_ERRORS = 3.0  # standard errors of the slope of equal differences: definition
EXACT_SLOPE = 0.005  # slope: chosen, a temperature of 0.995


class TopTokens(NamedTuple):
    """The tokens that both sides list, by position.

    place           number of the position of each token
    target, golden  log-probabilities, less their mean in the position
    offsets         rollout minus trainer by probability, of each position
    lowest          the smallest log-probability of the trainer, of each position
    removed         share of positions without a token in the rollout that is likelier than one it has
    """

    place: Integers
    target: Floats
    golden: Floats
    offsets: Floats
    lowest: Floats
    removed: float

    @property
    def slope(self) -> float:
        """Differences within a position of the rollout over those of the trainer: 1 / temperature."""
        products = float(self.target @ self.golden)
        squares = float(self.golden @ self.golden)
        return float(np.sqrt(self.target @ self.target / squares)) if products > 0 else products / squares

    @property
    def error(self) -> float:
        """The standard error of the slope."""
        rest = self.target - self.slope * self.golden
        terms = max(len(self.target) - len(self.offsets), 1)
        return float(np.sqrt(rest @ rest / terms / (self.golden @ self.golden)))

    @property
    def offset(self) -> float:
        """The mean offset of a position."""
        return float(self.offsets.mean())

    @property
    def is_tilted(self) -> bool:
        """Whether the differences within positions are those of another temperature."""
        return abs(self.slope - 1) > max(EXACT_SLOPE, EXACT_ERRORS * self.error)

    @property
    def is_level(self) -> bool:
        """Whether the differences within positions are equal on both sides."""
        return abs(self.slope - 1) <= max(EXACT_SLOPE, LEVEL_ERRORS * self.error)

    def of_temperature(self, floor: float) -> Floats:
        """Return what one temperature leaves, in units of the noise."""
        return np.asarray((self.target - self.slope * self.golden) / (SPREAD * floor + SMALLEST))

    def of_nucleus(self, floor: float) -> Floats:
        """Return what a number of each position leaves that is not below 0, in units of the noise."""
        rest = self.target - self.golden, np.minimum(self.offsets, 0.0)
        return np.asarray(np.concatenate(rest) / (SPREAD * floor + SMALLEST))


def top_tokens(pair: TokenPair, tokens: Bools) -> Optional[TopTokens]:
    """Return the listed tokens of some positions; None if fewer than 20 list two common ones on both sides."""
    common, removed = [], []
    for row, target, golden in pair.tops:
        used = min(len(target.ids), len(golden.ids), tokens.shape[1])
        for at in np.flatnonzero(tokens[row, :used]):
            a, b, is_removed = _common(target, golden, int(at))
            removed.append(is_removed)
            if len(a) >= LEAST_COMMON:
                common.append((a, b))
    if len(common) < LEAST_POSITIONS:
        return None
    place = np.repeat(np.arange(len(common)), [len(a) for a, _ in common])
    sides = [np.concatenate([side - side.mean() for side in both]) for both in zip(*common)]
    if not sides[1].any():
        return None
    offsets = [float(np.average(a - b, weights=np.exp(b - b.max()))) for a, b in common]
    lowest = np.array([b.min() for _, b in common])
    return TopTokens(place, sides[0], sides[1], np.array(offsets), lowest, float(np.mean(removed)))


def _common(target: TopLogProbs, golden: TopLogProbs, at: int) -> tuple[Floats, Floats, bool]:
    """Return the log-probabilities of the tokens that both sides list at a position, and whether the rollout lacks a
    likelier one."""
    a_ids, a = target.ids[at], target.log_probs[at]
    b_ids, b = golden.ids[at], golden.log_probs[at]
    has = np.isfinite(a) & (a_ids >= 0)
    also = np.isfinite(b) & (b_ids >= 0)
    _, left, right = np.intersect1d(np.where(has, a_ids, -1), np.where(also, b_ids, -2), return_indices=True)
    lost = also.copy()
    lost[right] = False
    lowest = b[right].min() if len(right) else np.inf
    return a[left], b[right], bool((b[lost] > lowest).any()) or bool((a == -np.inf).any())
