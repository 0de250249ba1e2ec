"""Rounding in the working precision: 8 unit round-offs (model/dtypes.py) of the coarsest type that the values went
through; bfloat16: 0.031.

Evidence: in silent clean pairs of the corpus (open seeds), the median error of an output is 2.2 round-offs and nine of
ten are below 6.7; inputs explain errors above 8. Under bfloat16 autocast, tensors that are nominally float32 carry
bfloat16's error. Types of 8 and 4 bits would have a limit at which unrelated tensors pass: a tensor with one half zero
is off by 0.71, a reordered tensor by 1.41, and rounding to float4 by 0.14.

The limit is at most 0.5, because unrelated tensors in types of 8 and 4 bits would otherwise match. A sum over
ranks has in addition the rounding of its terms (relations/ranks/assembled_run.py).
"""

from __future__ import annotations

from npucmp.localise.rule_context import ErrorRule, RuleContext
from npucmp.model.dtypes import FACTOR

# rel_l2: chosen: no rounding reaches it, nor one gradient with an error; a tensor with one half zero is off by 0.71
UNRELATED_ERROR = 0.5


def _terms(case: RuleContext) -> float:
    relation = case.pair.target.relation if case.pair.target is not None else None
    return 1.0 if relation is None else relation.rounding


RULE = ErrorRule(
    "limit",
    "round_off",
    f"{FACTOR:g} unit round-offs of the coarsest float type upstream; nine of ten outputs of clean runs are below 6.7",
    applies=lambda case: case.precision.round_off > 0,
    bound=lambda case: min(UNRELATED_ERROR, FACTOR * case.precision.round_off * _terms(case)),
)
