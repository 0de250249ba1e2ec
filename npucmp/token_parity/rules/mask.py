"""One side counts tokens that the other never sampled, among the tokens of a response."""

from __future__ import annotations

from typing import Optional

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.never_sampled import never_sampled
from npucmp.token_parity.token_pair import TokenPair, without_tokens


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first such token."""
    found = never_sampled(pair)
    if found is None or found.is_padding:
        return None
    return finding_at(pair, TokenClass.MASK, found.place, found.because, found.where)


def without(pair: TokenPair, _: ParityFinding) -> tuple[TokenPair, str]:
    """Return the pair without the tokens of one side."""
    found = never_sampled(pair)
    assert found is not None
    return without_tokens(pair, found.tokens)
