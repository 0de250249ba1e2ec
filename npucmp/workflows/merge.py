"""Reports of some steps and ranks each, made on several machines, become one of all. No dump is read.

What crosses ranks was settled within each report. Here the rows are put in the order of steps and ranks, and the roots
are ranked over all: by step, what they bear, their order in their report. Reports are files that anybody may have
written: sizes and types are checked, rows that npucmp would not have written are refused. Rows stay where they lie;
those that lie as Parquet are laid beside each other as CSV until the report is written.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from codecs import BOM_UTF8
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

from npucmp import __version__
from npucmp.dump.context import ReadContext
from npucmp.dump.limits import Limits
from npucmp.dump.readers.files import Stream
from npucmp.errors import DumpError, UsageError
from npucmp.localise.ranks import GRAVITY
from npucmp.model import Cause, first_of
from npucmp.model.merged import Merged, Slice, Source
from npucmp.workflows.runs import StrPath
from npucmp.workflows.spool import Folder as Spool
from npucmp.workflows.written import PARQUET, SUMMARY, Folder

LINE = 16 << 20  # bytes of a row
COUNTS = ("verdicts", "causes", "aligned")
SWITCHES = ("--strict", "--trust-statistics", "--noise")
COUNTABLE = 1 << 63
REAL = ("value", "limit", "input_error", "output_error", "growth")  # of roots.csv
# What a spreadsheet would take for a formula, and what moves a cursor: nothing that npucmp writes into a table.
_FOREIGN = re.compile(rb"(?:^|,)\"?(?:[=+@]|-(?![\d.]|inf))|[\x00-\x09\x0b-\x1f\x7f]")


class Rows(NamedTuple):
    """The rows of one step and rank."""

    step: Optional[int]
    rank: Optional[int]
    place: Slice

    @property
    def key(self) -> "tuple[int, int]":
        return self.step or 0, self.rank or 0


def merge(reports: "Sequence[StrPath]", *, limits: Limits = Limits()) -> Merged:
    """The reports of compare in these folders as one. Raises UsageError where they do not belong together.

    limits  how large a table that is read may be

        npucmp.write_reports(npucmp.merge(["first", "second"]), "report")
    """
    started = time.monotonic()
    paths = [] if isinstance(reports, (str, os.PathLike)) else [os.fspath(path) for path in reports]
    if len({os.path.realpath(path) for path in paths}) < max(2, len(paths)):
        raise UsageError("merge wants the folders of several reports, each once")
    folders = [Folder(path, ReadContext(limits)) for path in paths]
    summaries = [_summary(folder) for folder in folders]
    _require_alike(paths, summaries)
    spool = Spool() if any(name.endswith(PARQUET) for folder in folders for name in folder.names) else None
    tables = [[*_tensors(folder, spool)] for folder in folders]
    heads = {head: path for path, some in zip(paths, tables) for head, _ in some}
    if len(heads) > 1:
        raise UsageError(f"the columns of tensors.csv are not the same in {' and '.join([*heads.values()][:2])}")
    shards = [[rows for _, part in some for rows in part] for some in tables]
    _require_apart(paths, shards)
    sources = [
        Source(folder.path, summary, [(one.step, one.rank) for one in some], [*folder.rows("matrix.csv")])
        for folder, summary, some in zip(folders, summaries, shards)
    ]
    return Merged(
        paths=tuple(paths),
        sources=tuple(sources),
        columns=tuple(next(csv.reader([next(iter(heads))]))),
        rows=tuple(one.place for one in sorted((one for some in shards for one in some), key=lambda one: one.key)),
        ranked=_ranked(folders),
        notes=_notes(sources),
        seconds=time.monotonic() - started,
        bytes_read=sum(int(summary["bytes_read"]) for summary in summaries),
        spool=spool,
    )


def _summary(folder: Folder) -> "Mapping[str, Any]":
    """That of a report, if it holds what is made use of."""
    path, found = Path(folder.path, SUMMARY), folder.summary
    try:
        counts = [count for name in COUNTS for count in found[name].values()]
        lists = [found[name] for name in ("rules", "notes", "unpaired", "broken")]
        lost = [told for one in (*found["unpaired"], *found["broken"]) for told in one.values()]
        known = all(isinstance(one, (int, float)) and 0 <= one < COUNTABLE for one in (*counts, found["bytes_read"]))
        known = known and all(isinstance(one, list) for one in lists)
        known = known and all(isinstance(one, (str, int, type(None))) for one in lost)
        known = known and all(isinstance(found.get(side, {}), dict) for side in ("target", "golden"))
        partial, status = found["partial"], found["exit_status"]
    except (KeyError, TypeError, AttributeError):
        known = False
    if found["command"] != "compare" or not known:
        raise DumpError(path, "is no summary of a report of npucmp compare")
    if partial or status not in (0, 1, 2):
        raise DumpError(path, "the report is partial: finish it with the same command and --resume")
    return found


def _require_alike(folders: "Sequence[str]", summaries: "Sequence[Mapping[str, Any]]") -> None:
    """By the same npucmp, and by rules that say the same of each type."""
    for folder, one in zip(folders, summaries):
        if one.get("npucmp") != __version__:
            version = f"{one.get('npucmp')!s:.40}"
            raise UsageError(f"{folder} was made by npucmp {version}, this is {__version__}; compare its dumps again")
    first, *others = zip(folders, map(_rules, summaries))
    for folder, rules in others:
        shared = {*first[1]} & {*rules}
        always = {key for key in {*first[1]} ^ {*rules} if key[1] == ""}  # those that go by type may not have met any
        if always or any(first[1][key] != rules[key] for key in shared):
            raise UsageError(f"{first[0]} and {folder} were judged by other rules; compare one of them again")


def _rules(summary: "Mapping[str, Any]") -> "dict[tuple[str, str], list[str]]":
    """By metric and type; what a user switched off or on has no type."""
    found: "dict[tuple[str, str], list[str]]" = {}
    for rule in summary["rules"]:
        if isinstance(rule, dict):
            key = str(rule.get("metric")), str(rule.get("dtype"))
            found.setdefault(key, []).append(json.dumps(rule, sort_keys=True))
    words = [str(word) for word in summary.get("argv", ())] if isinstance(summary.get("argv"), list) else []
    told = [word for word in words if word in SWITCHES]
    told += [note for note in map(str, summary["notes"]) if note.startswith("judged without")]
    return {**found, **{(word, ""): [] for word in told}}


def _tensors(folder: Folder, spool: Optional[Spool]) -> "Iterator[tuple[str, list[Rows]]]":
    """The header and the places of the rows of each file of tensors of a report."""
    names = folder.files("tensors.csv")
    if not names:
        raise DumpError(folder.path, "holds no tensors.csv; is the report whole?")
    for name in names:
        path = Path(folder.path, name)
        try:
            if spool is not None and name.endswith(PARQUET):
                lying = Path(spool.path, f"{len(os.listdir(spool.path))}.csv")
                with open(lying, "wb") as laid:
                    laid.writelines(folder.text(name))
                with open(lying, "rb") as file:
                    yield _indexed(path, file, lying)
            else:
                with folder.opened(name) as opened:
                    yield _indexed(path, io.BufferedReader(Stream(opened), 1 << 20), path)
        except (OSError, ValueError) as error:
            raise DumpError(path, f"cannot be read: {error}") from None


def _indexed(path: Path, file: Any, lying: Path) -> "tuple[str, list[Rows]]":
    """Of a file that is told as `path`, and lies at another place, it may be."""
    found: "list[Rows]" = []
    head = file.readline(LINE)
    names = head[len(BOM_UTF8) :] if head.startswith(BOM_UTF8) else head  # as --excel writes it
    if not names.startswith(b"step,rank,") or not head.endswith(b"\n"):
        raise DumpError(path, "is no table of tensors of npucmp compare")
    start = at = len(head)
    for cells, lines in groupby(_lines(path, file), key=lambda line: line.split(b",", 2)[:2]):
        at += sum(map(len, lines))
        step, rank = (int(cell) if cell else None for cell in cells)
        found.append(Rows(step, rank, Slice(lying, start, at)))
        start = at
    return names.decode("utf-8", "replace").rstrip("\n"), found


def _lines(path: Path, file: Any) -> "Iterator[bytes]":
    while line := file.readline(LINE):
        if not line.endswith(b"\n") or _FOREIGN.search(line, 0, len(line) - 1):
            raise DumpError(path, "holds a row that npucmp does not write; was it changed?")
        yield line


def _require_apart(folders: "Sequence[str]", shards: "Sequence[Sequence[Rows]]") -> None:
    """No step and rank twice, be it in two reports."""
    known: "dict[tuple[int, int], str]" = {}
    for folder, some in zip(folders, shards):
        for one in some:
            if one.key in known:
                step, rank = one.key
                raise UsageError(f"step {step} rank {rank} is in {known[one.key]} and again in {folder}")
            known[one.key] = folder


def _ranked(folders: "Sequence[Folder]") -> "list[Mapping[str, str]]":
    """Roots by their places among all: by step and by what they bear; of those, the first of each report, then the
    second, as each report had them in the order in which ranks wait for each other."""
    gravity = {cause.value: GRAVITY[cause] for cause in Cause}
    keyed = []
    for folder in folders:
        seen: "Counter[tuple[int, int]]" = Counter()
        if not folder.files("roots.csv"):
            raise DumpError(folder.path, "holds no roots.csv; is the report whole?")
        try:
            for row in sorted(folder.rows("roots.csv"), key=lambda row: int(row["place"])):
                [float(row[name] or 0) for name in REAL]
                kind = int(row["step"] or 0), gravity[row["cause"]]
                seen[kind] += 1
                keyed.append(((*kind, seen[kind], int(row["order"]), int(row["rank"] or 0)), row))
        except (KeyError, ValueError):
            path = Path(folder.path, "roots.csv")
            raise DumpError(path, "holds a row that npucmp does not write; was it changed?") from None
    keyed.sort(key=lambda one: one[0])
    return [{**row, "place": str(place)} for place, (_, row) in enumerate(keyed, 1)]


def _notes(sources: "Sequence[Source]") -> "tuple[str, ...]":
    """What was noted of any, and what nobody settled."""
    own = [str(note) for one in sources for note in one.summary["notes"]]
    words = (
        f"joined from {len(sources)} reports: what crosses steps and ranks was settled within each, not between them"
    )
    undecided = first_of([one.path for one in sources if one.status == 2], 4)
    return (words, *dict.fromkeys(own), *([f"left open in {undecided}"] if undecided else []))
