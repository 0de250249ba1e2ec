"""The tokens of the sides differ, where both record them."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.token_pair import TokenPair, first_place, without_tokens


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first other token."""
    place = first_place(pair.other_ids)
    if place is None:
        return None
    ids = [int(side[place]) for side in (pair.target_ids, pair.golden_ids)]
    if ids[1] < 0:
        words = f"token {ids[0]} of the rollout has no place in the trainer's response"
    elif ids[0] == ids[1]:
        words = f"in front of token {ids[0]} the trainer has tokens that the rollout has not"
    else:
        words = f"token {ids[0]} in the rollout, {ids[1]} in the trainer"
    count, requests = int(pair.other_ids.sum()), int(pair.other_ids.any(axis=1).sum())
    found = finding_at(pair, TokenClass.TOKENS, place, words, f"{count} tokens of {requests} requests differ")
    return found if pair.counted[place] else found._replace(margin=None)


def without(pair: TokenPair, _: ParityFinding) -> tuple[TokenPair, str]:
    """Return the pair without the tokens from the first other one of each request on: these have another context."""
    return without_tokens(pair, np.logical_or.accumulate(pair.other_ids, axis=1))
