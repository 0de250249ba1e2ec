"""Some requests or positions are clean, the others see another context: packing without document masks, left padding
without positions, a rotary cache that is too short, a prefix, a cache, other tokens that are not recorded, the weights
of a replica or an adapter."""

from __future__ import annotations

from typing import Optional

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.token_parity.candidates.evidence import StepEvidence, remains_of

CAUSES = (
    "a request or position has a context of its own: packing, padding, positions, rotary cache, prefix, cache, ids",
    "or it has other weights: those of another replica, adapter or update",
)


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the fit, if some parts are clean."""
    parts = evidence.parts
    if parts is None:
        return None
    remains = remains_of(evidence.pair.margin[parts.clean])
    return (CandidateFit("another context", TokenClass.CONTEXT, remains, (), (parts.words, *CAUSES)),)
