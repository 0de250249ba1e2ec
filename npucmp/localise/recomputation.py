"""What float64 says of an operator: its outputs against the same call in float64 on its own recorded inputs.

A bound tells how large an error may be; a recomputation tells how large the operator's own error is. Where both runs
are recomputed, the search needs no bound for that operator:

    guilty     the target's outputs are beyond the rounding that is due, the golden's are not: the operator bears an error
    innocent   both are what float64 makes of their inputs, and their own errors make up less than half of the error
               between the runs: the error came in with the inputs, however the operator amplified it

Nothing follows where one of the two cannot be recomputed, or where both are guilty: the formula may be another one.
Rounding errors of two runs add up at most (triangle inequality), so what both lack to half of the error came in.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Protocol, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.localise.case import error_size
from npucmp.localise.evidence import reason
from npucmp.model import REPLAYED, Evidence, Finding, Judged, Operator, Replayed

NAME = "recompute"  # as a rule in roots.csv and tensors.csv
OWN = 0.5  # share of the error between two runs: definition: more than the other half came in with the inputs


class Estimator(Protocol):
    """What recomputes operators: npucmp/recompute/estimator.py."""

    def rows(self, side: int, operator: Optional[Operator]) -> Sequence[Replayed]:
        """A row for each output of an operator of the target (0) or the golden (1); none if it is not recomputed."""


class Recomputed(NamedTuple):
    """The rows of an operator in both runs, by the target's and the golden's own inputs."""

    target: Sequence[Replayed]
    golden: Sequence[Replayed]

    def guilty(self, outputs: Sequence[Finding]) -> Optional[tuple[Finding, Replayed]]:
        """The output that is farthest beyond the rounding that is due in the target alone; None if there is none."""
        if not (self.golden and all(row.verdict is Judged.CLEAN for row in self.golden)):
            return None
        slots = {one.pair.target.slot: one for one in outputs if one.pair.target is not None}
        wrong = [row for row in self.target if row.verdict is Judged.GUILTY and row.slot in slots]
        worst = max(wrong, key=lambda row: row.rms_ratio or 0.0, default=None)
        return None if worst is None else (slots[worst.slot], worst)

    def is_innocent(self, outputs: Sequence[Finding]) -> bool:
        """Whether the errors of all outputs came in with the inputs."""
        rows = [{row.slot: row for row in some} for some in (self.target, self.golden)]
        return bool(outputs) and all(_came_in(one, *rows) for one in outputs)


def recomputed(estimator: Optional[Estimator], node: OperatorFindings) -> Optional[Recomputed]:
    """The rows of an operator in both runs; None where one of them has none."""
    if estimator is None or node.pair.target_op is None or node.pair.golden_op is None:
        return None
    target = estimator.rows(0, node.pair.target_op)
    golden = estimator.rows(1, node.pair.golden_op) if target else ()
    return Recomputed(target, golden) if target and golden else None


def guilty_reasons(row: Replayed) -> list[Evidence]:
    """Of an output that is not what float64 makes of the operator's own inputs."""
    words = "its own float64 result is {ratio:,.2g} times the budget away"
    if row.rms_ratio is None or row.budget == "exact":
        words = "it differs from its own float64 result"
    found = [reason(NAME, f"{words} ({{slot}}); the golden's is within the budget", ratio=row.rms_ratio, slot=row.slot)]
    return found + ([reason(NAME, "{why}", why=row.explanation)] if row.explanation else [])


def innocent_reason(known: Recomputed) -> Evidence:
    """Of an operator that is what float64 makes of its inputs, in both runs."""
    share = max((row.rms_ratio for row in known.target if row.rms_ratio is not None), default=0.0)
    return reason(NAME, "it is what float64 makes of its inputs ({ratio:.2g} of the rounding that is due)", ratio=share)


def _came_in(finding: Finding, target: dict[str, Replayed], golden: dict[str, Replayed]) -> bool:
    sides = finding.pair.target, finding.pair.golden
    own = 0.0
    for tensor, rows in zip(sides, (target, golden)):
        row = rows.get(tensor.slot) if tensor is not None else None
        if row is None or row.status != REPLAYED or row.verdict is not Judged.CLEAN or row.sampled or row.explanation:
            return False
        own += row.rel_l2 or 0.0
    return own <= OWN * error_size(finding)
