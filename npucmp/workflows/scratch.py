"""The scratch folder of a comparison, with the results of steps and ranks between its phases.

A scratch folder contains only pickles that this run wrote. It is created anew for each run, exclusively, for its owner
only (0700), with a name that cannot be guessed; npucmp never reads a folder that existed before. The name of a
file contains the hash of its content. The name travels with the answer of the process that wrote the file, and a file
is unpickled only if its content has that hash. So a task may run twice, even on a worker that was lost: the file of
the received answer is used. No two contents share a name, because a file system shared by several machines may return
old content for a while.
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
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, BinaryIO, Iterable, NamedTuple, Optional
from weakref import WeakKeyDictionary, WeakValueDictionary

from npucmp.errors import DumpError
from npucmp.model import Comparison
from npucmp.model.network import Network, RankPart, join_parts, split_table
from npucmp.workflows.rank_tasks import Names

_PREFIX = ".npucmp-work-"
_NAME = re.compile(rf"{re.escape(_PREFIX)}([0-9a-f]{{16}})-([0-9]{{1,9}})-\w+")  # machine and process that created it
_STALE = 24 * 3600.0  # seconds without a new file, after which the run was killed, on any machine


class ScratchFolder:
    """A folder of one run: below `under`, which is created if needed, or among the temporary files. It is removed with
    this object, or by an exception in its context; if the process is killed, by the next process that creates a folder
    there."""

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
        """Remove the folder."""
        self.remove()

    def __enter__(self) -> ScratchFolder:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.remove()
            if self._new is not None:
                with suppress(OSError):  # fails if the checkpoint is in it
                    os.rmdir(self._new)


_NETWORK = "network"  # prefix of files with data that several comparisons share
_in_use: WeakValueDictionary[str, Network] = WeakValueDictionary()  # by path
_latest: deque[Network] = deque(maxlen=2)  # kept alive for the next comparison
_paths: WeakKeyDictionary[Network, str] = WeakKeyDictionary()


class _StoredParts(NamedTuple):
    """A comparison in a file: the name of the file of its shared network, and its own data."""

    network: str
    own: RankPart


class Scratch:
    """Results as files of a scratch folder. A task knows only the names that it needs; `made` are the names of its own
    files."""

    def __init__(self, folder: str, names: Optional[Names] = None) -> None:
        self.folder = folder
        self._names = {number: dict(names_of) for number, names_of in (names or {}).items()}
        self.made: dict[int, dict[str, str]] = {}

    def about(self, numbers: Iterable[int]) -> Scratch:
        return Scratch(self.folder, {number: self._names[number] for number in numbers if number in self._names})

    def put(self, number: int, kind: str, result: object) -> None:
        if isinstance(result, Comparison):
            network, own = split_table(result)
            result = _StoredParts(self._written(network), own)
        self.made.setdefault(number, {})[kind] = self._write(f"{number}.{kind}", result)

    def get(self, number: int, kind: str) -> Any:
        found = self._read(self._names[number][kind])
        return join_parts(self._network(found.network), found.own) if isinstance(found, _StoredParts) else found

    def _written(self, network: Network) -> str:
        """Return the name of the file of a network, which a process writes once."""
        folder, name = os.path.split(_paths.get(network, ""))
        if folder != self.folder:
            name = self._write(_NETWORK, network)
            _paths[network] = path = os.path.join(self.folder, name)
            _in_use.setdefault(path, network)
        return name

    def _network(self, name: str) -> Network:
        """Return a network, which all comparisons that this process reads share while one of them is in use."""
        path = os.path.join(self.folder, name)
        found = _in_use.get(path)
        if found is None:
            found = _in_use[path] = self._read(name)
            _paths[found] = path
        _latest.append(found)
        return found

    def _write(self, stem: str, result: object) -> str:
        """Write a result, and return the name of its file."""
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
            raise DumpError(Path(self.folder, name), "was changed by another program while npucmp was running")
        return pickle.loads(data)

    def learn(self, made: Names) -> None:
        """Take over the names of the files that a task wrote; files that they replace are removed."""
        for number, names_of in made.items():
            known = self._names.setdefault(number, {})
            for kind, name in names_of.items():
                if known.get(kind, name) != name:
                    with suppress(OSError):
                        os.unlink(Path(self.folder, known[kind]))
            known.update(names_of)


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
    return sha256(data)  # which processors have instructions for


def _clear(place: str | os.PathLike[str]) -> None:
    """Remove folders of killed runs of this user: of this machine, or a day old."""
    with suppress(OSError), os.scandir(place) as found:
        for entry in found:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                state = entry.stat(follow_symlinks=False)
                is_stale = state.st_mtime < time.time() - _STALE
                if state.st_uid == os.getuid() and (is_stale or _is_abandoned(entry.name)):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_abandoned(name: str) -> bool:
    """Return whether a process of this machine that no longer exists created the folder. The name is not trusted: only
    folders of this user are checked, and a folder stays while any process has the number in its name."""
    made = _NAME.fullmatch(name)
    if made is None or made[1] != _machine():
        return False
    try:
        os.kill(int(made[2]), 0)  # signal 0 only checks whether the process exists
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # a process of another user
        return False
    return False


def _machine() -> str:
    """Return an identifier of the boot, the host name and the process namespace, within which process numbers are
    unique. If the system does not provide them, the identifier is random, and no folder counts as abandoned."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        identity = "\0".join([socket.gethostname(), start, os.readlink("/proc/self/ns/pid")])
    except (OSError, ValueError):
        identity = os.urandom(16).hex()
    return blake2b(identity.encode(errors="surrogateescape"), digest_size=8).hexdigest()
