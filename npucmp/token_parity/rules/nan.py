"""NaN, +Inf, -Inf or a fill value (vLLM: -9999) among the tokens that count."""

from __future__ import annotations

from typing import Optional

import numpy as np

from npucmp.model.parity_result import ParityFinding, TokenClass
from npucmp.model.token_batch import Bools, Floats
from npucmp.token_parity.finding import finding_at
from npucmp.token_parity.token_pair import TokenPair, first_place, without_tokens

FILL = -9000.0  # log-probability: definition, vLLM writes -9999 for none, others the least float16 or float32


def find(pair: TokenPair) -> Optional[ParityFinding]:
    """Return the finding at the first such token."""
    sides = [pair.counted & _is_none(values) for values in (pair.target, pair.golden)]
    place = first_place(sides[0] | sides[1])
    if place is None:
        return None
    counts = [f"{int(side.sum())} in the {name}" for side, name in zip(sides, ("rollout", "trainer")) if side.any()]
    value = (pair.target if sides[0][place] else pair.golden)[place]
    words = "are no log-probability" if np.isfinite(value) else "are not finite"
    because = f"a token that counts is {value:g}; tokens that {words}: {', '.join(counts)}"
    return finding_at(pair, TokenClass.NAN, place, because)


def without(pair: TokenPair, _: ParityFinding) -> tuple[TokenPair, str]:
    """Return the pair without these tokens."""
    return without_tokens(pair, _is_none(pair.target) | _is_none(pair.golden))


def _is_none(values: Floats) -> Bools:
    found: Bools = ~np.isfinite(values) | (values <= FILL)
    return found
