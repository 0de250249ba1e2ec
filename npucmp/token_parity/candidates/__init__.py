"""The candidates: models of the difference between two engines, each fitted to the tokens of a step.

A candidate is a module of this package with
    fit(evidence) -> Fit or None, None if it cannot be asked of these tokens
and its name in CANDIDATES. A fit says what remains and what refutes it; `is_accepted` is the only rule of acceptance.
"""

from __future__ import annotations

from importlib import import_module
from typing import Callable, Optional

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.token_parity.candidates.evidence import Evidence

CANDIDATES = (
    "other_token", "other_number", "temperature", "truncation", "divided", "seen_tokens", "biased_tokens", "context", "experts", "free",
)  # fmt: skip
LEAST_TOKENS = 20  # tokens to explain: chosen, fewer prove no model
MOST_LEFT = 3.0  # times the noise: definition, a token beyond it is beyond noise


def is_accepted(fit: CandidateFit) -> bool:
    """Return whether a candidate leaves no more than noise and no fact at hand refutes it."""
    return fit.remains is not None and fit.remains <= MOST_LEFT and not fit.refuted and not fit.lacks


def is_open(fit: CandidateFit) -> bool:
    """Return whether nothing refutes a candidate, which no number proves either."""
    may_hold = fit.remains is None or fit.remains <= MOST_LEFT
    return may_hold and not fit.refuted and (bool(fit.lacks) or fit.remains is None)


def fits_of(evidence: Evidence) -> tuple[CandidateFit, ...]:
    """Return the fits of all candidates that can be asked, in the order of their names."""
    found: list[CandidateFit] = []
    for name in CANDIDATES:
        fit: Callable[[Evidence], Optional[tuple[CandidateFit, ...]]] = import_module(f"{__name__}.{name}").fit
        found += fit(evidence) or ()
    count = len(evidence.margin)
    if count < LEAST_TOKENS:
        few = f"{count} tokens are too few"
        found = [
            fit if fit.token_class is TokenClass.CONTEXT else fit._replace(lacks=fit.lacks or few) for fit in found
        ]
    return tuple(found)
