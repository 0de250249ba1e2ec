"""Make the finding of a rule from a token of a pair."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.token_pair import TokenPair


def finding_at(
    pair: TokenPair, token_class: TokenClass, place: Optional[tuple[int, int]], *because: str
) -> ParityFinding:
    """Return the finding of a class at a place (row, position); None has no request."""
    if place is None:
        return ParityFinding(token_class, pair.step, None, None, None, because)
    margin = float(pair.margin[place])
    request = int(pair.numbers[place[0]])
    return ParityFinding(token_class, pair.step, request, place[1], margin if np.isfinite(margin) else None, because)
