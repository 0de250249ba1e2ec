"""The tokens that a candidate has to explain, and the facts about them that several candidates ask."""

from __future__ import annotations

from functools import cached_property
from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.clean_parts import CleanParts, are_more_than_chance, clean_parts
from npucmp.token_parity.noise import BEYOND
from npucmp.token_parity.outliers import WITHIN, is_few, median_margin_of, most_outliers
from npucmp.token_parity.systematic_fit import UNSURE, SystematicFit, systematic_fit
from npucmp.token_parity.token_pair import TokenPair
from npucmp.token_parity.top_log_probs import TopTokens, top_tokens

MOST = 0.9  # share of tokens within bounds but for noise: chosen
LIKELY = -0.6931  # log-probability: definition, p of 0.5, no other token is as likely
NOTICEABLE = -0.02  # log-probability: chosen, p of 0.98, a likelier token has no difference to see
RECORDED = 0.9  # share of tokens with an id: chosen
LEAST_TOKENS = 20  # tokens to explain: chosen, fewer prove no model
CLAMP = 10.0  # d: literature, estimates of KL in trainers (k3) clamp alike


class StepEvidence:
    """The tokens of a pair that are not clean, as flat arrays, with the parts that are.

    tokens         (B, S) the tokens to explain: those outside the clean parts
    target, golden, noise, margin   of these tokens; the margin has the sign of the difference
    """

    def __init__(self, pair: TokenPair) -> None:
        self.pair = pair
        self.parts: Optional[CleanParts] = clean_parts(pair)
        self.tokens: Bools = pair.counted if self.parts is None else self.parts.others
        self.target: Floats = pair.target[self.tokens]
        self.golden: Floats = pair.golden[self.tokens]
        self.noise: Floats = pair.noise[self.tokens]
        self.margin: Floats = pair.difference[self.tokens] / self.noise
        self.far: Bools = pair.far[self.tokens]

    @cached_property
    def rises(self) -> int:
        """Tokens beyond noise that are likelier in the rollout."""
        return int((self.far & (self.margin > 0)).sum())

    @property
    def falls(self) -> int:
        """Tokens beyond noise that are less likely in the rollout."""
        return int(self.far.sum()) - self.rises

    @property
    def is_one_way(self) -> bool:
        """Whether tokens are beyond noise, and nearly all of them in one direction."""
        return bool(self.far.any()) and min(self.rises, self.falls) <= most_outliers(float(len(self.margin)))

    @cached_property
    def systematic(self) -> Optional[SystematicFit]:
        """The difference as a quadratic in the log-probability."""
        return systematic_fit(self.pair, self.tokens)

    @cached_property
    def tops(self) -> Optional[TopTokens]:
        """The most likely tokens, if both sides record them."""
        return top_tokens(self.pair, self.tokens)

    @cached_property
    def likely(self) -> Bools:
        """Tokens with a probability of 0.5 to 0.98 on a side."""
        higher = np.maximum(self.target, self.golden)
        return (higher > LIKELY) & (np.minimum(self.target, self.golden) < NOTICEABLE)

    @cached_property
    def unsure(self) -> Bools:
        """Tokens whose noise shows."""
        return np.minimum(self.target, self.golden) < UNSURE

    @property
    def rows_far(self) -> int:
        """Requests with a token beyond noise."""
        return int((self.pair.far & self.tokens).any(axis=1).sum())

    @cached_property
    def quiet_rows(self) -> int:
        """Requests without a token beyond noise, if chance alone does not leave so many; else 0."""
        tokens = self.tokens.sum(axis=1).astype(float)
        quiet = int((tokens > 0).sum()) - self.rows_far
        share = float(self.far.mean()) if len(self.far) else 0.0
        return quiet if are_more_than_chance(quiet, tokens, share) else 0

    @cached_property
    def other_experts(self) -> Optional[Bools]:
        """Tokens with other experts; None unless both sides record them. A side records those of a token, or of the one
        before, which made it."""
        if self.pair.other_experts is None:
            return None
        own = self.pair.other_experts
        before = np.zeros_like(own)
        before[:, 1:] = own[:, :-1]
        return max((own[self.tokens], before[self.tokens]), key=lambda side: int((side & self.far).sum()))

    @cached_property
    def has_ids(self) -> bool:
        """Whether a side records the ids of nearly all tokens."""
        ids = np.maximum(self.pair.target_ids, self.pair.golden_ids)
        return float((ids[self.pair.counted] >= 0).mean()) >= RECORDED

    def removed(self, sign: int) -> tuple[float, float]:
        """Return the probability of the tokens that a side cannot sample, and its distance from 0 in standard errors.

        Over tokens sampled from a distribution P, the mean of Q/P is the probability that Q gives to the tokens of P: 1
        for all weights and temperatures, less if P is cut. The sign is 1 if P is the rollout, -1 if the trainer.
        """
        cut = -np.expm1(-np.clip(sign * (self.target - self.golden), -CLAMP, CLAMP))
        error = float(cut.std()) / np.sqrt(max(len(cut), 1)) if len(cut) > 1 else 0.0
        mean = float(cut.mean()) if len(cut) else 0.0
        return mean, mean / error if error > 0 else 0.0

    def candidate(
        self,
        name: str,
        token_class: TokenClass,
        left: Optional[Floats],
        because: tuple[str, ...],
        *,
        refuted: tuple[str, ...] = (),
        lacks: str = "",
        remains: Optional[float] = None,
        shows: bool = False,
        proven: bool = False,
    ) -> CandidateFit:
        """Return the fit of a model that leaves so much of each token, in units of its noise; None for no model.

        The model may say by another measure what remains; else all tokens count but as many as are outliers. Few tokens
        prove no model.
        """
        explains = 0.0
        if left is not None:
            remains = remains_of(left) if remains is None else remains
            explains = float((np.abs(left[self.far]) <= BEYOND).mean()) if self.far.any() else 0.0
        if not lacks and len(self.margin) < LEAST_TOKENS:
            lacks = f"{len(self.margin)} tokens are too few"
        return CandidateFit(name, token_class, remains, refuted, because, lacks, shows, proven, explains)

    @cached_property
    def is_quiet(self) -> bool:
        """Whether nearly no token is beyond noise, and the median one well within it."""
        return self.parts is None and is_few(self.pair) and median_margin_of(self.pair, self.pair.counted) < WITHIN

    @cached_property
    def refuted_by_parts(self) -> tuple[str, ...]:
        """The clean parts as a reason against whatever concerns all requests and positions alike."""
        return () if self.parts is None else (self.parts.clean_words,)


def remains_of(margins: Floats) -> float:
    """Return what remains in units of the noise: the margin of all tokens but as many as are outliers by chance; 0
    without tokens."""
    count = len(margins) - 1 - int(most_outliers(float(len(margins))))
    return float(np.partition(np.abs(margins), count)[count]) if len(margins) else 0.0


def outside_of(margins: Floats) -> float:
    """Return what remains outside of bounds: as `remains_of`, and three times the margin of all tokens but 10 %, which
    is within bounds unless they are wrong."""
    return max(remains_of(margins), 3 * float(np.quantile(margins, MOST, method="lower"))) if len(margins) else 0.0
