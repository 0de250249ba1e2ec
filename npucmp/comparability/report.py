"""The Answer of `npucmp precheck`: items that differ with their remedies, then items that are the same or unknown.

precheck.csv has a row per item, inputs.csv one per network input.
"""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Sequence

from npucmp.model import Evidence, Fact, Run
from npucmp.model.item_result import ItemResult, Status
from npucmp.model.precheck_result import SEVERITIES, CurvePair, InputRow, Precheck
from npucmp.report import tables
from npucmp.report.answer import Answer, Detail, DumpSummary, Line, Listing, Plot, Row, Section, Suspect, Suspects
from npucmp.report.next_commands import of_precheck
from npucmp.report.phrases import count_of, describe, of_runs, problem_of

COLUMNS = tuple("row status severity target golden count first value limit because remedy".split(" "))
INPUTS = tuple("step rank op slot role target_shape golden_shape target_dtype golden_dtype relation a b residual "
               "because".split(" "))  # fmt: skip
CURVES = tuple("step_from step_to target golden relative error parts curve".split(" "))
TONES = {"error": "bad", "warning": "open", "note": "title"}
MEANING = {
    "same": "equal in both runs",
    "close": "equal within round-off or 1 %",
    "DIFFERS": "different: after an error, do not compare tensors; a warning needs an explanation",
    "unknown": "not recorded; the row names the missing data",
    "n/a": "not applicable: no data to compare",
}
WIDE = 18  # columns for the name of an item


def answer(report: Precheck, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of a precheck; metrics are ignored."""
    word, sentence = _verdict(report)
    differing = sorted((row for row in report.rows if row.status is Status.DIFFERS),
                       key=lambda row: SEVERITIES.index(row.severity))  # fmt: skip
    unreadable = [f"{side}: {problem_of(run)}" for side, run in report.broken]
    return Answer(
        result=report,
        word=word,
        sentence=sentence,
        sections=[_section(report, differing)],
        suspects=Suspects.of([_suspect(place, row) for place, row in enumerate(differing, 1)]),
        places="precheck.csv",
        title="Differences" if differing else "",
        compared="Compared runs",
        aligned=", ".join(f"{count} {status.value}" for status, count in report.statuses.items()),
        nothing=[] if differing else ["No row differs."],
        counts={status.value: count for status, count in report.statuses.items()},
        notes=[Listing("note", report.notes, "summary.json")],
        unreadable=Listing("unreadable", unreadable, "summary.json"),
        undecided=[*unreadable, *(f"{row.row}: {row.because}" for row in _of(report, Status.UNKNOWN))],
        tables=[
            tables.table("precheck.csv", COLUMNS, lambda: map(_row, report.rows)),
            tables.table("inputs.csv", INPUTS, lambda: map(_input_row, report.inputs)),
            tables.table(
                "curves.csv",
                CURVES,
                lambda: (dict(zip(CURVES, (*window, one.name))) for one in report.curves for window in one.windows),
            ),
        ],
        plots=[*map(_plot, report.curves)],
        detail=lambda: _detail(report),
        commands=of_precheck,
        facts=lambda: _facts(report, differing),
        meaning=MEANING,
        alike={"cause": "status"},
    )


def _suspect(place: int, row: ItemResult) -> Suspect:
    """Return an item that differs as a suspect, for a page."""
    words = {"because": row.because, "remedy": row.remedy}
    evidence = tuple(Evidence(kind, "{words}", {"words": Fact(text)}) for kind, text in words.items() if text)
    tone = "hint" if row.severity == "note" else row.severity
    return Suspect(place, tone, row.row, "", "", evidence, row.severity)


def _section(report: Precheck, differing: Sequence[ItemResult]) -> Section:
    sides = [
        DumpSummary(name, path, _runs(runs))
        for name, path, runs in zip(("target", "golden"), report.paths, (report.targets, report.goldens))
    ]
    return Section(where="", sides=sides, lines=[*_lines(report, differing)])


def _runs(runs: Sequence[Run]) -> str:
    """Describe all runs of a side in one line: the first run, and the numbers of steps and ranks."""
    if not runs:
        return "no dump"
    numbers = [len({getattr(run, name) for run in runs}) for name in ("step", "rank")]
    more = [count_of(many, name) for many, name in zip(numbers, ("step", "rank")) if many > 1]
    return " · ".join([describe(runs[0]), *([f"{' and '.join(more)} in all"] if more else [])])


def _lines(report: Precheck, differing: Sequence[ItemResult]) -> Iterator[Line]:
    """Yield the items that differ with their remedies, then a line per family for items that are the same, then unknown
    items."""
    for row in differing:
        yield _line(row.status, row.row, row.because, TONES[row.severity])
        if row.remedy:
            yield Line("", "title", f"{' ' * (WIDE + 14)}{row.remedy}")
    for row in _of(report, Status.CLOSE):
        yield _line(row.status, row.row, row.because, "good")
    for family, members in _families(_of(report, Status.SAME)):
        yield _line(Status.SAME, family, ", ".join(dict.fromkeys(row.because for row in members)), "good")
    for status in (Status.NOT_APPLICABLE, Status.UNKNOWN):
        for because, rows in _by_reason(_of(report, status)).items():
            yield _line(status, ", ".join(row.row for row in rows), because, "title")


def _families(rows: list[ItemResult]) -> list[tuple[str, list[ItemResult]]]:
    """Group rows by the first part of their names."""
    found: dict[str, list[ItemResult]] = {}
    for row in rows:
        found.setdefault(row.row.partition(".")[0], []).append(row)
    return [(members[0].row if len(members) == 1 else family, members) for family, members in found.items()]


def _by_reason(rows: list[ItemResult]) -> dict[str, list[ItemResult]]:
    found: dict[str, list[ItemResult]] = {}
    for row in rows:
        found.setdefault(row.because, []).append(row)
    return found


def _line(status: Status, name: str, words: str, tone: str) -> Line:
    return Line(f"  {status.value:<8}", tone, f"  {name:<{WIDE}}  {words}")


def _of(report: Precheck, status: Status) -> list[ItemResult]:
    return [row for row in report.rows if row.status is status]


def _verdict(report: Precheck) -> tuple[str, str]:
    found, status = report.statuses, report.exit_status
    forbidding = sum(row.forbids for row in report.rows)
    reserved = len(report.reservations)
    if status == 130:
        return "PARTIAL", f"interrupted after {count_of(len(report.rows), 'row')}"
    if status == 1:
        many = forbidding or reserved
        clear = "it" if many == 1 else "them"
        more = f", {reserved} more need{'s' if reserved == 1 else ''} an explanation" if forbidding and reserved else ""
        differ = f"{count_of(many, 'row')} differ{'s' if many == 1 else ''}"
        return "NOT COMPARABLE", f"{differ}{more}; resolve {clear} before npucmp compare"
    if status == 0:
        words = f"{count_of(found[Status.SAME] + found[Status.CLOSE], 'row')} the same"
        if reserved:
            return "COMPARABLE", f"with reservations: {count_of(reserved, 'row')} to explain, {words}"
        return "COMPARABLE", words
    return "UNDECIDED", "operators, inputs or weights are unknown, and no other row differs"


def _row(row: ItemResult) -> Row:
    return {**row._asdict(), "status": row.status.value, "count": row.places}


def _input_row(row: InputRow) -> Row:
    found = row.relation
    return {
        "step": row.step, "rank": row.rank, "op": row.op, "slot": row.slot, "role": row.role,
        "target_shape": str(list(row.shapes[0])), "golden_shape": str(list(row.shapes[1])),
        "target_dtype": row.dtypes[0], "golden_dtype": row.dtypes[1], "relation": found.kind,
        "a": " ".join(map(repr, found.a)), "b": " ".join(map(repr, found.b)), "residual": found.residual,
        "because": found.words,
    }  # fmt: skip


def _plot(one: CurvePair) -> Plot:
    curves = [(side, curve.steps, curve.values) for side, curve in (("target", one.target), ("golden", one.golden))]
    parting = [window[:2] for window in one.windows if window[-1]]
    return Plot(f"Curves of {one.name}", "windows in which they part" if parting else one.words, curves, parting)


def _detail(report: Precheck) -> Detail:
    """Return a row per item; `op` is its name, by which the page filters."""
    rows = [{**_row(row), "verdict": row.status.value, "slot": "row"} for row in report.rows]
    operators = [{"run": 0, "op": row.row, "rows": 1} for row in report.rows]  # without `order`, so no chart is drawn
    columns = ["op", "verdict", *COLUMNS[2:]]
    return Detail(
        kind="pairs",
        title="All rows",
        chart="",
        runs=["both runs"],
        operators=tables.by_column(operators),
        rows=tables.by_column(rows),
        columns=columns,
        shown=["op", "verdict", "severity", "because", "target", "golden", "remedy"],
        facets=["verdict", "severity"],
    )


def _facts(report: Precheck, differing: Sequence[ItemResult]) -> Row:
    """Return the values of a precheck for summary.json."""
    return {
        "target": of_runs(report.paths[0], report.targets, "format", "detail", "step", "rank"),
        "golden": of_runs(report.paths[1], report.goldens, "format", "detail", "step", "rank"),
        "verdict": _verdict(report)[0].lower(),
        "statuses": dict(Counter(row.status.value for row in report.rows)),
        "differs": [_row(row) for row in differing],
        "unknown": {row.row: row.because for row in _of(report, Status.UNKNOWN)},
        "inputs": [_input_row(row) for row in report.inputs[: tables.SUMMARISED]],
        "notes": [*report.notes],
        "roots": [],
    }
