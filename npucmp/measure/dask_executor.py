"""Workers of a Dask cluster (dask.distributed), which may be other machines: an executor like that of executor.py.

Dask distributes tasks, repeats them if a worker is lost, and collects the results. npucmp adds a check before a worker
gets work (`unfit`): the worker has the same version and sees the same files. If the check fails, the run ends, because
results might differ. npucmp pickles tasks, results and errors itself; Dask only transports bytes.

A worker runs one task of npucmp at a time. If a path is relative, it works in the folder in which npucmp was called, so
that its messages name files as this process would. Workers with one thread each are best.

A scheduler executes any code sent to it, by any client that reaches it. Connections are therefore made only within this
machine, or with Dask's encryption, for which both sides must present a certificate.
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
from npucmp.measure.kernel import library
from npucmp.version import __version__

WORKER_TIMEOUT = 60.0  # seconds without any worker until an error is raised
CHECK_INTERVAL = 2.0  # seconds between checks for workers
RETRIES = 2  # retries of a task after a system error, for example if a file system is out of reach for a moment
TASKS_PER_THREAD = 4  # tasks per thread of all workers that are submitted at once, and
LEAST = 64  # at least this many: more workers may join
NAMES = 10_000  # names of a folder that are compared
_LARGEST = 1 << 20  # bytes of a scheduler file
# errors of a connection: sockets, ssl, its configuration, and timeouts (separate classes before 3.11)
UNREACHABLE = (OSError, RuntimeError, TypeError, ValueError, LookupError, ImportError, asyncio.TimeoutError,
               concurrent.futures.TimeoutError, concurrent.futures.CancelledError)  # fmt: skip


def address_of(scheduler: str) -> str:
    """The address of the scheduler that a user gave by address or scheduler file. Raises UsageError if the connection
    is not private."""
    if "://" in scheduler:
        return _private(scheduler, scheduler)
    if os.path.exists(scheduler) or scheduler.endswith(".json"):
        return _private(_from_file(scheduler), scheduler)
    return _private(f"tcp://{scheduler}", scheduler)


def _from_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_LARGEST))
        address = content["address"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        because = error.strerror if isinstance(error, OSError) else "no scheduler file of Dask (JSON with an address)"
        raise UsageError(f"--scheduler {path}: {because}") from None
    return str(address)


def _private(address: str, scheduler: str) -> str:
    if not is_private(address):
        named = "" if address == scheduler else f" ({address})"
        raise UsageError(
            f"--scheduler {scheduler}{named}: connections to other machines must be encrypted: "
            "tcp://127.0.0.1:PORT, or tls://HOST:PORT with certificates in Dask's configuration (distributed.comm.tls)"
        )
    return address


def is_private(address: str) -> bool:
    """Return whether a connection to an address is private: it is on this machine, or encrypted."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme == "tls":
            return bool(host)
        return parts.scheme == "tcp" and (host == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


class Cluster:
    """Workers of the Dask cluster at `scheduler`. `reads` are files and folders that tasks read, `writes` is a folder
    that they write. Raises UsageError if the cluster does not exist or a worker is not suitable. Close it, or use
    `with`."""

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
        self._place = pickle.dumps({**_self(), "folder": folder, "reads": {one: _path_digest(one) for one in paths},
                                    "probe": self._probe.name})  # fmt: skip
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are reported in one line
        warnings.filterwarnings("ignore", module="distributed")
        try:
            with concurrent.futures.ThreadPoolExecutor(1) as thread:  # without a scheduler a Client fails after 1 min
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
        """Close the connection. Tasks in progress are abandoned."""
        with suppress(FileNotFoundError):  # after hours, the written report has removed the file
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
        width = max(LEAST, TASKS_PER_THREAD * sum(self._workers().values()))

        def submit(at: int, more: str = "") -> None:
            task = pickle.dumps((function, items[at]), pickle.HIGHEST_PROTOCOL)
            key = f"npucmp-{run}-{at}{more}"
            under_way.append((at, self._client.submit(work, self._place, task, key=key, pure=False, retries=RETRIES)))

        try:
            while waiting or under_way:
                while waiting and len(under_way) < width:
                    submit(waiting.popleft())
                at, future = under_way[0]
                because = self._wait(future)
                if because is not None:  # caused by this task, or by others that the workers had then
                    for _, other in under_way:
                        self._wait(other)
                    submit(at, "-alone")
                    _, future = under_way.pop()
                    because = self._wait(future)
                yield lost(items[at], because) if because is not None else self._answer(future)
                under_way.popleft()
        finally:
            for _, future in under_way:
                future.cancel()

    def _wait(self, future: Any) -> Optional[str]:
        """Wait for a task. Return None if it is done, or a message if several workers ended during it."""
        without = 0.0
        while True:
            try:
                error = future.exception(timeout=CHECK_INTERVAL)
            except self._dask.TimeoutError:
                without = 0.0 if self._workers() else without + CHECK_INTERVAL
                if without >= WORKER_TIMEOUT:
                    raise UsageError(f"{self._called}: no worker has existed for {WORKER_TIMEOUT:g} s") from None
            except self._dask.CancelledError:
                raise UsageError(f"{self._called}: the scheduler was lost or has dropped the work") from None
            else:
                killed = isinstance(error, self._dask.KilledWorker)
                return f"{error.allowed_failures + 1} workers ended during it" if killed else None

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
        """Addresses of workers, and the number of threads of each."""
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
        """Check that each worker can do the work."""
        until = time.monotonic() + WORKER_TIMEOUT
        while not self._workers():
            if time.monotonic() > until:
                raise UsageError(
                    f"{self._called}: no worker connected within {WORKER_TIMEOUT:g} s; start one with "
                    "`dask worker ADDRESS`"
                )
            try:
                self._client.wait_for_workers(1, timeout=CHECK_INTERVAL)
            except self._dask.TimeoutError:
                pass
        for address, problem in sorted(self._client.run(unfit_reason, self._place, on_error="return").items()):
            if isinstance(problem, Exception):
                problem = f"has no working npucmp {__version__}: {_line(problem)}"
            if problem is not None:
                raise UsageError(f"{self._called}: the worker at {address} {_line(problem)}")


def _line(problem: object) -> str:
    """A message in one line."""
    return " ".join(str(problem).split()) or type(problem).__name__


def _self() -> dict[str, str]:
    """The properties that must agree on all workers so that results agree."""
    return {
        "npucmp": __version__,
        "Python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "kernel": library.name(),
    }


def _probe(folder: str) -> Any:
    """Create the folder and a file in it, by which a worker proves that it sees this folder. If this process is killed,
    a later report recognises the file by its name and removes it (report/files.py)."""
    try:
        os.makedirs(folder, exist_ok=True)
        return tempfile.NamedTemporaryFile(prefix=".npucmp-seen-", suffix=".tmp", dir=os.path.abspath(folder))
    except OSError as error:
        raise DumpError(folder, f"cannot be written: {error.strerror or error}") from None


def _path_digest(path: str) -> str:
    """The content of a path: a digest of the names in a folder, or the size of a file; "" if it does not exist."""
    try:
        if os.path.isdir(path):
            with os.scandir(path) as found:
                names = sorted(entry.name for _, entry in zip(range(NAMES), found))
            return sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        return str(os.path.getsize(path))
    except OSError:
        return ""


# Functions that workers run

_one = threading.Lock()
_fit = b""


def unfit_reason(place: bytes) -> Optional[str]:
    """The reason why this process cannot do the work described in `place`; None if it can."""
    expected = pickle.loads(place)
    for name, own in _self().items():
        if own != expected[name]:
            return f"has {name} {own}, this process has {expected[name]}"
    folder = expected["folder"] or ""
    if folder and not os.path.isdir(folder):
        return f"cannot see {folder}, the folder of relative paths"
    for path, seen in expected["reads"].items():
        found = _path_digest(os.path.join(folder, path))
        if found != seen:
            return f"{'sees something else at' if found else 'cannot see'} {path}"
    output = os.path.dirname(expected["probe"])
    if not os.path.exists(expected["probe"]):
        return f"cannot see {output}"
    try:
        with tempfile.TemporaryFile(dir=output):
            return None
    except OSError as error:
        return f"cannot write to {output}: {error.strerror or error}"


def work(place: bytes, task: bytes) -> bytes:
    """Run a task and return its result or error. A system error is raised, so that Dask tries again."""
    global _fit
    with _one:
        if place != _fit:
            because = unfit_reason(place)
            if because is not None:
                return pickle.dumps((None, UsageError(f"--scheduler: a worker {because}")))
            _fit = place
        function, item = pickle.loads(task)
        with _working_directory(pickle.loads(place)["folder"]):
            try:
                return pickle.dumps((function(item), None), pickle.HIGHEST_PROTOCOL)
            except (NpucmpError, RecursionError) as error:  # Dask cannot send the error of a deep stack, and would wait
                return pickle.dumps((None, error))


@contextmanager
def _working_directory(folder: Optional[str]) -> Iterator[None]:
    """Change to a folder for the duration, unless it is None."""
    before = os.getcwd()
    try:
        if folder is not None:
            os.chdir(folder)
        yield
    finally:
        os.chdir(before)
