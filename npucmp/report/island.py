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
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from npucmp.dump.graphs.graph import escaped
from npucmp.localise.nodes import differing_arguments, is_output
from npucmp.localise.producers import Producers, fingerprint
from npucmp.model import Comparison, Event, Finding, Moments, Operator, Overflow, Pair, Report, Root, Scan, sentences
from npucmp.report import overflow, tables
from npucmp.report.sanitise import visible

EXACT = 1 << 53  # up to which a browser holds integers exactly
OF_OPERATORS = {"step", "rank", "order", "op", "op_type", "phase", "target_op", "golden_op", "stack"}
FEW = 0.5  # share of different values up to which they are numbered
OPERATOR = ("order", "op", "op_type", "phase", "golden_op", "stack")
Row = dict[str, Any]
Columns = tables.Columns


class Place(NamedTuple):
    """An operator of the page: its comparison and its place in the order there."""

    run: int
    order: int


def of_report(report: Report, extra: "Sequence[str]" = ()) -> "dict[str, Any]":
    """The island of compare, fusion-diff and rerun-diff. `extra` are metrics to show besides those of tensors.csv."""
    operators: list[Row] = []
    rows: list[Columns] = []
    for run, comparison in enumerate(report.comparisons):
        rows.append(_add(run, comparison, tables.columns_of(comparison, extra), operators))
    columns = [name for name in (*tables.TENSOR_COLUMNS, *extra) if name not in OF_OPERATORS]
    return {
        "command": report.command,
        "kind": "pairs",
        "runs": [_label(report, one) for one in report.comparisons],
        "rules": [{"dtype": row.dtype, "limit": _plain(row.limit)} for row in report.rules],
        "operators": packed(by_column(operators)),
        "rows": packed({name: [*chain.from_iterable(one[name] for one in rows)] for name in rows[0]}),
        "columns": ["run", "order", "op", "op_type", "phase", "cause", *columns, "stack"],
        "shown": ["order", "op", "op_type", "slot", "verdict", "cause",
                  *(("exact_ratio", "max_ulp", "max_abs_err", "rel_l2") if report.command == "rerun-diff" else
                    ("rel_l2", "cosine", "max_abs_err", "max_ulp")),
                  "target_dtype", "golden_dtype", "target_shape"],
        "facets": ["run", "verdict", "cause", "op_type", "phase"],
    }  # fmt: skip


def _add(run: int, comparison: Comparison, cells: Columns, operators: list[Row]) -> Columns:
    """The rows of one comparison, operator by operator, with who reads whom; its operators go to those before."""
    findings = comparison.findings
    sequence = sorted(range(len(findings)), key=lambda row: findings[row].pair.order)
    roots = {root.pair.order: root for root in comparison.roots}
    links = _Links()
    linked: list[tuple[Optional[int], Optional[str]]] = []
    for order, group in groupby(sequence, key=lambda row: findings[row].pair.order):
        some = [*group]
        own = [findings[row] for row in some]
        linked += map(links.of, own)
        links.remember(own, len(operators))
        first = {name: cells[name][some[0]] for name in OPERATOR}
        operators.append({"run": run, "rows": len(some), **_operator(own, first, roots.get(order))})
    ordered = [findings[row] for row in sequence]
    errors = [finding.error for finding in ordered]
    rows = {name: [column[row] for row in sequence] for name, column in cells.items() if name not in OF_OPERATORS}
    rows["error"] = [None if error == told else error for error, told in zip(errors, rows["rel_l2"])]
    rows["limit"] = [finding.limit or None for finding in ordered]
    rows["metric"] = [finding.metric for finding in ordered]
    rows["output"] = [is_output(finding.pair) for finding in ordered]
    rows["argument"] = [_is_argument(finding.pair) or None for finding in ordered]
    rows["histogram"] = [_histogram(finding.measurement.moments) for finding in ordered]
    rows["producer"], rows["linked"] = map(list, zip(*linked)) if linked else ([], [])
    return rows


def _is_argument(pair: Pair) -> bool:
    """Whether a tensor holds an argument, which roots.py takes for none that an error comes in by."""
    sides = pair.target_op, pair.golden_op
    return all(operator is not None and pair.slot in operator.arguments for operator in sides)


def _histogram(moments: "Optional[Moments]") -> str:
    """ "first:count,count,…" from the first bin that holds something to the last, counts to three digits."""
    if moments is None or not moments.max_abs or not any(moments.histogram):
        return ""
    counts = moments.histogram
    text = ",".join(["" if not one else str(one if one < 1000 else int(float(f"{one:.3g}"))) for one in counts])
    return f"{len(text) - len(text.lstrip(','))}:{text.strip(',')}"


def _own(row: Row) -> Row:
    """What is not the same for all rows of an operator."""
    return {name: cell for name, cell in row.items() if name not in OF_OPERATORS}


def _operator(findings: "Sequence[Finding]", first: Row, root: "Optional[Root]") -> Row:
    pair = findings[0].pair
    operator = pair.operator
    frames = operator.stack or (pair.golden_op.stack if pair.golden_op else ())
    row = dict(first)
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
            evidence=sentences(root.evidence),
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

    def of(self, finding: Finding) -> "tuple[Optional[int], Optional[str]]":
        """(the operator, how it is known); nothing for an output, and where nothing is known."""
        if is_output(finding.pair):
            return None, None
        for side, tensor in (("target", finding.pair.target), ("golden", finding.pair.golden)):
            if tensor is not None and tensor.source:
                found = self._content.named((side, escaped(tensor.source)))
                if found is not None:
                    return found, "by the graph"
        found = self._content.find(fingerprint(finding, of_target=finding.pair.golden is None))
        return found, None if found is None else "by equal content"

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
        "operators": packed(by_column(operators)),
        "rows": packed(by_column(rows)),
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
        row.update(cause=root.cause.value, place=root.place, root_slot=root.slot, evidence=sentences(root.evidence))
    return row


def by_column(rows: "Sequence[Row]") -> Columns:
    """Rows as columns."""
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def packed(columns: Columns) -> "dict[str, Any]":
    """Columns in the form that is smallest, and how many rows there are; those without any value are left out."""
    found = {name: _column(cells) for name, cells in columns.items()}
    length = max(map(len, columns.values()), default=0)
    return {"length": length, "columns": {name: column for name, column in found.items() if column is not None}}


def _column(cells: "Sequence[Any]") -> "Optional[dict[str, Any]]":
    """One column in the form that is smallest; None where no row has a value."""
    kinds = {*map(type, cells)}
    plain = _plains(cells, kinds)
    different = dict.fromkeys(plain)
    number = {"number": True} if kinds & {int, float} else {}
    if len(different) <= 1:
        return {"all": plain[0], **number} if plain and plain[0] is not None else None
    if len(different) <= FEW * len(plain):
        places = {cell: place for place, cell in enumerate(different)}
        return {"words": [*different], "codes": [*map(places.__getitem__, plain)], **number}
    return {"values": plain, **number}


def _plains(cells: "Sequence[Any]", kinds: "set[type]") -> "list[Any]":
    """The cells as JSON can hold them: figures all at once, text, of which much repeats, once for each."""
    if kinds == {float} and math.isfinite(sum(cells)):
        return _figures(cells)
    if float in kinds:
        figures = iter(_figures([cell for cell in cells if type(cell) is float and math.isfinite(cell)]))
        return [next(figures) if type(cell) is float and math.isfinite(cell) else _plain(cell) for cell in cells]
    words = {cell: _plain(cell) for cell in {*cells}}
    return [words[cell] for cell in cells]


def _figures(cells: "Sequence[float]") -> "list[float]":
    """Finite numbers in four digits, small integers as such."""
    short = [float(f"{cell:.4g}") for cell in cells]
    return [int(cell) if cell.is_integer() and -1e6 < cell < 1e6 else cell for cell in short]


def _plain(cell: Any) -> Any:
    """A cell as JSON can hold it: text that cannot deceive, floats of four digits; an empty text is no value."""
    if cell is None:
        return None
    if isinstance(cell, str):
        return visible(cell) or None
    if isinstance(cell, int):  # truth values too
        return cell if abs(cell) < EXACT else float(cell)
    if math.isfinite(cell):
        return _figures([cell])[0]
    return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
