"""The whole distribution differs, and no other class explains it: other weights, or weights of another step."""

from __future__ import annotations

from npucmp.model.parity_result import ParityFinding, TokenClass, percent
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.rules.clean import median_margin
from npucmp.token_parity.token_pair import TokenPair, first_place


def find(pair: TokenPair) -> ParityFinding:
    """Return the finding at the first token beyond noise."""
    place = first_place(pair.far)
    far = f"{percent(pair.share_far)} of tokens are beyond noise"
    because = f"{far}, the median unsure token is {median_margin(pair):.1f} times the noise"
    if place is None:
        return finding_at(pair, TokenClass.UNDECIDED, None, because, "no single token is beyond noise")
    return finding_at(pair, TokenClass.WEIGHTS, place, because)
