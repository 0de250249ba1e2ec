"""Make a Root: the operator, the tensor that shows the error, its figure and its evidence."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

from npucmp.flow.operators import OperatorFindings
from npucmp.judge.tolerance import Limit
from npucmp.localise import evidence
from npucmp.localise.explained_rows import ExplainedRows
from npucmp.localise.rule_context import error_of
from npucmp.measure import metrics
from npucmp.model import Cause, Evidence, Finding, Root, Verdict
from npucmp.model.table import ChangedRows, Table


class SearchResult(NamedTuple):
    """The result of one rank: its rows, of which some have another finding, its roots with their clocks, and the rows
    that errors of unknown size explain, with operators that are no roots yet."""

    findings: ChangedRows
    roots: list[tuple[int, Root]]
    explained: ExplainedRows = ExplainedRows()


class OwnError(NamedTuple):
    """An output whose error its operator bears, and the rule that decided it."""

    finding: Finding
    rule: str


def root_of(
    node: OperatorFindings, cause: Cause, own: OwnError, reasons: list[Evidence], known: Optional[float]
) -> Root:
    """Make a Root without its priority, which is set when all roots are known."""
    finding = own.finding
    outputs = [e for e in map(error_of, node.outputs) if e is not None]
    is_own = cause not in (Cause.PROPAGATED, Cause.GAP)
    fused = evidence.fused_reasons(node.pair) if cause is not Cause.PROPAGATED else []
    drawn = evidence.draw_reasons(finding, known or 0.0) if is_own else []
    types = evidence.type_reasons([*(node.inputs or node.assumed_inputs), *node.extra_inputs], node.outputs)
    return Root(
        place=0,
        pair=node.pair,
        cause=cause,
        slot=finding.pair.slot,
        metric=finding.metric or finding.verdict.value,
        value=_figure(finding),
        limit=finding.limit,
        input_error=known,
        output_error=max(outputs, default=None),
        evidence=(*reasons, *drawn, *types, *fused),
        rule=own.rule,
        relation=_relation(finding),
    )


def _relation(finding: Finding) -> str:
    """How the tensor of an alignment by contents corresponds to that of the golden run."""
    target = finding.pair.target
    return target.relation.words if target is not None and target.relation is not None else ""


def with_explanation(finding: Finding, by: Optional[Limit]) -> Finding:
    """Add the explanation to a finding, if there is one."""
    return finding if by is None else finding._replace(explained_by=by.rule, explained_limit=by.value)


def _figure(finding: Finding) -> Optional[float]:
    """The figure of a row: the measured value, or a proven lower bound."""
    is_metric = finding.rule == "tolerance" or any(metric.name == finding.metric for metric in metrics.METRICS)
    if is_metric and finding.measurement.moments is not None:
        value = metrics.by_name(finding.metric).function(finding.measurement.moments)
        return None if value is None else float(value)
    if finding.error is None or math.isnan(finding.error):
        return finding.measurement.bound
    return finding.error


def with_root_verdict(findings: Sequence[Finding], root: Root) -> Sequence[Finding]:
    """Return the findings, of which that of a root differs, although its tensor is within its limit as a whole."""
    changes = {
        at: each._replace(verdict=Verdict.DIVERGED, rule=root.rule, because=root.because)
        for at, each in enumerate(findings)
        if each.pair.order == root.pair.order and each.pair.slot == root.slot
    }
    if isinstance(findings, Table):
        return findings.replaced(changes)
    return [*map(changes.get, range(len(findings)), findings)]
