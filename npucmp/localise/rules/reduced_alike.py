"""Products of both runs that keep 11 bits of their float32 operands, as HF32 and TF32 units do.

Equal operands are rounded alike. If an operand differs by d, it crosses a step δ of the 11 bits with the probability
d / δ and then differs by δ: the mean square of what is multiplied is d δ instead of d². An error e of float32 becomes
√(2^-10 e), 8e-6 where e is one round-off, and where few elements cross, each counts for itself. The limits stay those
of float32, for operators other than products make no more of an error than there.
Source: CANN, "allow_hf32"; NVIDIA, TF32. Evidence: in clean pairs of the second corpus (open2) with HF32 on both sides,
products that read 5e-8 write 6e-6 or 2e-5, and those that read 1e-5 write 4e-5. The precision is told by the values of
each side alone (measure/own_products.py).
"""

from __future__ import annotations

import math

from npucmp.judge.precision import SINGLE
from npucmp.judge.verdicts import FACTOR
from npucmp.localise.case import FEW_FLIPS, Case, Rule
from npucmp.localise.condition import scale_of
from npucmp.localise.rules.reduced import REDUCED

NAME = "reduced_alike"
STEP = 2.0 * REDUCED  # relative: definition: the distance of two numbers of 11 bits, at most


def _bound(case: Case) -> float:
    """The share of the largest element of an operand is what one crossing moves."""
    node, size = case.node, case.scale.rms
    read = [] if node is None else [scale_of(one) for one in (*node.inputs, *node.context)]
    peaks = [one.largest / (one.rms * math.sqrt(one.elements)) for one in read if one.rms]
    crossed = max(FACTOR * math.sqrt(STEP * case.before), FEW_FLIPS * STEP * max(peaks, default=0.0))
    enlarged = max(1.0, case.terms.spread / size) if size else 1.0
    return enlarged * min(crossed, FACTOR * REDUCED)


def _applies(case: Case) -> bool:
    node = case.node
    is_single = case.own_round_off == SINGLE and not case.is_choice
    return node is not None and node.op.has("contracts") and is_single and case.before > 0.0


RULE = Rule(
    "explanation",
    NAME,
    "products of both runs keep 11 bits: an operand that is off by e crosses a step of them, and is off by √(2^-10 e)",
    applies=_applies,
    bound=_bound,
)
