"""A table as a Parquet file, made of its CSV piece by piece: the same cells, with types. Needs pyarrow.

Metrics and figures are float64, places, counts and sizes whole numbers, yes and no booleans, all other columns strings.
An empty cell is null; NaN is not. Text that a spreadsheet would take for a formula is as inert as in the CSV.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Any, BinaryIO, Iterator, Sequence

from npucmp.errors import MissingExtra
from npucmp.model.written import BOOL, TEXT, WHOLE
from npucmp.report.files import Joined

BLOCK = 8 << 20  # bytes of CSV that become a group of rows; no row is as long


def require() -> None:
    """MissingExtra where Parquet cannot be written."""
    if find_spec("pyarrow") is None:
        raise MissingExtra("npucmp[parquet]", "--parquet")


class Packed:
    """The content of a Parquet file."""

    def __init__(self, names: "Sequence[str]", lines: Joined) -> None:
        self._names, self._lines = names, lines

    def write_to(self, file: "BinaryIO") -> None:
        """Writes it, never more than a few blocks in memory."""
        import pyarrow
        from pyarrow import csv, parquet

        named = {name: _type_of(pyarrow, name) for name in self._names}
        convert = csv.ConvertOptions(
            column_types=named,
            null_values=[""],
            true_values=["True"],
            false_values=["False"],
            strings_can_be_null=True,
        )
        read = csv.ReadOptions(block_size=BLOCK)
        schema = pyarrow.schema([*named.items()])
        with parquet.ParquetWriter(file, schema) as writer:
            for batch in csv.open_csv(_Stream(iter(self._lines)), read_options=read, convert_options=convert):
                writer.write_batch(batch)


def _type_of(pyarrow: Any, name: str) -> Any:
    if name in WHOLE:
        return pyarrow.int64()
    return pyarrow.bool_() if name in BOOL else pyarrow.string() if name in TEXT else pyarrow.float64()


class _Stream(io.RawIOBase):
    """Pieces as a file that can be read."""

    def __init__(self, pieces: "Iterator[bytes]") -> None:
        self._pieces, self._left = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        some = self._left[: len(buffer)]
        buffer[: len(some)] = some
        self._left = self._left[len(some) :]
        return len(some)
