"""Read mapping.csv: the real names of files whose names were too long for the file system.

    {name of the file in this folder},{its real name}     one per line; a header row and repeated rows may occur
Source: public sources of CANN's runtime, MindSpore and tfdbg_ascend, which use the same form.
"""

from __future__ import annotations

import csv
from pathlib import Path

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.readers.text import read_text
from npucmp.errors import DumpError

MAPPING = "mapping.csv"


def long_names(file: Path, notes: list[str], context: ReadContext = ANYWHERE) -> dict[str, str]:
    """Return file name → real name; empty without the file, empty with a note if the file cannot be read."""
    if not file.exists():
        return {}
    try:
        rows = list(csv.reader(read_text(file, "table_bytes", context).splitlines()))
    except (DumpError, csv.Error) as error:
        notes.append(f"{file}: ignored, {getattr(error, 'because', error)}")
        return {}
    return {row[0].strip(): row[1].strip() for row in rows if len(row) >= 2 and row[1].strip()}
