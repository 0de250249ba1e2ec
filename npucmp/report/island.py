"""The data of report.html: a Report as columns, of its operators and of its rows, packed so that 20,000 stay small.

A column is one of
    {"all": value}                 every row has it
    {"words": […], "codes": […]}   few different values, each row the number of one
    {"values": […]}                anything else; null is "does not apply"
with "number": true where values are numbers, of which NaN and infinities are strings. A column in which no row has a
value is left out. Floats carry four digits: the page shows no more, tensors.csv has them all.
Rows stand operator by operator; the column `rows` of the operators tells how many rows each has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.graphs.graph import escaped
from npucmp.links import Producers, fingerprint
from npucmp.model import Comparison, Event, Finding, Operator, Overflow, Report, Root, Scan
from npucmp.nodes import differing_arguments, is_output
from npucmp.report import overflow, tables
from npucmp.report.sanitise import visible

SHORT = "%.4g"
EXACT = 1 << 53  # up to which a browser holds integers exactly
OF_OPERATORS = {"step", "rank", "order", "op", "op_type", "phase", "target_op", "golden_op", "stack"}
FEW = 0.5  # share of different values up to which they are numbered
Row = dict[str, Any]


class Place(NamedTuple):
    """An operator of the page: its comparison and its place in the order there."""

    run: int
    order: int


def of_report(report: Report, extra: "Sequence[str]" = ()) -> "dict[str, Any]":
    """The island of compare, fusion-diff and rerun-diff. `extra` are metrics to show besides those of tensors.csv."""
    operators: list[Row] = []
    rows: list[Row] = []
    for run, comparison in enumerate(report.comparisons):
        _add(run, comparison, _rows(report, comparison, extra), operators, rows)
    columns = [name for name in (*tables.TENSOR_COLUMNS, *extra) if name not in OF_OPERATORS]
    return {
        "command": report.command,
        "kind": "pairs",
        "runs": [_label(report, one) for one in report.comparisons],
        "rules": [{"dtype": row.dtype, "limit": _plain(row.limit)} for row in report.rules],
        "operators": packed(operators),
        "rows": packed(rows),
        "columns": ["run", "order", "op", "op_type", "phase", "cause", *columns, "stack"],
        "shown": ["order", "op", "op_type", "slot", "verdict", "cause", "rel_l2", "cosine", "max_abs_err", "max_ulp",
                  "target_dtype", "golden_dtype", "target_shape"],
        "facets": ["run", "verdict", "cause", "op_type", "phase"],
    }  # fmt: skip


def _rows(report: Report, comparison: Comparison, extra: "Sequence[str]") -> list[Row]:
    """A row per finding: its cells of tensors.csv, and what the page shows besides."""
    cells = tables.tensor_rows(replace(report, comparisons=(comparison,)), extra)
    rows = []
    for finding, row in zip(comparison.findings, cells):
        moments = finding.measurement.moments
        row.update(
            error=None if finding.error == row.get("rel_l2") else finding.error,
            limit=finding.limit or None,
            metric=finding.metric,
            output=is_output(finding.pair),
            histogram=_histogram(moments.histogram) if moments is not None and moments.max_abs else "",
        )
        rows.append(row)
    return rows


def _histogram(counts: "Sequence[int]") -> str:
    """ "first:count,count,…" from the first bin that holds something to the last, counts to three digits."""
    held = [number for number, count in enumerate(counts) if count]
    if not held:
        return ""
    some = counts[held[0] : held[-1] + 1]
    return f"{held[0]}:" + ",".join(str(int(float(f"{count:.3g}"))) if count else "" for count in some)


def _add(run: int, comparison: Comparison, cells: list[Row], operators: list[Row], rows: list[Row]) -> None:
    """The operators and rows of one comparison, with who reads whom."""
    roots = {root.pair.order: root for root in comparison.roots}
    together = list(zip(comparison.findings, cells))
    together.sort(key=lambda one: one[0].pair.order)
    links = _Links()
    for order, group in groupby(together, key=lambda one: one[0].pair.order):
        some = list(group)
        findings = [finding for finding, _ in some]
        here = len(operators)
        for finding, row in some:
            row.update(links.of(finding))
        links.remember(findings, here)
        operators.append({"run": run, "rows": len(some), **_operator(findings, some[0][1], roots.get(order))})
        rows += [_own(row) for _, row in some]


def _own(row: Row) -> Row:
    """What is not the same for all rows of an operator."""
    return {name: cell for name, cell in row.items() if name not in OF_OPERATORS}


def _operator(findings: "Sequence[Finding]", first: Row, root: "Optional[Root]") -> Row:
    pair = findings[0].pair
    operator = pair.operator
    frames = operator.stack or (pair.golden_op.stack if pair.golden_op else ())
    row = {name: first.get(name) for name in ("order", "op", "op_type", "phase", "golden_op", "stack")}
    row.update(
        alone="" if pair.target_op and pair.golden_op else "target" if pair.target_op else "golden",
        frames="\n".join(frames),
        originals=" ".join(operator.originals) if operator.originals != (operator.name,) else "",
        passes=" ".join(operator.passes),
        inserted=operator.inserted or None,
        path=operator.path,
        arguments="\n".join(_arguments(pair.target_op, pair.golden_op)),
    )
    if row["golden_op"] == row["op"]:
        row["golden_op"] = None
    if root is not None:
        row.update(
            cause=root.cause.value,
            place=root.place,
            root_slot=root.slot,
            evidence=root.evidence,
            input_error=root.input_error,
            output_error=root.output_error,
        )
    return row


def _arguments(target: "Optional[Operator]", golden: "Optional[Operator]") -> "list[str]":
    if target is None or golden is None:
        return []
    return [f"{slot}: {a!r:.60} in the target, {b!r:.60} in the golden"
            for slot, a, b in differing_arguments(target, golden)]  # fmt: skip


class _Links:
    """Which operator of the page wrote what a row reads: by the graph, else by equal content, as roots.py asks."""

    def __init__(self) -> None:
        self._content: Producers[int] = Producers()

    def of(self, finding: Finding) -> Row:
        """The columns `producer` and `linked`; nothing for an output, and where nothing is known."""
        if is_output(finding.pair):
            return {}
        for side, tensor in (("target", finding.pair.target), ("golden", finding.pair.golden)):
            if tensor is not None and tensor.source:
                found = self._content.named((side, escaped(tensor.source)))
                if found is not None:
                    return {"producer": found, "linked": "by the graph"}
        found = self._content.find(fingerprint(finding, of_target=finding.pair.golden is None))
        return {} if found is None else {"producer": found, "linked": "by equal content"}

    def remember(self, findings: "Iterable[Finding]", here: int) -> None:
        """What an operator wrote."""
        for finding in findings:
            if is_output(finding.pair):
                self._content.add(fingerprint(finding, of_target=finding.pair.golden is None), here)
                index = finding.pair.slot.partition(":")[2]
                for side, operator in (("target", finding.pair.target_op), ("golden", finding.pair.golden_op)):
                    if operator is not None:
                        self._content.name((side, escaped(f"{operator.name}:{index}")), here)


def _label(report: Report, comparison: Comparison) -> str:
    """What tells a comparison from the others: its run of a rerun-diff, its step, its rank."""
    words = run_words(comparison.target.step, comparison.target.rank)
    if len(report.runs) > 2:
        path = Path(comparison.target.path)
        words = [f"run {n}" for n, run in enumerate(report.runs, 1) if Path(run) in (path, *path.parents)][:1] + words
    return visible(" · ".join(words))


def run_words(step: "Optional[int]", rank: "Optional[int]") -> "list[str]":
    """ "step 0", "rank 1", as far as a dump tells."""
    return [f"{name} {value}" for name, value in (("step", step), ("rank", rank)) if value is not None]


def of_overflow(report: Overflow) -> "dict[str, Any]":
    """The island of `npucmp overflow`: a row per event."""
    operators: list[Row] = []
    rows: list[Row] = []
    for run, scan in enumerate(report.scans):
        _add_events(run, scan, list(overflow.event_rows(replace(report, scans=(scan,)))), operators, rows)
    columns = [name for name in overflow.COLUMNS if name not in OF_OPERATORS]
    return {
        "command": report.command,
        "kind": "events",
        "runs": [visible(" · ".join(run_words(one.run.step, one.run.rank))) for one in report.scans],
        "lengths": [len(one.run.operators) for one in report.scans],
        "operators": packed(operators),
        "rows": packed(rows),
        "columns": ["run", "order", "op", "op_type", "phase", *columns, "stack"],
        "shown": ["order", "op", "op_type", "slot", "event", "origin", "count", "ratio", "dtype", "min", "max",
                  "headroom_bits", "device_status"],
        "facets": ["run", "event", "origin", "op_type", "phase"],
    }  # fmt: skip


def _add_events(run: int, scan: Scan, cells: list[Row], operators: list[Row], rows: list[Row]) -> None:
    roots = {root.pair.order: root for root in scan.roots}
    together = sorted(zip(scan.events, cells), key=lambda one: (one[0].operator is None, one[0].order))
    known: dict[int, int] = {}
    groups = [list(group) for _, group in groupby(together, key=lambda one: (one[0].operator is None, one[0].order))]
    for number, some in enumerate(groups, len(operators)):
        if some[0][0].operator is not None:
            known[some[0][0].order] = number
    for some in groups:
        operators.append({"run": run, "rows": len(some), **_scanned(some, roots.get(some[0][0].order), known)})
        rows += [{**_own(row), "alarm": event.alarm, "output": _is_written(event)} for event, row in some]


def _is_written(event: Event) -> bool:
    return event.tensor is None or event.tensor.is_output


def _scanned(some: "Sequence[tuple[Event, Row]]", root: "Optional[Root]", known: "Mapping[int, int]") -> Row:
    event, first = some[0]
    row = {name: first.get(name) for name in ("order", "op", "op_type", "phase", "stack")}
    if event.operator is None:
        return {**row, "op": "operator that was not dumped", "order": None}
    parents = {known[order] for one, _ in some for order in one.parents if order in known and order != event.order}
    row.update(frames="\n".join(event.operator.stack), parents=" ".join(map(str, sorted(parents))))
    if root is not None:
        row.update(cause=root.cause.value, place=root.place, root_slot=root.slot, evidence=root.evidence)
    return row


def packed(rows: "Sequence[Row]") -> "dict[str, Any]":
    """Rows as columns, and how many there are."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    return {"length": len(rows), "columns": {name: column for name, column in columns.items() if column is not None}}


def _column(cells: "Sequence[Any]") -> "Optional[dict[str, Any]]":
    """One column in the form that is smallest; None where no row has a value."""
    kinds = {*map(type, cells)}
    plain = [None if cell is None else _plain(cell) for cell in cells]
    different = {cell: place for place, cell in enumerate(dict.fromkeys(plain))}
    number = {"number": True} if kinds & {int, float} else {}
    if len(different) <= 1:
        return {"all": plain[0], **number} if plain and plain[0] is not None else None
    if len(different) <= FEW * len(plain):
        return {"words": [*different], "codes": [different[cell] for cell in plain], **number}
    return {"values": plain, **number}


def _plain(cell: Any) -> Any:
    """A cell as JSON can hold it: text that cannot deceive, floats of four digits; an empty text is no value."""
    if isinstance(cell, str):
        return visible(cell) or None
    if isinstance(cell, int):  # truth values too
        return cell if abs(cell) < EXACT else float(cell)
    if math.isfinite(cell):
        short = float(SHORT % cell)
        return int(short) if short.is_integer() and abs(short) < 1e6 else short
    return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
