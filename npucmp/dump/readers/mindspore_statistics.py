"""Read statistic.csv of MindSpore: a row per tensor of a folder, beside the tensor files or instead of them.

    Op Type, Op Name, Task ID, Stream ID, Timestamp, IO (or Input/Output), Slot, Data Size, Data Type, Shape,
    Max Value, Min Value, …     columns by name, in any order; the configuration decides which figures exist
    MD5, or MD5 Value           checksum
Shapes are "(2, 3)" or "2x3", "-" for none, "-4096" if a spreadsheet read "(4096)" as a negative number;
"null" if no element is finite, figures of Bool are "True" and "False".
Source: MindSpore's public documentation and sources, public test data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.context import ANYWHERE, ReadContext
from npucmp.dump.limits import is_countable
from npucmp.dump.readers.cann_enums import from_name
from npucmp.dump.readers.cann_statistics import statistics
from npucmp.dump.readers.mindspore_names import MindsporeName
from npucmp.dump.readers.tables import has_columns, rows_of
from npucmp.model import DeviceTask, TensorRef
from npucmp.model.dtypes import canonical

STATISTIC = "statistic.csv"
_NEGATED = re.compile(r"-[0-9]+")
_SHAPE = re.compile(r"[0-9x,()\[\]\s]*|-")


class StatisticRow(NamedTuple):
    name: MindsporeName
    tensor: TensorRef


def is_table(file: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether the first line of a file names these columns; never raises."""
    return has_columns(file, ("op name", "slot", "data type", "shape"), context)


def rows(file: Path, notes: list[str], context: ReadContext = ANYWHERE) -> list[StatisticRow]:
    """Read the rows of a table; an unreadable table adds a note, and so do rows that name no tensor."""
    return rows_of(file, _row, notes, context)


def _row(cells: Mapping[str, str]) -> Optional[StatisticRow]:
    role = (cells.get("io") or cells.get("input/output") or "").lower()
    index, op_type, op_name = cells.get("slot", ""), cells.get("op type", ""), cells.get("op name", "")
    if role not in ("input", "output") or not op_name or not re.fullmatch("[0-9]{1,9}", index):
        return None
    task = DeviceTask(_number(cells, "task id", -1), _number(cells, "stream id", -1))
    name = MindsporeName(op_type, op_name, role, int(index), _number(cells, "timestamp", 0), task=task)
    shape = _shape(cells.get("shape", ""))
    return StatisticRow(
        name,
        TensorRef(
            slot=name.slot,
            dtype=canonical(from_name(cells.get("data type", ""))),
            shape=shape or (),
            statistics=statistics(cells),
            checksum=cells.get("md5") or cells.get("md5 value") or "",
            problem=f"{STATISTIC} gives it the shape {cells.get('shape', '')!r:.60}" if shape is None else "",
            label=f"{op_type}.{op_name}.{name.time}.{role}.{name.number}",
        ),
    )


def _number(cells: Mapping[str, str], column: str, otherwise: int) -> int:
    text = cells.get(column, "")
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else otherwise


def _shape(text: str) -> Optional[tuple[int, ...]]:
    sizes = re.findall("[0-9]+", text)
    if _NEGATED.fullmatch(text):
        text = text[1:]
    if not _SHAPE.fullmatch(text) or len(sizes) > 64 or any(len(size) > 18 for size in sizes):
        return None
    shape = tuple(map(int, sizes))
    return shape if is_countable(shape) else None
