"""Read files of ATB (MindIE, ascend-transformer-boost): tensors, and statistic.csv.

A tensor file is a text header and the values:

    lines of name=value, in any order, each ended by a newline, the last of them $End=1; then the values, C order
      dtype             a number of ge::DataType
      dims              sizes, by commas; none for a single number
      format            a number of aclFormat; left out: ND
      $Object.Length    bytes behind the header               (may be left out)
      $Object.data      {offset from there},{bytes}           (may be left out: all bytes)
      data              instead of values: the tensor of this execution that holds the same, {ids}_{file name}

Other lines are ignored. Values that are longer than the shape needs contain padding. Source: public sources of msprobe
and of msit, which write and read these files.

statistic.csv has a row per tensor of one execution, beside the tensor files or instead of them:

    Device and PID, Execution Count, Op Name, Op Type, Op Id, Input/Output, Index, Dtype, Format, Shape, Max, Min, Mean,
    Norm, Tensor Path     columns by name
Names are "Prefill_layer/Attention" with ids "2_0", an index "0" or "2_value", a shape "36x128"; "N/A" if absent.
Figures are rounded to the decimals that they show.
Source: public sources of msprobe.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Mapping, NamedTuple, Optional

from npucmp.dump.limits import ANYWHERE, ReadContext, is_countable, tensor_size
from npucmp.dump.readers.cann_enums import GE_DATA_TYPE, NOT_NUMBERS, OUTPUT_FORMAT, from_name
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.dump.readers.statistics_csv import has_columns, rows_of, statistics
from npucmp.errors import DumpError
from npucmp.model import Payload, TensorRef
from npucmp.model.dtypes import canonical, lookup

MOST = 4096  # bytes of a header; those of msprobe have 150
_END = b"$End=1\n"
_NUMBER = re.compile(r"[0-9]{1,18}")
_LINE = re.compile(r"[$\w.]+=[^=]*")


class AtbTensor(NamedTuple):
    """The header of a file. payload is None if another file, named by `link`, holds the values."""

    dtype: str
    shape: tuple[int, ...]
    layout: str
    payload: Optional[Payload]
    link: str = ""


def is_atb(file: RegularFile) -> bool:
    """Return whether a file starts with an ATB header."""
    head, end, _ = file.read(0, min(file.size, MOST)).partition(_END)
    return bool(end) and head.isascii() and b"dtype=" in head


def read_atb(file: RegularFile) -> AtbTensor:
    """Read the header of a file; DumpError if it is malformed or inconsistent. The values are not read."""
    if not file.is_held:
        file.prefetch(0, MOST)
    head, end, _ = file.read(0, min(file.size, MOST)).partition(_END)
    if not end:
        raise DumpError(file.path, f"no $End=1 in its first {MOST} bytes: cut short, or not an ATB file", 0)
    attributes = _attributes(file, head)
    dtype, layout, shape = _dtype(file, attributes), _layout(file, attributes), _shape(file, attributes)
    row = lookup(dtype)
    if row is None:
        raise DumpError(file.path, f"unsupported: elements of type {dtype}")
    tensor_size(file.path, shape, row.itemsize, file.limits)
    if "data" in attributes:
        return AtbTensor(dtype, shape, layout, None, attributes["data"])
    offset, size = _value_range(file, attributes, len(head) + len(_END))
    needed = row.stored(math.prod(shape))
    if size < needed:
        raise DumpError(file.path, f"shape {list(shape)} needs {needed} bytes, the file has {size}", offset)
    if "$Object.data" not in attributes and size != needed:
        raise DumpError(file.path, f"holds {size} bytes of data, its header promises {needed}", offset)
    return AtbTensor(dtype, shape, layout, Payload(file.path, dtype, shape, offset))


def _attributes(file: RegularFile, head: bytes) -> dict[str, str]:
    try:
        lines = head.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DumpError(file.path, "its header is not text: not an ATB file", error.start) from None
    if not all(map(_LINE.fullmatch, lines)):
        raise DumpError(file.path, "a line of its header is not name=value")
    attributes = dict(line.split("=") for line in lines)
    if len(attributes) < len(lines):
        raise DumpError(file.path, "its header contains a name twice")
    return attributes


def _dtype(file: RegularFile, attributes: dict[str, str]) -> str:
    word = attributes.get("dtype", "")
    dtype = GE_DATA_TYPE.get(int(word)) if _NUMBER.fullmatch(word) else None
    if dtype is None or dtype in NOT_NUMBERS:
        raise DumpError(file.path, f"unsupported: elements of type {dtype or word[:20]!r}")
    return dtype


def _layout(file: RegularFile, attributes: dict[str, str]) -> str:
    word = attributes.get("format", "2")
    return OUTPUT_FORMAT.get(int(word), "") if _NUMBER.fullmatch(word) else ""


def _shape(file: RegularFile, attributes: dict[str, str]) -> tuple[int, ...]:
    if "dims" not in attributes:
        raise DumpError(file.path, "its header has no dims")
    words = attributes["dims"].split(",") if attributes["dims"] else []
    if not all(map(_NUMBER.fullmatch, words)):
        raise DumpError(file.path, f"its dims are not a shape: {attributes['dims'][:40]!r}")
    return tuple(map(int, words))


def _value_range(file: RegularFile, attributes: dict[str, str], start: int) -> tuple[int, int]:
    """Return the offset and the byte count of the values."""
    held = file.size - start
    promised = attributes.get("$Object.Length", str(held))
    if not _NUMBER.fullmatch(promised) or int(promised) != held:
        raise DumpError(file.path, f"holds {held} bytes of data, its header promises {promised[:20]}", start)
    words = attributes.get("$Object.data", f"0,{held}").split(",")
    if len(words) != 2 or not all(map(_NUMBER.fullmatch, words)) or sum(map(int, words)) > held:
        raise DumpError(file.path, f"its values cannot be at {','.join(words)[:40]!r} of {held} bytes", start)
    return start + int(words[0]), int(words[1])


STATISTIC = "statistic.csv"
_IDS = re.compile(r"[0-9]{1,9}(?:_[0-9]{1,9})*")
_INDEX = re.compile(r"([0-9]{1,9})(?:_.*)?")
_SHAPE = re.compile(r"(?:[0-9]{1,18}(?:x[0-9]{1,18})*)?")
_DECIMALS = re.compile(r"-?[0-9]+\.([0-9]{1,17})")
_FIGURES = {"max": "max value", "min": "min value", "mean": "mean value", "norm": "l2norm"}


class AtbRow(NamedTuple):
    """One tensor, and the (id, name) of its operator and of each enclosing operator, outermost first."""

    chain: tuple[tuple[int, str], ...]
    tensor: TensorRef


def is_table(file: Path, context: ReadContext = ANYWHERE) -> bool:
    """Return whether the first line of a file names these columns; never raises."""
    return has_columns(file, ("device and pid", "op name", "op id", "index", "shape"), context)


def rows(file: Path, notes: list[str], context: ReadContext = ANYWHERE) -> list[AtbRow]:
    """Read the rows of a table; an unreadable table adds a note, and so do rows that name no tensor."""
    return rows_of(file, _row, notes, context)


def _row(cells: Mapping[str, str]) -> Optional[AtbRow]:
    names, ids = cells.get("op name", "").split("/"), cells.get("op id", "")
    role = next((one for one in ("input", "output") if cells.get("input/output", "").lower()[:2] == one[:2]), None)
    index = _INDEX.fullmatch(cells.get("index", ""))
    numbers = [int(one) for one in ids.split("_")] if _IDS.fullmatch(ids) else []
    if role is None or index is None or not all(names) or len(names) != len(numbers):
        return None
    text = cells.get("shape", "").replace("N/A", "")
    shape = tuple(map(int, filter(None, text.split("x")))) if _SHAPE.fullmatch(text) else None
    usable = shape is not None and len(shape) <= 64 and is_countable(shape)
    return AtbRow(
        tuple(zip(numbers, names)),
        TensorRef(
            slot=f"{role}:{int(index[1])}",
            dtype=canonical(from_name(cells.get("dtype", ""))),
            shape=shape if usable and shape is not None else (),
            statistics=statistics({_FIGURES[key]: cells.get(key, "") for key in _FIGURES}),
            problem="" if usable else f"{STATISTIC} gives it the shape {cells.get('shape', '')!r:.60}",
            label=f"{cells.get('op name', '')}.{role}.{cells.get('index', '')}",
            rounding=_rounding(cells),
        ),
    )


def _rounding(cells: Mapping[str, str]) -> float:
    """Return half a unit of the last decimal of the figures; 0 if a figure is written with an exponent."""
    shown = [cells.get(key, "") for key in _FIGURES]
    places = [len(match[1]) for match in map(_DECIMALS.fullmatch, shown) if match]
    return 0.5 * 10.0 ** -max(places) if places and not any("e" in one.lower() for one in shown) else 0.0
