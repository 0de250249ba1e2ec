"""The exit status that a report stands for: 0 agrees, 1 differs, 2 could not decide, 130 interrupted."""

from __future__ import annotations

from npucmp.model import Report, Verdict

DIFFERS = {Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SHAPE}
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
