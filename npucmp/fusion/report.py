"""The Answer of `npucmp fusion-diff`: the Answer of a comparison, and the originals of each fused operator.

fusion.csv has one row per fused operator. fusion_switch.cfg turns off the passes that made the diverging operators, in
the JSON form of CANN: {"Switch": {"GraphFusion": {pass: "off"}, "UBFusion": {pass: "off"}}}; passes that are not listed
keep their setting.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp.localise.evidence import is_fed
from npucmp.measure import metrics as measured
from npucmp.model import (
    DIFFERS,
    Cause,
    Comparison,
    Evidence,
    Fact,
    Finding,
    FusionResult,
    Moments,
    Operator,
    Pair,
    Root,
    Side,
    TensorRef,
    Verdict,
    brief,
)
from npucmp.model.cause import first_of_names
from npucmp.model.roles import is_output
from npucmp.report import compare, tables
from npucmp.report.answer import Answer, Chain, Original, Row, Suspect, Text
from npucmp.report.comparison_parts import Parts, facts
from npucmp.report.phrases import count_of, flow_of

COLUMNS = tuple(
    (
        "fused_op op_type pass_name original_ops compared_slot golden_op verdict cosine rel_l2 max_abs_err cause "
        "because step rank order"
    ).split(" ")
)
METRICS = ("cosine", "rel_l2", "max_abs_err")
WORST = (Verdict.NONFINITE, Verdict.SHAPE, Verdict.DIVERGED, Verdict.UNREADABLE, Verdict.UNKNOWN, Verdict.MATCH)
MOST_NAMED = 5  # operators or passes in a remark
UB_PASS = re.compile(
    r"A?Tbe.*|.*U[Bb]_?Fusion.*|FusionVirtualOpSetSwitch|(Batch)?MatmulDropOutDoMaskV3DFusionPass|"
    r"(Conv|Conv2DDequant)ClipByValueFusionPass|MatmulTransdataFusionPass|BatchMatMulV2DequantMulAddFusionPass"
)  # by CANN's "Graph Fusion and UB Fusion Patterns"


def answer(report: FusionResult, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a comparison of a run with fusion and a run without."""
    parts = Parts(report, metrics)
    found = compare.compare_answer(parts)
    every = [one for comparison in report.comparisons for one in _fused_operators(comparison)]
    off = switch(report)
    config = json.dumps({"Switch": off}, indent=4, ensure_ascii=True) + "\n"
    title = "fusion_switch.cfg: disables the passes that created these operators" if off else ""
    return replace(
        found,
        tables=[*found.tables, tables.table("fusion.csv", COLUMNS, lambda: map(_row, every))],
        texts=lambda: [Text("fusion_switch.cfg", config, title)],
        facts=lambda: {**facts(parts), "passes": [effect._asdict() for effect in report.passes]},
        remarks_title="Effect of fusion",
        advice={},  # the title of the remarks replaces the advice
        remarks=lambda folder: [*remarks(report, every, folder)],
        chains=[*_chains(every)],
    )


class FusedOperator(NamedTuple):
    """A fused operator of the target: its worst output, and its root cause if it has one."""

    comparison: Comparison
    worst: Finding
    root: Optional[Root]

    @property
    def pair(self) -> Pair:
        return self.worst.pair

    @property
    def cause(self) -> str:
        return self.root.cause.value if self.root else ""

    @property
    def compared(self) -> str:
        """The name of the operator of the golden run."""
        return self.pair.golden_op.name if self.pair.golden_op else ""

    @property
    def moments(self) -> Optional[Moments]:
        """The moments of the worst output; None if a side has no tensor."""
        return self.worst.measurement.moments if self.pair.target is not None and self.pair.golden is not None else None


def is_fused(operator: Optional[Operator]) -> bool:
    """Return whether an operator replaces several operators of the network, or a fusion pass made it."""
    return operator is not None and (len(operator.originals) > 1 or bool(operator.passes))


def _fused_operators(comparison: Comparison) -> Iterator[FusedOperator]:
    """Yield the fused operators of the target in graph order, found by the graph or, without a graph, by names."""
    groups: dict[int, list[Finding]] = {}
    for finding in comparison.findings:
        groups.setdefault(finding.pair.order, []).append(finding)
    roots = {root.pair.order: root for root in comparison.roots}
    for order, findings in groups.items():
        operator = findings[0].pair.target_op
        if operator is None:
            continue
        by_name = any(finding.pair.via == "fused" for finding in findings) and not operator.inserted
        if is_fused(operator) or (by_name and not operator.originals):
            outputs = [finding for finding in findings if finding.pair.slot.startswith("output")] or findings
            worst = min(outputs, key=lambda one: WORST.index(one.verdict) if one.verdict in WORST else len(WORST))
            yield FusedOperator(comparison, worst, roots.get(order))


def _row(one: FusedOperator) -> Row:
    pair, moments = one.pair, one.moments
    row = {
        "fused_op": pair.operator.name,
        "op_type": pair.operator.op_type,
        "pass_name": ",".join(pair.operator.passes),
        "original_ops": ",".join(pair.operator.originals),
        "compared_slot": pair.slot,
        "golden_op": one.compared,
        "verdict": one.worst.verdict.value,
        "cause": one.cause,
        "because": one.root.because if one.root else one.worst.because,
        "step": one.comparison.target.step,
        "rank": one.comparison.target.rank,
        "order": pair.order,
    }
    figures = {} if moments is None else {name: measured.by_name(name).function(moments) for name in METRICS}
    return {**row, **figures}


def _chains(every: Sequence[FusedOperator]) -> Iterator[Chain]:
    """Yield each fused operator with its originals, root causes first."""
    held = {id(one.comparison): one.comparison for one in every}
    ranges = {key: _ranges(comparison) for key, comparison in held.items()}
    for one in sorted(every, key=lambda one: (one.root is None, one.root.place if one.root else 0, one.pair.order)):
        yield _chain(one, ranges[id(one.comparison)])


def _chain(one: FusedOperator, ranges: Mapping[int | str, str]) -> Chain:
    pair, root = one.pair, one.root
    names = dict.fromkeys(filter(None, [*pair.operator.originals, one.compared]))
    because = Evidence("finding", "{because}", {"because": Fact(one.worst.because)})
    return Chain(
        suspect=Suspect(
            place=root.place if root else 0,
            cause=one.cause,
            word=one.cause,
            op=pair.operator.name,
            op_type=pair.operator.op_type,
            slot=pair.slot,
            evidence=root.evidence if root else (because,),
            flow=flow_of(root) if root else None,
        ),
        originals=tuple(Original(name, name == one.compared, ranges.get(name, "")) for name in names),
        passes=pair.operator.passes,
        holds=ranges.get(pair.order, ""),
        verdict=one.worst.verdict.value,
        differs=one.worst.verdict in DIFFERS,
        error="" if one.moments is None else brief(measured.rel_l2(one.moments)),
    )


def _ranges(comparison: Comparison) -> dict[int | str, str]:
    """Return the range of the first output of each operator: of the target by order, of the golden run by name."""
    found: dict[int | str, str] = {}
    for finding in comparison.findings:
        pair, moments = finding.pair, finding.measurement.moments
        if moments is None or not is_output(pair):
            continue
        if pair.target is not None:
            found.setdefault(pair.order, _range(pair.target, moments.target))
        if pair.golden is not None and pair.golden_op is not None:
            found.setdefault(pair.golden_op.name, _range(pair.golden, moments.golden))
    return found


def _range(tensor: TensorRef, side: Side) -> str:
    return f"{tensor.dtype} {side.minimum:.3g} to {side.maximum:.3g}" if side.minimum == side.minimum else tensor.dtype


def suspects(comparison: Comparison) -> list[Root]:
    """Return the fused operators in which an error is born, by place; if no error is born, the operators that worsen
    it."""
    causes = {root.cause for root in comparison.roots}
    blamed = Cause.BORN if causes & {Cause.BORN, Cause.GAP} else Cause.WORSENED
    found = [root for root in comparison.roots if root.cause is blamed and is_fused(root.pair.target_op)]
    return sorted(found, key=lambda root: root.place)


def switch(report: FusionResult) -> dict[str, dict[str, str]]:
    """Return the passes that made the suspects, by the kind that CANN assigns to them."""
    kinds = {effect.name: effect.kind for effect in report.passes}
    found: dict[str, dict[str, str]] = {}
    for comparison in report.comparisons:
        for root in suspects(comparison):
            for name in _own_passes(comparison, root.pair.operator):
                found.setdefault(kinds.get(name) or kind_of(name), {})[name] = "off"
    return {kind: found[kind] for kind in sorted(found)}


def _own_passes(comparison: Comparison, operator: Operator) -> list[str]:
    """Return the passes that made an operator of the target, without passes that also processed its originals in the
    golden run."""
    names = {operator.name, *operator.originals}
    same = [one for one in comparison.golden.operators if one.name in names or names & {*one.originals}]
    known = {name for one in same for name in one.passes}
    return [name for name in operator.passes if name not in known]


def kind_of(name: str) -> str:
    """Return the kind of a pass that fusion_result.json does not list, guessed from its name."""
    return "UBFusion" if UB_PASS.fullmatch(name) else "GraphFusion"


def remarks(report: FusionResult, every: Sequence[FusedOperator], folder: str) -> Iterator[str]:
    """Yield the fused operators to blame, the passes of one run only, and the next step for the user."""
    causes = Counter(one.cause for one in every)
    kinds = [f"{causes[cause.value]} {cause.value}" for cause in Cause if causes[cause.value]]
    kinds += [f"{causes['']} not suspected"] if causes[""] else []
    yield f"fused operators: {len(every)}" + (f" ({', '.join(kinds)})" if kinds else "")
    found = [root for comparison in report.comparisons for root in suspects(comparison)]
    for root in found[:MOST_NAMED]:
        operator = root.pair.operator
        passes = ", ".join(operator.passes) or "no pass named in the graph"
        yield f"  {passes}: {operator.name}, error in {brief(root.input_error)}, out {brief(root.output_error)}"
        yield f"      computes {first_of_names(operator.originals, MOST_NAMED)}"
    if len(found) > MOST_NAMED:
        yield f"  and {len(found) - MOST_NAMED} more in fusion.csv"
    yield _effect_words(report)
    names = [name for kind in switch(report).values() for name in kind]
    if names:
        where = f"{folder}/fusion_switch.cfg" if folder else "fusion_switch.cfg (with -o DIR)"
        off = first_of_names(names, MOST_NAMED)
        yield f"next: disable {off} with {where}, dump again, and compare with the run without fusion"
    elif found:
        yield (
            "next: the passes of these operators are not known; dump the graphs too (DUMP_GE_GRAPH=2), or bisect: "
            "disable half of the passes that took effect"
        )
    elif any(_is_open(one, root) for one in report.comparisons for root in one.roots):
        yield "next: dump all inputs and outputs, with the graphs (DUMP_GE_GRAPH=2), to find the origin of the error"
    elif report.roots and every:
        yield "fusion is not the cause: the error does not originate in a fused operator"


def _is_open(comparison: Comparison, root: Root) -> bool:
    """Return whether a fused operator may have produced the error: a root cause with unknown inputs, or an uncompared
    producer of what the first suspect reads. A producer that is not an operator of the golden run is a constant or a
    feed."""
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


def _effect_words(report: FusionResult) -> str:
    if not report.passes:
        return "passes: no fusion_result.json in the dumps' folders"
    only = [
        f"{effect.name} ({count_of(effect.on, 'operator')})" for effect in report.passes if effect.on and not effect.off
    ]
    names = first_of_names(only, 8) or "none"
    if all(effect.off is None for effect in report.passes):
        return f"passes that took effect with fusion: {names}"
    return f"passes that took effect only with fusion: {names}"
