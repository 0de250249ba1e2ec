"""Read a report folder (`-o`) into a SavedReport. It may come from outside, with a ticket, so its content is not
trusted: sizes are limited, links must not lead out of it, and cells without a valid number are unknown. Missing or
foreign content is refused, so that it does not appear as tables without a finding.

A Parquet table becomes the lines of CSV from which it was made; this needs pyarrow. It is read piece by piece by
offset, only the types that npucmp writes are accepted, and its recorded size is not trusted. Repeated text is one
object.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import Counter
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from npucmp.dump.limits import ReadContext
from npucmp.dump.readers.csv_table import read_rows
from npucmp.dump.readers.safe_open import RegularFile, Stream, open_regular
from npucmp.errors import DumpError, MissingExtra, UnsupportedError, UsageError
from npucmp.model.check_finding import SEVERITIES
from npucmp.model.replayed_output import GUILTY_ABOVE
from npucmp.model.report_files import BOOL, EARLIER, TENSORS, TEXT, WHOLE
from npucmp.model.saved_report import SOUND, Key, SavedReport, SavedRow, SavedSuspect

SUMMARY = "summary.json"
MERGED = {"merge": "compare"}  # reports that are made from other reports
CHUNK = 1 << 20  # bytes read at once
PARQUET = ".parquet"
Row = Mapping[str, str]


class SavedTable(NamedTuple):
    """A file of a report, and how its rows are read.

    place       returns the accusation of a row, if it has one; `seen` its verdict on a tensor, output or rule
    op          the column of the operator; `of_network` is false if the column names rules
    needs       columns that must exist; `reads` are those that `place` and `seen` read, () for all
    counted     the keys of the summary under which its rows are counted by their content
    """

    file: str
    needs: tuple[str, ...]
    place: Callable[[Row, Mapping[str, Any]], Optional[SavedSuspect]]
    seen: Callable[[Row], Optional[SavedRow]] = lambda row: None
    rule: str = ""
    op: str = "op"
    of_network: bool = True
    reads: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()


class Folder:
    """A folder that `-o` wrote. Raises UsageError if it is not one, DumpError if it cannot be read."""

    def __init__(self, path: str | os.PathLike[str], context: Optional[ReadContext] = None) -> None:
        self.path = str(path)
        self.context = (context or ReadContext()).confine(path)
        if os.path.isfile(path) and os.path.isfile(os.path.join(os.path.dirname(path), SUMMARY)):
            raise UsageError(f"{path}: is a file of a report; give its folder, {os.path.dirname(path) or '.'}")
        if not os.path.isfile(os.path.join(path, SUMMARY)):
            raise UsageError(f"{path}: holds no {SUMMARY}; give a folder that -o DIR of a command wrote")
        try:
            self.names = sorted(os.listdir(path))
        except OSError as error:
            raise DumpError(path, f"cannot be listed: {error.strerror}") from None
        self.data = b"".join(self.pieces(SUMMARY, "table_bytes"))
        self.summary = summary_of(self.path, self.data)
        self.command = MERGED.get(str(self.summary["command"]), str(self.summary["command"]))

    def pieces(self, name: str, limit: str = "report_bytes") -> Iterator[bytes]:
        """Yield a file of the folder, piece by piece."""
        with self.open(name) as file:
            self.context.limits.require(file.path, limit, file.size, "a file of a report")
            for at in range(0, file.size, CHUNK):
                yield file.read(at, min(CHUNK, file.size - at))

    def open(self, name: str) -> RegularFile:
        """Return a file of the folder, open for the time of a `with`."""
        return open_regular(os.path.join(self.path, name), self.context)

    def files(self, table: str) -> list[str]:
        """Return the files of a table, which may be split or in Parquet; empty if there are none. Raises DumpError if a
        file that the summary lists is missing."""
        there = {_stem(name, table): name for name in reversed(self.names)}
        known = self.summary.get("files")
        listed = {_stem(str(name), table): str(name) for name in known} if isinstance(known, list) else there
        found = []
        for stem, name in sorted(listed.items()):
            if stem and stem not in there:
                raise DumpError(self.path, f"holds no {stem}, which its {SUMMARY} lists; is the report complete?")
            found += [name if name in self.names else there[stem]] if stem else []  # a ticket has CSV for Parquet
        return found

    def text(self, name: str, wanted: Sequence[str] = ()) -> Iterator[bytes]:
        """Yield a file of a table as CSV, piece by piece; of a Parquet file only the wanted columns."""
        if not name.endswith(PARQUET):
            yield from self.pieces(name)
            return

        with self.open(name) as file:
            yield from lines(file, wanted)

    def rows(self, name: str, needs: Sequence[str] = (), wanted: Sequence[str] = ()) -> Iterator[Row]:
        """Yield the rows of a table; none if there is no file. Raises DumpError if a needed column is missing."""
        for one in self.files(name):
            path = os.path.join(self.path, one)
            yield from read_rows(path, self.text(one, wanted), needs, wanted)


def _stem(name: str, table: str) -> str:
    """Return the name of a file of a table without its ending; "" for a file that does not belong to the table."""
    found = TENSORS.fullmatch(name) if table == "tensors.csv" else None
    return found[1] if found else name.rpartition(".")[0] if name == table else ""


def read(folder: str | os.PathLike[str], context: Optional[ReadContext] = None) -> SavedReport:
    """Return the report in a folder. Raises UsageError for a folder without a report, DumpError for an unreadable
    one."""
    found = Folder(folder, context)
    accusing = TABLES[found.command][0].file
    if not found.files(accusing):
        raise DumpError(found.path, f"holds no {accusing}, which a report of {found.command} has; is it complete?")
    return _saved_report(found.path, found.summary, lambda table: found.rows(table.file, table.needs, table.reads))


def of_files(files: Mapping[str, Union[bytes, Iterable[bytes]]]) -> SavedReport:
    """Return the report of these files, given as content by name in one piece or in several."""

    def pieces(content: Union[bytes, Iterable[bytes]]) -> Iterable[bytes]:
        return [content] if isinstance(content, bytes) else content

    def rows(table: SavedTable) -> Iterator[Row]:
        content = files.get(table.file)
        if content is not None:
            yield from read_rows(table.file, pieces(content), wanted=table.reads)

    return _saved_report("this run", summary_of("this run", b"".join(pieces(files[SUMMARY]))), rows)


def summary_of(path: str, data: bytes) -> dict[str, Any]:
    """Return the content of a summary.json, if it belongs to a report that can be read back."""
    try:
        summary = json.loads(data)
    except (ValueError, RecursionError):
        raise DumpError(f"{path}/{SUMMARY}", "not JSON") from None
    command = summary.get("command") if isinstance(summary, dict) and "npucmp" in summary else None
    if command is not None and isinstance(summary.get("error"), dict):
        message = f"npucmp {command} failed: {summary['error'].get('message')}"
        raise DumpError(path, f"{message}; an earlier report is in its folder {EARLIER}, if there was one")
    if not isinstance(command, str) or MERGED.get(command, command) not in TABLES:
        wanted = (
            "of npucmp"
            if not isinstance(command, str)
            else f"of a command whose reports can be read ({', '.join(TABLES)})"
        )
        raise UsageError(f"{path}: its {SUMMARY} is not one {wanted}")
    return dict(summary)


def _saved_report(path: str, summary: Mapping[str, Any], rows: Callable[[SavedTable], Iterable[Row]]) -> SavedReport:
    command = MERGED.get(str(summary["command"]), str(summary["command"]))
    places: dict[Key, SavedSuspect] = {}
    seen: dict[Key, SavedRow] = {}
    operators = set()
    lacking = 0
    for table in TABLES[command]:
        count = 0
        for row in rows(table):
            count += 1
            key = _key(row, table)
            found, look = table.place(row, summary), table.seen(row)
            if found is not None:
                places.setdefault(key, found._replace(key=key))
            if look is not None:
                seen[key] = max(seen.get(key, look), look, key=_badness)
            if look is not None and key.op and table.of_network:
                operators.add(key.op)
        lacking += max(0, _row_count(summary, table) - count)
    return SavedReport(path, command, summary, places, seen, frozenset(operators), lacking)


def _row_count(summary: Mapping[str, Any], table: SavedTable) -> int:
    """Return the number of rows of a table by the summary, 0 if it has none; a comparison has at least one tensor."""
    found: Any = summary
    for key in table.counted:
        found = found.get(key) if isinstance(found, dict) else None
    counts = found.values() if table.counted and isinstance(found, dict) else [int(table is _TENSORS)]
    return sum(one for one in counts if isinstance(one, int) and 0 < one < 1 << 63)


def _key(row: Row, table: SavedTable) -> Key:
    rule = table.rule or (row.get("rule", "") if table.file == "health.csv" else row.get("row", ""))
    op = row.get(table.op, "") or row.get("parameter", "")
    return Key(row.get("step", ""), row.get("rank", ""), op, row.get("slot", ""), rule)


def _badness(one: SavedRow) -> tuple[bool, bool, float]:
    """Return a sort key: if several rows have one key, for example if an operator ran twice, the worst row is used."""
    unsized = one.error is None or one.error != one.error
    return one.differs, one.verdict != SOUND, 0.0 if one.error is None or unsized else one.error


def number(cell: Optional[str]) -> Optional[float]:
    """Return the number in a cell; None for an empty cell, and for text that is not a number."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _whole_number(cell: Optional[str]) -> Optional[int]:
    return int(cell) if cell and cell.isascii() and cell.isdecimal() and len(cell) < 20 else None


def _suspect(row: Row, cause: str, value: str = "value", counts: bool = True, words: str = "because") -> SavedSuspect:
    because = row.get(words, "")
    return SavedSuspect(Key("", "", "", ""), cause, because, number(row.get(value)), row.get("stack", ""), counts)


def _root(row: Row, _: Mapping[str, Any]) -> Optional[SavedSuspect]:
    cause = row.get("cause", "")
    return _suspect(row, cause, words="evidence") if cause not in ("", "PROPAGATED") else None


def _rerun(row: Row, _: Mapping[str, Any]) -> Optional[SavedSuspect]:
    cause = row.get("cause", "")
    return _suspect(row, cause, "rel_l2") if cause not in ("", "PROPAGATED") else None


def _tensor(row: Row) -> Optional[SavedRow]:
    verdict, error, limit = row.get("verdict", ""), number(row.get("rel_l2")), number(row.get("limit"))
    if verdict in ("shape", "nonfinite"):
        error = math.inf
    elif verdict == "diverged" and error is None:
        error = math.nan
    return SavedRow(verdict, error, limit or 0.0, _whole_number(row.get("elements"))) if verdict else None


def _guilty(row: Row, _: Mapping[str, Any]) -> Optional[SavedSuspect]:
    return _suspect(row, "GUILTY", "rms_ratio", words="explanation") if row.get("verdict") == "GUILTY" else None


def _edge(row: Row, _: Mapping[str, Any]) -> Optional[SavedSuspect]:
    return _suspect(row, "BROKEN", "ratio", words="explanation") if row.get("verdict") == "BROKEN" else None


def _read_verdict(row: Row) -> Optional[SavedRow]:
    """Return the verdict on an output of a replay, or on a gradient between operators; its error is the ratio to the
    expected rounding."""
    words = {"CLEAN": SOUND, "AMPLIFIER": SOUND, "GUILTY": "diverged", "BROKEN": "diverged"}
    verdict = words.get(row.get("verdict", ""), "unknown")
    error = number(row.get("rms_ratio") or row.get("ratio"))
    error = math.nan if error is None and verdict == "diverged" else error
    return SavedRow(verdict, error, GUILTY_ABOVE["rms_ratio"][0], _whole_number(row.get("elements")))


def _symptom(row: Row, summary: Mapping[str, Any]) -> Optional[SavedSuspect]:
    severity, least = row.get("severity", ""), summary.get("fail_on", "warning")
    if severity not in SEVERITIES or row.get("follows"):
        return None
    counts = least not in SEVERITIES or SEVERITIES.index(severity) >= SEVERITIES.index(least)
    return _suspect(row, severity, counts=counts)


def _decided_row(row: Row) -> Optional[SavedRow]:
    return SavedRow("unknown" if row.get("decided") == "no" else SOUND)


def _replay_suspect(row: Row, _: Mapping[str, Any]) -> Optional[SavedSuspect]:
    severity = row.get("severity", "")
    return _suspect(row, severity, counts=severity in ("error", "warning")) if row.get("status") == "DIFFERS" else None


def _read_answer(row: Row) -> Optional[SavedRow]:
    return SavedRow({"same": SOUND, "close": SOUND, "DIFFERS": "diverged"}.get(row.get("status", ""), "unknown"))


def _no_suspect(row: Row, _: Mapping[str, Any]) -> Optional[SavedSuspect]:
    return None


_TENSORS = SavedTable(
    "tensors.csv", ("op", "slot", "verdict"), _no_suspect, _tensor,
    reads=("step", "rank", "op", "slot", "verdict", "rel_l2", "limit", "elements"), counted=("verdicts",),
)  # fmt: skip
_ROOTS = SavedTable("roots.csv", ("op", "cause"), _root, counted=("causes",))
TABLES = {
    "compare": (_ROOTS, _TENSORS),
    "fusion-diff": (_ROOTS, _TENSORS),
    "rerun-diff": (SavedTable("rerun.csv", ("op", "cause"), _rerun), _TENSORS),
    "overflow": (_ROOTS,),
    "replay": (SavedTable("replay.csv", ("op", "verdict"), _guilty, _read_verdict, counted=("verdicts",)),
               SavedTable("edges.csv", ("op", "verdict"), _edge, _read_verdict, rule="edge", counted=("edges",))),
    "check": (SavedTable("health.csv", ("rule", "severity"), _symptom, counted=("findings", "severity")),
              SavedTable("checks.csv", ("rule", "decided"), _no_suspect, _decided_row, op="rule", of_network=False),
              SavedTable("parameters.csv", ("parameter",), _no_suspect, lambda row: SavedRow(SOUND), op="parameter")),
    "precheck": (SavedTable("precheck.csv", ("row", "status"), _replay_suspect, _read_answer, op="",
        counted=("statuses",)),),
}  # fmt: skip


EXTRA = "npucmp[parquet]"
OLDEST = (14, 0, 1)  # of pyarrow; older versions unpickle data of a file (CVE-2023-47248)
ROWS = 1024  # rows that are read at once
TYPES = {"int64": WHOLE, "string": TEXT, "bool": BOOL}  # type of pyarrow → columns of this type
OTHERS = (*TYPES, "double")  # allowed types of further columns


def lines(file: RegularFile, wanted: Sequence[str] = ()) -> Iterator[bytes]:
    """Yield the header and the rows as text of CSV, in pieces; with `wanted`, only those columns that the file has.

    Raises MissingExtra without pyarrow, and DumpError for content that npucmp does not write.
    """
    pyarrow = _pyarrow(file.path)
    try:
        yield from _lines(pyarrow, file, wanted)
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise DumpError(file.path, f"is not a readable Parquet file: {reason:.200}") from None


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra(EXTRA, path) from None

    if tuple(map(int, re.findall(r"\d+", pyarrow.__version__)[:3])) < OLDEST:
        least = ".".join(map(str, OLDEST))
        raise UnsupportedError(
            f"{path}: pyarrow {pyarrow.__version__} may execute code of a file", f"update to {least}"
        )
    return pyarrow


def _lines(pyarrow: Any, file: RegularFile, wanted: Sequence[str]) -> Iterator[bytes]:
    from pyarrow import parquet

    source = pyarrow.PythonFile(Stream(file), mode="r")
    opened = parquet.ParquetFile(source)
    claimed, schema = opened.metadata, opened.schema_arrow
    names = [name for name in schema.names if not wanted or name in wanted]
    for name, count in Counter(names).items():
        if count > 1:
            raise DumpError(file.path, f"has several columns {name!r:.60}")
        _require_type(file.path, name, str(schema.field(name).type))
    size = claimed.num_rows * max(1, len(schema.names))  # each cell adds at least a comma
    file.limits.require(file.path, "report_bytes", size, f"{claimed.num_rows:,} rows, as text {{:,}} bytes at least")
    texts = [name for name in names if str(schema.field(name).type) == "string"]
    opened = parquet.ParquetFile(source, metadata=claimed, read_dictionary=texts)
    yield _encode([names])
    rows = size = 0
    for batch in opened.iter_batches(ROWS, columns=names, use_threads=False):
        columns = [_cells(batch.column(batch.schema.get_field_index(name))) for name in names]
        rows += batch.num_rows
        size += sum(sum(map(len, column)) + len(column) for column in columns)
        file.limits.require(file.path, "report_bytes", size, "a table of {:,} bytes and more")
        yield _encode(zip(*columns))
    if rows != claimed.num_rows:
        raise DumpError(file.path, f"has {rows:,} rows, but claims {claimed.num_rows:,}")


def _require_type(path: str, name: str, found: str) -> None:
    meant = [kind for kind, names in TYPES.items() if name in names] or OTHERS
    if found not in meant:
        raise DumpError(path, f"column {name!r:.60} is of type {found:.60}, where npucmp writes {' or '.join(meant)}")


def _cells(column: Any) -> list[str]:
    """Return the cells as in the CSV file."""
    if hasattr(column, "dictionary"):
        words = [word or "" for word in column.dictionary.to_pylist()]
        return ["" if at is None else words[at] for at in column.indices.to_pylist()]
    return ["" if cell is None else repr(cell) for cell in column.to_pylist()]


def _encode(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
