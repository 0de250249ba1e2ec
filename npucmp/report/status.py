"""The exit status that a report stands for: 0 agrees, 1 differs, 2 could not decide, 130 interrupted."""

from __future__ import annotations

from npucmp.model import DIFFERS, Overflow, Report, Verdict

DECIDED = DIFFERS | {Verdict.MATCH}


def exit_status(report: Report) -> int:
    """1 before 2 before 0: a found difference is an answer even when some tensor could not be read."""
    if report.partial:
        return 130
    verdicts = {finding.verdict for finding in report.findings}
    if verdicts & DIFFERS or (report.strict and (Verdict.MISSING in verdicts or report.unpaired)):
        return 1
    if report.broken or Verdict.UNREADABLE in verdicts or not verdicts & DECIDED:
        return 2
    return 0


def overflow_status(report: Overflow) -> int:
    """The same of a search for overflows: 1 for any event that is no mask and no memory that nobody wrote."""
    if report.partial:
        return 130
    if any(event.alarm for event in report.events):
        return 1
    unreadable = report.broken or any(scan.unreadable for scan in report.scans)
    return 2 if unreadable or not any(scan.tensors or scan.run.records for scan in report.scans) else 0
