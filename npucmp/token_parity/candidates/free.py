"""Causes that may make any difference: other weights, dropout, another computation. They explain all and prove nothing,
so no fit accepts them; facts refute them."""

from __future__ import annotations

import math
from typing import Optional

import numpy as np

from npucmp.model.parity_result import CandidateFit, TokenClass
from npucmp.token_parity.candidates.evidence import StepEvidence
from npucmp.token_parity.candidates.experts import BETWEEN, MOST
from npucmp.token_parity.candidates.temperature import is_within_bounds

DROPOUT = "dropout"
DRAFT = "the log-probability of a draft model"  # of the tokens that speculative decoding accepts
NAMES = (
    ("another context", TokenClass.CONTEXT),
    ("other weights", TokenClass.WEIGHTS),
    (DROPOUT, TokenClass.DIFFERS),
    ("another computation", TokenClass.DIFFERS),
)
LEAST_ONE_WAY = 20  # tokens beyond noise, all in one direction: chosen, chance alone has 2e-6
BIMODAL = 10.0  # ratio of the median margin beyond noise to that within: chosen, of one distribution it is 5
FUNCTION = 0.4  # R² within the bounds of a temperature: evidence, other causes have up to 0.2
LEAST_LIKELY = 12  # tokens with p of 0.5 to 0.98: chosen
AGREE = 0.05  # share of them beyond noise: chosen, as outliers have
DIFFER = 0.3  # share of the others beyond noise: chosen


def fit(evidence: StepEvidence) -> Optional[tuple[CandidateFit, ...]]:
    """Return the candidates with what refutes all of them."""
    if not evidence.far.any():
        return None
    refuted = list(evidence.refuted_by_parts)
    most, least = max(evidence.rises, evidence.falls), min(evidence.rises, evidence.falls)
    if most >= LEAST_ONE_WAY and least <= math.sqrt(most) / 4:
        refuted.append(f"{evidence.rises} tokens rise and {evidence.falls} fall beyond noise: all in one direction")
    near = np.abs(evidence.margin[evidence.unsure & ~evidence.far])
    far = int(evidence.far.sum())
    is_scattered = far < MOST * len(evidence.far) and 2 * int((near > BETWEEN).sum()) <= far
    is_bimodal = is_scattered and np.median(np.abs(evidence.margin[evidence.far])) > BIMODAL * np.median([*near, 0.0])
    on_floor = (f"{len(near)} tokens whose noise shows are on the floor",) if is_bimodal else ()
    curve = evidence.systematic
    if curve is not None and curve.r2 >= FUNCTION and is_within_bounds(evidence):
        refuted.append(f"a curve in the log-probability explains {100 * curve.r2:.0f} % of the variance of d")
    likely = evidence.likely
    if int(likely.sum()) >= LEAST_LIKELY and bool((~likely & evidence.unsure).any()):
        agree, others = float(evidence.far[likely].mean()), float(evidence.far[~likely & evidence.unsure].mean())
        if agree <= AGREE and others >= DIFFER:
            refuted.append(f"{int(likely.sum())} tokens with p of 0.5 to 0.98 agree")
    names = NAMES[evidence.parts is not None :]  # parts that are clean have another context of their own
    names += ((DRAFT, TokenClass.RECORD),) if is_bimodal else ()
    spared = {DROPOUT, DRAFT} | (
        {"another context"} if evidence.quiet_rows else set()
    )  # dropout draws anew for each token
    return tuple(
        CandidateFit(name, kind, None, (*refuted, *(() if name in spared else on_floor)), ()) for name, kind in names
    )
