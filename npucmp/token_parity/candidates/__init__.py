"""The candidates: models of the difference between two engines, each fitted to the tokens of a step.

A candidate is a module of this package with
    fit(evidence) -> fits, None if it cannot be asked of these tokens
and its name in CANDIDATES. A fit says what remains, what refutes it and what it lacks; `state_of` is the only rule of
acceptance.
"""

from __future__ import annotations

from importlib import import_module
from typing import Callable, Optional

from npucmp.model.parity_result import CandidateFit
from npucmp.token_parity.candidates.evidence import StepEvidence

CANDIDATES = (
    "other_token", "other_number", "temperature", "truncation", "divided", "seen_tokens", "biased_tokens", "context",
    "experts", "free",
)  # fmt: skip


def fits_of(evidence: StepEvidence) -> tuple[CandidateFit, ...]:
    """Return the fits of all candidates that can be asked, in the order of their names."""
    found: list[CandidateFit] = []
    for name in CANDIDATES:
        fit: Callable[[StepEvidence], Optional[tuple[CandidateFit, ...]]] = import_module(f"{__name__}.{name}").fit
        found += fit(evidence) or ()
    return tuple(found)
