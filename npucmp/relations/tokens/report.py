"""The tokens of two runs in words."""

from __future__ import annotations

from npucmp.model.relation import TokenFacts
from npucmp.report.phrases import count_of

_SHOWN = 16  # lengths on the screen


def token_line(facts: TokenFacts) -> str:
    """Return the number of compared tokens, the layouts, and the lengths of the requests."""
    if not facts.tokens:
        return "tokens: no index"
    lengths = ", ".join(map(str, facts.lengths[:_SHOWN])) + (", …" if len(facts.lengths) > _SHOWN else "")
    golden = ", ".join(filter(None, [facts.golden, facts.padding]))
    words = f"tokens: {facts.tokens:,} of {count_of(facts.requests, 'request')}, {facts.target}; golden {golden}"
    return f"{words}, {'lengths' if len(facts.lengths) != 1 else 'length'} {lengths}"
