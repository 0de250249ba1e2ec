"""What is kept of an answer: exit status, last line, roots with their evidence, counts of rows by reason, notes.

Figures have three digits. Of the rest of the tables, a checksum of all columns that hold no figures is kept, and one of
the figures to two digits but those of round-off, which another processor computes otherwise.
"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping

import npucmp
from npucmp.errors import NpucmpError

Answer = dict[str, Any]

ROOTS = 8  # roots that bear an error of their own, whose evidence is kept
COUNTED = ("verdict", "status", "class", "level", "cause", "matched_by", "rule", "explained_by")
LEFT_OUT = {
    "schema_version", "npucmp", "argv", "settings", "seconds", "bytes_read", "partial", "broken", "roots",
    "exit_status", "command", "outcome", "sentence", "notes", "target", "golden", "rollout", "trainer", "also", "next",
}  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:e[-+]?\d+)?(?![\w])|(?<![\w.])\d+e[-+]\d+")
ROUND_OFF = 1e-3  # smaller figures may be round-off
LISTED = 12  # members of a list that are kept as they are
IS_FIGURE = re.compile(r"[-+]?(\d+\.\d*|\d+e[-+]?\d+|nan|inf)(e[-+]?\d+)?", re.IGNORECASE)


def record(ask: Callable[[], Any], folder: Path, words: Mapping[str, str]) -> Answer:
    """Return what is kept of the answer of a function of npucmp; the report is written below `folder`.

    `words` replaces paths, which differ from machine to machine.
    """
    try:
        result = ask()
    except NpucmpError as error:
        return {"refused": portable(str(error), words)}
    npucmp.write_reports(result, folder)
    return of_report(folder, result.exit_status, words)


def of_report(folder: Path, status: int, words: Mapping[str, str]) -> Answer:
    """Return what is kept of a report and of the exit status of its command."""
    told = json.loads((folder / "summary.json").read_text("utf-8"))
    found: Answer = {
        "exit": status,
        "last": f"{told['outcome']}: {told['sentence']}",
        "notes": [portable(note, words) for note in told.get("notes", ())],
    }
    tables = {file.stem: _rows(file) for file in sorted(folder.glob("*.csv"))}
    found["roots"] = [*_roots(tables.pop("roots", []), words)]
    if "tensors" in tables:
        found["coverage"] = _plain(told.get("coverage"), words)
    else:
        found["told"] = _plain({key: value for key, value in told.items() if key not in LEFT_OUT}, words)
    found["tables"] = {name: _table(rows, words) for name, rows in tables.items()}
    return found


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8-sig") as opened:
        return [*csv.DictReader(opened)]


def _roots(rows: list[dict[str, str]], words: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    bearing = [row for row in rows if row.get("cause") != "PROPAGATED"]
    for row in bearing[:ROOTS]:
        kept = {name: row.get(name) for name in ("place", "step", "rank", "cause", "op", "golden_op", "slot", "rule")}
        kept = {name: value for name, value in kept.items() if value}
        yield {**kept, "evidence": [portable(part, words) for part in (row.get("evidence") or "").split("; ")]}


def _table(rows: list[dict[str, str]], words: Mapping[str, str]) -> dict[str, Any]:
    """Return the number of rows by what their columns of reasons say, and checksums of what is no figure and of
    figures."""
    reasons = [name for name in COUNTED if rows and name in rows[0]]
    counts = Counter(" · ".join(filter(None, (row[name] for name in reasons))) for row in rows)
    texts = ("\t".join(value for value in row.values() if value and not IS_FIGURE.fullmatch(value)) for row in rows)
    text = NUMBER.sub("#", portable("\n".join(texts), words))
    cells = (value for row in rows for name, value in row.items() if name != "seconds" and value)
    figures = (float(value) for value in cells if IS_FIGURE.fullmatch(value))
    numbers = " ".join(f"{figure:.2g}" for figure in figures if not abs(figure) < ROUND_OFF)
    return {"rows": dict(sorted(counts.items())), "sum": checksum([text]), "figures": checksum([numbers])}


def checksum(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return f"{zlib.crc32(text.encode()):08x}"


def _plain(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one, words) for key, one in value.items() if key not in ("seconds", "bytes_read")}
    if isinstance(value, (list, tuple)):
        shown = [_plain(one, words) for one in value[:LISTED]]
        return shown + ([f"and {len(value) - LISTED} more"] if len(value) > LISTED else [])
    if isinstance(value, float):
        return _three(value)
    return portable(value, words) if isinstance(value, str) else value


def portable(text: str, words: Mapping[str, str]) -> str:
    for path, word in words.items():
        text = text.replace(path, word)
    return NUMBER.sub(lambda found: _three(float(found.group())), text).strip()


def _three(value: float) -> str:
    return f"{value:.3g}"
