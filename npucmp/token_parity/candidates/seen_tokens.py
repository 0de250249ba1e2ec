"""One side moves the logits of tokens that occurred before: repetition, presence or frequency penalty.

Needs the ids. Tokens that occurred before in their response move in one direction, the others at most in the other: by
the probability of what moved.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass, percent
from npucmp.model.token_batch import Bools
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.token_pair import TokenPair

LEAST_MOVED = 4  # seen tokens beyond noise in one direction: chosen
DEVIATIONS = 4.0  # standard deviations of their number: chosen
LEAST_SHARE = 0.3  # share of seen tokens that move: chosen
TIMES = 4.0  # ratio of that share to the one of new tokens: chosen, the prompt has some of these
CERTAINLY_MOVED = 8  # seen tokens that move: chosen
CERTAIN_DEVIATIONS = 6.0  # standard deviations of their number: chosen
SCATTERED = 0.35  # share of tokens beyond noise: chosen, as of other experts
MOST_NEW = 0.95  # share of new tokens that do not move: chosen, the prompt has the others
NAME = "a penalty on tokens that occurred before"


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit for the direction in which seen tokens move."""
    pair = evidence.pair
    if not evidence.far.any():
        return None
    if not evidence.has_ids:
        is_scattered = evidence.parts is None and pair.share_far < SCATTERED
        open_ = evidence.candidate(NAME, TokenClass.LOGITS, None, (), lacks="the ids are not recorded")
        return (open_,) if is_scattered else None
    seen = seen_tokens(pair)[evidence.tokens]
    count = int((seen & evidence.unsure).sum())
    if not count or not (~seen).any():
        return None
    falls, rises = evidence.far & (evidence.margin < 0), evidence.far & (evidence.margin > 0)
    sign = 1 if (seen & falls).sum() >= (seen & rises).sum() else -1
    moved = falls if sign > 0 else rises
    share = float((seen & evidence.unsure).sum() / max(int(evidence.unsure.sum()), 1))
    total, among = int(moved.sum()), int((moved & seen).sum())
    spread = float(np.sqrt(max(total * share * (1 - share), 1e-9)))
    often, seldom = among / count, float((moved & ~seen).sum() / max(int((~seen & evidence.unsure).sum()), 1))
    side = "rollout" if sign > 0 else "trainer"
    words = f"{among} of {count} tokens that occurred before fall in the {side}, {total - among} others do"
    apart = (among - total * share) / spread
    proven = among >= CERTAINLY_MOVED and apart >= CERTAIN_DEVIATIONS
    may_be = often >= TIMES * seldom and (proven or often >= LEAST_SHARE)
    lacks = words if may_be and (among < LEAST_MOVED or apart < DEVIATIONS) else ""
    wrong = np.maximum(np.where(seen, sign, -sign) * evidence.margin, 0.0)
    remains = float(np.quantile(wrong[~seen], MOST_NEW))  # some of these may stand in the prompt
    rising = int((rises if sign > 0 else falls).sum())
    because = (
        f"tokens that occurred before fall in the {side}, as a repetition or presence penalty makes them",
        words,
        f"{rising} tokens ({percent(rising / len(seen))}) rise: they get the probability",
    )
    refuted = () if may_be else (words,)
    return (
        evidence.candidate(
            NAME, TokenClass.LOGITS, wrong, because, refuted=refuted, lacks=lacks, remains=remains, proven=proven
        ),
    )


def seen_tokens(pair: TokenPair) -> Bools:
    """Return the tokens whose id stands earlier in their response."""
    ids = np.where(pair.counted, np.maximum(pair.target_ids, pair.golden_ids), -1)
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    again = np.zeros_like(pair.counted)
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    found = np.zeros_like(again)
    np.put_along_axis(found, order, again, axis=1)
    return found
