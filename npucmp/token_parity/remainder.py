"""The tokens of a step without those of its finding, so that a second cause is not hidden behind the first.

The remainder is described; it never changes the class of the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.model.token_batch import Bools
from npucmp.token_parity.never_sampled import never_sampled
from npucmp.token_parity.rules import first_finding
from npucmp.token_parity.rules.shift import shifted_tokens
from npucmp.token_parity.token_pair import TokenPair

LEAST_TOKENS = 20  # tokens of a remainder: chosen, fewer show no class


def with_remainder(pair: TokenPair, finding: ParityFinding) -> ParityFinding:
    """Return the finding with a sentence on the other tokens, if its class has tokens of its own."""
    tokens_of = _TOKENS.get(finding.token_class)
    tokens = None if tokens_of is None else tokens_of(pair, finding)
    if tokens is None:
        return finding
    kept = ~tokens
    masks = {name: getattr(pair, name) & kept for name in ("target_mask", "golden_mask")}
    others = None if pair.others is None else pair.others & kept
    rest = replace(pair, **masks, others=others, sums=None)
    count = int(rest.counted.sum())
    if count < LEAST_TOKENS:
        return finding
    other = first_finding(rest)
    words = f"the other {count:,} tokens are {other.token_class.value}"
    if other.request is not None and other.token_class not in (TokenClass.CLEAN, TokenClass.UNDECIDED):
        words += f": request {other.request}, position {other.position}, {other.because[0]}"
    return finding._replace(because=(*finding.because, words))


def _not_finite(pair: TokenPair, _: ParityFinding) -> Bools:
    return pair.counted & ~(np.isfinite(pair.target) & np.isfinite(pair.golden))


def _one_sided(pair: TokenPair, _: ParityFinding) -> Optional[Bools]:
    found = never_sampled(pair)
    return None if found is None else found.tokens


def _from_first_token(pair: TokenPair, finding: ParityFinding) -> Bools:
    """Return all tokens from the first other token of each request on: what follows has another context."""
    found = pair.other_ids.copy()
    if not found.any():
        found[pair.numbers == finding.request, finding.position] = True
    later: Bools = np.logical_or.accumulate(found, axis=1)
    return later


def _shifted_requests(pair: TokenPair, _: ParityFinding) -> Optional[Bools]:
    found = shifted_tokens(pair)
    return None if found is None else found.tokens


_TOKENS: dict[TokenClass, Callable[[TokenPair, ParityFinding], Optional[Bools]]] = {
    TokenClass.NAN: _not_finite,
    TokenClass.PADDING: _one_sided,
    TokenClass.MASK: _one_sided,
    TokenClass.TOKENS: _from_first_token,
    TokenClass.SHIFT: _shifted_requests,
}
