"""A folder that `-o` wrote → Written. It may have come with a ticket, so nothing in it is believed: sizes are bounded,
links do not lead out of it, and cells that should be numbers and are none are unknown."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Union

from npucmp.dump.context import ReadContext
from npucmp.dump.readers.files import open_regular
from npucmp.errors import DumpError, UsageError
from npucmp.model.replayed import GUILTY_ABOVE
from npucmp.model.symptom import SEVERITIES
from npucmp.model.written import SOUND, Key, Place, Seen, Written

SUMMARY = "summary.json"
MERGED = {"merge": "compare"}  # reports that are made of others
PIECE = 1 << 20  # bytes read at once, and characters of the longest line
PARTS = re.compile(r"tensors-[\w.-]{1,80}\.csv")  # of --parts
Row = Mapping[str, str]
Rows = Callable[[str], Iterable[Row]]  # the rows of a file; none where there is no such file


class Table(NamedTuple):
    """A file of a report: which of its rows accuse somebody, and what each row says of something seen; `op` is the
    column of who is meant, and whether that is part of a network."""

    file: str
    place: "Callable[[Row, Mapping[str, Any]], Optional[Place]]"
    seen: "Callable[[Row], Optional[Seen]]" = lambda row: None
    rule: str = ""
    op: str = "op"
    of_network: bool = True


class Folder:
    """A folder that `-o` wrote. Raises UsageError for one that is none, DumpError for one that cannot be read."""

    def __init__(self, path: "str | os.PathLike[str]", context: Optional[ReadContext] = None) -> None:
        self.path = str(path)
        self.context = (context or ReadContext()).within(path)
        if os.path.isfile(path) and os.path.isfile(os.path.join(os.path.dirname(path), SUMMARY)):
            raise UsageError(f"{path}: is a file of a report; give its folder, {os.path.dirname(path) or '.'}")
        if not os.path.isfile(os.path.join(path, SUMMARY)):
            raise UsageError(f"{path}: holds no {SUMMARY}; give a folder that -o DIR of a command wrote")
        self.names = sorted(os.listdir(path))
        self.data = b"".join(self.pieces(SUMMARY, "table_bytes"))
        self.summary = summary_of(self.path, self.data)
        self.command = MERGED.get(str(self.summary["command"]), str(self.summary["command"]))

    def pieces(self, name: str, limit: str = "report_bytes") -> "Iterator[bytes]":
        """A file of it, piece by piece."""
        with open_regular(os.path.join(self.path, name), self.context) as file:
            self.context.limits.require(file.path, limit, file.size, "a file of a report")
            for at in range(0, file.size, PIECE):
                yield file.read(at, min(PIECE, file.size - at))

    def rows(self, name: str) -> "Iterator[Row]":
        """Those of a table, and of the parts of tensors.csv; none where there is no such file."""
        for one in self.names:
            if one == name or (name == "tensors.csv" and PARTS.fullmatch(one)):
                yield from _rows(f"{self.path}/{one}", _lines(f"{self.path}/{one}", self.pieces(one)))


def read(folder: "str | os.PathLike[str]", context: Optional[ReadContext] = None) -> Written:
    """The report in a folder. Raises UsageError for a folder without one, DumpError for one that cannot be read."""
    found = Folder(folder, context)
    return _written(found.path, found.summary, found.rows)


def of_files(summary: bytes, files: "Mapping[str, Union[bytes, Iterable[bytes]]]") -> Written:
    """The report that these would be, content by name in one piece or in several."""

    def rows(name: str) -> "Iterator[Row]":
        if name in files:
            content = files[name]
            yield from _rows(name, _lines(name, [content] if isinstance(content, bytes) else content))

    return _written("this run", summary_of("this run", summary), rows)


def summary_of(path: str, data: bytes) -> "dict[str, Any]":
    """What a summary.json holds, if it is that of a report that can be read again."""
    try:
        summary = json.loads(data)
    except (ValueError, RecursionError):
        raise DumpError(f"{path}/{SUMMARY}", "not JSON") from None
    command = summary.get("command") if isinstance(summary, dict) and "npucmp" in summary else None
    if not isinstance(command, str) or MERGED.get(command, command) not in TABLES:
        told = (
            "of npucmp"
            if not isinstance(command, str)
            else f"of a command whose reports can be read ({', '.join(TABLES)})"
        )
        raise UsageError(f"{path}: its {SUMMARY} is not one {told}")
    return dict(summary)


def _written(path: str, summary: "Mapping[str, Any]", rows: Rows) -> Written:
    command = MERGED.get(str(summary["command"]), str(summary["command"]))
    places: dict[Key, Place] = {}
    seen: dict[Key, Seen] = {}
    operators = set()
    for table in TABLES[command]:
        for row in rows(table.file):
            key = _key(row, table)
            found, look = table.place(row, summary), table.seen(row)
            if found is not None:
                places.setdefault(key, found._replace(key=key))
            if look is not None:
                seen[key] = max(seen.get(key, look), look, key=_badness)
            if look is not None and key.op and table.of_network:
                operators.add(key.op)
    return Written(path, command, summary, places, seen, frozenset(operators))


def _key(row: Row, table: Table) -> Key:
    rule = table.rule or (row.get("rule", "") if table.file == "health.csv" else row.get("row", ""))
    op = row.get(table.op, "") or row.get("parameter", "")
    return Key(row.get("step", ""), row.get("rank", ""), op, row.get("slot", ""), rule)


def _badness(one: Seen) -> "tuple[bool, bool, float]":
    """Of several rows of one name, as of an operator that ran more than once, the worst stands for all."""
    unsized = one.error is None or one.error != one.error
    return one.differs, one.verdict != SOUND, 0.0 if one.error is None or unsized else one.error


def _rows(path: str, lines: "Iterable[str]") -> "Iterator[Row]":
    try:
        for row in csv.DictReader(lines):
            yield {name: cell for name, cell in row.items() if isinstance(name, str) and isinstance(cell, str)}
    except csv.Error as error:
        raise DumpError(path, f"not CSV: {error}") from None


def _lines(path: str, pieces: "Iterable[bytes]") -> "Iterator[str]":
    """The lines of a file that is read piece by piece."""
    rest, bom = b"", codecs.BOM_UTF8  # which --excel writes
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        if len(rest) > PIECE:
            raise DumpError(path, "a line that is longer than any that npucmp writes")
        for line in whole:
            yield line.removeprefix(bom).decode("utf-8", "replace") + "\n"
            bom = b""
    if rest:
        yield rest.decode("utf-8", "replace")


def number(cell: "Optional[str]") -> Optional[float]:
    """The number in a cell; None for an empty one, and for what is none."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _whole(cell: "Optional[str]") -> Optional[int]:
    return int(cell) if cell and cell.isascii() and cell.isdecimal() and len(cell) < 20 else None


def _place(row: Row, cause: str, value: str = "value", counts: bool = True, words: str = "because") -> Place:
    because = row.get(words, "")
    return Place(Key("", "", "", ""), cause, because, number(row.get(value)), row.get("stack", ""), counts)


def _root(row: Row, _: "Mapping[str, Any]") -> Optional[Place]:
    cause = row.get("cause", "")
    return _place(row, cause, words="evidence") if cause not in ("", "PROPAGATED") else None


def _rerun(row: Row, _: "Mapping[str, Any]") -> Optional[Place]:
    cause = row.get("cause", "")
    return _place(row, cause, "rel_l2") if cause not in ("", "PROPAGATED") else None


def _tensor(row: Row) -> Optional[Seen]:
    verdict, error, limit = row.get("verdict", ""), number(row.get("rel_l2")), number(row.get("limit"))
    if verdict in ("shape", "nonfinite"):
        error = math.inf
    elif verdict == "diverged" and error is None:
        error = math.nan
    return Seen(verdict, error, limit or 0.0, _whole(row.get("elements"))) if verdict else None


def _guilty(row: Row, _: "Mapping[str, Any]") -> Optional[Place]:
    return _place(row, "GUILTY", "rms_ratio", words="explanation") if row.get("verdict") == "GUILTY" else None


def _broken(row: Row, _: "Mapping[str, Any]") -> Optional[Place]:
    return _place(row, "BROKEN", "ratio", words="explanation") if row.get("verdict") == "BROKEN" else None


def _judged(row: Row) -> Optional[Seen]:
    """An output of a replay, or a gradient between two: its error is in units of what is due."""
    words = {"CLEAN": SOUND, "AMPLIFIER": SOUND, "GUILTY": "diverged", "BROKEN": "diverged"}
    verdict = words.get(row.get("verdict", ""), "unknown")
    error = number(row.get("rms_ratio") or row.get("ratio"))
    error = math.nan if error is None and verdict == "diverged" else error
    return Seen(verdict, error, GUILTY_ABOVE["rms_ratio"][0], _whole(row.get("elements")))


def _symptom(row: Row, summary: "Mapping[str, Any]") -> Optional[Place]:
    severity, least = row.get("severity", ""), summary.get("fail_on", "warning")
    if severity not in SEVERITIES or row.get("follows"):
        return None
    counts = least not in SEVERITIES or SEVERITIES.index(severity) >= SEVERITIES.index(least)
    return _place(row, severity, counts=counts)


def _decided(row: Row) -> Optional[Seen]:
    return Seen("unknown" if row.get("decided") == "no" else SOUND)


def _asked(row: Row, _: "Mapping[str, Any]") -> Optional[Place]:
    severity = row.get("severity", "")
    return _place(row, severity, counts=severity in ("error", "warning")) if row.get("status") == "DIFFERS" else None


def _answered(row: Row) -> Optional[Seen]:
    return Seen({"same": SOUND, "close": SOUND, "DIFFERS": "diverged"}.get(row.get("status", ""), "unknown"))


def _nobody(row: Row, _: "Mapping[str, Any]") -> Optional[Place]:
    return None


_TENSORS = Table("tensors.csv", _nobody, _tensor)
TABLES = {
    "compare": (Table("roots.csv", _root), _TENSORS),
    "fusion-diff": (Table("roots.csv", _root), _TENSORS),
    "rerun-diff": (Table("rerun.csv", _rerun), _TENSORS),
    "overflow": (Table("roots.csv", _root),),
    "replay": (Table("replay.csv", _guilty, _judged), Table("edges.csv", _broken, _judged, rule="edge")),
    "check": (Table("health.csv", _symptom), Table("checks.csv", _nobody, _decided, op="rule", of_network=False),
              Table("parameters.csv", _nobody, lambda row: Seen(SOUND), op="parameter")),
    "precheck": (Table("precheck.csv", _asked, _answered, op=""),),
}  # fmt: skip
