"""Tables of statistics as CSV: columns by name, in any case; a row that cannot be read costs a note, no other row."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Callable, Mapping, Optional, TypeVar

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers.files import open_regular
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError

Row = TypeVar("Row")


def has_columns(file: Path, words: tuple[str, ...], context: ReadContext = ANYWHERE) -> bool:
    """Whether the first line of a file holds these words; never raises."""
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
    """What `row` makes of the cells of each line. A table that cannot be read costs a note, and so do lines of which it
    makes None: these name no tensor."""
    try:
        table = csv.reader(read_text(file, "statistics_bytes", context).splitlines())
        header = [word.strip().lower() for word in next(table, [])]
        found = [row(dict(zip(header, (cell.strip() for cell in cells)))) for cells in table if cells]
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return []
    lost = found.count(None)
    if lost or not found:
        notes.append(f"{file}: {lost} rows do not name a tensor and are left out" if lost else f"{file}: has no rows")
    return [one for one in found if one is not None]
