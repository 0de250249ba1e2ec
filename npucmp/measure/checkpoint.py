"""Checkpoint of a comparison: the measured rows on disk, so that an interrupted run can be resumed.

    .npucmp-checkpoint   blocks, each after a line with the CRC-32 of the block in hexadecimal and its length in bytes
    first block          fingerprint: version, options that affect a measurement, every pair, size and time of every
                         file
    other blocks         rows of the table (model/table.py): a line with the number of rows, of moments and of bytes of
                         text, the rows, the moments, the texts as JSON

Measurements arrive in the order of the pairs, so the blocks always hold the first pairs. A truncated or invalid block
ends the checkpoint: all later pairs are measured again.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Iterator, Optional

import numpy as np

from npucmp.errors import DumpError
from npucmp.model import Measurement, Pair, Payload, TensorRef
from npucmp.model.table import MOMENTS, ROW, Columns, columns_of, measurements_of
from npucmp.version import __version__

FILE = ".npucmp-checkpoint"
EVERY = 5.0  # seconds between writes: the work that a killed run loses; shorter runs write nothing
_LARGEST = 1 << 30  # bytes of a block
_LINE = 64  # bytes of the line before a block, at most


class Checkpoint:
    """The measurements of one comparison, or of a `part` of it, appended as they arrive. With `resume`, `known` holds
    the measurements of an earlier run.

    `note` is a message for the user: an earlier checkpoint does not apply, or this one could not be written. Raises
    DumpError if the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        pairs: Sequence[Pair],
        settings: object,
        resume: bool,
        part: Optional[str] = None,
    ) -> None:
        self.known: list[Measurement] = []
        self.note = ""
        self._waiting: list[Measurement] = []
        self._has_head = False
        self._written = time.monotonic()
        self._subject = pairs, settings, _states(pairs)  # the state of the files before they are read
        path = Path(folder, FILE if part is None else f"{FILE}-{part}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            self._fd: Optional[int] = os.open(path, flags, 0o644)
        except OSError as error:
            raise DumpError(folder, f"cannot be written: {error.strerror or error}") from None
        try:
            end = self._read(self._head(), pairs) if resume else 0
            os.ftruncate(self._fd, end)
        except OSError as error:
            self.close()
            raise DumpError(path, f"cannot be written: {error.strerror or error}") from None
        self._has_head = bool(end)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # an exception or Ctrl-C
            self.flush()
        self.close()

    def add(self, measurement: Measurement) -> None:
        """Add the measurement of the next pair. It is on disk after at most EVERY seconds of work, or after flush."""
        self._waiting.append(measurement)
        if time.monotonic() - self._written >= EVERY:
            self.flush()

    def close(self) -> None:
        """Write pending rows if the file has been started, and close it."""
        if self._has_head:
            self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def flush(self) -> None:
        """Write pending rows. If the disk is full, the checkpoint ends, but the comparison continues."""
        self._written = time.monotonic()
        if self._fd is None or not self._waiting:
            return
        try:
            block = _block(_encode_columns(columns_of(self._waiting)))
            self._append(block if self._has_head else self._head() + block)
            self._has_head = True
        except OSError as error:
            os.close(self._fd)
            self._fd = None
            self.note = (
                f"the checkpoint was not written ({error.strerror or error}): --resume will lack a part of this run"
            )
        self._waiting.clear()

    def _head(self) -> bytes:
        return _block(_fingerprint(*self._subject).encode())

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        while data:
            data = data[os.write(self._fd, data) :]

    def _read(self, head: bytes, pairs: Sequence[Pair]) -> int:
        """Fill `known` and return the number of valid bytes in the file, 0 if it belongs to another comparison."""
        assert self._fd is not None
        with open(os.dup(self._fd), "rb") as file:
            file.seek(0)
            blocks = _blocks(file)
            first = next(blocks, None)
            if first is None or _block(first) != head:
                if first is not None or os.fstat(self._fd).st_size:
                    self.note = "--resume: dumps or options have changed since the interrupted run, so all was measured"
                return 0
            end = len(head)
            for data in blocks:
                columns = _decode_columns(data)
                if columns is None or len(columns.rows) > len(pairs) - len(self.known):
                    break
                start = len(self.known)
                self.known += measurements_of(columns, pairs[start : start + len(columns.rows)])
                end += len(_block(data))
        return end


def remove(folder: str | os.PathLike[str]) -> None:
    """Remove the checkpoints of a completed comparison. Failure to remove a file is ignored."""
    for path in (Path(folder, FILE), *Path(folder).glob(f"{FILE}-*")):
        with suppress(OSError):
            path.unlink()


def _fingerprint(pairs: Sequence[Pair], settings: object, states: object) -> str:
    """A digest of everything that affects the measurements."""
    digest = sha256(repr((__version__, ROW.descr, MOMENTS.descr, settings, states)).encode())
    for pair in pairs:
        names = [one and one.name for one in (pair.target_op, pair.golden_op)]
        digest.update(repr((pair.order, pair.slot, names, pair.target, pair.golden)).encode())
    return digest.hexdigest()


def _states(pairs: Sequence[Pair]) -> dict[str, Optional[tuple[int, ...]]]:
    """Size and time of every file that holds a tensor."""
    tensors = [tensor for pair in pairs for tensor in (pair.target, pair.golden) if tensor is not None]
    return {path: _state(path) for path in dict.fromkeys(path for tensor in tensors for path in _paths(tensor))}


def _paths(tensor: TensorRef) -> Iterator[str]:
    """The files that hold a tensor."""
    waiting: list[Payload] = [tensor.payload] if tensor.payload else []
    yield from filter(None, [tensor.file])
    for payload in waiting:
        yield from filter(None, [payload.path])
        waiting.extend(payload.parts)


def _state(path: str) -> Optional[tuple[int, ...]]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # no such file, or an invalid name
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _block(data: bytes) -> bytes:
    return b"%08x %d\n" % (zlib.crc32(data), len(data)) + data


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The content of complete blocks, from the start of the file."""
    while True:
        sum_, _, length = file.readline(_LINE).rstrip(b"\n").partition(b" ")
        if not length.isdigit() or int(length) > _LARGEST:
            return
        data = file.read(int(length))
        if len(data) != int(length) or sum_ != b"%08x" % zlib.crc32(data):
            return
        yield data


def _encode_columns(columns: Columns) -> bytes:
    """The numbers and texts of columns. Pairs are not stored; the reader has them."""
    texts = json.dumps(columns.words).encode()
    head = b"%d %d %d\n" % (len(columns.rows), len(columns.moments), len(texts))
    return b"".join([head, columns.rows.tobytes(), columns.moments.tobytes(), texts])


def _decode_columns(data: bytes) -> Optional[Columns]:
    """The columns of a block; None if the block is invalid."""
    head, _, rest = data.partition(b"\n")
    try:
        count, measured, length = map(int, head.split())
        first, second = count * ROW.itemsize, measured * MOMENTS.itemsize
        if min(count, measured, length) < 0 or len(rest) != first + second + length:
            return None
        rows = np.frombuffer(rest, ROW, count)
        moments = np.frombuffer(rest, MOMENTS, measured, first)
        words = json.loads(rest[first + second :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    places = [rows[name] for name in ("problem", "unlike")]
    fits = all(((place >= 0) & (place < len(words))).all() for place in places)
    fits = fits and bool(((rows["moments"] >= -1) & (rows["moments"] < measured)).all())
    return Columns(rows, moments, (), (), (), words) if fits else None
