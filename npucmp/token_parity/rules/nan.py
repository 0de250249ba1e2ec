"""NaN, +Inf or -Inf among the tokens that count."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.token_pair import TokenPair, first_place, without_tokens


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first token that is not finite."""
    sides = [pair.counted & ~np.isfinite(values) for values in (pair.target, pair.golden)]
    place = first_place(sides[0] | sides[1])
    if place is None:
        return None
    counts = [f"{int(side.sum())} in the {name}" for side, name in zip(sides, ("rollout", "trainer")) if side.any()]
    value = (pair.target if sides[0][place] else pair.golden)[place]
    because = f"a token that counts is {value:g}; tokens that are not finite: {', '.join(counts)}"
    return finding_at(pair, TokenClass.NAN, place, because)


def without(pair: TokenPair, _: ParityFinding) -> tuple[TokenPair, str]:
    """Return the pair without the tokens that are not finite."""
    return without_tokens(pair, ~(np.isfinite(pair.target) & np.isfinite(pair.golden)))
