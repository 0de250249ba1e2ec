"""The Answer of `npucmp merge`: the joined reports."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Iterator, Mapping, Optional, Sequence

from npucmp.model import Cause, Evidence, Fact, Verdict, VerdictTally
from npucmp.model.saved_report import MergedReport, SourceReport
from npucmp.report import compare, matrix, tables
from npucmp.report.answer import (
    Answer,
    Detail,
    DumpSummary,
    Listing,
    Piece,
    ReportTable,
    Row,
    Section,
    Suspect,
    Suspects,
)
from npucmp.report.next_commands import of_report
from npucmp.report.overview import make_overview
from npucmp.report.phrases import count_of
from npucmp.report.rank_cell import HERE, PASSED, UNKNOWN, Cell, FirstOperator
from npucmp.report.rank_summary import SIDES, word_of
from npucmp.report.verdict_sentence import found_words

MOST_ROOTS = 50  # root causes that a page and a screen may show; roots.csv has all


def answer(report: MergedReport, metrics: Sequence[str] = ()) -> Answer:
    """Return the Answer of several reports; metrics are ignored."""
    tally = _tally(report)
    suspects = Suspects.of([_suspect(row) for row in _first_of(report)])
    status = report.exit_status
    places = {_key(row, "op", "slot"): int(row["place"]) for row in report.ranked}
    cells = _merge_cells([cell for one in report.sources for cell in _cells(one, places, report.ranked)])
    overview, overview_facts = make_overview(cells)
    aligned = _alignment_sums(report)
    shown = Counter(row["cause"] == Cause.PROPAGATED.value for row in _first_of(report))
    causes = Counter(row["cause"] == Cause.PROPAGATED.value for row in report.ranked)
    unlisted = (causes[False] - shown[False], causes[True] - shown[True])
    if not suspects.first or suspects.first[0].cause == Cause.PROPAGATED.value:
        unlisted = (sum(unlisted), 0)
    passed = f"{count_of(causes[True], 'operator')} downstream"
    section = Section(
        "",
        [DumpSummary("report", one.path, _words(one)) for one in report.sources],
        title="Differences" if suspects.first else "",
        suspects=suspects,
        unlisted=unlisted,
        passed_words=passed,
    )
    return Answer(
        result=report,
        word=word_of(status, tally),
        sentence=_sentence(report, tally, status),
        sections=[section],
        suspects=suspects,
        places="roots.csv",
        title=section.title,
        compared="Merged reports",
        aligned=f"{count_of(int(aligned['operators']), 'operator')} were aligned",
        passed_words=passed,
        counts={verdict.value: count for verdict, count in tally.verdicts.items() if count},
        notes=[Listing("note", report.notes, "summary.json")],
        unreadable=Listing("unreadable", [], "tensors.csv", tally.verdicts[Verdict.UNREADABLE]),
        unlisted=unlisted[0],
        tables=[
            ReportTable("tensors.csv", report.columns, dict, partial(_rows, report)),
            tables.table("roots.csv", tables.ROOT_COLUMNS, lambda: map(_parse_row, report.ranked)),
            matrix.table(cells),
        ],
        matrix=overview,
        detail=lambda: _nothing(report),
        commands=of_report,
        facts=lambda: {**_facts(report, tally, aligned), **overview_facts},
        nothing=[] if suspects.first else [_sentence(report, tally, status)],
        left_out=[*_uncompared_runs(report)],
        meaning=compare.MEANING,
        advice=compare.NEXT,
    )


def _rows(report: MergedReport) -> Iterator[Piece]:
    return iter(report.rows)


def _parse_row(row: Mapping[str, str]) -> Row:
    """Return a row with its numbers parsed; they are written with the same digits."""
    whole, real = ("place", "step", "rank", "order"), ("value", "limit", "input_error", "output_error", "growth")
    found: Row = {name: cell or None for name, cell in row.items()}
    found.update({name: int(found[name]) for name in whole if found.get(name)})
    return {**found, **{name: float(found[name]) for name in real if found.get(name)}}


def _first_of(report: MergedReport) -> list[Mapping[str, str]]:
    bearing = [row for row in report.ranked if row["cause"] != Cause.PROPAGATED.value]
    passing = [row for row in report.ranked if row["cause"] == Cause.PROPAGATED.value]
    return [*bearing[:MOST_ROOTS], *passing[:MOST_ROOTS]]


def _suspect(row: Mapping[str, str]) -> Suspect:
    where = " · ".join(f"{name} {row[name]}" for name in ("step", "rank") if row.get(name))
    evidence = Evidence("", "{words}", {"words": Fact(row.get("evidence", ""))})
    known = int(row["place"]), row["cause"], row.get("op", ""), row.get("op_type", ""), row.get("slot", "")
    return Suspect(*known, (evidence,), row["cause"], where=where, line=row.get("stack", ""), page=None)


def _tally(report: MergedReport) -> VerdictTally:
    verdicts: Counter[Verdict] = Counter()
    causes: Counter[Cause] = Counter()
    for one in report.sources:
        verdicts.update({verdict: int(one.summary["verdicts"].get(verdict.value, 0)) for verdict in Verdict})
        causes.update({cause: int(one.summary["causes"].get(cause.value, 0)) for cause in Cause})
    first = (1, Cause(report.ranked[0]["cause"])) if report.ranked else None
    return VerdictTally(+verdicts, +causes, first=first)


def _sentence(report: MergedReport, tally: VerdictTally, status: int) -> str:
    count = count_of(len(report.sources), "report")
    if status == 1:
        return f"{found_words(tally, len(_runs_alone(report)))}; merged from {count}"
    if status == 0:
        return f"{count_of(tally.verdicts[Verdict.MATCH], 'tensor')} compared in {count}, none diverged"
    undecided = sum(one.status == 2 for one in report.sources)
    return f"{undecided} of {count} undecided, the others agree"


def _words(one: SourceReport) -> str:
    """ "AGREES · 8 steps and ranks"."""
    word = {0: "agrees", 1: "differs"}.get(one.status, "undecided")
    return f"{word} · {len(one.step_ranks):,} {'step and rank' if len(one.step_ranks) == 1 else 'steps and ranks'}"


def _uncompared_runs(report: MergedReport) -> Iterator[str]:
    """Yield the runs that no report could compare."""
    for one in report.sources:
        for lost in one.summary["broken"]:
            yield f"unreadable {lost.get('side')}: {lost.get('because')}"
    for lost in _runs_alone(report):
        yield f"only in {lost.get('side')}: {lost.get('path')}"


def _runs_alone(report: MergedReport) -> list[Mapping[str, Any]]:
    """Return the runs that have a partner in no report, each once."""
    compared = {numbers for one in report.sources for numbers in one.step_ranks}
    every = [lost for one in report.sources for lost in one.summary["unpaired"]]
    left = [lost for lost in every if (lost.get("step"), lost.get("rank")) not in compared]
    return [*{(lost.get("side"), lost.get("path")): lost for lost in left}.values()]


def _key(row: Mapping[str, str], op: str, slot: str) -> tuple[str, ...]:
    """Return the tensor that these columns of a row name, with its step and rank."""
    return tuple(row.get(name, "") for name in ("step", "rank", op, slot))


def _cells(one: SourceReport, places: Mapping[tuple[str, ...], int], ranked: Sequence[Mapping[str, str]]) -> list[Cell]:
    """Return the cells of a report from its matrix.csv, with their places in the merged ranking. A report of a single
    step and rank has no matrix.csv; its cell is made from its summary."""
    if one.matrix:
        return [_cell(row, places.get(_key(row, "first_op", "first_slot"), len(places) + 1)) for row in one.matrix]
    summary, where = one.summary, one.step_ranks[0] if one.step_ranks else (None, None)
    target, golden = (str(summary.get(side, {}).get("path", "")) for side in SIDES)
    counts = tuple((name, int(count)) for name, count in summary["verdicts"].items())
    numbers = ["" if number is None else str(number) for number in where]
    roots = [row for row in ranked if [row.get("step"), row.get("rank")] == numbers]
    cell = Cell(*where, target, golden, _word(one.status, roots), counts=counts)
    if roots:
        first = min(roots, key=lambda row: (row["cause"] == Cause.PROPAGATED.value, int(row["place"])))
        row = _parse_row(first)
        known = row["place"], row.get("op", ""), row.get("slot", ""), row["order"], row["cause"], row.get("value")
        cell = cell._replace(first=FirstOperator(*known), origin=_origin(roots, first))
    return [cell, *map(_alone, summary["unpaired"])]


def _alone(run: Mapping[str, Any]) -> Cell:
    """Return the cell of a run without a partner, from a summary."""
    target, golden = (str(run["path"]) if run["side"] == side else "" for side in SIDES)
    return Cell(run.get("step"), run.get("rank"), target, golden, "ALONE", because=f"only in {run['side']}")


def _word(status: int, roots: Sequence[Mapping[str, str]]) -> str:
    suspected = bool(roots) and roots[0]["cause"] == Cause.SUSPECT.value
    return {0: "AGREES", 1: "SUSPECTED" if suspected else "DIVERGED"}.get(status, "UNDECIDED")


def _origin(roots: Sequence[Mapping[str, str]], first: Mapping[str, str]) -> str:
    """Return the origin of an error, as far as roots.csv has it."""
    bears = any(row["cause"] not in (Cause.PROPAGATED.value, Cause.UNKNOWN.value) for row in roots)
    return HERE if bears else UNKNOWN if first["cause"] == Cause.UNKNOWN.value else PASSED


def _merge_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Sort the cells. A run that has a partner in no report becomes one cell, and none if another report compared
    it."""
    compared = [one for one in cells if one.verdict != "ALONE"]
    known = {one.key for one in compared}
    alone = {one.key: one for one in cells if one.key not in known}
    return sorted([*compared, *alone.values()], key=lambda one: one.key)


def _cell(row: Mapping[str, str], place: int) -> Cell:
    def number(name: str) -> Optional[int]:
        cell = row.get(name, "")
        return int(cell) if cell.isdecimal() and len(cell) < 19 else None

    def share(name: str) -> Optional[float]:
        try:
            return float(row[name])
        except (KeyError, ValueError):
            return None

    first = None
    if row.get("first_op"):
        cause = row.get("first_cause", "")
        first = FirstOperator(
            place, row["first_op"], row.get("first_slot", ""), number("first_order") or 0, cause, share("value")
        )
    return Cell(
        number("step"),
        number("rank"),
        row.get("target", ""),
        row.get("golden", ""),
        row.get("verdict", ""),
        number("operators") or 0,
        share("compared_ratio") or 0.0,
        tuple((verdict.value, number(verdict.value) or 0) for verdict in Verdict if number(verdict.value)),
        first,
        share("largest"),
        row.get("origin", ""),
        row.get("through", ""),
        number("from_rank"),
        share("seconds"),
        row.get("because", ""),
        number("pipeline_stage"),
        number("tensor_rank"),
    )


def _alignment_sums(report: MergedReport) -> dict[str, float]:
    """Return the sums of aligned operators, and the share of operators that were compared."""
    found: Counter[str] = Counter()
    compared = 0.0
    for one in report.sources:
        aligned = one.summary["aligned"]
        alone = sum(aligned.get(name, 0) for name in ("operators", "only_target", "only_golden"))
        compared += aligned.get("operators_compared", 0.0) * alone
        found.update({name: count for name, count in aligned.items() if not name.endswith("_compared")})
    every = sum(found[name] for name in ("operators", "only_target", "only_golden"))
    return {**found, "operators_compared": compared / max(1, every)}


def _nothing(report: MergedReport) -> Detail:
    """Return empty rows: the page of a merged report has none, the pages of its reports have them."""
    return Detail("pairs", "All tensor pairs", "", [], {}, {}, [], [], [])


def _facts(report: MergedReport, tally: VerdictTally, aligned: Mapping[str, float]) -> Row:
    """Return the values for summary.json."""
    return {
        "reports": [
            {"path": one.path, "exit_status": one.status, "shards": len(one.step_ranks)} for one in report.sources
        ],
        "target": [one.summary.get("target") for one in report.sources],
        "golden": [one.summary.get("golden") for one in report.sources],
        "aligned": dict(aligned),
        "verdicts": {verdict.value: count for verdict, count in tally.verdicts.items()},
        "causes": {cause.value: count for cause, count in tally.causes.items()},
        "roots": [_parse_row(row) for row in report.ranked[: tables.SUMMARISED]],
        "rules": report.sources[0].summary["rules"],
        "notes": list(report.notes),
        "unpaired": _runs_alone(report),
        "lost": [lost for one in report.sources for lost in one.summary["broken"]],
    }
