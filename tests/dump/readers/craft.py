"""Hand-made .pt files: pickles put together from opcodes, zip files from the standard library. No torch."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

DATA = Path(__file__).parent.parent.parent / "data" / "pt_files"

ORDERED_DICT = b"ccollections\nOrderedDict\n)R"
MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def name(module: str, attribute: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{attribute}\n".encode()


def stack_name(module: str, attribute: str) -> bytes:
    """STACK_GLOBAL, protocol 4."""
    return text(module) + text(attribute) + b"\x93"


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def row(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def integers(*values: int) -> bytes:
    return row(*map(integer, values))


def reduce(function: bytes, *arguments: bytes) -> bytes:
    return function + row(*arguments) + b"R"


def storage(kind: str = "torch FloatStorage", key: str = "0", count: int = 6, view: bytes = b"") -> bytes:
    """A persistent id; `view` is the sixth item of the legacy format."""
    return row(text("storage"), name(*kind.split()), text(key), text("cpu"), integer(count), view) + b"Q"


def tensor(
    shape: bytes = integers(2, 3),
    strides: bytes = integers(3, 1),
    store: bytes = storage(),
    offset: bytes = integer(0),
    hooks: bytes = ORDERED_DICT,
    metadata: bytes = b"",
) -> bytes:
    function = name("torch._utils", "_rebuild_tensor_v2")
    return reduce(function, store, offset, shape, strides, b"\x89", hooks, metadata)


def program(body: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member), data)
    return buffer.getvalue()


def pt(body: bytes = tensor(), data: bytes = struct.pack("<6f", *range(6)), **others: bytes) -> bytes:
    """A file of torch.save around a pickle body, with one storage; `others` are further members by name."""
    members = {"t/data.pkl": program(body), "t/data/0": data, **{f"t/{key}": value for key, value in others.items()}}
    return zipped(members)


def legacy(
    body: bytes,
    data: bytes,
    keys: bytes = b"]" + text("0") + b"a",
    count: int = 6,
    magic: bytes = MAGIC,
    protocol: int = 1001,
    system: bytes = b"}",
) -> bytes:
    pickles = (integer(protocol), system, body, keys)
    return magic + b"".join(map(program, pickles)) + struct.pack("<q", count) + data
