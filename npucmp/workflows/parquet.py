"""Convert a Parquet table of a report to the lines of CSV from which it was made. Needs pyarrow.

The file may come from outside, with a ticket: it is read piece by piece by offset, only the types that npucmp writes
are accepted, and its recorded size is not trusted. Repeated text is one object.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import Any, Iterator, Sequence

from npucmp.dump.readers.safe_open import RegularFile, Stream
from npucmp.errors import DumpError, MissingExtra, UnsupportedError
from npucmp.model.saved_report import BOOL, TEXT, WHOLE

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
    yield _encoded([names])
    rows = size = 0
    for batch in opened.iter_batches(ROWS, columns=names, use_threads=False):
        columns = [_cells(batch.column(batch.schema.get_field_index(name))) for name in names]
        rows += batch.num_rows
        size += sum(sum(map(len, column)) + len(column) for column in columns)
        file.limits.require(file.path, "report_bytes", size, "a table of {:,} bytes and more")
        yield _encoded(zip(*columns))
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


def _encoded(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
