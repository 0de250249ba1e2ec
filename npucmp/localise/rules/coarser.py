"""The target writes in a coarser type than the golden and reads in no coarser one; hardly any other operator does so.

A run in mixed precision has many such operators; one that stands alone is an accident, whose error is hidden by the
limit of its own type. Evidence: in clean pairs of the corpus in mixed precision (open seeds) a fifth and more of the
operators write coarser than the golden's.
"""

from __future__ import annotations

from npucmp.localise.case import Case, Rule
from npucmp.localise.nodes import OperatorFindings
from npucmp.model import Finding, Pair
from npucmp.model.dtypes import lookup

ALONE = 0.05  # share of the operators of a run that makes a coarser type a habit


def writes_coarser(node: OperatorFindings) -> bool:
    """Whether an operator writes in a coarser type than the golden's, whatever it reads."""
    return any(map(_coarser, _pairs(node.outputs)))


def _pairs(findings: "list[Finding]") -> "list[Pair]":
    return [finding.pair for finding in findings]


def _coarser(pair: Pair) -> bool:
    if pair.target is None or pair.golden is None or pair.target.dtype == pair.golden.dtype:
        return False
    target, golden = lookup(pair.target.dtype), lookup(pair.golden.dtype)
    return bool(target and golden and target.round_off > golden.round_off > 0)


def _accuses(case: Case) -> bool:
    if case.node is None or not 0 < case.habit <= ALONE or not _coarser(case.pair) or not case.node.inputs:
        return False
    golden = lookup(case.pair.golden.dtype) if case.pair.golden else None
    reads_coarser = any(map(_coarser, _pairs(case.node.inputs)))
    return golden is not None and case.error > golden.round_off and not reads_coarser


RULE = Rule(
    "accusation",
    "coarser",
    "the target computes this in a coarser type than the golden, which hardly any other operator does",
    applies=_accuses,
)
