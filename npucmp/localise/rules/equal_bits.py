"""The operator read the same bits and wrote more than roundings of them apart, in 8 or 16 bits.

Such types are summed in float32, so that two right results differ by one rounding here and there; the limit of 8 u is
for what gathered along the way, and here nothing did. Evidence: 41 operators
of 16 bits with equal inputs in silent clean pairs of the corpus, up to 0.8 u.
"""

from __future__ import annotations

from npucmp.judge.precision import SINGLE
from npucmp.localise.case import Case, Rule
from npucmp.model.dtypes import lookup

APART = 3.0  # round-offs between two right results from the same bits


def _accuses(case: Case) -> bool:
    node, target, golden = case.node, case.pair.target, case.pair.golden
    if case.before or node is None or not node.inputs or case.finding.error is None or case.finding.metric == "noise":
        return False
    if target is None or golden is None or (target.dtype != golden.dtype and not node.operator.inserted):
        return False  # an inserted operator does nothing but one rounding, whatever the wider side is
    row = max((lookup(golden.dtype), lookup(target.dtype)), key=lambda one: one.round_off if one else 0.0)
    return row is not None and row.round_off > SINGLE and case.error > APART * row.round_off


RULE = Rule(
    "accusation",
    "equal_bits",
    f"the same bits went in, and results of 8 or 16 bits are more than {APART:g} roundings apart",
    applies=_accuses,
)
