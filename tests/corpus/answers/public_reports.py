"""The cases of public reports: reports/CASE/NUMBER is the answer to a command of the case."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Mapping

from tests.command import npucmp
from tests.corpus.answers.record import Answer, of_report
from tests.corpus.reports.case import CASES, REPORTS

ERROR = 2  # exit status


def said(name: str, folder: Path, report: Path, words: Mapping[str, str]) -> Answer:
    """Return what is kept of the answer to a command of a case, which is unpacked into a folder."""
    _, case, number = name.split("/")
    with tarfile.open(CASES / f"{case}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    asked = json.loads((folder / "case.json").read_text("utf-8"))["runs"][int(number)]["do"]
    if asked[0] in REPORTS and "-o" not in asked:
        asked = [*asked, "-o", str(report), "--no-progress"]
    answer = npucmp(*asked, cwd=folder)
    if report.joinpath("summary.json").exists():
        return of_report(report, answer.returncode, words)
    return {"exit": answer.returncode, "lines": [*map(_stripped, (answer.stdout + answer.stderr).splitlines())]}


def _stripped(line: str) -> str:
    return line.rstrip()
