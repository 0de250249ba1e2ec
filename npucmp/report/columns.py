"""The meaning of the columns of all tables of a report, and of the keys of summary.json: `npucmp columns`.

columns.txt has a section for each table: "== NAME: the rows", paragraphs, and for each group of columns a line of names
with an indented meaning below it.
"""

from __future__ import annotations

import difflib
import textwrap
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

from npucmp.errors import UsageError
from npucmp.report.answer import Row

WORDS = Path(__file__).with_name("columns.txt")
EVERY = "all"  # the section of the columns of all tables
WIDTH = 118
INDENT = "    "


class ColumnMeaning(NamedTuple):
    """Columns that are explained together."""

    names: tuple[str, ...]
    meaning: str


class TableMeaning(NamedTuple):
    """A table of a report: what a row is, notes, and its columns."""

    name: str
    rows: str
    notes: tuple[str, ...]
    columns: tuple[ColumnMeaning, ...]


def columns(names: str | Sequence[str] = ()) -> tuple[TableMeaning, ...]:
    """Return the tables of the reports with the meaning of their columns; with names of tables, columns, or globs, only
    those. Raise UsageError for a name that none has.

    [column.meaning for table in npucmp.columns("max_ulp") for column in table.columns]
    """
    asked = (names,) if isinstance(names, str) else tuple(names)
    if not asked:
        return _tables()
    found: dict[str, TableMeaning] = {}
    for name in asked:
        tables = [table for table in _tables() if fnmatchcase(table.name.partition(".")[0], name.partition(".")[0])]
        some = tables or [part for table in _tables() if (part := _with_only(table, name)).columns]
        if not some:
            known = [*(table.name for table in _tables()), *_column_names()]
            raise UsageError(f"no table or column {name!r:.60}", difflib.get_close_matches(name, known))
        found.update((table.name, table) for table in some if table.name not in found)
    return tuple(found.values())


def _with_only(table: TableMeaning, name: str) -> TableMeaning:
    some = [column for column in table.columns if any(fnmatchcase(own, name) for own in column.names)]
    return table._replace(notes=(), columns=tuple(some))


def _column_names() -> dict[str, None]:
    return {name: None for table in _tables() for column in table.columns for name in column.names}


@cache
def _tables() -> tuple[TableMeaning, ...]:
    sections = WORDS.read_text(encoding="utf-8").split("== ")[1:]
    return tuple(map(_table, sections))


def _table(section: str) -> TableMeaning:
    head, _, body = section.partition("\n")
    name, _, rows = head.partition(": ")
    notes: list[str] = []
    found: list[ColumnMeaning] = []
    for block in body.split("\n\n"):
        lines = block.splitlines()
        if not any(line.startswith(INDENT) for line in lines):
            notes += [" ".join(lines)] if lines else []
            continue
        for line in lines:
            if not line.startswith(INDENT):
                found.append(ColumnMeaning(tuple(line.split(", ")), ""))
            else:
                known = found.pop()
                found.append(known._replace(meaning=f"{known.meaning} {line.strip()}".strip()))
    return TableMeaning(name, rows, tuple(notes), tuple(found))


def table_list(tables: Sequence[TableMeaning]) -> Iterator[str]:
    """Yield a line for each table."""
    width = max(len(table.name) for table in tables)
    yield from (f"{table.name:<{width}}  {table.rows}" for table in tables)
    yield ""
    yield "npucmp columns NAME explains the columns of a table, or a column of that name"


def table_text(table: TableMeaning) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"{table.name}: {table.rows}"
    for note in table.notes:
        yield from textwrap.wrap(note, WIDTH)
    for column in table.columns:
        yield ", ".join(column.names)
        yield from textwrap.wrap(column.meaning, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    yield ""


def columns_object(tables: Sequence[TableMeaning]) -> Row:
    """Return the tables as objects."""
    return {
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "notes": [*table.notes],
                "columns": [{"names": [*column.names], "meaning": column.meaning} for column in table.columns],
            }
            for table in tables
        ]
    }
