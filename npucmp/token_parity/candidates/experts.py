"""Scattered tokens are beyond noise in both directions while the others are on the floor: other experts.

Dropout and other causes scatter tokens as well, so that only the experts that both sides record prove it: tokens beyond
noise are those with other experts, and the others are not.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass, percent
from npucmp.token_parity.candidates.evidence import StepEvidence, remains_of
from npucmp.token_parity.clean_parts import DEVIATIONS
from npucmp.token_parity.outliers import WITHIN, median_margin_of, most_outliers
from npucmp.token_parity.systematic_fit import UNSURE

NAME = "other experts"
MOST = 0.27  # share of tokens beyond noise: chosen, more are not scattered
LEAST_SHARE = 0.015  # share of tokens beyond noise: evidence, outliers of clean pairs near the noise have 0.005
LEAST_TOKENS = 5  # tokens beyond noise: chosen
BETWEEN = 1.5  # margin of a token between the floor and those beyond noise: chosen
CLEAR = 6.0  # median margin of the tokens beyond noise: chosen
ONE_WAY = 0.03  # share of them in the rarer direction: chosen, a sampled token mostly rises
ONE_WAY_SPREAD = 0.2  # by the root of their number: chosen
EXPLAINED = 0.3  # R² of a function of the log-probability: chosen
STAYS = 0.5  # share of the tokens beyond noise that such a function leaves there: chosen
CERTAIN = 4.0  # standard deviations of the tokens beyond noise with other experts: chosen


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit, if tokens are beyond noise."""
    far = int(evidence.far.sum())
    if not far:
        return None
    margin = float(np.median(np.abs(evidence.margin[evidence.far])))
    many = f"{far} tokens ({percent(far / len(evidence.far))}) of {evidence.rows_far} requests are beyond noise"
    known = evidence.other_experts
    if known is not None:
        return (_recorded(evidence, known, many),)
    is_little = far < LEAST_TOKENS or far < LEAST_SHARE * len(evidence.far) or margin < CLEAR
    lacks = f"{many}, {margin:.1f} times in the median: too few, or too near the noise" if is_little else ""
    because = (
        "scattered tokens differ, as other experts make them; a model without experts refutes it",
        f"{many}, {margin:.1f} times in the median",
    )
    remains = remains_of(evidence.margin[~evidence.far])
    scattered = [f"they are not scattered: {words}" for words in evidence.refuted_by_parts]
    refuted = (*scattered, *_not_scattered(evidence, far))
    lacks = lacks or "the sides record no experts"
    return (CandidateFit(NAME, TokenClass.ROUTER, remains, refuted, because, lacks),)


def _recorded(evidence: StepEvidence, other: np.ndarray, many: str) -> CandidateFit:
    """Return the fit of experts that both sides record: what remains is that of tokens with equal ones."""
    far, count, total = evidence.far, int(other.sum()), len(other)
    among, outside = int((far & other).sum()), int((far & ~other).sum())
    share = count / total
    spread = float(np.sqrt(max(int(far.sum()) * share * (1 - share), 1e-9)))
    words = f"{among} of {int(far.sum())} tokens beyond noise have other experts, {count} of {total} tokens have"
    refuted = () if outside <= most_outliers(float(total)) else (words,)
    lacks = "" if among - int(far.sum()) * share >= CERTAIN * spread else words
    left = np.where(other, 0.0, evidence.margin)
    because = ("the sides record other experts, and these tokens differ", words, many)
    return evidence.candidate(
        NAME, TokenClass.ROUTER, left, because, refuted=refuted, lacks=lacks, proven=not lacks and not refuted
    )


def _not_scattered(evidence: StepEvidence, far: int) -> list[str]:
    """Return why tokens beyond noise are no scattered ones."""
    pair, near = evidence.pair, ~evidence.far
    share, curve = far / len(near), evidence.systematic
    median = median_margin_of(pair, evidence.tokens & ~pair.far)
    between = int((np.abs(evidence.margin[near]) > BETWEEN).sum())
    refuted = []
    if share >= MOST:
        refuted.append(f"{percent(share)} of tokens are beyond noise: they are not scattered")
    if median >= WITHIN or between > far / 2 + DEVIATIONS * np.sqrt(far / 2):
        refuted.append(f"{between} tokens lie between the noise and {BETWEEN:g} times it: one distribution, not two")
    if evidence.quiet_rows:
        refuted.append(f"they are not scattered over the requests: {evidence.quiet_rows} have none")
    where = np.nonzero(evidence.tokens & (pair.lower < UNSURE))[1], np.nonzero(evidence.tokens & pair.far)[1]
    if len(where[0]) and abs(where[1].mean() - where[0].mean()) > DEVIATIONS * where[0].std() / np.sqrt(far):
        refuted.append(f"they are not scattered over the positions: {where[1].mean():.0f} in the mean")
    if min(evidence.rises, evidence.falls) < ONE_WAY * far - ONE_WAY_SPREAD * np.sqrt(far):
        refuted.append(f"{evidence.rises} tokens rise and {evidence.falls} fall")
    if curve is not None and curve.r2 > EXPLAINED and curve.far_left < STAYS:
        refuted.append(f"a curve in the log-probability explains {100 * curve.r2:.0f} % of the variance of d")
    return refuted
