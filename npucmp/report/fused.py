"""The fused operators of report.html, each beside the operators that it stands for."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

from npucmp.localise.nodes import is_output
from npucmp.model import DIFFERS, Comparison, Report, Root, Side, TensorRef, Verdict, brief
from npucmp.report import fusion
from npucmp.report.sanitise import visible

Words = dict[str, Any]


def shown(report: Report, flow: "Callable[[Root], Optional[Words]]") -> "Iterator[Words]":
    """The words for the template, those that bear error first; `flow` draws an error in and out."""
    rows = []
    for one in report.comparisons:
        roots, ranges = {root.pair.order: root for root in one.roots}, _Ranges(one)
        for row in fusion.fusion_rows(_only(report, one)):
            rows.append((row, roots.get(row["order"]), ranges))
    rows.sort(key=lambda row: (row[1] is None, row[1].place if row[1] else 0, row[0]["order"]))
    for row, root, ranges in rows:
        yield {**_words(row, ranges), "place": root.place if root else 0, "flow": flow(root) if root else None}


def _only(report: Report, comparison: Comparison) -> Report:
    return Report(report.command, report.target_path, report.golden_path, (comparison,))


def _words(row: Words, ranges: "_Ranges") -> Words:
    compared = row["golden_op"]
    names = [name for name in row["original_ops"].split(",") if name]
    if compared and compared not in names:
        names.append(compared)
    return {
        "op": visible(row["fused_op"]),
        "op_type": visible(row["op_type"]),
        "range": ranges.target.get(row["order"], ""),
        "passes": [visible(name) for name in row["pass_name"].split(",") if name],
        "originals": [
            {"name": visible(name), "compared": name == compared, "range": ranges.golden.get(name, "")}
            for name in names
        ],
        "verdict": row["verdict"],
        "differs": Verdict(row["verdict"]) in DIFFERS,
        "cause": row["cause"],
        "slot": visible(row["compared_slot"]),
        "error": brief(row["rel_l2"]) if row.get("rel_l2") is not None else "",
        "sentences": [visible(sentence) for sentence in row["because"].split("; ")],
    }


class _Ranges:
    """What the first output of each operator holds: of the target by order, of the golden run by name."""

    def __init__(self, comparison: Comparison) -> None:
        self.target: dict[int, str] = {}
        self.golden: dict[str, str] = {}
        for finding in comparison.findings:
            pair, moments = finding.pair, finding.measurement.moments
            if moments is None or not is_output(pair):
                continue
            if pair.target is not None:
                self.target.setdefault(pair.order, _range(pair.target, moments.target))
            if pair.golden is not None and pair.golden_op is not None:
                self.golden.setdefault(pair.golden_op.name, _range(pair.golden, moments.golden))


def _range(tensor: TensorRef, side: Side) -> str:
    return f"{tensor.dtype} {side.minimum:.3g} to {side.maximum:.3g}" if side.minimum == side.minimum else tensor.dtype
