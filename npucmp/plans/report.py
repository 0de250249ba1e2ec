"""Text and files of `npucmp plan`, and text of `npucmp show --fit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator, Sequence

from npucmp.errors import DumpError, UsageError
from npucmp.model import Run
from npucmp.plans.plan_result import Planned, Size
from npucmp.plans.request import DETECTION, MD5, QUESTIONS, STATISTICS, VALUES
from npucmp.plans.sufficiency import MissingData
from npucmp.plans.tool_configs import format_ranges
from npucmp.report import files
from npucmp.report.phrases import count_of, in_bytes, where_words
from npucmp.report.sanitise import visible

MARKER = "  # npucmp"
NOTES = "plan.txt"  # the same text beside the files
_KINDS = {
    VALUES: "values",
    STATISTICS: "statistics",
    MD5: "checksums",
    DETECTION: "overflow records of the device",
}


def write(found: Planned, force: bool = False) -> list[Path]:
    """Write all files of a plan or none. Raises UsageError if a file exists and must not be overwritten."""
    folder, contents = Path(found.folder), {**found.files, NOTES: text(found)}
    for name in () if force else contents:
        if os.path.lexists(folder / name):
            raise UsageError(f"{folder / name}: exists already; use another -o DIR, or --force to overwrite it")
    try:
        files.write(folder, {name: data.encode() for name, data in contents.items()}, is_report=False)
    except OSError as error:
        raise DumpError(folder, f"the plan was not written: {error.strerror or error}") from None
    return [folder / name for name in contents]


def text(found: Planned) -> str:
    """Return the text of a plan: lines to add, commands to run, and the command for the new dump."""
    return "\n".join(map(visible, _lines(found))) + "\n"


def _lines(found: Planned) -> Iterator[str]:
    request = found.request
    every = "all parameters" if request.question.name == "weights" else "all operators"
    what = f"{_KINDS[request.kind]} of {count_of(len(request.names), 'name') if request.names else every}"
    steps, ranks = (
        f"{word}{'s' * (len(ranges) > 1 or ranges[0][0] < ranges[0][1])} {format_ranges(ranges).replace('|', ', ')}"
        if ranges
        else f"all {word}s"
        for word, ranges in (("step", request.steps), ("rank", request.ranks))
    )
    yield f"{request.question.name} · {found.framework} · {request.side}: {what}, {steps}, {ranks}"
    yield from (f"size: {words}" for words in _size(found.size))
    yield from (f"warning: {words}" for words in found.warnings)
    number = 1
    if found.script:
        yield f"\n{number}. Add to the script:".lstrip("\n")
        number += 1
        for line in found.script:
            yield f"     {line.code}{MARKER}{': ' + line.where if line.where else ''}"
    yield f"{number}. Run:"
    yield from (f"     {command}" for command in found.run)
    if found.other:
        yield f"{number + 1}. For the other side:"
        yield f"     {found.other}"
        number += 1
    yield f"{number + 1}. Then:"
    yield from (f"     {command}" for command in found.then)
    yield from (f"note: {words}" for words in found.notes)
    yield from (f"UNVERIFIED: {words}" for words in found.unverified)


def _size(size: Size | None) -> Iterator[str]:
    if size is not None:
        share = f", {size.operators:,} of {size.known:,} operators" if size.operators < size.known else ""
        parts = f"{count_of(size.steps, 'step')} × {count_of(size.ranks, 'rank')}"
        yield f"{in_bytes(size.each)} per step and rank, {in_bytes(size.total)} for {parts}{share}"


_SECOND = {
    "golden": ", compared with a golden dump (npucmp plan --side golden)",
    "run": ", compared with a second run (execute run.sh again)",
}


def missing_data_lines(run: Run, question: str, found: Sequence[MissingData]) -> str:
    """List what a dump lacks, line by line; if it lacks nothing, name the dump that it is compared with."""
    where = " ".join(where_words(run))
    head = f"{run.path}{f' ({where})' if where else ''}"
    if not found:
        return visible(f"{head}: suffices for {question}{_SECOND.get(QUESTIONS[question].second, '')}") + "\n"
    lines = [f"{head}: {count_of(len(found), 'item')} missing for {question}"]
    return "\n".join(map(visible, [*lines, *(f"  {one.words}" for one in found)])) + "\n"
