"""Grades of a case: what `npucmp.compare(target, golden, truth=...)` says of it.

silent    a clean pair that is no worse        accused   a clean pair that is called worse
found     the faulty operator is the first     other     another operator is the first
missed    no worse                             end       worse, without an operator
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import npucmp
from tests.corpus.three_runs.cases import CLEAR, Case

FAINT = 1.1  # measured ratio below which a fault is hidden by the golden's own rounding


class Grade(NamedTuple):
    """The word of a case, and the sentence of the report."""

    word: str
    said: str


def graded(one: Case, place: Path, truth: str = "", recompute: str = "auto") -> Grade:
    """Return the grade; `truth`: "recompute" instead of the third run."""
    report = npucmp.compare(
        place / "target", place / "golden", truth=truth or place / "truth", recompute=recompute, precheck=False
    )
    found = report.three_runs
    assert found is not None
    first = found.rows[found.worse[0]].op if found.worse else ""
    said = f"{found.verdict}: {found.because}"
    if found.is_worse != (report.exit_status == 1) and (found.is_worse or not report.roots):
        return Grade("status", f"exit status {report.exit_status}: {said}")
    if one.kind == "clean":
        return Grade("accused" if found.is_worse else "silent", said)
    strength = "clear" if one.strength >= CLEAR else "faint" if one.strength >= FAINT else "hidden"
    word = "missed" if not found.is_worse else "end" if not first else "found" if first == one.truth else "other"
    return Grade(f"{strength} {word}", said)
