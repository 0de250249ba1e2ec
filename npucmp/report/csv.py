"""Write the tables as CSV files, and the text files. Their columns: report/tables.py; new ones are only appended."""

from __future__ import annotations

from npucmp.report.answer import Answer, ReportTable
from npucmp.report.csv_text import encode
from npucmp.report.files import ConcatFile, Content
from npucmp.report.tables import PARQUET, head_of, rows_of


def render(answer: Answer) -> dict[str, Content]:
    """Return a file for each table and each text."""
    found = {table.file: _content(table) for table in answer.tables}
    found.update({text.file: encode(text.text) for text in answer.texts()})
    return found


def _content(table: ReportTable) -> Content:
    """Return the content of a table. Rows that lie in files are joined while the table is written, never in memory."""
    pieces = [head_of(table), *rows_of(table)]
    if table.file.endswith(PARQUET):
        from npucmp.report.parquet import ParquetFile

        return ParquetFile(table.names, ConcatFile(pieces))
    return b"".join(ConcatFile(pieces)) if all(isinstance(one, bytes) for one in pieces) else ConcatFile(pieces)
