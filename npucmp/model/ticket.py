"""What a ticket is made of: one operator of a report, with all that its files tell of it."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, NamedTuple

Cells = Mapping[str, str]  # of a row of a table, by column; a cell that is not there is ""
Files = Iterator[tuple[str, Iterator[bytes]]]  # name and content, piece by piece


class Ticket(NamedTuple):
    """One suspect of a report.

    command  that made the report, whose summary.json is `summary`
    row      accuses it, in `file`; `place` is its number among the suspects, `others` are rows of the further ones
    rows     of its tensors or events, in `table`
    accused  what summary.json tells of it besides: arguments, call stack, the vendor's figures
    case     files of the case that `npucmp extract` made of it, none if there is none
    files    reads what an archive holds besides the page: the tables of the report, and the case
    """

    command: str
    summary: Mapping[str, Any]
    place: int
    file: str
    row: Cells
    others: tuple[Cells, ...]
    table: str
    rows: tuple[Cells, ...]
    accused: Mapping[str, Any]
    case: tuple[str, ...] = ()
    files: Callable[[], Files] = lambda: iter(())
