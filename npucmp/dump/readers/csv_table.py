"""Read CSV tables written by npucmp, with pandas, block by block: every cell is text, an empty cell is "".

A file may come from a ticket, so it is not trusted. A row with another number of cells than the header, a line longer
than npucmp writes, more columns than npucmp writes, or an unclosed quote raises DumpError.
"""

from __future__ import annotations

import io
import re
from codecs import BOM_UTF8
from itertools import chain
from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from npucmp.errors import DumpError

if TYPE_CHECKING:
    from pandas import DataFrame

LINE = 1 << 20  # maximum bytes of a line
COLUMNS = 4096  # maximum
_QUOTED = re.compile(rb'"[^"]*"')
CHANGED = "which npucmp does not write; was it changed?"


class Block(NamedTuple):
    """A block of rows: the column names, the cells in a frame with numbered columns, and the text lines."""

    names: Sequence[str]
    frame: DataFrame
    text: bytes


def read_blocks(path: str, pieces: Iterable[bytes], longest: int = LINE) -> Iterator[Block]:
    """Yield the rows of a table whose bytes arrive in pieces; the header comes first, as a block without rows."""
    names: Optional[list[str]] = None
    head, rest, before = b"", b"", 0
    for piece in chain(pieces, [None]):
        if piece is None:
            text, rest = rest, b""
        else:
            rest += piece
            end = _end_of_rows(rest)
            text, rest = rest[:end], rest[end:]
            if len(rest) > longest:
                raise DumpError(path, "a line that is longer than any that npucmp writes")
        if names is None and (text or piece is None):
            line, _, text = text.partition(b"\n")
            head = line.removeprefix(BOM_UTF8).rstrip(b"\r") + b"\n"
            if head.count(b",") >= COLUMNS:
                raise DumpError(path, f"{head.count(b',') + 1:,} columns, more than npucmp writes")
            before, columns = 1, _frame(path, head if head.strip() else b"-\n", b"")
            names = columns.iloc[0].tolist() if head.strip() else []
            yield Block(names, columns.iloc[1:], b"")
        if text and names:
            _require_cells(path, text, len(names), before)
            yield Block(names, _frame(path, head, text).iloc[1:], text)
            before += text.count(b"\n")


def read_rows(
    path: str, pieces: Iterable[bytes], needs: Sequence[str] = (), wanted: Sequence[str] = ()
) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table by column name, of all columns or only the `wanted` ones.

    Raises DumpError if the table lacks a column that it `needs`.
    """
    for names, frame, _ in read_blocks(path, pieces):
        for name in needs:
            if name not in names:
                raise DumpError(path, f"has no column {name}, so it is not this table of npucmp")
        places = {name: at for at, name in enumerate(names) if not wanted or name in wanted}
        columns = [frame[at].tolist() for at in places.values()] if len(frame) else []
        yield from (dict(zip(places, cells)) for cells in zip(*columns))


def _end_of_rows(text: bytes) -> int:
    """Return the end of the last whole row; a line break within quotes ends no row."""
    end = text.rfind(b"\n") + 1
    if text.count(b'"', 0, end) % 2 == 0:
        return end

    data = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(data == ord("\n"))
    ends = breaks[np.searchsorted(np.flatnonzero(data == ord('"')), breaks) % 2 == 0] + 1
    return int(ends[-1]) if len(ends) else 0


def _require_cells(path: str, text: bytes, count: int, before: int) -> None:
    """Raise DumpError for the first line with another number of cells; `before` lines precede the text."""

    bare = _QUOTED.sub(b"-", text)  # commas and line breaks in quotes are text
    if b'"' in bare:
        raise DumpError(path, "not CSV: a quote that does not end")
    data = np.frombuffer(bare, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    ends = ends if bare.endswith(b"\n") else np.append(ends, len(data))
    cells = np.diff(np.searchsorted(np.flatnonzero(data == ord(",")), ends), prepend=0) + 1
    for at in np.flatnonzero(cells != count).tolist():
        if bare[ends[at - 1] + 1 if at else 0 : ends[at]].strip():
            raise DumpError(path, f"line {before + at + 1}: {cells[at]} cells under {count} names, {CHANGED}")


def _frame(path: str, head: bytes, text: bytes) -> DataFrame:
    """Return the cells of a header and of the lines below it."""
    import pandas

    if b"\0" in text or b"\0" in head:
        raise DumpError(path, "not CSV: it contains a NUL")
    try:
        return pandas.read_csv(
            io.BytesIO(head + text),
            header=None,
            dtype=str,
            keep_default_na=False,
            lineterminator="\n",
            encoding="utf-8",
            encoding_errors="replace",
            engine="c",
        )
    except (ValueError, OverflowError) as error:  # ParserError is a ValueError
        raise DumpError(path, f"not CSV: {' '.join(str(error).split())}") from None
