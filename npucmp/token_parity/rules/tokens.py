"""The tokens of the sides differ, where both record them."""

from __future__ import annotations

from typing import Optional

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.token_pair import TokenPair, first_place


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first other token."""
    differs = pair.counted & (pair.target_ids >= 0) & (pair.golden_ids >= 0) & (pair.target_ids != pair.golden_ids)
    place = first_place(differs)
    if place is None:
        return None
    ids = f"token {pair.target_ids[place]} in the rollout, {pair.golden_ids[place]} in the trainer"
    many = f"{int(differs.sum())} tokens of {int(differs.any(axis=1).sum())} requests differ"
    return finding_at(pair, TokenClass.TOKENS, place, ids, many)
