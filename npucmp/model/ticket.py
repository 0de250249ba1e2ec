"""The content of a ticket: one operator of a report, with all facts about it from the report's files."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, NamedTuple

Cells = Mapping[str, str]  # a row of a table by column; "" for a missing cell
Files = Iterator[tuple[str, Iterator[bytes]]]  # name and content, piece by piece


class Ticket(NamedTuple):
    """One suspect of a report.

    command  that made the report, whose summary.json is `summary`
    row      accuses it, in `file`; `place` is its number among the suspects, `others` are its further rows
    rows     of its tensors or events, in `table`
    accused  further facts from summary.json: arguments, call stack, the vendor's statistics
    case     files of the case that `npucmp extract` made of it, empty if there is none
    files    reads the other content of an archive: the tables of the report, and the case
    names    the original of each pseudonym; empty for a ticket with its own names
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
    names: Callable[[], Mapping[str, str]] = dict

    def __repr__(self) -> str:
        name = next((self.row[key] for key in ("op", "parameter", "row", "rule") if self.row.get(key)), "")
        return f"<ticket of {self.command}, place {self.place}: {self.row.get('cause', '')} {ascii(name[:80])[1:-1]}>"
