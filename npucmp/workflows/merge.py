"""Merge reports of several steps and ranks, made on several machines, into one report. No dump is read.

Errors between ranks were attributed within each report. Here rows are sorted by step and rank, and root causes are
ranked over all reports: by step, by cause, by their order in their report. Report files may come from anywhere: sizes
and types are checked, and rows that npucmp would not write are refused. Rows stay in their files; rows in Parquet files
are converted to temporary CSV files until the report is written.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from codecs import BOM_UTF8
from collections import Counter
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import AbstractSet, Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.dump.limits import Limits, ReadContext
from npucmp.dump.readers.csv_table import read_blocks
from npucmp.dump.readers.safe_open import Stream
from npucmp.errors import DumpError, UsageError
from npucmp.localise.root_order import Precedence, precedence
from npucmp.model import Cause, first_of
from npucmp.model.report_files import FileRange
from npucmp.model.saved_report import MergedReport, Numbers, SourceReport
from npucmp.version import __version__
from npucmp.workflows.decisive_options import KEY, SCOPE
from npucmp.workflows.option_fields import StrPath
from npucmp.workflows.report_reader import PARQUET, SUMMARY, Folder
from npucmp.workflows.scratch import ScratchFolder

LINE = 16 << 20  # bytes of a row
BLOCK = 4 << 20  # bytes that are read at once
NEWLINE = 10
DEEPEST = 32  # nesting of lists and objects in a summary; summaries of npucmp have a third of that
COUNTS = ("verdicts", "causes", "aligned")
RUNS = {"broken": ("side",), "unpaired": ("side", "path")}  # lists of runs in a summary, and the text fields of a run
WHOLE, REAL = ("place", "step", "rank", "order"), ("value", "limit", "input_error", "output_error", "growth")
SWITCHES = ("--strict", "--trust-statistics", "--noise")
FOREIGN_ROW = "holds a row that npucmp does not write; was it changed?"
_NUMBER = re.compile("[0-9]{1,18}")
# Matches text that npucmp writes into no table: control, invisible and bidirectional characters, and at the start of a
# cell, text that a spreadsheet would read as a formula.
_CONTROL = re.compile(
    rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f\xad]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
)
_START = rb"(?:\s|\xc2\xa0)*(?:[=+@]|\xef\xbc[\x8b\x8d\x9d\xa0]|-(?!(?:[\d.]+(?:e[-+]?\d+)?|inf)\"?(?:,|$)))"
_FORMULA, _FORMULAS = re.compile(_START), re.compile(rb"(?:^|,)\"?" + _START, re.MULTILINE)


class RankRows(NamedTuple):
    """The rows of one step and rank: their place and their number."""

    step: Optional[int]
    rank: Optional[int]
    place: FileRange
    lines: int

    @property
    def key(self) -> tuple[int, int]:
        return self.step or 0, self.rank or 0


def merge(reports: Sequence[StrPath], *, limits: Limits = Limits()) -> MergedReport:
    """Return the reports of compare in these folders as one. Raises UsageError if they do not belong together.

    limits  the maximum sizes of the tables that are read

        npucmp.write_reports(npucmp.merge(["first", "second"]), "report")
    """
    started = time.monotonic()
    paths = [] if isinstance(reports, (str, os.PathLike)) else [os.fspath(path) for path in reports]
    if len({os.path.realpath(path) for path in paths}) < max(2, len(paths)):
        raise UsageError("merge needs the folders of several different reports")
    folders = [Folder(path, ReadContext(limits)) for path in paths]
    summaries = [_summary(folder) for folder in folders]
    _require_alike(paths, summaries)
    spool = ScratchFolder() if any(name.endswith(PARQUET) for folder in folders for name in folder.names) else None
    tables = [[*_tensors(folder, spool)] for folder in folders]
    heads = {head: path for path, tables_of in zip(paths, tables) for head, _ in tables_of}
    if len(heads) > 1:
        raise UsageError(f"the columns of tensors.csv differ in {' and '.join([*heads.values()][:2])}")
    ranks = [[rows for _, part in tables_of for rows in part] for tables_of in tables]
    _require_disjoint(paths, ranks)
    roots = [_roots(folder) for folder in folders]
    sources = [
        SourceReport(folder.path, summary, [(one.step, one.rank) for one in tables_of], _matrix(folder, tables_of))
        for folder, summary, tables_of in zip(folders, summaries, ranks)
    ]
    for source, tables_of, found in zip(sources, ranks, roots):
        _require_whole(source, tables_of, found)
    compared = {numbers for one in sources for numbers in one.step_ranks}
    sources = [one._replace(paired=_is_paired(one, compared)) for one in sources]
    return MergedReport(
        paths=tuple(paths),
        sources=tuple(sources),
        columns=tuple(next(iter(heads)).split(",")),
        rows=tuple(
            one.place for one in sorted((one for tables_of in ranks for one in tables_of), key=lambda one: one.key)
        ),
        ranked=_rank_roots(roots),
        notes=_notes(sources),
        seconds=time.monotonic() - started,
        bytes_read=sum(int(summary["bytes_read"]) for summary in summaries),
        settings=_settings(summaries[0]),
        scratch=spool,
    )


def _is_paired(source: SourceReport, compared: AbstractSet[Numbers]) -> bool:
    """Return whether another report compared all golden steps and ranks for which a report has no partner, and
    nothing else is undecided."""
    summary, coverage = source.summary, source.summary.get("coverage")
    if summary["exit_status"] != 2 or summary["broken"] or not summary["verdicts"].get("match"):
        return False
    if not isinstance(coverage, dict):
        return False
    alone = [run for run in summary["unpaired"] if run["side"] == "golden"]
    counts = coverage.get("open_tensors"), coverage.get("open_runs")
    return counts == (len(alone), len(alone)) and all((run.get("step"), run.get("rank")) in compared for run in alone)


def _summary(folder: Folder) -> Mapping[str, Any]:
    """Return the summary of a report, after checks of the values that are used."""
    path, found = Path(folder.path, SUMMARY), folder.summary
    try:
        is_ours = _is_shallow(found) and _is_ours(found)
    except (KeyError, TypeError, AttributeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise DumpError(path, "is not a summary of a report of npucmp compare")
    if found["partial"] or found["exit_status"] not in (0, 1, 2):
        raise DumpError(path, "the report is partial: finish it with the same command and --resume")
    return found


def _is_ours(found: Mapping[str, Any]) -> bool:
    """Return whether a summary has all values that are read here, with the types that npucmp writes."""
    counts = [count for name in COUNTS for count in found[name].values()]
    runs = [(run, texts) for name, texts in RUNS.items() for run in found[name]]
    return (
        found["command"] == "compare"
        and all(map(_is_count, [*counts, found["bytes_read"], found["exit_status"]]))
        and all(isinstance(found[name], list) for name in ("rules", "notes"))
        and all(isinstance(found.get(side, {}), dict) for side in ("target", "golden"))
        and all(isinstance(run[name], str) for run, texts in runs for name in texts)
        and all(run.get(name) is None or _is_count(run[name]) for run, _ in runs for name in ("step", "rank"))
    )


def _is_count(value: object) -> bool:
    """Return whether a value is a plausible count or share; NaN, negative and huge numbers are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_shallow(value: object, left: int = DEEPEST) -> bool:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left > 0 and all(_is_shallow(one, left - 1) for one in below)


def _require_alike(folders: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> None:
    """Require the same version of npucmp, the same rules for each type, and the same settings."""
    for folder, one in zip(folders, summaries):
        if one.get("npucmp") != __version__:
            version = f"{one.get('npucmp')!s:.40}"
            raise UsageError(f"{folder} was made by npucmp {version}, this is {__version__}; compare its dumps again")
    first, *others = zip(folders, map(_rules, summaries))
    for folder, rules in others:
        shared = {*first[1]} & {*rules}
        always = {key for key in {*first[1]} ^ {*rules} if key[1] == ""}  # rules by type need a tensor of the type
        if always or any(first[1][key] != rules[key] for key in shared):
            raise UsageError(f"{first[0]} and {folder} were judged by different rules; compare one of them again")
    stored = [*zip(folders, map(_settings, summaries))]
    for folder, settings in stored[1:]:
        ours = stored[0][1]
        name = next((key for key in sorted({*ours, *settings}) if ours.get(key) != settings.get(key)), None)
        if name is not None:
            raise UsageError(f"{stored[0][0]} and {folder} differ in --{name}; compare one of them again")


def _settings(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that affect the result, without the selection of steps and ranks."""
    found = summary.get(KEY)
    return {name: value for name, value in found.items() if name not in SCOPE} if isinstance(found, dict) else {}


def _rules(summary: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the rules by metric and type; options that switch rules have no type."""
    found: dict[tuple[str, str], list[str]] = {}
    for rule in summary["rules"]:
        if isinstance(rule, dict):
            key = str(rule.get("metric")), str(rule.get("dtype"))
            found.setdefault(key, []).append(json.dumps(rule, sort_keys=True))
    words = [str(word) for word in summary.get("argv", ())] if isinstance(summary.get("argv"), list) else []
    switches = [word for word in (word.partition("=")[0] for word in words) if word in SWITCHES]
    switches += [note for note in map(str, summary["notes"]) if note.startswith("judged without")]
    return {**found, **{(word, ""): [] for word in switches}}


def _tensors(folder: Folder, spool: Optional[ScratchFolder]) -> Iterator[tuple[str, list[RankRows]]]:
    """Yield the header of each file of tensors of a report, and the positions of its rows."""
    names = folder.files("tensors.csv")
    if not names:
        raise DumpError(folder.path, "has no tensors.csv; is the report complete?")
    for name in names:
        path = Path(folder.path, name)
        try:
            if spool is not None and name.endswith(PARQUET):
                converted = Path(spool.path, f"{len(os.listdir(spool.path))}.csv")
                with open(converted, "wb") as written:
                    written.writelines(folder.text(name))
                with open(converted, "rb") as file:
                    yield _index_rows(path, file, converted)
            else:
                with folder.open(name) as opened:
                    yield _index_rows(path, io.BufferedReader(Stream(opened), 1 << 20), path)
        except UnicodeDecodeError:
            raise DumpError(path, "is not UTF-8 text") from None
        except (OSError, ValueError) as error:
            raise DumpError(path, f"cannot be read: {error}") from None


def _index_rows(path: Path, file: Any, source: Path) -> tuple[str, list[RankRows]]:
    """Return the header of a file, and the positions of the rows of each step and rank; the rows are later read from
    `source`."""
    found: list[RankRows] = []
    start = at = 0
    head = ""
    for names, frame, text in read_blocks(str(path), iter(partial(file.read, BLOCK), b""), LINE):
        if not head:
            head = ",".join(names)
            file_head = _head(file)
            is_head = [*names[:2]] == ["step", "rank"] and file_head.endswith(b"\n")
            if not is_head or _is_foreign(file_head, frame) or any(map(_FORMULA.match, map(str.encode, names))):
                raise DumpError(path, "is not a table of tensors of npucmp compare")
            start = at = len(file_head)
            continue
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE) + 1
        if not text.endswith(b"\n") or len(ends) != len(frame) or _is_foreign(text, frame):
            raise DumpError(path, FOREIGN_ROW)
        steps, ranks = frame[0].tolist(), frame[1].tolist()
        if not all(cell == "" or _NUMBER.fullmatch(cell) for cell in {*steps, *ranks}):
            raise DumpError(path, FOREIGN_ROW)
        for cells, rows in groupby(range(len(ends)), key=lambda row: (steps[row], ranks[row])):
            *_, last = places = [*rows]
            step, rank = (int(cell) if cell else None for cell in cells)
            start, end = at + int(ends[places[0] - 1] if places[0] else 0), at + int(ends[last])
            if found and (found[-1].step, found[-1].rank) == (step, rank) and found[-1].place.stop == start:
                before = found.pop()
                found.append(
                    RankRows(step, rank, FileRange(source, before.place.start, end), before.lines + len(places))
                )
            else:
                found.append(RankRows(step, rank, FileRange(source, start, end), len(places)))
        at += len(text)
    if not head:
        raise DumpError(path, "is not a table of tensors of npucmp compare")
    return head, found


def _head(file: Any) -> bytes:
    """Return the first line of a file, and keep its position."""
    place = file.tell()
    file.seek(0)
    line = bytes(file.readline(LINE))
    file.seek(place)
    return line


def _is_foreign(text: bytes, frame: Any) -> bool:
    """Return whether lines contain text that npucmp does not write. Raises UnicodeDecodeError if they are not UTF-8."""
    if _CONTROL.search(text.removeprefix(BOM_UTF8)):
        return True
    if not text.isascii():
        text.decode("utf-8")
    if not _FORMULAS.search(text):
        return False
    cells = {cell for column in frame for cell in frame[column].unique()}
    return any(_FORMULA.match(str(cell).encode()) for cell in cells)


def _require_disjoint(folders: Sequence[str], ranks: Sequence[Sequence[RankRows]]) -> None:
    """Require each step and rank only once in all reports."""
    known: dict[tuple[int, int], str] = {}
    for folder, folder_ranks in zip(folders, ranks):
        for one in folder_ranks:
            if one.key in known:
                step, rank = one.key
                raise UsageError(f"step {step} rank {rank} is in {known[one.key]} and again in {folder}")
            known[one.key] = folder


def _require_whole(source: SourceReport, ranks: Sequence[RankRows], roots: Sequence[Mapping[str, str]]) -> None:
    """Require as many rows as the summary counts, so that no file is missing or belongs to another report."""
    rows = (("tensor", "verdicts", sum(one.lines for one in ranks)), ("root", "causes", len(roots)))
    for what, name, found in rows:
        counted = int(sum(source.summary[name].values()))
        if found != counted:
            words = f"its tables hold {found:,} {what}s, its summary.json counts {counted:,}"
            raise DumpError(source.path, f"{words}: a file is missing or was changed")
    if source.is_excused and "baseline" not in source.summary:
        words = "its exit status does not match its counts; was it changed?"
        raise DumpError(Path(source.path, SUMMARY), words)


def _matrix(folder: Folder, ranks: Sequence[RankRows]) -> list[Mapping[str, str]]:
    """Return the rows of matrix.csv; a report of one step and rank has none."""
    found = [*folder.rows("matrix.csv")]
    numbered = [row for row in found if _has_numbers(row, ("step", "rank"))]
    known = {(int(row["step"] or 0), int(row["rank"] or 0)) for row in numbered}
    if (found or len(ranks) > 1) and not {one.key for one in ranks} <= known:
        path = Path(folder.path, "matrix.csv")
        raise DumpError(path, "lacks steps and ranks that the tables have; was it changed?")
    return found


def _roots(folder: Folder) -> list[Mapping[str, str]]:
    """Return the rows of roots.csv, after a check of their numbers."""
    if not folder.files("roots.csv"):
        raise DumpError(folder.path, "has no roots.csv; is the report complete?")
    found, causes = [*folder.rows("roots.csv")], {cause.value for cause in Cause}
    for row in found:
        if not (_has_numbers(row, WHOLE, REAL) and row["place"] and row["order"] and row.get("cause") in causes):
            raise DumpError(Path(folder.path, "roots.csv"), FOREIGN_ROW)
    return found


def _rank_roots(tables: Sequence[Sequence[Mapping[str, str]]]) -> list[Mapping[str, str]]:
    """Return root causes with their places among all reports: by step and by cause; among equals, the first of each
    report, then the second, and so on. The order within a report respects communication between ranks."""
    keyed = []
    for table in tables:
        seen: Counter[Precedence] = Counter()
        for row in sorted(table, key=lambda row: int(row["place"])):
            kind = precedence(int(row["step"] or 0), Cause(row["cause"]))
            seen[kind] += 1
            keyed.append(((*kind, seen[kind], int(row["order"]), int(row["rank"] or 0)), row))
    keyed.sort(key=lambda one: one[0])
    return [{**row, "place": str(place)} for place, (_, row) in enumerate(keyed, 1)]


def _has_numbers(row: Mapping[str, str], whole: Sequence[str], real: Sequence[str] = ()) -> bool:
    """Return whether these cells exist, and are empty or numbers."""
    try:
        [float(row[name] or 0) for name in real]
        return all(row[name] == "" or _NUMBER.fullmatch(row[name]) for name in whole)
    except (KeyError, ValueError):
        return False


def _notes(sources: Sequence[SourceReport]) -> tuple[str, ...]:
    """Return the notes of all reports, and notes on errors between reports that remain undecided."""
    own = [str(note) for one in sources for note in one.summary["notes"]]
    words = (
        f"merged from {len(sources)} reports: errors were traced across steps and ranks within each, not between them"
    )
    undecided = first_of([one.path for one in sources if one.status == 2], 4)
    known = first_of([one.path for one in sources if one.is_excused], 4)
    excused = [f"findings that a baseline excused in {known} count here"] if known else []
    return (words, *excused, *dict.fromkeys(own), *([f"tensors are undecided in {undecided}"] if undecided else []))
