"""The findings of a step of a run that is still going: lines of text, or JSON objects, one line each."""

from __future__ import annotations

import json
from typing import Iterator

from npucmp.follow.step_findings import StepFindings
from npucmp.health import report as check
from npucmp.model import Cause, Report
from npucmp.model.check_finding import Symptom
from npucmp.model.comparison import where_of
from npucmp.report.answer import Row
from npucmp.report.json import strict
from npucmp.report.sanitise import visible
from npucmp.report.tables import root_rows
from npucmp.report.verdict_sentence import sentence_of

MOST = 20  # operators of one step that lines name
EVENT = "event"  # the key that says what a JSON line is: finding, step or end


def text_lines(found: StepFindings, is_verbose: bool = False) -> list[str]:
    """Return a line for each finding; for a comparison, first the verdict of the step. `is_verbose`: also a line for a
    step without a finding."""
    step = "" if found.step is None else f"step {found.step}  "
    lines = [f"{step}{words}" for words in _words(found)] or [f"{step}no new finding"] * is_verbose
    return [visible(f"{line} (read again)" if found.again else line) for line in lines]


def json_lines(found: StepFindings) -> list[str]:
    """Return a JSON object for each finding, then one for the step."""
    rows = [*_rows(found)]
    step: Row = {EVENT: "step", "step": found.step, "findings": len(rows), "again": found.again, "until": found.met}
    if found.report is not None:
        step.update(verdict=found.report.verdict, sentence=sentence_of(found.report, found.report.tally))
    return [json.dumps(strict(row), ensure_ascii=True) for row in (*rows, step)]


def json_end(summary: str) -> str:
    """Return summary.json as the last line."""
    return json.dumps({EVENT: "end", **json.loads(summary)}, ensure_ascii=True) + "\n"


def _words(found: StepFindings) -> Iterator[str]:
    for one in found.symptoms:
        yield "  ".join(filter(None, (f"{one.severity.upper():7}", one.rule, _rank(one.rank), check.one_line(one))))
    if found.report is not None:
        yield f"{found.report.verdict}: {sentence_of(found.report, found.report.tally)}"
        rows = _root_rows(found.report)
        for row in rows[:MOST]:
            op = f"{row['op']} {row['slot']}".strip()
            yield "  ".join(filter(None, (f"{row['cause']:9}", _rank(row["rank"]), f"{op}: {row['evidence']}")))
        if rows[MOST:]:
            yield f"{len(rows) - MOST} further operators"


def _rank(rank: object) -> str:
    return "" if rank is None else f"rank {rank}"


def _rows(found: StepFindings) -> Iterator[Row]:
    for one in found.symptoms:
        yield {EVENT: "finding", "found_in": found.step, **_symptom_row(one)}
    if found.report is not None:
        for row in _root_rows(found.report):
            yield {EVENT: "finding", "found_in": found.step, **row}


def _symptom_row(one: Symptom) -> Row:
    row = check.symptom_row(one)
    return {name: value for name, value in row.items() if name not in ("place", "follows")}


def _root_rows(report: Report) -> list[Row]:
    """Return the rows of roots.csv without operators that only propagate an error."""
    places = where_of(report.comparisons)
    found = [([root for root in one.roots if root.cause is not Cause.PROPAGATED], *place)
             for one, place in zip(report.comparisons, places)]  # fmt: skip
    return root_rows(found)
