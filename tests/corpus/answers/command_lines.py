"""Command lines and what they print and write: commands/LINE of the samples, reports/CASE/NUMBER of a public report."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Iterator, Mapping

from tests.command import npucmp
from tests.corpus.answers.record import Answer, checksum, of_report, portable
from tests.corpus.reports.case import CASES, words_of, wrong_parts

FILES = Path(__file__).parent / "files"  # mappings, limits and settings for command lines
GIVEN = {"sample_dumps", "files"}  # links in the folder in which a line runs
LINES = 160  # printed lines that are kept as they are; of those behind them, a checksum is kept
HERE = "NPUCMP_ANSWERS_HERE"  # set: the commands run in this process, whose branches draw.py measures
SCRIPTS = re.compile(r"<(script|style)\b.*?</\1>", re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(\+\d\d:?\d\d|Z)?")
SECONDS = re.compile(r'\b\d+(\.\d+)? (ms|s|min)\b|(?<=seconds": )[\d.e+-]+|(?<=time=")[\d.e+-]+')
MACHINE = re.compile(r"Python [\w.+]+ · numpy [\w.+]+ · \w+ \w+")
TEXT = {".csv", ".json", ".jsonl", ".html", ".md", ".xml", ".txt", ".sarif", ".py", ".sh", ".yaml", ".toml", ".ipynb"}


def printed(name: str, folder: Path, samples: Path, words: Mapping[str, str]) -> Answer:
    """Return the exit status of a command line, what it prints, and the texts that it writes into a folder."""
    folder.joinpath("sample_dumps").symlink_to(samples)
    folder.joinpath("files").symlink_to(FILES)
    line = name.partition("/")[2]
    steps = [step.split() for step in line.split(" && ")]
    answer: Answer = {}
    for step in steps:
        done = _run(step, folder)
        answer = {"exit": done.returncode, "lines": [*_kept_lines(done.stdout + done.stderr, words)]}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not GIVEN & {*path.parts})
    answer["files"] = {str(path.relative_to(folder)): _kept_file(path, words) for path in files}
    return answer


def said(name: str, folder: Path, report: Path, words: Mapping[str, str]) -> Answer:
    """Return what is kept of the answer to a command of a case, which is unpacked into a folder, and what the case says
    is wrong in it."""
    _, case, number = name.split("/")
    with tarfile.open(CASES / f"{case}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    run = json.loads((folder / "case.json").read_text("utf-8"))["runs"][int(number)]
    done = _run(words_of(run, report), folder)
    if report.joinpath("summary.json").exists():
        answer = of_report(report, done.returncode, words)
    else:
        answer = {"exit": done.returncode, "lines": [*_kept_lines(done.stdout + done.stderr, words)]}
    wrong = wrong_parts(run, done, report)
    return {**answer, "wrong": wrong} if wrong else answer


def _run(words: list[str], folder: Path) -> CompletedProcess[str]:
    return _run_here(words, folder) if HERE in os.environ else npucmp(*words, cwd=folder)


def _run_here(words: list[str], folder: Path) -> CompletedProcess[str]:
    from npucmp import cli

    before, arguments, printed_here = os.getcwd(), sys.argv, io.StringIO()
    os.chdir(folder)
    sys.argv = ["npucmp", *words]
    status = 0
    try:
        with redirect_stdout(printed_here), redirect_stderr(printed_here):
            cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os.chdir(before)
        sys.argv = arguments
    return CompletedProcess(words, status, printed_here.getvalue(), "")


def _kept_lines(text: str, words: Mapping[str, str]) -> Iterator[str]:
    lines = [_timeless(portable(line.rstrip(), words)) for line in text.splitlines()]
    yield from lines[:LINES]
    if len(lines) > LINES:
        yield f"and {len(lines) - LINES} more: {checksum(lines[LINES:])}"


def _kept_file(path: Path, words: Mapping[str, str]) -> str:
    if path.suffix not in TEXT:
        return "not a text"
    text = path.read_text("utf-8-sig")
    lines = [_timeless(portable(line.rstrip(), words)) for line in SCRIPTS.sub("", text).splitlines()]
    return f"{len(lines)} lines: {checksum(lines)}"


def _timeless(line: str) -> str:
    return MACHINE.sub("MACHINE", SECONDS.sub("TIME", TIME.sub("TIME", line)))
