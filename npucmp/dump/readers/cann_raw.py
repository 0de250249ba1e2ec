"""Read raw CANN dump files, "version 2" and "version 1": a protobuf header and the payloads.

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
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from npucmp.dump.readers.cann_enums import OUTPUT_DATA_TYPE, OUTPUT_FORMAT, RawDump
from npucmp.dump.readers.cann_raw_tensor import TensorHeader, tensor_at
from npucmp.dump.readers.protobuf import Cursor, WireField
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.errors import DumpError


class _Roles(NamedTuple):
    """Field numbers of one tensor message, 0 for an absent field."""

    origin: int
    data: int
    size: int
    original: int
    sub_format: int


_OUTPUT, _INPUT, _BUFFER = _Roles(4, 5, 6, 7, 8), _Roles(0, 4, 5, 6, 7), _Roles(0, 2, 3, 0, 0)
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


def _tensor(cursor: Cursor, message: WireField, numbers: _Roles) -> TensorHeader:
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
