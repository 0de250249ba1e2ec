"""Read nano dump files: the content of raw CANN dumps, encoded as tag-length-value instead of protobuf.

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

data_type is a number of ge::DataType, not of the protobuf's table.
Source: a decoded real file, and msaccucmp's public reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from npucmp.dump.readers.cann_enums import GE_DATA_TYPE, OUTPUT_FORMAT, RawDump, RawTensor
from npucmp.dump.readers.cann_raw_tensor import TensorHeader, tensor_at
from npucmp.dump.readers.safe_open import RegularFile
from npucmp.errors import DumpError

MAGIC = b"\x5a\x5a\x5a\x5a"
_INPUT, _OUTPUT = struct.Struct("<iiiQQQI"), struct.Struct("<iiiiiiQQQI")
_ROLES = {4: ("input", _INPUT), 5: ("output", _OUTPUT)}


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
        if block.kind in _ROLES:
            role, record = _ROLES[block.kind]
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
