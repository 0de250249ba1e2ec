"""The scratch folder of a comparison, with the results of steps and ranks between its phases.

A scratch folder holds pickles that this run wrote, and no other. It is made anew for each run, exclusively, for its
owner alone (0700) and under a name that cannot be guessed; npucmp never reads a folder that existed before. The name of
a file contains the hash of its content. The name travels with the answer of the process that wrote the file, and a file
is unpickled only if its content has that hash. So a task may be done twice, also by a worker that was lost: the file of
the answer that arrived counts. No name is used for two contents, which file systems of several machines may confuse for
a while.
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
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Iterable, NamedTuple, Optional
from weakref import WeakValueDictionary

from npucmp.errors import DumpError
from npucmp.model import Comparison
from npucmp.model.skeleton import Own, Skeleton, joined, parted
from npucmp.workflows.rank_tasks import Names

_PREFIX = ".npucmp-work-"
_NAME = re.compile(rf"{re.escape(_PREFIX)}([0-9a-f]{{16}})-([0-9]{{1,9}})-\w+")  # machine and process that made it
_STALE = 24 * 3600.0  # seconds without a new file: of a run that was killed, on whatever machine


class ScratchFolder:
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

    def close(self) -> None:
        """Removes the folder."""
        self.remove()

    def __enter__(self) -> ScratchFolder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.remove()
            if self._new is not None:
                with suppress(OSError):  # what was measured is kept there
                    os.rmdir(self._new)


_SKELETON = "skeleton"  # begins the name of a file of what several comparisons share
_in_use: WeakValueDictionary[str, Skeleton] = WeakValueDictionary()  # by path
_latest: deque[Skeleton] = deque(maxlen=2)  # in use for the next comparison


class _Parted(NamedTuple):
    """A comparison in a file: the name of the file of its skeleton, and what is its own."""

    skeleton: str
    own: Own


class Scratch:
    """Results as files of a scratch folder, as far as a task needs to know; `made` are those of this task."""

    def __init__(self, folder: str, names: Optional[Names] = None) -> None:
        self.folder = folder
        self._names = {number: dict(some) for number, some in (names or {}).items()}
        self.made: dict[int, dict[str, str]] = {}

    def about(self, numbers: Iterable[int]) -> Scratch:
        return Scratch(self.folder, {number: self._names[number] for number in numbers if number in self._names})

    def put(self, number: int, kind: str, result: object) -> None:
        if isinstance(result, Comparison):
            skeleton, own = parted(result)
            result = _Parted(self._write(_SKELETON, skeleton), own)
        self.made.setdefault(number, {})[kind] = self._write(f"{number}.{kind}", result)

    def get(self, number: int, kind: str) -> Any:
        found = self._read(self._names[number][kind])
        return joined(self._skeleton(found.skeleton), found.own) if isinstance(found, _Parted) else found

    def _skeleton(self, name: str) -> Skeleton:
        """A skeleton, which all comparisons that this process reads have in common while one of them is in use."""
        path = os.path.join(self.folder, name)
        found = _in_use.get(path)
        if found is None:
            found = _in_use[path] = self._read(name)
        _latest.append(found)
        return found

    def _write(self, stem: str, result: object) -> str:
        """The name of the file."""
        handle, path = tempfile.mkstemp(dir=self.folder)
        with open(handle, "wb") as file:
            hashing = _Hashing(file)
            pickle.dump(result, hashing, pickle.HIGHEST_PROTOCOL)
        name = f"{stem}.{hashing.name()}"
        os.replace(path, Path(self.folder, name))
        return name

    def _read(self, name: str) -> Any:
        data = Path(self.folder, name).read_bytes()
        if not name.endswith(f".{_hash(data).hexdigest()}"):
            raise DumpError(Path(self.folder, name), "was changed by another program while npucmp was at work")
        return pickle.loads(data)

    def learn(self, made: Names) -> None:
        """Takes over the names of the files that a task wrote; files that they replace are removed."""
        for number, some in made.items():
            known = self._names.setdefault(number, {})
            for kind, name in some.items():
                if known.get(kind, name) != name:
                    with suppress(OSError):
                        os.unlink(Path(self.folder, known[kind]))
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
