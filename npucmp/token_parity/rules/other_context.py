"""One request has other tokens or another context, and no ids to show it: from one position on, most of its tokens are
beyond noise, and nearly no token of the other requests is.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.token_pair import TokenPair

LEAST_TOKENS = 4  # tokens beyond noise: chosen
OF_ONE = 0.8  # share of the tokens beyond noise that are of one request: chosen
DENSE = 0.4  # share of its tokens beyond noise from the first on: chosen
MOST = 0.35  # share of all tokens beyond noise: chosen, more is no single request
QUIET = 0.8  # median margin of the pair: definition, as of a clean pair


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token beyond noise of the request."""
    place = lone_request(pair)
    if place is None:
        return None
    row, at = place
    later = pair.counted[row, at:]
    count = int(pair.far[row].sum())
    because = f"{count} of the {int(pair.far.sum())} tokens beyond noise are of this request"
    since = f"from position {at} on {int(pair.far[row, at:].sum())} of its {int(later.sum())} tokens are; the ids are "
    same = "equal" if (pair.target_ids[row][pair.counted[row]] >= 0).all() and _both_ids(pair, row) else "not recorded"
    return finding_at(pair, TokenClass.TOKENS, place, because, since + same)


def _both_ids(pair: TokenPair, row: int) -> bool:
    return bool((pair.golden_ids[row][pair.counted[row]] >= 0).all())


def _densest_end(pair: TokenPair, row: int) -> int:
    """Return the token beyond noise from which on tokens beyond noise are densest and most: one far token before a
    quiet stretch is chance."""
    gain = np.where(pair.counted[row], pair.far[row] - DENSE, 0.0)
    later = np.cumsum(gain[::-1])[::-1]
    return int(np.argmax(np.where(pair.far[row], later, -np.inf)))


def lone_request(pair: TokenPair) -> Optional[tuple[int, int]]:
    """Return the row and position from which one request alone is beyond noise; None if there is none."""
    per = pair.far.sum(axis=1)
    total = int(per.sum())
    if total < LEAST_TOKENS or len(per) < 2 or pair.share_far >= MOST:
        return None
    quiet = pair.margin[pair.counted & ~pair.far]
    row = int(np.argmax(per))
    at = _densest_end(pair, row)
    later = pair.counted[row, at:]
    if per[row] <= OF_ONE * total or pair.far[row, at:][later].mean() <= DENSE:
        return None
    return None if len(quiet) and float(np.median(quiet)) >= QUIET else (row, at)
