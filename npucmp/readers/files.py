"""Opening one file of a dump: regular files only, read by position, never mapped.

A FIFO would block and a device never ends, so both are refused. A map of a file that shrinks ends the process
with SIGBUS; a short pread is an error that can be reported.
"""

from __future__ import annotations

import os
import stat
from types import TracebackType
from typing import Optional

from npucmp.errors import DumpError

# O_NONBLOCK: opening a FIFO must not wait for a writer. O_NOCTTY: a terminal must not become ours.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_ADVISE = getattr(os, "posix_fadvise", None)  # not on macOS
_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


class RegularFile:
    """An open regular file, to be used in a `with`. Reads are exact: all bytes asked for, or DumpError."""

    __slots__ = ("_fd", "_windows", "is_held", "path", "size")

    def __init__(self, path: str, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._windows: list[tuple[int, bytes]] = []
        self.is_held = False  # whether a window holds the whole file

    def __enter__(self) -> "RegularFile":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def prefetch(self, offset: int, length: int) -> None:
        """Keep a window of the file, cut to its size; reads inside it cost no further system call."""
        offset = max(0, offset)
        length = min(length, self.size - offset)
        if length > 0:
            self._windows.append((offset, self._pread(offset, length)))
            self.is_held = self.is_held or length == self.size

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise DumpError(self.path, f"ended early: {self.size} bytes, {length} more are needed", offset)
        for start, window in self._windows:
            if start <= offset and offset + length <= start + len(window):
                return window[offset - start : offset - start + length]
        return self._pread(offset, length)

    def view(self, offset: int, length: int) -> tuple[bytes, int]:
        """The same bytes and where they begin in what is returned: nothing is copied out of a window."""
        for start, window in self._windows:
            if start <= offset and offset + length <= start + len(window):
                return window, offset - start
        return self.read(offset, length), 0

    def read_into(self, offset: int, room: memoryview) -> None:
        """Fill `room`: pages that are used again and again cost less than a new object for each read."""
        length, done = len(room), 0
        if offset < 0 or offset + length > self.size:
            raise DumpError(self.path, f"ended early: {self.size} bytes, {length} more are needed", offset)
        try:
            while done < length:
                some = os.preadv(self._fd, [room[done:]], offset + done)
                if not some:
                    raise DumpError(self.path, "ended early: it became shorter while it was read", offset + done)
                done += some
        except OSError as error:
            raise DumpError(self.path, f"cannot be read: {error.strerror}", offset) from None

    def expect(self, offset: int, length: int) -> None:
        """Tell the system what will be read next, so that a disk works while a kernel does."""
        if _ADVISE is not None and length > 0:
            try:
                _ADVISE(self._fd, offset, length, os.POSIX_FADV_WILLNEED)
            except OSError:  # a file system that takes no advice
                pass

    def _pread(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length:  # a signal or a file system may cut a read short; only b"" is the end
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    raise DumpError(self.path, "ended early: it became shorter while it was read", offset + len(data))
                data += more
        except OSError as error:
            raise DumpError(self.path, f"cannot be read: {error.strerror}", offset) from None
        return data


def open_regular(path: str) -> RegularFile:
    """Open for reading, for the time of a `with`; anything but a regular file is a DumpError."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise DumpError(path, "no such file") from None
    except OSError as error:
        raise DumpError(path, f"cannot be opened: {error.strerror}") from None
    except ValueError:  # a NUL or a lone surrogate in the name
        raise DumpError(path, "not a file name") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            kind = next((word for test, word in _KINDS if test(status.st_mode)), "a device")
            raise DumpError(path, f"{kind}, not a file")
    except OSError as error:
        os.close(fd)
        raise DumpError(path, f"cannot be read: {error.strerror}") from None
    except BaseException:
        os.close(fd)
        raise
    return RegularFile(path, fd, status.st_size)
