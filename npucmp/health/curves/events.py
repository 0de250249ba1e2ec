"""Read event files of TensorBoard and summary files of MindSpore: scalars by tag and step. Neither package is needed.

    offset  bytes  content of each record
    0       8      length, little endian
    8       4      checksum of the length
    12      *      an Event
    *       4      checksum of the Event

    Event    1 wall_time (double) · 2 step (varint) · 5 Summary
    Summary  1 Value, repeated
    Value    1 tag · 2 simple_value (TensorBoard, float) · 3 scalar_value (MindSpore, float) · 8 tensor (TensorBoard)
    Tensor   1 dtype (1 float, 2 double) · 4 content · 5 float values · 6 double values

Field 3 of TensorBoard is bytes (an old histogram), that of MindSpore a float: the wire type distinguishes them. A file
that ends within a record is still being written and is read up to that record.

Sources: tensorflow/core/util/event.proto, summary.proto; mindspore/ccsrc/utils/summary.proto.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Iterator, Optional

from npucmp.dump.context import ReadContext
from npucmp.dump.readers.folders import folders
from npucmp.dump.readers.protobuf import Cursor, WireField, signed
from npucmp.dump.readers.safe_open import RegularFile, open_regular
from npucmp.errors import DumpError
from npucmp.health.curves.curve import Log
from npucmp.health.curves.records import LARGEST, Record, log_of

_FILE = re.compile(r".*(?:\.tfevents\.|\.events\.summary\.).*")
_DEPTH = 4  # folders below a path


def is_events(path: Path) -> bool:
    """Whether the path is a folder, or a file with the name of an event file."""
    return path.is_dir() or _FILE.fullmatch(path.name) is not None


def read_events(path: Path, context: ReadContext) -> Log:
    """Read the scalars of one file, or of all event files in a folder, sorted by path; file names contain their
    times."""
    files = [path]
    if path.is_dir():
        every = (Path(folder, name) for folder, names in folders(path, _DEPTH) for name in names)
        files = sorted(file for file in every if _FILE.fullmatch(file.name))
        if not files:
            raise DumpError(path, "holds no event file (*.tfevents.*, *.events.summary.*): name one file of a curve")
    notes: list[str] = []
    several = len({file.parent for file in files}) > 1
    found: list[Record] = []
    for file in files:
        prefix = f"{file.parent.relative_to(path)}/" if several and file.parent != path else ""
        with open_regular(str(file), context) as opened:
            found += ({"step": step, f"{prefix}{tag}": value} for step, tag, value in _scalars(opened, notes))
    return log_of(str(path), found, tuple(notes))


def _scalars(file: RegularFile, notes: list[str]) -> Iterator[tuple[int, str, float]]:
    file.limits.require(file.path, "table_bytes", file.size, "has {:,} bytes")
    cursor, at = Cursor(file), 0
    while at + 16 <= file.size:
        (length,) = struct.unpack("<Q", cursor.bytes(at, 8))
        if length > file.size - at - 16:
            break
        yield from _of_event(cursor, at + 12, at + 12 + length)
        at += 16 + length
    if not at:
        raise DumpError(file.path, "not an event file")
    if at < file.size:
        notes.append(f"{file.path}: ends within a record; the records before it were read")


def _of_event(cursor: Cursor, start: int, end: int) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, []
    for field in cursor.fields(start, end):
        if field.number == 2 and field.wire == 0:
            step = signed(field.value)
        elif field.number == 5 and field.wire == 2:
            summaries.append(field)
    if abs(step) >= LARGEST:
        raise DumpError(cursor.file.path, f"step {step} is too large", start)
    for summary in summaries:
        for value in cursor.fields(summary.start, summary.end):
            if value.number == 1 and value.wire == 2:
                tag, number = _of_value(cursor, value)
                if tag and number is not None:
                    yield step, tag, number


def _of_value(cursor: Cursor, value: WireField) -> tuple[str, Optional[float]]:
    tag, number = "", None
    for field in cursor.fields(value.start, value.end):
        if field.number == 1 and field.wire == 2:
            tag = cursor.text(field)
        elif field.number in (2, 3) and field.wire == 5:
            number = _float(field.value)
        elif field.number == 8 and field.wire == 2:
            number = _of_tensor(cursor, field)
    return tag, number


def _of_tensor(cursor: Cursor, tensor: WireField) -> Optional[float]:
    """The value of a tensor with one float or double; None for other tensors."""
    found: list[float] = []
    for field in cursor.fields(tensor.start, tensor.end):
        size, form = field.end - field.start, {4: "<f", 8: "<d"}
        if field.number in (4, 5, 6) and field.wire == 2 and size in form:
            found += struct.unpack(form[size], cursor.bytes(field.start, size))
        elif field.number == 5 and field.wire == 5:
            found.append(_float(field.value))
        elif field.number == 6 and field.wire == 1:
            found += struct.unpack("<d", field.value.to_bytes(8, "little"))
    return found[0] if len(found) == 1 else None


def _float(word: int) -> float:
    found: float = struct.unpack("<f", word.to_bytes(4, "little"))[0]
    return found
