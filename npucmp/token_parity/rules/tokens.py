"""The tokens of the sides differ, where both record them."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.model.token_batch import Bools
from npucmp.token_parity.token_pair import TokenPair, first_place, without_tokens


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first other token."""
    differs = _other_ids(pair)
    place = first_place(differs)
    if place is None:
        return None
    ids = f"token {pair.target_ids[place]} in the rollout, {pair.golden_ids[place]} in the trainer"
    many = f"{int(differs.sum())} tokens of {int(differs.any(axis=1).sum())} requests differ"
    return finding_at(pair, TokenClass.TOKENS, place, ids, many)


def without(pair: TokenPair, _: ParityFinding) -> tuple[TokenPair, str]:
    """Return the pair without the tokens from the first other one of each request on: these have another context."""
    return without_tokens(pair, np.logical_or.accumulate(_other_ids(pair), axis=1))


def _other_ids(pair: TokenPair) -> Bools:
    found: Bools = pair.counted & (pair.target_ids >= 0) & (pair.golden_ids >= 0) & (pair.target_ids != pair.golden_ids)
    return found
