"""--baseline REPORT: suspects of an earlier report do not fail a pipeline."""

from __future__ import annotations

from dataclasses import replace

from npucmp.model.saved_report import Difference, Written
from npucmp.report import diff, notebook
from npucmp.report.answer import Answer, Listing, Suspect, Suspects
from npucmp.report.phrases import count_of
from npucmp.report.sanitise import inert
from npucmp.workflows.diff import compare_reports, excused
from npucmp.workflows.report_reader import of_files


def mark_known(answer: Answer, baseline: Written) -> Answer:
    """Return the answer with known suspects marked; the exit status is 1 only for suspects that are not known."""
    result = answer.result
    strict = bool(getattr(result, "strict", False))
    found = compare_reports(baseline, of_files(notebook.files(answer)), strict)
    result = replace(result, known=excused(result, found))
    counts = {kind: len(some) for kind, some in diff.by_kind(found).items()}
    facts = {"path": baseline.path, "excused": result.known, **counts}
    listed = Listing("new", [diff.one_line(one) for one in (found.new or found.worse)], "summary.json")
    return replace(
        answer,
        result=result,
        suspects=_marked(answer.suspects, found),
        notes=[*answer.notes, listed, Listing("baseline", [_words(found, baseline, result.exit_status)], "")],
        facts=lambda: {**answer.facts(), "baseline": facts},
    )


def _words(found: Difference, baseline: Written, status: int) -> str:
    words = [f"{len(found.same)} known", f"{len(found.new)} new"]
    words += [f"{count_of(len(found.worse), 'tensor')} worse"] if found.worse else []
    words += [f"{len(found.gone)} gone"] if found.gone else []
    return f"{', '.join(words)}, compared with {baseline.path}: exit status {status}"


def _marked(suspects: Suspects, found: Difference) -> Suspects:
    """Return the suspects with known ones marked; a suspect of several steps and ranks is known if all of them are."""
    new = {(one.key.op, one.key.slot) for one in (*found.new, *found.worse)}

    def known(one: Suspect) -> Suspect:
        return one._replace(known=(inert(one.op), inert(one.slot)) not in new)

    return Suspects([*map(known, suspects.first)], suspects.passed)
