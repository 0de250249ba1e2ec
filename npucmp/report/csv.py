"""The tables as CSV files, and beside them the files that are no tables. Columns are only ever appended."""

from __future__ import annotations

from npucmp.report.answer import Answer, Table
from npucmp.report.files import Content, Joined
from npucmp.report.layout import PARQUET, head_of, rows_of
from npucmp.report.rows import encoded


def render(answer: Answer) -> dict[str, Content]:
    """A file for each table and each text."""
    found = {table.file: _content(table) for table in answer.tables}
    found.update({text.file: encoded(text.text) for text in answer.texts()})
    return found


def _content(table: Table) -> Content:
    """A table whose rows lie in files is joined of these when it is written, and never in memory."""
    pieces = [head_of(table), *rows_of(table)]
    if table.file.endswith(PARQUET):
        from npucmp.report.parquet import Packed

        return Packed(table.names, Joined(pieces))
    return b"".join(Joined(pieces)) if all(isinstance(one, bytes) for one in pieces) else Joined(pieces)
