"""The target writes a coarser type than the golden but reads none, and hardly any other operator does so.

A run in mixed precision has many such operators; a single one is an accident, whose error the limit of its own type
hides. The consumers of its output and its gradient read the coarser type already and do not count. An input that holds
the golden's numbers in the coarser type is one that the golden alone casts up: the operator begins the coarser type. A
gradient that arrives has the type that the forward wrote. A cast is meant to
round: a cast that rounds each input element once, to the nearest, is correct. The rule applies if at most 5 % of the
other operators do so, and less than a quarter of all operators have a coarser type. If only inputs were recorded, the
first reader of the tensor bears the error. A note names the type of a correct cast. Evidence: in clean pairs of the
corpus in mixed precision (open seeds) at least a tenth of the operators begin a coarser type.
"""

from __future__ import annotations

from typing import Iterable, Sequence

from npucmp.flow.contents import content_of
from npucmp.flow.operators import OperatorFindings
from npucmp.judge.precision import round_off_of
from npucmp.localise.rule_context import ErrorRule, RuleContext, proven_size
from npucmp.model import Finding, Pair
from npucmp.model.dtypes import lookup
from npucmp.model.roles import is_output

# share of the other operators: evidence: a tenth and more begin a coarser type in clean pairs of mixed precision
DOWNCAST_SHARE = 0.05
RUN_SHARE = 0.25  # share of the operators: chosen: if as many have a coarser type, the whole run is in it, not measured


def downcast_share(nodes: Sequence[OperatorFindings]) -> float:
    """The share of other operators that begin a coarser type than the golden's. Modules count only if there are no
    other operators, because operators inside them write their outputs. 0 if there are no operators."""
    counted = [node for node in nodes if not node.operator.path] or nodes
    have = [node for node in counted if _any_coarser(node.outputs or node.inputs)]
    if len(counted) == 1 or len(have) >= max(2.0, RUN_SHARE * len(counted)):  # a single operator differs from no other
        return 1.0
    begins = sum(map(_starts_downcast, have))
    if not any(node.outputs for node in nodes):  # inputs alone: each tensor once
        begins = len({content_of(one) for node in have for one in node.inputs if _coarser(one.pair)})
    return max(0, begins - 1) / max(1, len(counted))


def _starts_downcast(node: OperatorFindings) -> bool:
    """Whether an operator writes in a coarser type than the golden's, and reads in none, or the golden's numbers."""
    return _any_coarser(node.outputs) and not _any_rounded(_read(node))


def _any_rounded(findings: Iterable[Finding]) -> bool:
    """Whether a tensor has a coarser type than the golden's, and other numbers."""
    return any(_coarser(finding.pair) and not _is_same(finding) for finding in findings)


def _is_same(finding: Finding) -> bool:
    if finding.measurement.moments is not None:
        return finding.error == 0.0
    target, golden = finding.measurement.recorded(0), finding.measurement.recorded(1)
    return target is not None and target == golden


def _read(node: OperatorFindings) -> list[Finding]:
    return [*(node.inputs or node.assumed_inputs), *node.extra_inputs]


def _any_coarser(findings: Iterable[Finding]) -> bool:
    return any(_coarser(finding.pair) for finding in findings)


def _coarser(pair: Pair) -> bool:
    if pair.target is None or pair.golden is None or pair.target.dtype == pair.golden.dtype:
        return False
    target, golden = lookup(pair.target.dtype), lookup(pair.golden.dtype)
    return bool(target and golden and target.round_off > golden.round_off > 0)


def _accuses(case: RuleContext) -> bool:
    if case.downcast_share > DOWNCAST_SHARE or not _coarser(case.pair):
        return False
    golden = lookup(case.pair.golden.dtype) if case.pair.golden else None
    read = [] if case.node is None else _read(case.node)
    arrives = case.pair.operator.phase == "backward" and not is_output(case.pair)
    alone = not _any_rounded(read) if read else case.node is None and case.no_producer and not arrives
    return golden is not None and case.error > golden.round_off and alone and not is_rounded_once(case)


def is_rounded_once(case: RuleContext) -> bool:
    """Whether an operator that only forwards its input wrote each element rounded once to the nearest; for statistics,
    whether these allow it. Relative errors u and e combine to u + e + u e."""
    if case.node is None or not case.node.op.has("hands on") or case.node.op.has("copies"):
        return False
    sides = [lookup(one.dtype) for one in (case.pair.target, case.pair.golden) if one is not None]
    rounding = sum(one.round_off for one in sides if one is not None)
    read = [one for one in case.node.inputs if round_off_of(one.pair)]
    first_order = rounding + max(map(_largest, read), default=case.input_error)
    return _largest(case.finding) <= (1.0 + rounding) * first_order


def _largest(finding: Finding) -> float:
    """The largest relative error of one element; without values, the proven error of the tensor."""
    moments = finding.measurement.moments
    if moments is None or moments.mismatched:
        return proven_size(finding)
    return moments.max_rel


RULE = ErrorRule(
    "accusation",
    "coarser",
    "the target computes this operator in a coarser type than the golden, and hardly any other operator does so",
    applies=_accuses,
)
