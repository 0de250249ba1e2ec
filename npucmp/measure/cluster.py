"""The workers of a Dask cluster (dask.distributed), which may be other machines: an executor like those beside it.

Dask hands tasks out, does them again where a worker is lost, and brings the answers. What npucmp adds is what a worker
has to be before it gets work (`unfit`): it has this version and sees the files; who is not told so ends the run, as its
figures might be others. Tasks, answers and errors travel as bytes that npucmp pickled itself: Dask looks into none.

A worker does one task of npucmp at a time, in the folder that npucmp was called in if a path is told from there: what
it tells of a file then reads as if this process had read it. Workers with one thread each are best.

A scheduler runs whatever it is sent, for whoever reaches it. So only connections within this machine are made, or such
as Dask encrypts, where both sides have to show a certificate.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ipaddress
import json
import logging
import os
import pickle
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections import deque
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, Callable, Iterator, Optional, Sequence
from urllib.parse import urlsplit

from npucmp.errors import DumpError, MissingExtra, NpucmpError, UsageError
from npucmp.measure.executor import Item, Result
from npucmp.measure.kernel import native
from npucmp.version import __version__

WAIT = 60.0  # seconds without any worker until that is an error
LOOK = 2.0  # seconds between looks at whether there is one
RETRIES = 2  # of a task that the system could not do, as a file system may be out of reach for a moment
AHEAD = 4  # tasks per thread of all workers that are handed out at once, and
LEAST = 64  # so many at least: workers may come
NAMES = 10_000  # of a folder that are held against each other
_LARGEST = 1 << 20  # bytes of a scheduler file
# that a connection raises: sockets, ssl, its configuration, and time that ran out (classes of their own before 3.11)
UNREACHABLE = (OSError, RuntimeError, TypeError, ValueError, LookupError, ImportError, asyncio.TimeoutError,
               concurrent.futures.TimeoutError, concurrent.futures.CancelledError)  # fmt: skip


def address_of(scheduler: str) -> str:
    """Where the scheduler is that a user named, by address or by its scheduler file. UsageError where the way there is
    open to others."""
    if "://" in scheduler:
        return _private(scheduler, scheduler)
    if os.path.exists(scheduler) or scheduler.endswith(".json"):
        return _private(_from_file(scheduler), scheduler)
    return _private(f"tcp://{scheduler}", scheduler)


def _from_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            told = json.loads(file.read(_LARGEST))
        address = told["address"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        because = error.strerror if isinstance(error, OSError) else "no scheduler file of Dask (JSON with an address)"
        raise UsageError(f"--scheduler {path}: {because}") from None
    return str(address)


def _private(address: str, scheduler: str) -> str:
    if not is_private(address):
        named = "" if address == scheduler else f" ({address})"
        raise UsageError(
            f"--scheduler {scheduler}{named}: what is not encrypted may not leave this machine: "
            "tcp://127.0.0.1:PORT, or tls://HOST:PORT with certificates in Dask's configuration (distributed.comm.tls)"
        )
    return address


def is_private(address: str) -> bool:
    """Whether nobody else can listen or speak on the way to it: it is on this machine, or encrypted."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme == "tls":
            return bool(host)
        return parts.scheme == "tcp" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


class Cluster:
    """Workers of the Dask cluster at `scheduler`. `reads` are files and folders that tasks read, `writes` a folder that
    they write. UsageError, if there is no such cluster, or a worker cannot do it. To be closed, or used by `with`."""

    def __init__(self, scheduler: str, reads: Sequence[str | os.PathLike[str]], writes: str) -> None:
        self._address = address_of(scheduler)
        self._called = f"--scheduler {scheduler}"
        try:
            import distributed
        except ImportError:
            raise MissingExtra("npucmp[dask]", "--scheduler") from None
        self._dask: Any = distributed
        paths = [os.fspath(path) for path in reads]
        for path in paths:
            if not os.path.exists(path):
                raise DumpError(path, "no such file or folder")
        folder = None if all(map(os.path.isabs, [*paths, writes])) else os.getcwd()
        self._probe = _probe(writes)
        self._place = pickle.dumps({**_self(), "folder": folder, "reads": {one: _seen(one) for one in paths},
                                    "probe": self._probe.name})  # fmt: skip
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is wrong is told in one line
        warnings.filterwarnings("ignore", module="distributed")
        try:
            with concurrent.futures.ThreadPoolExecutor(1) as thread:  # a Client without a scheduler ends after a minute
                thread.submit(asyncio.run, self._knock()).result()
            self._client = distributed.Client(self._address, set_as_default=False)
        except UNREACHABLE as error:
            self._probe.close()
            raise UsageError(f"{self._called}: cannot be reached: {_line(error)}") from None
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """What is under way is given up."""
        with suppress(FileNotFoundError):  # of a run of hours the report that was written has taken it away
            self._probe.close()
        self._client.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        run, waiting = uuid.uuid4().hex, deque(range(len(items)))
        under_way: deque[tuple[int, Any]] = deque()
        width = max(LEAST, AHEAD * sum(self._workers().values()))

        def submit(at: int, more: str = "") -> None:
            task = pickle.dumps((function, items[at]), pickle.HIGHEST_PROTOCOL)
            key = f"npucmp-{run}-{at}{more}"
            under_way.append((at, self._client.submit(work, self._place, task, key=key, pure=False, retries=RETRIES)))

        try:
            while waiting or under_way:
                while waiting and len(under_way) < width:
                    submit(waiting.popleft())
                at, future = under_way[0]
                because = self._ended(future)
                if because is not None:  # over this task, or over others that the workers had then
                    for _, other in under_way:
                        self._ended(other)
                    submit(at, "-alone")
                    _, future = under_way.pop()
                    because = self._ended(future)
                yield lost(items[at], because) if because is not None else self._answer(future)
                under_way.popleft()
        finally:
            for _, future in under_way:
                future.cancel()

    def _ended(self, future: Any) -> Optional[str]:
        """Waits for it. None if it is done, in words what happened if several workers ended over it."""
        without = 0.0
        while True:
            try:
                error = future.exception(timeout=LOOK)
            except self._dask.TimeoutError:
                without = 0.0 if self._workers() else without + LOOK
                if without >= WAIT:
                    raise UsageError(f"{self._called}: all workers are gone, for {WAIT:g} s") from None
            except self._dask.CancelledError:
                raise UsageError(f"{self._called}: the scheduler was lost, or has dropped the work") from None
            else:
                killed = isinstance(error, self._dask.KilledWorker)
                return f"{error.allowed_failures + 1} workers ended over it" if killed else None

    def _answer(self, future: Any) -> Any:
        error = future.exception()
        if isinstance(error, ImportError):
            raise UsageError(f"{self._called}: a worker has no npucmp {__version__}: {_line(error)}")
        if error is not None:
            raise error
        result, error = pickle.loads(future.result())
        if error is not None:
            raise error
        return result

    async def _knock(self) -> None:
        security = self._dask.Security().get_connection_args("client")
        comm = await self._dask.comm.connect(self._address, **security)
        await comm.close()

    def _workers(self) -> dict[str, int]:
        """Addresses of workers, and how many threads each has."""
        try:
            found: dict[str, int] = self._client.nthreads()
        except UNREACHABLE as error:
            raise UsageError(f"{self._called}: the scheduler was lost: {_line(error)}") from None
        for address in found:
            if not is_private(address):
                raise UsageError(
                    f"{self._called}: its worker at {address} is reached without encryption from other machines: "
                    "start scheduler and workers with TLS, or with --host 127.0.0.1"
                )
        return found

    def _meet(self) -> None:
        """Asks each worker whether it can do the work."""
        until = time.monotonic() + WAIT
        while not self._workers():
            if time.monotonic() > until:
                raise UsageError(f"{self._called}: no worker came within {WAIT:g} s; `dask worker ADDRESS` starts one")
            try:
                self._client.wait_for_workers(1, timeout=LOOK)
            except self._dask.TimeoutError:
                pass
        for address, told in sorted(self._client.run(unfit, self._place, on_error="return").items()):
            if isinstance(told, Exception):
                told = f"has no npucmp {__version__} that runs: {_line(told)}"
            if told is not None:
                raise UsageError(f"{self._called}: the worker at {address} {_line(told)}")


def _line(told: object) -> str:
    """In one line."""
    return " ".join(str(told).split()) or type(told).__name__


def _self() -> dict[str, str]:
    """What has to be the same everywhere, so that figures are."""
    return {
        "npucmp": __version__,
        "Python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "kernel": native.name(),
    }


def _probe(folder: str) -> Any:
    """A file in a folder, which is created, that only who sees this folder can see. By its name a later report takes it
    away (report/files.py) if this process is killed."""
    try:
        os.makedirs(folder, exist_ok=True)
        return tempfile.NamedTemporaryFile(prefix=".npucmp-seen-", suffix=".tmp", dir=os.path.abspath(folder))
    except OSError as error:
        raise DumpError(folder, f"cannot be written: {error.strerror or error}") from None


def _seen(path: str) -> str:
    """What is there, "" for nothing: names in a folder, or the size of a file."""
    try:
        if os.path.isdir(path):
            with os.scandir(path) as found:
                names = sorted(entry.name for _, entry in zip(range(NAMES), found))
            return sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        return str(os.path.getsize(path))
    except OSError:
        return ""


# What workers do

_one = threading.Lock()
_fit = b""


def unfit(place: bytes) -> Optional[str]:
    """Why this process cannot do the work that is told of in `place`, None if it can."""
    told = pickle.loads(place)
    for name, own in _self().items():
        if own != told[name]:
            return f"has {name} {own}, this process has {told[name]}"
    folder = told["folder"] or ""
    if folder and not os.path.isdir(folder):
        return f"cannot see {folder}, from where paths are told"
    for path, seen in told["reads"].items():
        found = _seen(os.path.join(folder, path))
        if found != seen:
            return f"{'sees something else at' if found else 'cannot see'} {path}"
    output = os.path.dirname(told["probe"])
    if not os.path.exists(told["probe"]):
        return f"cannot see {output}"
    try:
        with tempfile.TemporaryFile(dir=output):
            return None
    except OSError as error:
        return f"cannot write to {output}: {error.strerror or error}"


def work(place: bytes, task: bytes) -> bytes:
    """Answers a task. What is raised, which the system's trouble is, is tried again."""
    global _fit
    with _one:
        if place != _fit:
            because = unfit(place)
            if because is not None:
                return pickle.dumps((None, UsageError(f"--scheduler: a worker {because}")))
            _fit = place
        function, item = pickle.loads(task)
        with _standing(pickle.loads(place)["folder"]):
            try:
                return pickle.dumps((function(item), None), pickle.HIGHEST_PROTOCOL)
            except (NpucmpError, RecursionError) as error:  # a deep stack is what Dask cannot send, and waits for
                return pickle.dumps((None, error))


@contextmanager
def _standing(folder: Optional[str]) -> Iterator[None]:
    """This process stands in that folder meanwhile, unless it is none."""
    before = os.getcwd()
    try:
        if folder is not None:
            os.chdir(folder)
        yield
    finally:
        os.chdir(before)
