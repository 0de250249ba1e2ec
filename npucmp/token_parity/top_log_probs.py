"""Two distributions by their most likely tokens. Temperature and top-p do not depend on the noise of a logit.

Between two tokens of one position, the differences of log-probabilities of one side are those of the other, divided by
the temperature. A nucleus (top-p, top-k) removes tokens and adds one number to the others of a position: minus the
logarithm of the probability that it keeps.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from npucmp.model.token_batch import Bools, Floats, TopLogProbs
from npucmp.token_parity.token_pair import TokenPair

LEAST_POSITIONS = 20  # positions: chosen, of a standard error
LEAST_COMMON = 2  # tokens of a position on both sides: definition, a difference has two


class TopRelation(NamedTuple):
    """The relation of two distributions over positions.

    slope      differences within a position of the rollout over those of the trainer: 1 / temperature
    error      standard error of the slope
    offset     mean of rollout minus trainer by probability, over positions; `offset_error` is its standard error
    removed    share of positions without a token in the rollout that is likelier than one it has
    rest       standard deviation of a logit that the slope leaves
    """

    positions: int
    slope: float
    error: float
    offset: float
    offset_error: float
    removed: float
    rest: float


def top_relation(pair: TokenPair, tokens: Bools) -> Optional[TopRelation]:
    """Return the relation of some tokens; None if fewer than 20 positions list two common tokens on both sides."""
    products = squares = others = 0.0
    terms = 0
    offsets: list[float] = []
    removed: list[Bools] = []
    for row, target, golden in pair.tops:
        used = min(len(target.ids), len(golden.ids), tokens.shape[1])
        keep = tokens[row, :used]
        found = _common(target, golden, keep, used)
        removed.append(found.removed)
        for a, b in found.common:
            count = len(a)
            offsets.append(float(np.average(a - b, weights=np.exp(b - b.max()))))
            a, b = a - a.mean(), b - b.mean()
            products += float(a @ b)
            squares += float(b @ b)
            others += float(a @ a)
            terms += count - 1
    if len(offsets) < LEAST_POSITIONS or squares <= 0:
        return None
    slope = float(np.sqrt(others / squares)) if products > 0 else products / squares
    rest = max(others - products * products / squares, 0.0) / max(terms, 1)
    every = np.array(offsets)
    return TopRelation(
        len(every),
        slope,
        float(np.sqrt(rest / squares)),
        float(every.mean()),
        float(every.std() / np.sqrt(len(every))),
        float(np.concatenate(removed).mean()),
        float(np.sqrt(rest / 2)),
    )


class _Common(NamedTuple):
    common: list[tuple[Floats, Floats]]
    removed: Bools


def _common(target: TopLogProbs, golden: TopLogProbs, keep: Bools, used: int) -> _Common:
    """Return the log-probabilities of the tokens that both sides list, by position."""
    common, removed = [], []
    for at in np.flatnonzero(keep):
        a_ids, a = target.ids[at], target.log_probs[at]
        b_ids, b = golden.ids[at], golden.log_probs[at]
        has = np.isfinite(a) & (a_ids >= 0)
        also = np.isfinite(b) & (b_ids >= 0)
        _, left, right = np.intersect1d(np.where(has, a_ids, -1), np.where(also, b_ids, -2), return_indices=True)
        lost = also.copy()
        lost[right] = False
        lowest = b[right].min() if len(right) else np.inf
        removed.append(bool((b[lost] > lowest).any()) or bool((a == -np.inf).any()))
        if len(left) >= LEAST_COMMON:
            common.append((a[left], b[right]))
    return _Common(common, np.array(removed, np.bool_))
