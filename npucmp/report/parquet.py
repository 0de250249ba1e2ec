"""Write a table as a Parquet file, converted from its CSV piece by piece: the same cells, with types. Needs pyarrow.

Metrics and figures are float64; places, counts and sizes are integers; yes and no are booleans; all other columns are
strings. An empty cell is null; NaN is not. Text that a spreadsheet would read as a formula is escaped as in the CSV.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain
from typing import Any, BinaryIO, Iterable, Iterator, Sequence

from npucmp.errors import MissingExtra
from npucmp.model.report_files import BOOL, TEXT, WHOLE
from npucmp.report.files import ConcatFile

BLOCK = 8 << 20  # bytes of CSV that become a row group


def require() -> None:
    """Raise MissingExtra if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise MissingExtra("npucmp[parquet]", "--parquet")


class ParquetFile:
    """The content of a Parquet file."""

    def __init__(self, names: Sequence[str], lines: ConcatFile) -> None:
        self._names, self._lines = names, lines

    def write_to(self, file: BinaryIO) -> None:
        """Write the file, with no more than a few blocks in memory."""
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
        with parquet.ParquetWriter(file, pyarrow.schema([*named.items()])) as writer:
            for block in _blocks(self._lines):
                read = csv.ReadOptions(column_names=[*named], block_size=len(block) + 1)
                writer.write_table(csv.read_csv(pyarrow.BufferReader(block), read, convert_options=convert))


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines after the header: at most BLOCK bytes, or one longer line. The blocks do not depend on the
    pieces. The blocks of pyarrow itself would end the process at a line longer than two of them."""
    left, is_first = bytearray(), True
    for piece in chain(pieces, [b""]):
        left += piece
        if is_first and b"\n" in left:
            del left[: left.index(b"\n") + 1]
            is_first = False
        while left and not is_first and (len(left) > BLOCK or not piece):
            end = left.rfind(b"\n", 0, BLOCK) + 1 or left.find(b"\n", BLOCK) + 1
            if not end:  # the rest of the line is in a later piece
                break
            yield bytes(left[:end])
            del left[:end]


def _type_of(pyarrow: Any, name: str) -> Any:
    if name in WHOLE:
        return pyarrow.int64()
    return pyarrow.bool_() if name in BOOL else pyarrow.string() if name in TEXT else pyarrow.float64()
