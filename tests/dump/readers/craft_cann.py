"""Writes raw CANN dumps of all three kinds with struct alone, from the public description of the format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

from npucmp.dump.readers.values import blocks

FLOAT, FLOAT16, INT32 = 1, 2, 7  # numbers of OutputDataType
NCHW, NHWC, ND, NC1HWC0, FRACTAL_Z, FRACTAL_NZ = 0, 1, 2, 3, 4, 29
TIME = 1_700_000_000_000_000
CODES = {"float32": FLOAT, "float16": FLOAT16, "int32": INT32, "int64": 8, "float64": 12}
GE_CODES = {"float32": 0, "float16": 1, "int32": 3, "int64": 9, "float64": 11}  # ge::DataType

# The example of the format's description: Relu of [[-1, 2], [-3, 4]], float32 in, float16 out, 94 bytes.
EXAMPLE = bytes.fromhex(
    "3e000000000000000a03322e301080d095ffbc311a12080210021a040a02020230083a040a0202022212080110021a04"
    "0a020202281032040a02020232086e65742f72656c75000080bf00000040000040c0000080400000004000000044"
)


class Tensor(NamedTuple):
    """What is written of one tensor; `shape` None leaves the message out, `size` is declared for the true one."""

    data: bytes
    shape: Optional[tuple[int, ...]]
    code: int = FLOAT
    layout: int = ND
    original: Optional[tuple[int, ...]] = None
    groups: int = 0
    size: Optional[int] = None
    origin: Optional[tuple[str, int]] = None

    @property
    def declared(self) -> int:
        return len(self.data) if self.size is None else self.size


def tensor(array, layout: int = ND, original=None, **more) -> Tensor:
    array = np.asarray(array)
    return Tensor(array.tobytes(), array.shape, CODES[array.dtype.name], layout, original, **more)


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number: int, value: int | bytes | str | None) -> bytes:
    """One protobuf field; zeros are left out as proto3 does, None too."""
    if value is None or value == 0:
        return b""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def dims(shape) -> Optional[bytes]:
    return None if shape is None else field(1, b"".join(map(varint, shape))) if shape else b""


def message(one: Tensor, output: bool, inline: bool) -> bytes:
    """OpOutput or OpInput."""
    after = 1 if output else 0  # an OpOutput has original_op before its data
    made = field(1, one.code) + field(2, one.layout) + field(3, dims(one.shape))
    if output and one.origin:
        made += field(4, field(1, one.origin[0]) + field(2, one.origin[1]))
    made += field(4 + after, one.data if inline else None) + field(5 + after, one.declared)
    return made + field(6 + after, dims(one.original)) + field(7 + after, one.groups)


def header(inputs, outputs, op_name="", attributes=(), extra=b"", inline=False) -> bytes:
    made = field(1, "2.0") + field(2, TIME // 1000)
    made += b"".join(field(3, message(one, True, inline)) for one in outputs)
    made += b"".join(field(4, message(one, False, inline)) for one in inputs)
    made += extra + field(6, op_name)
    return made + b"".join(field(7, field(1, name) + field(2, text)) for name, text in attributes)


def v2(inputs=(), outputs=(), op_name="", attributes=(), extra=b"", tail=b"") -> bytes:
    made = header(inputs, outputs, op_name, attributes, extra)
    return struct.pack("<Q", len(made)) + made + b"".join(one.data for one in (*inputs, *outputs)) + tail


def v1(inputs=(), outputs=(), op_name="op") -> bytes:
    return header(inputs, outputs, op_name, inline=True)


def tlv(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content


def nano(inputs=(), outputs=(), count: Optional[int] = None) -> bytes:
    """A nano dump; codes are those of ge::DataType. `count` is promised instead of the true number of inputs."""

    def nested(one):
        shapes = [(0, one.shape), (1, one.original)]
        made = b"".join(tlv(tag, struct.pack(f"<{len(s)}Q", *s)) for tag, s in shapes if s is not None)
        return made + (tlv(2, one.origin[0].encode()) if one.origin else b"")

    def record(one, output):
        more = (one.origin[1] if one.origin else 0, 0, 0) if output else ()
        facts = struct.pack(f"<{3 + len(more)}i", one.code, one.layout, 0, *more)
        return facts + struct.pack("<QQQI", 0, 0, one.declared, len(nested(one))) + nested(one)

    made = b"\x5a\x5a\x5a\x5a" + bytes(4)
    for kind, tensors in ((4, inputs), (5, outputs)):
        number = len(tensors) if count is None or kind == 5 else count
        made += tlv(kind, struct.pack("<I", number) + b"".join(record(one, kind == 5) for one in tensors))
    return struct.pack("<Q", len(made)) + made + b"".join(one.data for one in (*inputs, *outputs))


def as_ge(one: Tensor) -> Tensor:
    """The same tensor with the number that nano dumps have for its type."""
    name = next(name for name, code in CODES.items() if code == one.code)
    return one._replace(code=GE_CODES[name])


def save(folder: Path, **files: bytes) -> Path:
    """Files by name; `__` stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def values(reference):
    """All values of a tensor, in its shape."""
    pieces = list(blocks(reference.payload, 7))
    flat = np.concatenate(pieces) if pieces else np.empty(0)
    return flat.reshape(reference.shape)
