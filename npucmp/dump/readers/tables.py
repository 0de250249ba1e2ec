"""Read tables of statistics as CSV: columns by name, in any case; an unreadable row adds a note and is skipped."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Callable, Mapping, Optional, TypeVar

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError

Row = TypeVar("Row")


def has_columns(file: Path, words: tuple[str, ...], context: ReadContext = ANYWHERE) -> bool:
    """Return whether the first line of a file contains these words; never raises."""
    try:
        with open_regular(str(file), context) as opened:
            head = opened.read(0, min(4096, opened.size)).decode("utf-8-sig", "replace").lower()
    except DumpError:
        return False
    return all(word in head.partition("\n")[0] for word in words)


def rows_of(
    file: Path,
    row: Callable[[Mapping[str, str]], Optional[Row]],
    notes: list[str],
    context: ReadContext = ANYWHERE,
) -> list[Row]:
    """Return the result of `row` for the cells of each line.

    An unreadable table adds a note. Lines for which `row` returns None name no tensor; they add a note too.
    """
    try:
        table = csv.reader(read_text(file, "statistics_bytes", context).splitlines())
        header = [word.strip().lower() for word in next(table, [])]
        found = [row(dict(zip(header, (cell.strip() for cell in cells)))) for cells in table if cells]
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return []
    lost = found.count(None)
    if lost or not found:
        notes.append(f"{file}: {lost} rows name no tensor and are skipped" if lost else f"{file}: has no rows")
    return [one for one in found if one is not None]
