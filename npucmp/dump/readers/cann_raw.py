"""Read raw CANN dump files ("version 2" and "version 1": a protobuf header and the payloads) and nano dump files, and
check the description of each tensor against the file: known type, consistent shape and size.

    version 2   offset  bytes  content
                0       8      H, length of the header, uint64
                8       H      DumpData, its `data` fields empty
                8 + H   …      payloads without gaps: input 0 …, output 0 …, buffers, workspaces; `size` bytes each
    version 1   the whole file is one DumpData with the payloads inside

    DumpData    3 output · 4 input · 5 buffer · 6 op_name · 7 attr {1 name 2 value} · 8 space
    OpOutput    1 data_type 2 format 3 shape 4 original_op {1 name 2 output_index} 5 data 6 size 7 original_shape
                8 sub_format
    OpInput     1 data_type 2 format 3 shape 4 data 5 size 6 original_shape 7 sub_format
    Shape       1 dim, packed or not

`size` may exceed the need of the shape (padding to 32 bytes); the rest is ignored. proto3 omits zeros, and older
writers omit whole fields: every field is optional. Only positions of payloads are read, never the payloads.
Source: dump_data.proto of the public CANN and MindSpore repositories.

Nano dump files have the content of raw CANN dumps, encoded as tag-length-value instead of protobuf:

    offset  bytes  content
    0       8      H, length of the rest of the header, up to the payloads, uint64
    8       4      5A 5A 5A 5A
    12      4      version
    16      …      blocks: type uint32, length uint32, content
                     4 inputs   count uint32, then 40 bytes each: data_type, format, address_type (int32), address,
                                offset, size (uint64), length of nested blocks (uint32), nested blocks
                     5 outputs  the same with 52 bytes: after address_type original_index, original_data_type,
                                original_format (int32)
                     nested     0 shape, 1 original shape (uint64 each), 2 name of the original operator
    8 + H   …      payloads: inputs, then outputs, `size` bytes each

data_type is a number of ge::DataType, not of the protobuf's table. Source: a decoded real file, and msaccucmp's public
reader.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple, Optional

from npucmp.dump.limits import tensor_size
from npucmp.dump.readers.cann_enums import (
    GE_DATA_TYPE,
    NOT_NUMBERS,
    OUTPUT_DATA_TYPE,
    OUTPUT_FORMAT,
    RawDump,
    RawTensor,
)
from npucmp.dump.readers.protobuf import Cursor, WireField
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.errors import DumpError
from npucmp.model.dtypes import lookup


class TensorHeader(NamedTuple):
    """A tensor as described by its header.

    `known` is whether its type number is in the table, `inline` is (offset, bytes) of values inside the header.
    """

    dtype: str
    known: bool
    layout: str
    shape: Optional[tuple[int, ...]]
    original: Optional[tuple[int, ...]]
    groups: int
    size: int
    inline: Optional[tuple[int, int]] = None
    origin: str = ""


def tensor_at(file: RegularFile, role: str, tensor: TensorHeader, offset: int, size: int) -> RawTensor:
    """Return the tensor at its place; `problem` states why its values cannot be read."""
    dtype, shape, original = tensor.dtype, tensor.shape, tensor.original
    if dtype == "undefined" or (shape is None and size):
        dtype = "int8" if dtype == "undefined" else dtype  # undefined types become bytes, as in the vendor's tool
        row = lookup(dtype)
        shape, original = (size * 8 // (row.bits or row.itemsize * 8) if row else size,), None
    shape = shape or ()
    made = RawTensor(role, dtype, tensor.layout, shape, original, tensor.groups, offset, size, origin=tensor.origin)
    return made._replace(problem=_problem(file, made, tensor.known))


def _problem(file: RegularFile, tensor: RawTensor, known: bool) -> str:
    row = lookup(tensor.dtype)
    if not known:
        return f"unknown {tensor.dtype}"
    if tensor.dtype in NOT_NUMBERS:
        return f"elements of type {tensor.dtype} are not numbers"
    if row is None:
        return f"unsupported: elements of type {tensor.dtype}"
    try:
        tensor_size(file.path, tensor.shape, row.itemsize, file.limits)
        tensor_size(file.path, tensor.original or (), row.itemsize, file.limits)
    except DumpError as error:
        return error.because
    elements = math.prod(tensor.shape)
    needed = row.stored(elements)
    if needed > tensor.size:
        if not tensor.size:
            return "its values were not written: 0 bytes"
        return f"shape {list(tensor.shape)} needs {needed} bytes, its header promises {tensor.size}"
    if tensor.offset + tensor.size > file.size:  # sizes beyond the values count too: they reveal a truncated file
        return f"ended early: {file.size} bytes, its values end at {tensor.offset + tensor.size}"
    return ""


class _TensorRoles(NamedTuple):
    """Field numbers of one tensor message, 0 for an absent field."""

    origin: int
    data: int
    size: int
    original: int
    sub_format: int


_OUTPUT, _INPUT, _BUFFER = _TensorRoles(4, 5, 6, 7, 8), _TensorRoles(0, 4, 5, 6, 7), _TensorRoles(0, 2, 3, 0, 0)
_ROLES = {3: ("output", _OUTPUT), 4: ("input", _INPUT), 5: ("buffer", _BUFFER), 8: ("space", _BUFFER)}
_NOTHING = WireField(0, 0, 0, 0, 0)  # an absent field
_ORDER = ("input", "output", "buffer", "space")  # of the payloads in a version 2 file


def read_raw(file: RegularFile) -> RawDump:
    """Read the header of a dump file of either version; DumpError if it is neither."""
    if file.size < 9:
        raise DumpError(file.path, f"ended early: {file.size} bytes are not a dump")
    cursor = Cursor(file)
    length = int.from_bytes(cursor.bytes(0, 8), "little")
    if length <= file.size - 8:
        file.limits.require(file.path, "cann_header_bytes", length, "a header of {} bytes", 0)
        message = _message(cursor, 8, 8 + length)
        if not message.op_name and not any(message.tensors.values()):  # a header of zeros parses as an empty message
            raise DumpError(file.path, "neither tensors nor the name of an operator in its header: not a dump", 0)
        return _assemble(file, message, 8 + length)
    if not length >> 32:  # a message does not start with such bytes
        raise DumpError(file.path, f"ended early: a header of {length} bytes in {file.size}", 0)
    try:
        message = _message(cursor, 0, file.size)
    except DumpError:
        raise DumpError(file.path, "it begins neither with the length of a header nor with protobuf", 0) from None
    if not message.op_name:  # written after the tensors: without it the file may be cut between two tensors
        raise DumpError(file.path, "no operator name where its header should end: cut short, or not a dump")
    return _assemble(file, message, None)


class _Message(NamedTuple):
    op_name: str
    tensors: dict[str, list[TensorHeader]]
    attributes: tuple[tuple[str, str], ...]


def _message(cursor: Cursor, start: int, end: int) -> _Message:
    tensors: dict[str, list[TensorHeader]] = {role: [] for role in _ORDER}
    attributes = []
    op_name = ""
    for field in cursor.fields(start, end):
        if field.number in (1, 3, 4, 5, 6, 7, 8) and field.wire != 2:
            raise DumpError(cursor.file.path, f"field {field.number} of the header is not a message", field.start)
        if field.number in _ROLES:
            role, numbers = _ROLES[field.number]
            tensors[role].append(_tensor(cursor, field, numbers))
        elif field.number == 6:
            op_name = cursor.text(field)
        elif field.number == 7:
            texts = {inner.number: cursor.text(inner) for inner in cursor.fields(field.start, field.end)}
            attributes.append((texts.get(1, ""), texts.get(2, "")))
    return _Message(op_name, tensors, tuple(attributes))


def _tensor(cursor: Cursor, message: WireField, numbers: _TensorRoles) -> TensorHeader:
    """Return one tensor of a header. If a field occurs twice, the last counts."""
    fields = {field.number: field for field in cursor.fields(message.start, message.end)}
    data = fields.get(numbers.data, _NOTHING)
    inline = (data.start, data.end - data.start) if data.wire == 2 and data.end > data.start else None
    size = fields[numbers.size].value if numbers.size in fields else inline[1] if inline else 0
    data_type, layout, groups = (fields.get(number, _NOTHING).value for number in (1, 2, numbers.sub_format))
    return TensorHeader(
        dtype=OUTPUT_DATA_TYPE.get(data_type, f"data type {data_type}"),
        known=data_type in OUTPUT_DATA_TYPE,
        layout=OUTPUT_FORMAT.get(layout, f"format {layout}"),
        shape=_shape(cursor, fields[3]) if 3 in fields and numbers is not _BUFFER else None,
        original=_shape(cursor, fields[numbers.original]) if numbers.original in fields else None,
        groups=groups if 0 < groups < 1 << 31 else 1,
        size=size,
        inline=inline,
        origin=_origin(cursor, fields[numbers.origin]) if numbers.origin in fields else "",
    )


def _origin(cursor: Cursor, message: WireField) -> str:
    name, index = "", 0
    for field in cursor.fields(message.start, message.end) if message.wire == 2 else ():
        if field.number == 1 and field.wire == 2:
            name = cursor.text(field)
        elif field.number == 2:
            index = field.value
    return f"{name}:{index}" if name else ""


def _shape(cursor: Cursor, message: WireField) -> tuple[int, ...]:
    if message.wire != 2:
        raise DumpError(cursor.file.path, "a shape is not a message", message.start)
    dims: list[int] = []
    limits = cursor.file.limits
    for field in cursor.fields(message.start, message.end):
        dims += cursor.numbers(field) if field.number == 1 else ()
        limits.require(cursor.file.path, "protobuf_fields", len(dims), "dimensions of a shape", field.start)
    return tuple(dims)


def _assemble(file: RegularFile, message: _Message, payloads: Optional[int]) -> RawDump:
    """Return the dump with its tensors in sequence from `payloads` on, or inside the message if that is None."""
    found = []
    at = payloads
    for role in _ORDER:
        for tensor in message.tensors[role]:
            offset, size = at or 0, tensor.size
            if at is None:
                offset, size = tensor.inline or (0, 0)
            else:
                at += tensor.size
            if role in ("input", "output"):
                found.append(tensor_at(file, role, tensor, offset, size))
    return RawDump(message.op_name, tuple(found), message.attributes)


MAGIC = b"\x5a\x5a\x5a\x5a"
_CANN_NANO_INPUT, _CANN_NANO_OUTPUT = struct.Struct("<iiiQQQI"), struct.Struct("<iiiiiiQQQI")
_CANN_NANO_ROLES = {4: ("input", _CANN_NANO_INPUT), 5: ("output", _CANN_NANO_OUTPUT)}


class _Block(NamedTuple):
    kind: int
    start: int
    end: int


def is_nano(file: RegularFile) -> bool:
    """Return whether the magic number follows the length."""
    return file.size >= 16 and file.read(8, 4) == MAGIC


def read_nano(file: RegularFile) -> RawDump:
    """Read the header of a nano dump; DumpError if it is inconsistent."""
    length = int.from_bytes(file.read(0, 8), "little")
    if length > file.size - 8 or length < 8:
        raise DumpError(file.path, f"ended early: a header of {length} bytes in {file.size}", 0)
    file.limits.require(file.path, "header_bytes", length, "a header of {} bytes", 0)
    header = file.read(0, 8 + length)
    tensors: dict[str, list[TensorHeader]] = {"input": [], "output": []}
    for block in _blocks(file.path, header, 16, len(header)):
        if block.kind in _CANN_NANO_ROLES:
            role, record = _CANN_NANO_ROLES[block.kind]
            tensors[role] += _tensors(file.path, header, block, record)
    if not tensors["input"] and not tensors["output"]:
        raise DumpError(file.path, "no tensor in its header: cut short, or not a dump")
    found: list[RawTensor] = []
    at = len(header)
    for role in ("input", "output"):
        for tensor in tensors[role]:
            found.append(tensor_at(file, role, tensor, at, tensor.size))
            at += tensor.size
    return RawDump("", tuple(found))


def _blocks(path: str, header: bytes, start: int, end: int) -> Iterator[_Block]:
    while start < end:
        if end - start < 8:
            raise DumpError(path, "ended early: half a block", start)
        kind, length = struct.unpack_from("<II", header, start)
        start += 8
        if length > end - start:
            raise DumpError(path, f"ended early: a block of {length} bytes in {end - start}", start)
        yield _Block(kind, start, start + length)
        start += length


def _tensors(path: str, header: bytes, block: _Block, record: struct.Struct) -> list[TensorHeader]:
    if block.end - block.start < 4:
        raise DumpError(path, "ended early: a block without its count", block.start)
    count = int.from_bytes(header[block.start : block.start + 4], "little")
    at = block.start + 4
    found: list[TensorHeader] = []
    for _ in range(count):
        if block.end - at < record.size:
            raise DumpError(path, f"ended early: {count} tensors announced, {len(found)} found", at)
        values = record.unpack_from(header, at)
        data_type, layout, size, nested = values[0], values[1], values[-2], values[-1]
        at += record.size
        if nested > block.end - at:
            raise DumpError(path, "ended early: the facts of a tensor reach beyond their block", at)
        facts = {b.kind: header[b.start : b.end] for b in _blocks(path, header, at, at + nested)}
        at += nested
        origin = facts.get(2, b"").decode("utf-8", "backslashreplace")
        found.append(
            TensorHeader(
                dtype=GE_DATA_TYPE.get(data_type, f"data type {data_type}"),
                known=data_type in GE_DATA_TYPE,
                layout=OUTPUT_FORMAT.get(layout, f"format {layout}"),
                shape=_dims(facts.get(0)),
                original=_dims(facts.get(1)),
                groups=1,
                size=size,
                origin=f"{origin}:{values[3]}" if origin else "",
            )
        )
    return found


def _dims(content: bytes | None) -> tuple[int, ...] | None:
    if content is None:
        return None
    return struct.unpack(f"<{len(content) // 8}Q", content[: len(content) // 8 * 8])
