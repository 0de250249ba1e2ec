"""What a comparison has measured so far, on disk, so that an interrupted one can be taken up again.

    .npucmp-journal   one record a line: CRC-32 of the rest in hexadecimal, a space, JSON
    first record      fingerprint: version, options that enter a measurement, every pair, size and time of every file
    others            [place among the pairs, measurement], places rising by one

Measurements leave in the order of the pairs, so the records are always those of the first pairs. Python writes a float
as the shortest text that reads back the same, so nothing is lost. A line that was cut short, or anything else that
does not fit, ends the journal: what follows is measured again.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from operator import methodcaller
from pathlib import Path
from typing import Any, Iterator, Optional

from npucmp.errors import DumpError
from npucmp.model import Measurement, Moments, Pair, Payload, Side, Statistics, TensorRef
from npucmp.model.moments import FIELDS
from npucmp.version import __version__

FILE = ".npucmp-journal"
EVERY = 5.0  # seconds between writes: what a killed run has to measure again; shorter runs write nothing
_LARGEST = 4 << 30  # bytes; a record has about 500

_OTHERS = tuple(name for name in Measurement._fields if name not in ("pair", "moments", "statistics"))
_SHAPE = (Moments._fields, _OTHERS, Side._fields, Statistics._fields)


class Journal:
    """Measurements of one comparison, or of a `part` of it, appended as they come. `known` are those of an earlier run,
    with resume.

    `note` says what the user should know: that an earlier journal was of no use, or that this one could not be kept.
    Raises DumpError if the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        pairs: Sequence[Pair],
        settings: object,
        resume: bool,
        part: Optional[int] = None,
    ) -> None:
        self.known: list[Measurement] = []
        self.note = ""
        self._waiting: list[Measurement] = []
        self._place, self._has_head = 0, False
        self._written = time.monotonic()
        self._subject = pairs, settings, _states(pairs)  # files are asked before they are read
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
        self._place, self._has_head = len(self.known), bool(end)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # whatever ends it early
            self.flush()
        self.close()

    def add(self, measurement: Measurement) -> None:
        """Keeps the measurement of the next pair; it is on disk after EVERY seconds of work, or after flush."""
        self._waiting.append(measurement)
        if time.monotonic() - self._written >= EVERY:
            self.flush()

    def close(self) -> None:
        if self._has_head:
            self.flush()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def flush(self) -> None:
        """A full disk costs the journal, not the comparison."""
        self._written = time.monotonic()
        if self._fd is None or not self._waiting:
            return
        try:
            lines = [_line([self._place + i, _plain(one)]) for i, one in enumerate(self._waiting)]
            self._append(b"".join(lines if self._has_head else [self._head(), *lines]))
            self._has_head = True
            self._place += len(lines)
        except OSError as error:
            os.close(self._fd)
            self._fd = None
            self.note = f"the journal was not kept ({error.strerror or error}): --resume will not find all of this run"
        self._waiting.clear()

    def _head(self) -> bytes:
        return _line(_fingerprint(*self._subject))

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        while data:
            data = data[os.write(self._fd, data) :]

    def _read(self, head: bytes, pairs: Sequence[Pair]) -> int:
        """Fills `known`; returns how many bytes of the file are good, 0 if it belongs to another comparison."""
        assert self._fd is not None
        lines = _lines(self._fd)
        first = next(lines, None)
        if first != head:
            if first is not None:
                self.note = "--resume: dumps or options have changed since the interrupted run, all was measured"
            return 0
        end = len(head)
        for line, pair in zip(lines, pairs):
            found = _found(line)
            if not isinstance(found, list) or len(found) != 2 or found[0] != len(self.known):
                break
            try:
                self.known.append(_measurement(pair, found[1]))
            except (KeyError, TypeError, ValueError):
                break
            end += len(line)
        return end


def remove(folder: str | os.PathLike[str]) -> None:
    """Those of a comparison that is complete and written; one that cannot be removed does no harm."""
    for path in (Path(folder, FILE), *Path(folder).glob(f"{FILE}-*")):
        with suppress(OSError):
            path.unlink()


def _fingerprint(pairs: Sequence[Pair], settings: object, states: object) -> str:
    """One digest of everything that the measurements depend on."""
    digest = sha256(repr((__version__, _SHAPE, settings, states)).encode())
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
    except (OSError, ValueError):  # none, or a name that no file can have
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _line(value: object) -> bytes:
    text = _ENCODER.encode(value).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=methodcaller("item"))  # numbers of numpy as Python's


def _lines(fd: int) -> Iterator[bytes]:
    """Whole lines, from the start of the file."""
    with open(os.dup(fd), "rb") as stream:
        stream.seek(0)
        size = 0
        for line in stream:
            size += len(line)
            if not line.endswith(b"\n") or size > _LARGEST:
                return
            yield line


def _found(line: bytes) -> object:
    """What a line holds, None if it is damaged."""
    sum_, _, text = line[:-1].partition(b" ")
    if sum_ != b"%08x" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _plain(measurement: Measurement) -> list[object]:
    return [measurement.moments, measurement.statistics, [getattr(measurement, name) for name in _OTHERS]]


def _measurement(pair: Pair, plain: Any) -> Measurement:
    moments, (target, golden), others = plain
    return Measurement(
        pair,
        moments=None if moments is None else _moments(moments),
        statistics=(target and Statistics(*target), golden and Statistics(*golden)),
        **dict(zip(_OTHERS, others)),
    )


def _moments(values: Iterable[Any]) -> Moments:
    pieces = zip((field.make for field in FIELDS), values)
    return Moments._make(make(value) if make else value for make, value in pieces)
