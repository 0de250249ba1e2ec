"""fusion.csv, one row per fused operator, and fusion_switch.cfg, which turns off the passes behind those that diverge.

The switch file is in the JSON form of CANN: {"Switch": {"GraphFusion": {pass: "off"}, "UBFusion": {pass: "off"}}}; what
it does not name keeps its setting.
"""

from __future__ import annotations

import json
from typing import Any, Iterator, Optional, Sequence

from npucmp import metrics
from npucmp.model import Cause, Comparison, Finding, Operator, Report, Root, Verdict
from npucmp.report.tables import csv_text

NAME = "fusion"
COLUMNS = tuple(
    (
        "fused_op op_type pass_name original_ops compared_slot golden_op verdict cosine rel_l2 max_abs_err cause because "
        "step rank order"
    ).split(" ")
)
WORST = (Verdict.NONFINITE, Verdict.SHAPE, Verdict.DIVERGED, Verdict.UNREADABLE, Verdict.UNKNOWN, Verdict.MATCH)
BLAMED = (Cause.BORN, Cause.WORSENED)


def render(report: Report, extra: Sequence[str] = ()) -> "dict[str, str]":
    """Both files of `npucmp fusion-diff`; nothing of other commands."""
    if report.command != "fusion-diff":
        return {}
    return {
        "fusion.csv": csv_text(COLUMNS, fusion_rows(report)),
        "fusion_switch.cfg": json.dumps({"Switch": switch(report)}, indent=4, ensure_ascii=True) + "\n",
    }


def fusion_rows(report: Report) -> "Iterator[dict[str, Any]]":
    """One row per fused operator of the target, in graph order: its worst output."""
    for comparison in report.comparisons:
        roots = {root.pair.order: root for root in comparison.roots}
        for findings in _fused(comparison):
            yield _row(comparison, findings, roots.get(findings[0].pair.order))


def is_fused(operator: Optional[Operator]) -> bool:
    """Whether an operator stands for several of the network."""
    return operator is not None and len(operator.originals) > 1


def _fused(comparison: Comparison) -> "Iterator[list[Finding]]":
    """The findings of each operator that is fused in the target and not in the same way in the golden run."""
    groups: dict[int, list[Finding]] = {}
    for finding in comparison.findings:
        groups.setdefault(finding.pair.order, []).append(finding)
    for findings in groups.values():
        pair = findings[0].pair
        by_parts = any(finding.pair.via == "fused" for finding in findings) and not pair.operator.inserted
        if is_fused(pair.target_op) or (by_parts and pair.target_op is not None and not pair.target_op.originals):
            yield findings


def _row(comparison: Comparison, findings: "list[Finding]", root: Optional[Root]) -> "dict[str, Any]":
    outputs = [finding for finding in findings if finding.pair.slot.startswith("output")] or findings
    worst = min(outputs, key=lambda one: WORST.index(one.verdict) if one.verdict in WORST else len(WORST))
    pair, moments = worst.pair, worst.measurement.moments
    operator = pair.operator
    row = {
        "fused_op": operator.name,
        "op_type": operator.op_type,
        "pass_name": ",".join(operator.passes),
        "original_ops": ",".join(operator.originals),
        "compared_slot": pair.slot,
        "golden_op": pair.golden_op.name if pair.golden_op else "",
        "verdict": worst.verdict.value,
        "cause": root.cause.value if root else "",
        "because": root.evidence if root else worst.because,
        "step": comparison.target.step,
        "rank": comparison.target.rank,
        "order": pair.order,
    }
    if moments is not None and pair.target is not None and pair.golden is not None:
        row.update({name: metrics.by_name(name).function(moments) for name in ("cosine", "rel_l2", "max_abs_err")})
    return row


def switch(report: Report) -> "dict[str, dict[str, str]]":
    """The passes behind the operators where error is born, by the kind that CANN counts them among."""
    kinds = {effect.name: effect.kind for effect in report.passes}
    found: dict[str, dict[str, str]] = {}
    for root in report.roots:
        operator = root.pair.target_op
        if root.cause in BLAMED and operator is not None and is_fused(operator):
            for name in operator.passes:
                found.setdefault(kinds.get(name) or kind_of(name), {})[name] = "off"
    return found


def kind_of(name: str) -> str:
    """Of a pass that fusion_result.json does not list: those of the unified buffer begin with "Tbe"."""
    return "UBFusion" if name.startswith("Tbe") else "GraphFusion"


def words(report: Report, folder: str = "") -> "Iterator[str]":
    """What the screen adds: passes that took effect in one run only, and what to run next."""
    fused = sum(1 for comparison in report.comparisons for _ in _fused(comparison))
    yield f"{fused} fused operators; " + _effect_words(report)
    names = [name for kind in switch(report).values() for name in kind]
    if names:
        where = f"{folder}/fusion_switch.cfg" if folder else "fusion_switch.cfg (with -o DIR)"
        yield f"next: switch off {', '.join(names)} with {where}, dump again, and compare with the run without fusion"


def _effect_words(report: Report) -> str:
    only = [effect for effect in report.passes if effect.on and not effect.off]
    if not report.passes:
        return "no fusion_result.json beside the dumps"
    shown = ", ".join(f"{effect.name} ({effect.on} times)" for effect in only[:8])
    more = f" and {len(only) - 8} more" if len(only) > 8 else ""
    return f"passes that took effect only with fusion: {shown or 'none'}{more}"
