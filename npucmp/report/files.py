"""Write the files of a report completely or not at all.

    1  every file is written under a temporary name in the same folder, and flushed to the disk
    2  the files of an earlier report are moved aside, LAST first: files of the same names, and files that it lists
    3  the new files get their names, LAST last; the earlier files are removed

If an error occurs, all steps are undone and the earlier report is restored. If the process ends at any time, the folder
contains the earlier report, the new report, or files without LAST, which are not a report; each file in it is complete.
A temporary file of a killed process is removed by the next run that writes there at least an hour later.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, Union

from npucmp.model.report_files import EARLIER, TENSORS, FileRange

LAST = "summary.json"
# files that only some reports have; an earlier one never belongs to a new report
OPTIONAL_FILES = ("next_dump.json", "next_dump_golden.json", "matrix.csv", "report.xlsx")
BELOW = "shards"  # the folder for pages of steps and ranks
OURS = re.compile(  # file names of reports; other names in a summary.json are never removed
    r"(?:tensors|roots|overflow|fusion|rerun|noise|replay|edges|gaps|health|checks|parameters|precheck|inputs|curves|matrix"
    r"|worst|diff)(?:-[\w.-]{1,80})?\.csv|fusion_switch\.cfg|next_dump(?:_golden)?\.json|report\.\w{1,8}|tensors(?:-\d+){0,3}\.parquet"
)
_SUMMARY = 64 << 20  # bytes: limit of a summary.json that is read
_DESCRIPTOR = re.compile(r"/dev/(?:(stdout|stderr)|fd/(\d{1,9}))|/proc/self/fd/(\d{1,9})")
_NUMBERS = {"stdout": 1, "stderr": 2}
_LINKS = 40  # the number that the system follows
_PREFIX, _SUFFIX = ".npucmp-", ".tmp"
_STALE = 3600.0  # seconds
_PAGE = re.compile(r"\d+-\d+\.html")
_BLOCK = 1 << 20  # bytes that are copied at once


class ConcatFile:
    """The content of a file in pieces; pieces in other files are read block by block, so the whole is never in
    memory."""

    def __init__(self, pieces: Iterable[Union[bytes, Path, FileRange]]) -> None:
        self.pieces = [*pieces]

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, bytes):
                yield piece
                continue
            path, start, stop = piece if isinstance(piece, FileRange) else (piece, 0, sys.maxsize)
            with open(path, "rb") as file:
                file.seek(start)
                while block := file.read(min(_BLOCK, stop - start)):
                    yield block
                    start += len(block)


class StreamedFile(Protocol):
    """Content that writes itself to a file."""

    def write_to(self, file: BinaryIO) -> None:
        """Write all content."""


Content = Union[bytes, ConcatFile, StreamedFile]


def after(head: bytes, content: Union[bytes, ConcatFile]) -> Union[bytes, ConcatFile]:
    """Return the content with `head` before it."""
    return head + content if isinstance(content, bytes) else ConcatFile([head, *content.pieces])


def write(folder: Path, contents: Mapping[str, Content], is_report: bool = True) -> None:
    """Write files {name: content} below a folder, which is created. A report removes files that only the earlier report
    had. Raises OSError; all files are then unchanged."""
    names = sorted(contents, key=lambda name: name == LAST)
    made: dict[str, str] = {}  # name → its temporary file
    aside: dict[str, str] = {}  # name → temporary name of the earlier file
    placed: list[str] = []
    earlier = listed_files(folder) if is_report else []
    try:
        for place in dict.fromkeys((folder, *((folder / name).parent for name in names))):
            place.mkdir(parents=True, exist_ok=True)
        for name in names:
            made[name] = _temporary_file(folder, contents[name])
        for name in reversed(names):
            if _is_file(folder / name):
                aside[name] = f"{made[name][: -len(_SUFFIX)]}-old{_SUFFIX}"
                os.replace(folder / name, aside[name])
        former = (*OPTIONAL_FILES, *earlier, *_parts(folder, contents), *_pages(folder)) if is_report else ()
        for name in dict.fromkeys(former):
            if name not in made and _is_file(folder / name):
                aside[name] = str(folder / f"{_PREFIX}{name.replace('/', '-')}-old{_SUFFIX}")
                os.replace(folder / name, aside[name])
        for name in names:
            os.replace(made[name], folder / name)
            placed.append(name)
    except BaseException:
        for name in placed:
            _remove(folder / name)
        for name in reversed(aside):
            with suppress(OSError):
                os.replace(aside[name], folder / name)
        for name in made:
            _remove(made[name])
        raise
    with suppress(OSError):  # the report is complete; some file systems cannot flush a folder
        _flush(folder)
    for path in (*aside.values(), *_stale(folder)):
        _remove(path)
    if is_report:
        with suppress(OSError):  # fails unless the folder is empty
            os.rmdir(folder / BELOW)


def replace_file(path: Path, data: bytes) -> None:
    """Write one file completely or not at all; its folder is created. Raises OSError; an existing file is then
    unchanged. Where a link leads, the file there is written; a device, a pipe or a descriptor receives the data."""
    folder = temporary_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    place_file(_temporary_file(folder, data), path)


def temporary_folder(path: Path) -> Path:
    """Return the folder in which the file for a path is made: where it is replaced, never beside a device."""
    place, is_stream = _destination(path)
    return Path(tempfile.gettempdir()) if is_stream else place.parent


def place_file(made: str, path: Path) -> None:
    """Give a complete temporary file its name, or write its content to a device, a pipe or a descriptor. Raises
    OSError; the temporary file is then removed."""
    try:
        place, is_stream = _destination(path)
        if not is_stream:
            os.replace(made, place)
            return
        number = _DESCRIPTOR.fullmatch(str(place))
        handle = (
            os.open(place, os.O_WRONLY)
            if number is None
            else os.dup(_NUMBERS.get(number[1]) or int(number[2] or number[3]))
        )
        with os.fdopen(handle, "wb") as stream, open(made, "rb") as file:
            shutil.copyfileobj(file, stream)
        os.unlink(made)
    except BaseException:
        _remove(made)
        raise


def _destination(path: Path) -> tuple[Path, bool]:
    """Return the place to which links lead, and whether data is written to it as to a stream. Raises OSError."""
    place = Path(os.path.abspath(path))
    for _ in range(_LINKS):
        if _DESCRIPTOR.fullmatch(str(place)):
            return place, True
        if not place.is_symlink():
            mode = place.stat().st_mode if place.exists() else stat.S_IFREG
            return place, not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        place = Path(os.path.abspath(place.parent.resolve() / os.readlink(place)))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def replace_report(folder: Path, summary: bytes) -> None:
    """Move the report in a folder to its folder EARLIER, and write `summary` as its LAST; nothing without a report.
    Raises OSError."""
    try:
        found = json.loads((folder / LAST).read_bytes()) if os.path.getsize(folder / LAST) <= _SUMMARY else None
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return
    if not isinstance(found, dict) or "npucmp" not in found:
        return
    names, earlier = listed_files(folder), folder / EARLIER
    made = _temporary_file(folder, summary)
    try:
        if names:  # the summary of an error lists none
            for name in (LAST, *listed_files(earlier), *_pages(earlier)):
                _remove(earlier / name)
            aside = earlier / f"{_PREFIX}{LAST}{_SUFFIX}"
            earlier.mkdir(exist_ok=True)
            os.replace(folder / LAST, aside)
            for name in dict.fromkeys((*OPTIONAL_FILES, *names, *_pages(folder))):
                if name != LAST and _is_file(folder / name):
                    (earlier / name).parent.mkdir(exist_ok=True)
                    os.replace(folder / name, earlier / name)
            os.replace(aside, earlier / LAST)
        os.replace(made, folder / LAST)
    except BaseException:
        _remove(made)
        raise


def listed_files(folder: Path) -> list[str]:
    """Return the files of the report in a folder, as listed in its summary.json; empty without a report."""
    try:
        if not stat.S_ISREG(os.lstat(folder / LAST).st_mode) or os.lstat(folder / LAST).st_size > _SUMMARY:
            return []
        found = json.loads((folder / LAST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    names = found.get("files") if isinstance(found, dict) and "npucmp" in found else None
    return [name for name in names if isinstance(name, str) and OURS.fullmatch(name)] if isinstance(names, list) else []


def _parts(folder: Path, contents: Mapping[str, Content]) -> list[str]:
    """Return the tensor tables of an earlier report, which may be split or in another format."""
    try:
        there = os.listdir(folder) if any(map(TENSORS.fullmatch, contents)) else ()
    except OSError:
        return []
    return [name for name in there if TENSORS.fullmatch(name)]


def _pages(folder: Path) -> list[str]:
    """Return the pages of an earlier report."""
    try:
        return [f"{BELOW}/{name}" for name in os.listdir(folder / BELOW) if _PAGE.fullmatch(name)]
    except OSError:
        return []


def _temporary_file(folder: Path, content: Content) -> str:
    """Write a complete temporary file, and return its name."""
    handle, name = tempfile.mkstemp(_SUFFIX, _PREFIX, folder)
    try:
        try:
            if isinstance(content, (bytes, ConcatFile)):
                for data in (content,) if isinstance(content, bytes) else content:
                    while data:
                        data = data[os.write(handle, data) :]
            else:
                with os.fdopen(handle, "wb", closefd=False) as file:
                    content.write_to(file)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.chmod(name, 0o644 & ~_umask())
    except BaseException:
        _remove(name)
        raise
    return name


def _is_file(path: Path) -> bool:
    """Return whether a path is a file or a link; a folder of that name is not moved. Raises OSError for a device or a
    pipe, which no report replaces."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EEXIST, "is a device or a pipe, no file", str(path))
    return not stat.S_ISDIR(mode)


def _remove(path: str | os.PathLike[str]) -> None:
    with suppress(OSError):
        os.unlink(path)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _stale(folder: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - _STALE:
                        yield entry.path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
