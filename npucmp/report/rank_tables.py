"""The rows that one step and rank adds to the files of a report, and its request for the next dump. If comparisons are
stored on disk, workers write the rows into files, which are joined when the report is written."""

from __future__ import annotations

import heapq
import tempfile
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence

from npucmp.localise.next_dump import OpenRoots
from npucmp.model import Comparison, StepRankNumbers, Verdict
from npucmp.report import tables
from npucmp.report.answer import Columns, Piece
from npucmp.report.csv_text import csv_of, encode
from npucmp.report.files import ConcatFile
from npucmp.report.producers import Linked, producers_read
from npucmp.report.tensor_rows import columns_of

if TYPE_CHECKING:
    from npucmp.plans.next_dump import RequestedOperators
    from npucmp.report.step_series import StepSlice


class RowSettings(NamedTuple):
    """The settings for making rows: further columns, and the folder for files; "" keeps all rows in memory. `stepped`
    is the number of comparisons if they are of several steps, else 0."""

    metrics: tuple[str, ...] = ()
    folder: str = ""
    stepped: int = 0

    def piece(self, number: int, what: str, data: bytes) -> Piece:
        """Store data of one comparison. A file gets a unique name, because another worker may process the same
        comparison."""
        if not self.folder:
            return data
        handle, path = tempfile.mkstemp(f".{what}", f"{number}.", self.folder)
        with open(handle, "wb") as file:
            file.write(data)
        return Path(path)


class RankTables(NamedTuple):
    """Rows of tensors.csv and roots.csv without headers, the roots by place, the request for the next dump, and the
    data over the steps if there are several."""

    tensors: Piece
    roots: Piece
    wanted: RequestedOperators
    steps: Optional[StepSlice] = None


def write_rank_tables(
    filing: RowSettings,
    number: int,
    one: Comparison,
    columns: Optional[Columns] = None,
    linked: Optional[Callable[[], Linked]] = None,
) -> RankTables:
    """Return the rows of a comparison; `columns` and `linked` are given if they are already made."""
    from npucmp.plans.next_dump import RequestedOperators

    cells = columns_of(one, filing.metrics) if columns is None else columns
    roots = tables.root_columns([(one.roots, one.step, one.rank)])
    wishes = OpenRoots.of(one, linked or partial(producers_read, one))
    return RankTables(
        filing.piece(number, "tensors.csv", _lines((*tables.TENSOR_COLUMNS, *filing.metrics), cells)),
        filing.piece(number, "roots.csv", _lines(tables.ROOT_COLUMNS, roots)),
        RequestedOperators.of(one, wishes),
        _step_slice(one, cells, filing.stepped) if filing.stepped else None,
    )


def _step_slice(one: Comparison, cells: Columns, number: int) -> StepSlice:
    from npucmp.report.step_series import slice_of

    return slice_of(one, cells, number)


def lost_files(filing: RowSettings, where: StepRankNumbers, because: str) -> RankTables:
    """Return the row of a comparison that ends its worker process, with the reason."""
    from npucmp.plans.next_dump import RequestedOperators

    names = (*tables.TENSOR_COLUMNS, *filing.metrics)
    row = {"step": where.step, "rank": where.rank, "verdict": Verdict.UNREADABLE.value, "because": because}
    return RankTables(_lines(names, tables.by_column([row], names)), b"", RequestedOperators((), (), {}))


def _lines(names: Sequence[str], columns: Columns) -> bytes:
    return encode(csv_of(names, columns).partition("\n")[2])


def by_place(pieces: Iterable[tuple[Optional[int], Piece]]) -> Iterator[bytes]:
    """Yield the rows of roots.csv of all comparisons by place, given the step of each.

    The rows of a step have two ranges of consecutive places: its suspects, and, after the suspects of all steps, the
    operators that propagate an error. No more than one step is in memory.
    """
    steps = [[piece for _, piece in step_pieces] for _, step_pieces in groupby(sorted(pieces, key=_step), key=_step)]
    written = [0] * len(steps)
    place = 1
    for at, step_pieces in enumerate(steps):
        rows = [*_in_order(step_pieces)]
        while written[at] < len(rows) and _line_priority(rows[written[at]]) == place:
            written[at], place = written[at] + 1, place + 1
        yield b"".join(rows[: written[at]])
    for at, step_pieces in enumerate(steps):
        yield b"".join(islice(_in_order(step_pieces), written[at], None))


def _step(one: tuple[Optional[int], Piece]) -> int:
    return one[0] or 0


def _in_order(pieces: Sequence[Piece]) -> Iterator[bytes]:
    """Return the rows of a step, by place."""
    return heapq.merge(*map(_read, pieces), key=_line_priority)


def _read(piece: Piece) -> list[bytes]:
    return b"".join(ConcatFile([piece])).splitlines(keepends=True)


def _line_priority(line: Any) -> int:
    return int(line.partition(b",")[0])
