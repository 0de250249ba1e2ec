"""fusion.csv, one row per fused operator, and fusion_switch.cfg, which turns off the passes behind those that diverge.

The switch file is in the JSON form of CANN: {"Switch": {"GraphFusion": {pass: "off"}, "UBFusion": {pass: "off"}}}; what
it does not name keeps its setting.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Iterator, Optional, Sequence

from npucmp.localise.evidence import is_fed
from npucmp.measure import metrics
from npucmp.model import Cause, Comparison, Finding, Operator, Report, Root, TensorRef, Verdict, brief, sentences
from npucmp.report.tables import csv_text

NAME = "fusion"
COLUMNS = tuple(
    (
        "fused_op op_type pass_name original_ops compared_slot golden_op verdict cosine rel_l2 max_abs_err cause "
        "because step rank order"
    ).split(" ")
)
METRICS = ("cosine", "rel_l2", "max_abs_err")
WORST = (Verdict.NONFINITE, Verdict.SHAPE, Verdict.DIVERGED, Verdict.UNREADABLE, Verdict.UNKNOWN, Verdict.MATCH)
SHOWN = 5  # operators or passes on the screen
UB_PASS = re.compile(
    r"A?Tbe.*|.*U[Bb]_?Fusion.*|FusionVirtualOpSetSwitch|(Batch)?MatmulDropOutDoMaskV3DFusionPass|"
    r"(Conv|Conv2DDequant)ClipByValueFusionPass|MatmulTransdataFusionPass|BatchMatMulV2DequantMulAddFusionPass"
)  # by CANN's "Graph Fusion and UB Fusion Patterns"


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
    """Whether an operator stands for several of the network, or a fusion pass made it."""
    return operator is not None and (len(operator.originals) > 1 or bool(operator.passes))


def _fused(comparison: Comparison) -> "Iterator[list[Finding]]":
    """The findings of each fused operator of the target, by its graph or, without one, by its name."""
    groups: dict[int, list[Finding]] = {}
    for finding in comparison.findings:
        groups.setdefault(finding.pair.order, []).append(finding)
    for findings in groups.values():
        operator = findings[0].pair.target_op
        if operator is None:
            continue
        by_name = any(finding.pair.via == "fused" for finding in findings) and not operator.inserted
        if is_fused(operator) or (by_name and not operator.originals):
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
        "because": sentences(root.evidence) if root else worst.because,
        "step": comparison.target.step,
        "rank": comparison.target.rank,
        "order": pair.order,
    }
    if moments is None or pair.target is None or pair.golden is None:
        return row
    return {**row, **{name: metrics.by_name(name).function(moments) for name in METRICS}}


def suspects(comparison: Comparison) -> "list[Root]":
    """The fused operators where error is born, most suspected first; where it is born nowhere, those that worsen it."""
    causes = {root.cause for root in comparison.roots}
    blamed = Cause.BORN if causes & {Cause.BORN, Cause.GAP} else Cause.WORSENED
    found = [root for root in comparison.roots if root.cause is blamed and is_fused(root.pair.target_op)]
    return sorted(found, key=lambda root: root.place)


def switch(report: Report) -> "dict[str, dict[str, str]]":
    """The passes behind the suspects, by the kind that CANN counts them among."""
    kinds = {effect.name: effect.kind for effect in report.passes}
    found: dict[str, dict[str, str]] = {}
    for comparison in report.comparisons:
        for root in suspects(comparison):
            for name in _own_passes(comparison, root.pair.operator):
                found.setdefault(kinds.get(name) or kind_of(name), {})[name] = "off"
    return {kind: found[kind] for kind in sorted(found)}


def _own_passes(comparison: Comparison, operator: Operator) -> "list[str]":
    """The passes that made an operator of the target; not those that worked on its originals in the golden run too."""
    names = {operator.name, *operator.originals}
    same = [one for one in comparison.golden.operators if one.name in names or names & {*one.originals}]
    known = {name for one in same for name in one.passes}
    return [name for name in operator.passes if name not in known]


def kind_of(name: str) -> str:
    """Of a pass that fusion_result.json does not list, as far as its name tells."""
    return "UBFusion" if UB_PASS.fullmatch(name) else "GraphFusion"


def words(report: Report, folder: str = "") -> "Iterator[str]":
    """What the screen adds: the fused operators that are to blame, passes of one run only, and what to run next."""
    yield _count_words(report)
    found = [(comparison, root) for comparison in report.comparisons for root in suspects(comparison)]
    for _, root in found[:SHOWN]:
        operator = root.pair.operator
        passes = ", ".join(operator.passes) or "no pass named in the graph"
        yield f"  {passes}: {operator.name}, error in {brief(root.input_error)}, out {brief(root.output_error)}"
        yield f"      computes {_some(operator.originals)}"
    if len(found) > SHOWN:
        yield f"  and {len(found) - SHOWN} more in fusion.csv"
    yield _effect_words(report)
    yield from _next_words(report, folder, found)


def _count_words(report: Report) -> str:
    causes: Counter[str] = Counter()
    for comparison in report.comparisons:
        roots = {root.pair.order: root.cause.value for root in comparison.roots}
        causes.update(roots.get(findings[0].pair.order, "") for findings in _fused(comparison))
    told = [f"{causes[cause.value]} {cause.value}" for cause in Cause if causes[cause.value]]
    rest = [f"{causes['']} without suspicion"] if causes[""] else []
    return f"fused operators: {sum(causes.values())}" + (f" ({', '.join(told + rest)})" if causes else "")


def _next_words(report: Report, folder: str, found: "list[tuple[Comparison, Root]]") -> "Iterator[str]":
    names = [name for kind in switch(report).values() for name in kind]
    if names:
        where = f"{folder}/fusion_switch.cfg" if folder else "fusion_switch.cfg (with -o DIR)"
        yield f"next: switch off {_some(names)} with {where}, dump again, and compare with the run without fusion"
    elif found:
        yield (
            "next: no pass is known for these; dump the graphs as well (DUMP_GE_GRAPH=2), or switch off half of the "
            "passes that took effect, and so on"
        )
    elif any(_is_open(one, root) for one in report.comparisons for root in one.roots):
        yield "next: dump all that operators read and write, with the graphs (DUMP_GE_GRAPH=2), to see where it begins"
    elif report.roots and any(True for comparison in report.comparisons for _ in _fused(comparison)):
        yield "no fusion is to blame: error is not born in a fused operator"


def _is_open(comparison: Comparison, root: Root) -> bool:
    """Whether a fused operator may bear the error: one that reads who knows what, or one that was not compared and
    wrote what the first suspect reads. A writer that the golden run only reads from is a constant or a feed."""
    if root.cause is Cause.UNKNOWN:
        return root.place == 1 or is_fused(root.pair.target_op)
    if root.place > 1 or root.cause is not Cause.GAP or is_fed(root.cause, root.evidence):
        return False
    operators = comparison.golden.operators
    read = {_writer(tensor) for operator in operators for tensor in operator.tensors} - {one.name for one in operators}
    own = [f.pair for f in comparison.findings if f.pair.order == root.pair.order and f.pair.slot == root.slot]
    return not any(_writer(pair.target) in read - {""} for pair in own)


def _writer(tensor: Optional[TensorRef]) -> str:
    return tensor.source.rpartition(":")[0] if tensor is not None else ""


def _effect_words(report: Report) -> str:
    if not report.passes:
        return "passes: no fusion_result.json beside the dumps"
    only = [effect for effect in report.passes if effect.on and not effect.off]
    where = "with fusion" if all(effect.off is None for effect in report.passes) else "only with fusion"
    return f"passes that took effect {where}: {_some([f'{one.name} ({one.on}×)' for one in only], 8) or 'none'}"


def _some(names: "Sequence[str]", most: int = SHOWN) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
