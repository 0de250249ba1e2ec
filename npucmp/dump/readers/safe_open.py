"""Open one file of a dump: regular files only, not outside the dump, read by position, never mapped.

A FIFO would block and a device never ends, so both are refused. A link below a dump that leads out of it is refused
too: a dump that came with a ticket must not choose which files of this machine are read. If a mapped file shrinks,
SIGBUS ends the process; a short pread is an error that can be reported.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from functools import lru_cache
from types import TracebackType
from typing import Any, Optional

from npucmp.dump.limits import ANYWHERE, DumpFolder, Limits, ReadContext
from npucmp.errors import DumpError, read_error

# O_NONBLOCK: opening a FIFO must not wait for a writer. O_NOCTTY: a terminal must not become the controlling one.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_UNLINKED = _FLAGS | getattr(os, "O_NOFOLLOW", 0)  # fails if the last name of the path is a link
_ADVISE = getattr(os, "posix_fadvise", None)  # not on macOS
_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))


class RegularFile:
    """An open regular file, used in a `with`. A read returns all requested bytes or raises DumpError."""

    __slots__ = ("_fd", "_reads", "_status", "_windows", "is_held", "limits", "path", "size")

    def __init__(self, path: str, fd: int, status: os.stat_result, limits: Limits) -> None:
        self.path = path
        self.limits = limits  # of what is read from this file
        self.size = status.st_size
        self._fd = fd
        self._status = status
        self._reads = 0
        self._windows: list[tuple[int, bytes]] = []
        self.is_held = False  # whether a window holds the whole file

    def __enter__(self) -> RegularFile:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            if kind is None:
                self.require_unchanged()
        finally:
            self.close()

    @property
    def state(self) -> tuple[object, ...]:
        """Return path, device, number, size and time: another file of this path, or a later state, has others."""
        status = self._status
        return self.path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def close(self) -> None:
        try:
            os.close(self._fd)
        except OSError:  # a file that was only read loses nothing, and its descriptor is free
            pass

    def require_unchanged(self) -> None:
        """Raise DumpError if the file was modified since it was opened.

        A single read sees one state of the file: for small files, read whole, the check is skipped (it costs 1 % of a
        pair).
        """
        if self._reads < 2:
            return
        try:
            now = os.fstat(self._fd)
        except OSError as error:
            raise read_error(self.path, "cannot be read", error) from None
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise DumpError(self.path, "changed while it was read")

    def prefetch(self, offset: int, length: int) -> None:
        """Keep a window of the file, cut to its size; reads inside it need no further system call."""
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
        """Return the bytes and their offset in the returned object: nothing is copied out of a window."""
        for start, window in self._windows:
            if start <= offset and offset + length <= start + len(window):
                return window, offset - start
        return self.read(offset, length), 0

    def read_into(self, offset: int, room: memoryview) -> None:
        """Fill `room`: reusing memory pages is cheaper than a new object for each read."""
        length, done = len(room), 0
        self._reads += 1
        if offset < 0 or offset + length > self.size:
            raise DumpError(self.path, f"ended early: {self.size} bytes, {length} more are needed", offset)
        try:
            while done < length:
                count = os.preadv(self._fd, [room[done:]], offset + done)
                if not count:
                    raise DumpError(self.path, "ended early: it became shorter while it was read", offset + done)
                done += count
        except OSError as error:
            raise read_error(self.path, "cannot be read", error, offset) from None

    def expect(self, offset: int, length: int) -> None:
        """Announce the next read to the system, so that the disk reads ahead while a kernel computes."""
        if _ADVISE is not None and length > 0:
            try:
                _ADVISE(self._fd, offset, length, os.POSIX_FADV_WILLNEED)
            except OSError:  # a file system without read-ahead advice
                pass

    def _pread(self, offset: int, length: int) -> bytes:
        self._reads += 1
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length:  # a signal or a file system may cut a read short; only b"" is the end
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    raise DumpError(self.path, "ended early: it became shorter while it was read", offset + len(data))
                data += more
        except OSError as error:
            raise read_error(self.path, "cannot be read", error, offset) from None
        return data


class FileSlice:
    """A section of an open file with the interface of a file: reads beyond its end raise DumpError."""

    __slots__ = ("_file", "_start", "is_held", "limits", "path", "size")

    def __init__(self, file: RegularFile, start: int, size: int) -> None:
        self.path, self.limits, self.size = file.path, file.limits, size
        self._file, self._start = file, start
        self.is_held = False

    def prefetch(self, offset: int, length: int) -> None:
        """Do nothing: thousands of windows would slow down every read."""

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise DumpError(self.path, f"ended early: {self.size} bytes, {length} more are needed", offset)
        return self._file.read(self._start + offset, length)


class Stream(io.RawIOBase):
    """An open file as a Python file object, for libraries that read from one. It does not close the file."""

    def __init__(self, file: RegularFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if at < 0:
            raise ValueError(f"a place before the beginning: {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        left = max(0, self._file.size - self._at)
        data = self._file.read(self._at, min(len(buffer), left)) if left else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@lru_cache(maxsize=4096)
def _leads_out(path: str, roots: tuple[DumpFolder, ...]) -> bool:
    """Return whether a path below a dump resolves to a place outside all dumps."""
    named, real = os.path.abspath(path), _real(os.path.join(os.getcwd(), path).rstrip(os.sep) or os.sep)
    return any(_is_below(named, dump.named) for dump in roots) and not any(_is_below(real, d.real) for d in roots)


@lru_cache(maxsize=4096)
def _real(path: str) -> str:
    """Return os.path.realpath of an absolute path without a trailing slash; each folder is resolved once."""
    folder, name = os.path.split(path)
    if folder in ("", path) or name in ("", ".", ".."):
        return os.path.realpath(path)
    here = os.path.join(_real(folder.rstrip(os.sep) or os.sep), name)
    return os.path.realpath(path) if os.path.islink(here) else here


def forget_links() -> None:
    """Clear the cache of resolved links, because links may have changed."""
    _leads_out.cache_clear()
    _real.cache_clear()


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _open_descriptor(path: str, context: ReadContext) -> int:
    """Return a file descriptor; only links need more than one system call."""
    if not _leads_out(path[: path.rfind(os.sep) + 1], context.roots):
        try:
            return os.open(path, _UNLINKED)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        if not _leads_out(path, context.roots):
            return os.open(path, _FLAGS)
    if not context.limits.links_out:
        raise DumpError(path, "refused: a link that leads out of the dump; --limit links_out=1 follows such links")
    return os.open(path, _FLAGS)


def open_regular(path: str, context: ReadContext = ANYWHERE) -> RegularFile:
    """Open a regular file for reading, in a `with`; DumpError for anything else."""
    try:
        fd = _open_descriptor(path, context)
    except FileNotFoundError:
        raise DumpError(path, "no such file") from None
    except OSError as error:
        raise read_error(path, "cannot be opened", error) from None
    except ValueError:  # a NUL or a lone surrogate in the name
        raise DumpError(path, "not a file name") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            kind = next((word for test, word in _KINDS if test(status.st_mode)), "a device")
            raise DumpError(path, f"{kind}, not a file")
    except OSError as error:
        os.close(fd)
        raise read_error(path, "cannot be read", error) from None
    except BaseException:
        os.close(fd)
        raise
    return RegularFile(path, fd, status, context.limits)
