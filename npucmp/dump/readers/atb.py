"""Read files of ATB (MindIE, ascend-transformer-boost): a text header, and the values.

    lines of name=value, in any order, each ended by a newline, the last of them $End=1; then the values, C order
      dtype             a number of ge::DataType
      dims              sizes, by commas; none for a single number
      format            a number of aclFormat; left out: ND
      $Object.Length    bytes behind the header               (may be left out)
      $Object.data      {offset from there},{bytes}           (may be left out: all bytes)
      data              instead of values: the tensor of this execution that holds the same, {ids}_{file name}

Other lines are ignored. Values that are longer than the shape needs contain padding.
Source: public sources of msprobe and of msit, which write and read such files.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple, Optional

from npucmp.dump.limits import tensor_size
from npucmp.dump.readers.cann_enums import GE_DATA_TYPE, NOT_NUMBERS, OUTPUT_FORMAT
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.errors import DumpError
from npucmp.model import Payload
from npucmp.model.dtypes import lookup

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
    told = _attributes(file, head)
    dtype, layout, shape = _dtype(file, told), _layout(file, told), _shape(file, told)
    row = lookup(dtype)
    if row is None:
        raise DumpError(file.path, f"unsupported: elements of type {dtype}")
    tensor_size(file.path, shape, row.itemsize, file.limits)
    if "data" in told:
        return AtbTensor(dtype, shape, layout, None, told["data"])
    offset, size = _value_range(file, told, len(head) + len(_END))
    needed = row.stored(math.prod(shape))
    if size < needed:
        raise DumpError(file.path, f"shape {list(shape)} needs {needed} bytes, the file has {size}", offset)
    if "$Object.data" not in told and size != needed:
        raise DumpError(file.path, f"holds {size} bytes of data, its header promises {needed}", offset)
    return AtbTensor(dtype, shape, layout, Payload(file.path, dtype, shape, offset))


def _attributes(file: RegularFile, head: bytes) -> dict[str, str]:
    try:
        lines = head.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise DumpError(file.path, "its header is not text: not an ATB file", error.start) from None
    if not all(map(_LINE.fullmatch, lines)):
        raise DumpError(file.path, "a line of its header is not name=value")
    told = dict(line.split("=") for line in lines)
    if len(told) < len(lines):
        raise DumpError(file.path, "its header contains a name twice")
    return told


def _dtype(file: RegularFile, told: dict[str, str]) -> str:
    word = told.get("dtype", "")
    dtype = GE_DATA_TYPE.get(int(word)) if _NUMBER.fullmatch(word) else None
    if dtype is None or dtype in NOT_NUMBERS:
        raise DumpError(file.path, f"unsupported: elements of type {dtype or word[:20]!r}")
    return dtype


def _layout(file: RegularFile, told: dict[str, str]) -> str:
    word = told.get("format", "2")
    return OUTPUT_FORMAT.get(int(word), "") if _NUMBER.fullmatch(word) else ""


def _shape(file: RegularFile, told: dict[str, str]) -> tuple[int, ...]:
    if "dims" not in told:
        raise DumpError(file.path, "its header has no dims")
    words = told["dims"].split(",") if told["dims"] else []
    if not all(map(_NUMBER.fullmatch, words)):
        raise DumpError(file.path, f"its dims are not a shape: {told['dims'][:40]!r}")
    return tuple(map(int, words))


def _value_range(file: RegularFile, told: dict[str, str], start: int) -> tuple[int, int]:
    """Return the offset and the byte count of the values."""
    held = file.size - start
    promised = told.get("$Object.Length", str(held))
    if not _NUMBER.fullmatch(promised) or int(promised) != held:
        raise DumpError(file.path, f"holds {held} bytes of data, its header promises {promised[:20]}", start)
    words = told.get("$Object.data", f"0,{held}").split(",")
    if len(words) != 2 or not all(map(_NUMBER.fullmatch, words)) or sum(map(int, words)) > held:
        raise DumpError(file.path, f"its values cannot be at {','.join(words)[:40]!r} of {held} bytes", start)
    return start + int(words[0]), int(words[1])
