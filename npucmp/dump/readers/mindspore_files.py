"""Read files of a MindSpore dump: names of tensors, statistic.csv, and tensors that were written as bytes only.

Names of tensors, in file names and in the rows of statistic.csv:

    {type}.{name}.{task}.{stream}.{microseconds}[.{kind}.{context}.{thread}.{device}].{input|output}.{n}{tail}.npy
    {type}.{name}.{task}.{microseconds}.{input|output}.{n}.npy     of the first releases of CANN
    {tail} is .{format}, .{format}.{dtype}, .{A}x{B}x{C} (converted raw dumps) or nothing
    the time may be empty; without .npy, or with .bin: only the bytes, of types and formats that NPY lacks

{name} is the full name ("Default/network-Net/fc-Dense/MatMul-op0") with "_" for "/", in older versions its last part.

statistic.csv has a row per tensor of a folder, beside the tensor files or instead of them:

    Op Type, Op Name, Task ID, Stream ID, Timestamp, IO (or Input/Output), Slot, Data Size, Data Type, Shape,
    Max Value, Min Value, …     columns by name, in any order; the configuration decides which figures exist
    MD5, or MD5 Value           checksum
Shapes are "(2, 3)" or "2x3", "-" for none, "-4096" if a spreadsheet read "(4096)" as a negative number;
"null" if no element is finite, figures of Bool are "True" and "False".
Source: MindSpore's public documentation and sources, public test data.

Tensors are written as bytes only because NPY lacks their type or format, or in all of a dump:

    {type}.{name}.{task}.{stream}.{microseconds}.{input|output}.{n}.{format}.{DTYPE}[.bin]
    the whole file is the values, size = elements · width; the file holds neither type nor shape

The type comes from the name, else from the row in statistic.csv; the shape comes from the row if the bytes fit it.
Without a row the tensor is 1-D, and its partner in the other run determines the shape (align/shape_match.py).
Source: public sources of msprobe (AclDumpDataProcessor, AclTensor).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.layouts import DEVICE_LAYOUTS
from npucmp.dump.limits import ANYWHERE, ReadContext, is_countable, tensor_size
from npucmp.dump.readers.cann_enums import from_name
from npucmp.dump.readers.names import OTHER_ENDINGS
from npucmp.dump.readers.safe_open import open_regular
from npucmp.dump.readers.statistics_csv import has_columns, rows_of, statistics
from npucmp.errors import DumpError
from npucmp.model import DeviceTask, Payload, TensorRef
from npucmp.model.dtypes import canonical, lookup, size_of

PARAMETER = "Parameter"
LONGEST = 4096

_NAME = re.compile(
    r"(?P<type>[^.]+)\.(?P<op>[^.]+)\.(?P<numbers>[0-9]{1,20}(?:\.[0-9]{1,20}){1,6}|[0-9]{1,20}\.[0-9]{1,20}\.)"
    r"\.(?P<role>input|output)\.(?P<number>[0-9]{1,9})(?P<tail>(?:\.[^.]+)*)\.npy"
)
_NUMBERED = re.compile(r"-op[0-9]+$")


class MindsporeName(NamedTuple):
    """The tensor and the execution that a name identifies. `layout` and `dtype` are the dump's words, "" if absent."""

    op_type: str
    op_name: str
    role: str
    number: int
    time: int
    layout: str = ""
    dtype: str = ""
    task: DeviceTask = DeviceTask(-1)

    @property
    def is_parameter(self) -> bool:
        """Return whether the tensor is a weight or an input of the network, which no kernel wrote."""
        return self.op_type == PARAMETER

    @property
    def slot(self) -> str:
        return f"{'input' if self.is_parameter else self.role}:{self.number}"

    @property
    def key(self) -> tuple[str, str, int]:
        """The key shared by all executions of the operator."""
        return self.op_name, self.role, self.number


def parse_mindspore_name(name: str) -> Optional[MindsporeName]:
    """Parse a file name; None if it is not of this format."""
    match = _NAME.fullmatch(name) if len(name) <= LONGEST else None
    if match is None:
        return None
    numbers = [int(number or 0) for number in match["numbers"].split(".")]
    streamless = len(numbers) == 2
    if streamless and numbers[1] < 10**9:  # too small for a time, so it is an index
        return None
    task, stream, time = (numbers[0], -1, numbers[1]) if streamless else numbers[:3]
    sliced = numbers[4:6] if len(numbers) == 7 else ()
    layout, dtype = [*match["tail"].split("."), "", ""][1:3]
    return MindsporeName(
        match["type"], match["op"], match["role"], int(match["number"]), time, layout, dtype,
        DeviceTask(task, stream, *sliced),
    )  # fmt: skip


def parse_raw_name(name: str) -> Optional[MindsporeName]:
    """Parse the name of a tensor that was written as bytes: such a name without .npy, or with .bin."""
    stem = name[: -len(".bin")] if name.endswith(".bin") else name
    return None if name.endswith((".npy", *OTHER_ENDINGS)) else parse_mindspore_name(f"{stem}.npy")


def kind(op_name: str) -> str:
    """Return a name without the number that distinguishes kernels of its scope and type."""
    return _NUMBERED.sub("", op_name)


def compute_dtype(word: str, stored: str) -> str:
    """Return the type used in the computation, if NPY lacks it and the file holds a wider float; else the file's."""
    named, held = lookup(canonical(from_name(word))), lookup(stored)
    if named and held and named.kind == held.kind == "f" and named.round_off > held.round_off:
        return named.name
    return stored


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


_LAYOUTS = {"NZ": "FRACTAL_NZ"}
_DEVICE = re.compile(r"FRACTAL_\w+|\w*C1\w*C0\w*|C1HWNCoC0")


def raw_type(name: MindsporeName) -> str:
    """Return the type in a name, "" if it cannot be read."""
    found = canonical(from_name(name.dtype))
    return found if lookup(found) else ""


def device_layout(word: str) -> str:
    """Return the layout in a name if it is a device layout, "" if it is in plain order."""
    layout = _LAYOUTS.get(word, word)
    return layout if layout in DEVICE_LAYOUTS or _DEVICE.fullmatch(layout) else ""


def raw_tensor(name: MindsporeName, file: str, row: Optional[TensorRef], context: ReadContext = ANYWHERE) -> TensorRef:
    """Return the tensor of such a file; with a problem if its bytes are not whole elements of a known type."""
    label = os.path.basename(file)
    dtype = raw_type(name) or (row.dtype if row and lookup(row.dtype) else "")
    made = TensorRef(name.slot, dtype, (), file, label=label)
    try:
        with open_regular(file, context) as opened:
            size = opened.size
            tensor_size(file, (size,), 1, opened.limits)
    except DumpError as error:
        return made._replace(slot="", problem=error.because)
    kind = lookup(dtype)
    if kind is None and row:
        return row
    if kind is None:
        words = f"no file records their type ({name.dtype!r:.40})" if name.dtype else "no file records their type"
        return made._replace(problem=f"raw bytes without a header: {words}", dtype=canonical(from_name(name.dtype)))
    if size % kind.itemsize and not kind.bits:
        return made._replace(problem=f"cut short: {size} bytes are not a multiple of {dtype}")
    layout = device_layout(name.layout)
    made = made._replace(
        layout=layout, statistics=row.statistics if row else None, checksum=row.checksum if row else ""
    )
    if row and not row.problem and not layout:
        if size_of(dtype, row.shape) != size:
            words = f"{size} bytes, statistic.csv gives it shape {list(row.shape)}, {size_of(dtype, row.shape)} bytes"
            return made._replace(problem=words)
        return made._replace(shape=row.shape, payload=Payload(file, dtype, row.shape, 0))
    count = size * 8 // (kind.bits or kind.itemsize * 8)
    return made._replace(shape=(count,), payload=Payload(file, dtype, (count,), 0, unshaped=True))
