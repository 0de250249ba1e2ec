"""Where shards lie between the phases of a comparison: pickles that this run wrote, and no other.

The folder is made anew for each run, exclusively, for its owner alone (0700) and under a name that nobody can guess;
one that was there before is never looked into. A file is called by what its content hashes to. Its name travels with
the answer of whoever wrote it, and what is read must hash to the name that was told, or is not unpickled. So
a task may be done twice, by a worker that was given up for lost too: what counts is the file of the answer that was
taken. No name ever stands for two contents, which file systems of several machines may mix up for a while.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
import tempfile
import time
import weakref
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Iterable, Mapping, Optional

from npucmp.errors import DumpError

Names = Mapping[int, Mapping[str, str]]  # number of a shard → what lies there → the name of its file
_PREFIX = ".npucmp-work-"
_NAME = re.compile(rf"{re.escape(_PREFIX)}([0-9a-f]{{16}})-([0-9]{{1,9}})-\w+")  # machine and process that made it
_STALE = 24 * 3600.0  # seconds without a new file: of a run that was killed, on whatever machine


class Folder:
    """A folder of one run: below `under`, which may be new, or among the temporary files. It goes with this object, or
    with what fails within it; if this process is killed, with the next one that makes a folder there."""

    def __init__(self, under: Optional[str | os.PathLike[str]] = None) -> None:
        place = tempfile.gettempdir() if under is None else under
        self._new = None if os.path.isdir(place) else place
        try:
            os.makedirs(place, exist_ok=True)
            _clear(place)
            maker = f"{_machine()}-{os.getpid()}-"
            self.path = os.path.abspath(tempfile.mkdtemp(prefix=_PREFIX + maker, dir=place))
        except OSError as error:
            raise DumpError(place, f"cannot be written: {error.strerror or error}") from None
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, True)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.remove()
            if self._new is not None:
                with suppress(OSError):  # what was measured is kept there
                    os.rmdir(self._new)


class Spool:
    """What lies in the folder, as far as a task needs to know."""

    def __init__(self, folder: str, names: Optional[Names] = None) -> None:
        self.folder = folder
        self._names = {number: dict(some) for number, some in (names or {}).items()}
        self.made: dict[int, dict[str, str]] = {}  # what was laid down by this task

    def about(self, numbers: Iterable[int]) -> Spool:
        """What a task about these shards needs to know."""
        return Spool(self.folder, {number: self._names[number] for number in numbers if number in self._names})

    def keep(self, number: int, what: str, thing: object) -> None:
        """Lays it down, whole or not at all."""
        handle, path = tempfile.mkstemp(dir=self.folder)
        with open(handle, "wb") as file:
            hashing = _Hashing(file)
            pickle.dump(thing, hashing, pickle.HIGHEST_PROTOCOL)
        name = f"{number}.{what}.{hashing.name()}"
        os.replace(path, Path(self.folder, name))
        self.made.setdefault(number, {})[what] = name

    def kept(self, number: int, what: str) -> Any:
        """What was laid down last, as far as this task was told. KeyError if nothing was."""
        name = self._names[number][what]
        data = Path(self.folder, name).read_bytes()
        if not name.endswith(f".{_hash(data).hexdigest()}"):
            raise DumpError(Path(self.folder, name), "was changed by another program while npucmp was at work")
        return pickle.loads(data)

    def holds(self, number: int, what: str) -> bool:
        return what in self._names.get(number, {})

    def learn(self, made: Names) -> None:
        """What a task laid down, for whoever gave it; what that takes the place of is not needed again."""
        for number, some in made.items():
            known = self._names.setdefault(number, {})
            for what, name in some.items():
                if known.get(what, name) != name:
                    with suppress(OSError):
                        os.unlink(Path(self.folder, known[what]))
            known.update(some)


class _Hashing:
    """A file that is hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, _hash()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def name(self) -> str:
        return str(self._hash.hexdigest())


def _hash(data: bytes = b"") -> Any:
    return blake2b(data, digest_size=20)


def _clear(place: str | os.PathLike[str]) -> None:
    """Removes what runs of this user left that were killed: here, or a day ago or earlier."""
    with suppress(OSError), os.scandir(place) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                state = entry.stat(follow_symlinks=False)
                is_stale = state.st_mtime < time.time() - _STALE
                if state.st_uid == os.getuid() and (is_stale or _is_abandoned(entry.name)):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned(name: str) -> bool:
    """Whether a folder of that name was made on this machine by a process that is no more. A name can lie: who made it
    is asked only of what this user owns, and whoever lives keeps what bears its number."""
    made = _NAME.fullmatch(name)
    if made is None or made[1] != _machine():
        return False
    try:
        os.kill(int(made[2]), 0)  # asks, and sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user
        return False
    return False


def _machine() -> str:
    """Whose processes have the numbers that this one sees: a start of a machine, and on it a container. Where the
    system does not tell it is nobody else's, and a folder is never taken for abandoned."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        told = "\0".join([socket.gethostname(), start, os.readlink("/proc/self/ns/pid")])
    except (OSError, ValueError):
        told = os.urandom(16).hex()
    return blake2b(told.encode(errors="surrogateescape"), digest_size=8).hexdigest()
