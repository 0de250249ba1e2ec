"""Walk the protobuf wire format in a file with bounds checks; payloads are skipped, never copied.

    tag       varint: field number · 8 + wire type
    wire type 0 varint · 1 eight bytes · 2 varint length and that many bytes · 5 four bytes
    varint    7 bits a byte, lowest first, the top bit means that more follow; at most 10 bytes

The caller interprets the fields. Wire types 3 and 4 (groups) occur in no supported format.
Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from npucmp.dump.readers.safe_open import RegularFile
from npucmp.errors import DumpError

_WINDOW = 4096  # cached bytes of the file; headers of dumps have a few hundred
_LONGEST = 10  # bytes of a varint
_FIXED = {1: 8, 5: 4}
_MASK = (1 << 64) - 1


class WireField(NamedTuple):
    """One field. With wire type 2, its content is from byte `start` to `end` of the file; else `value` holds it."""

    number: int
    wire: int
    value: int
    start: int
    end: int


class Cursor:
    """Read small pieces of a file through one window."""

    __slots__ = ("_base", "_window", "file")

    def __init__(self, file: RegularFile) -> None:
        self.file = file
        self._base = 0
        self._window = b""

    def bytes(self, start: int, length: int) -> bytes:
        """Return exactly these bytes; DumpError beyond the end of the file."""
        at = start - self._base
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        if length > _WINDOW:
            return self.file.read(start, length)
        self._base, self._window = start, self.file.read(start, max(length, min(_WINDOW, self.file.size - start)))
        return self._window[:length]

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return (value below 2^64, position after it)."""
        inside = at - self._base
        if 0 <= inside < len(self._window) and at < end and self._window[inside] < 0x80:
            return self._window[inside], at + 1  # most numbers of a header are one byte
        limit = min(_LONGEST, end - at)
        data = self.bytes(at, max(0, limit))
        value = 0
        for count, byte in enumerate(data):
            value |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return value & _MASK, at + count + 1
        raise DumpError(self.file.path, "a protobuf number does not end", at)

    def fields(self, start: int, end: int) -> Iterator[WireField]:
        """Yield the fields of the message between two positions, in the order of the file."""
        count, most = 0, self.file.limits.protobuf_fields
        while start < end:
            tag, at = self.varint(start, end)
            number, wire = tag >> 3, tag & 7
            if not 0 < number < 1 << 29 or (wire not in _FIXED and wire not in (0, 2)):
                raise DumpError(self.file.path, f"not a protobuf field: tag {tag}", start)
            count += 1
            if count > most:
                self.file.limits.require(self.file.path, "protobuf_fields", count, "fields of a message", start)
            if wire == 0:
                value, start = self.varint(at, end)
                yield WireField(number, wire, value, at, start)
                continue
            length = _FIXED.get(wire, 0)
            if wire == 2:
                length, at = self.varint(at, end)
            if length > end - at:
                raise DumpError(
                    self.file.path, f"ended early: a protobuf field needs {length} bytes of {end - at} left", at
                )
            start = at + length
            value = 0 if wire == 2 else int.from_bytes(self.bytes(at, length), "little")
            yield WireField(number, wire, value, at, start)

    def text(self, field: WireField) -> str:
        """Return a string field; bytes that are not UTF-8 become \\xNN."""
        size = field.end - field.start
        self.file.limits.require(self.file.path, "text_bytes", size, "a text of {} bytes", field.start)
        return self.bytes(field.start, size).decode("utf-8", "backslashreplace")

    def numbers(self, field: WireField) -> list[int]:
        """Return a repeated integer field: one value, or several packed."""
        if field.wire != 2:
            return [field.value]
        found = []
        at = field.start
        while at < field.end:
            value, at = self.varint(at, field.end)
            found.append(value)
            self.file.limits.require(self.file.path, "protobuf_fields", len(found), "numbers in one field", at)
        return found


def to_signed(value: int) -> int:
    """Convert an int32 or int64 from 64-bit two's complement."""
    return value - (1 << 64) if value >> 63 else value
