"""Write pictures as PNG for a page: https://www.w3.org/TR/png-3, eight bits of red, green and blue."""

from __future__ import annotations

import base64
import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
RGB = 2  # colour type


def data_uri(width: int, height: int, pixels: bytes) -> str:
    """Return a picture as a data: address; `pixels` are its rows from the top."""
    return "data:image/png;base64," + base64.b64encode(png(width, height, pixels)).decode()


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Return a PNG file."""
    line = 3 * width
    rows = b"".join(b"\0" + pixels[at * line : (at + 1) * line] for at in range(height))  # each without a filter
    head = struct.pack(">IIBBBBB", width, height, 8, RGB, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
