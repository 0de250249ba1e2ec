"""The files for the tables of a report: one file for all steps and ranks, or one for each; CSV or Parquet."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from npucmp.report.answer import Answer, Listing, Piece, ReportTable, Section
from npucmp.report.csv_text import csv_of, encoded

PARQUET = ".parquet"


def with_table_files(answer: Answer, parts: bool = False, parquet: bool = False) -> Answer:
    """Return the answer with its tables in these files. Tables without parts, such as roots.csv, are unchanged."""
    tables: list[ReportTable] = []
    names: dict[str, str] = {}  # new names of files, for the words that refer to them
    for table in answer.tables:
        if table.parts is None:
            tables.append(table)
            continue
        stem, _, kind = table.file.rpartition(".")
        ending = PARQUET if parquet else f".{kind}"
        names[table.file] = f"{stem}-*{ending}" if parts else f"{stem}{ending}"
        if parts:
            tables += [
                ReportTable(f"{stem}-{key}{ending}", table.names, table.columns, rows) for key, rows in table.parts
            ]
        else:
            tables.append(table._replace(file=f"{stem}{ending}", parts=None))
    if not names:
        return answer
    sections = [_renamed(one, names) for one in answer.sections]
    return replace(answer, tables=tables, sections=sections, unreadable=_listing(answer.unreadable, names))


def _renamed(one: Section, names: dict[str, str]) -> Section:
    return one._replace(listings=[_listing(listing, names) for listing in one.listings])


def _listing(one: Listing, names: dict[str, str]) -> Listing:
    return one._replace(rest=names.get(one.rest, one.rest))


def rows_of(table: ReportTable) -> Sequence[Piece]:
    """Return the lines of a table without its header."""
    if table.rows is not None:
        return [*table.rows()]
    return [encoded(csv_of(table.names, table.columns()).partition("\n")[2])]


def head_of(table: ReportTable) -> bytes:
    """Return the header line."""
    return encoded(",".join(table.names) + "\n")
