"""Executors of the measurement: this process, or worker processes beside it. Results and their order are the same.

Workers are forked copies of this process. They have function and items in memory; only item numbers are sent to them
and results are sent back. Workers that are kept for several calls are sent function and items once for each call. Each
worker has pipes of its own, so that a crash loses only its task.

Processes and pipes come from multiprocessing; tasks are assigned here, not by ProcessPoolExecutor. ProcessPoolExecutor
ends with its first dead worker and cannot name the task, leaves its workers behind if this process is killed, and costs
0.13 ms a task and 0.03 s a run: up to 9 % of comparing 2 × 0.4 GB, 2 % of 2 × 2.5 GB, nothing with 10,000 small pairs
(tests/benchmarks/executor.py).

In a program with several threads, only the thread that requests results is copied: a lock that another thread holds at
that moment stays locked in the workers. With one job nothing is forked.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import pickle
import signal
import sys
import time
import warnings
from collections import deque
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Hashable,
    Iterator,
    NoReturn,
    Optional,
    Protocol,
    Sequence,
    TypeVar,
    Union,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")
Found = TypeVar("Found")
Answer = tuple[list[Result], Optional[Exception]]  # of a task: results, and the error that ended it early

BATCH = 256  # items of a task: work: sending one costs as much as measuring a small tensor
WEIGHT = 4 << 20  # total weight of a task: work: or fewer items with it
TASKS_TO_FORK = 8  # tasks: work: for fewer, two workers take longer to start than they save
TASKS_PER_WORKER = 2  # tasks of a worker: work: one in progress, and one more so that it need not wait
START_PAUSES = 0.4, 0.1  # seconds, the last first, before a worker is asked for again: chosen, not measured
PARENT_CHECK_INTERVAL = 0.5  # seconds between a worker's checks that its parent lives
# items per worker that may be started before the first has a result; their results wait in memory
MOST_WAITING = 16 * BATCH


class Executor(Protocol):
    """The interface of executors. Results do not depend on the executor."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        """Apply `function` to each item, in the order of the items. `weight` is the amount of work of an item, in
        bytes.

        An item that ends its worker twice loses only its own result: `lost` makes one from the item and the reason. An
        error of `function` is raised here, after the earlier results. Results are pickled. Use plain functions and
        data, so that function and items can be pickled too.
        """


def workers(jobs: int, isolated: bool = False, least: int = 2) -> Executor:
    """Return an executor with `jobs` workers. If `isolated`, even one job runs in a worker, so that the memory of this
    process stays small; else this process executes fewer than `least` tasks. Systems other than Linux have no fork, or
    libraries that do not survive one; they use this process."""
    if sys.platform != "linux" or (jobs <= 1 and not isolated):
        return Serial()
    return Processes(jobs, isolated and not _is_daemon(), least)


def kept_by(executor: Executor) -> AbstractContextManager[object]:
    """Return a context in which an executor keeps its workers, if it has workers of its own."""
    found: AbstractContextManager[object] = getattr(executor, "kept", nullcontext)()
    return found


def default_jobs() -> int:
    """The number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


class Serial:
    """Execution in this process; `lost` is never called, because a crash ends the process itself."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        return map(function, items)


class Processes:
    """Worker processes that live while results are requested. If there is too little work to share, this process does
    it, unless `isolated`: then nothing runs in this process, which might not survive it."""

    def __init__(self, jobs: int, isolated: bool = False, least: int = 2) -> None:
        self._jobs, self._isolated, self._least = jobs, isolated, least
        self._idle: Optional[list[_Worker]] = None  # workers that wait for another function; None: they end

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep workers in this context: another function and its items are sent to them, and what they read stays in
        their memory."""
        if self._idle is not None:
            yield
            return
        self._idle = []
        try:
            yield
        finally:
            idle, self._idle = self._idle, None
            for worker in idle:
                worker.end()

    def _crew(self, jobs: int, function: Callable[[Item], Result], items: Sequence[Item]) -> list[_Worker]:
        """Take idle workers for other work; none if it cannot be sent."""
        if not self._idle:
            return []
        crew, self._idle = self._idle[:jobs], self._idle[jobs:]
        try:
            work = pickle.dumps((function, items), pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError):  # a fork has the items in memory
            work = None
        for worker in crew:
            worker.take(work) if work is not None else worker.end()
        return crew if work is not None else []

    def _dismiss(self, crew: Sequence[_Worker]) -> None:
        """Keep idle workers if they are to be kept; the others end."""
        for worker in crew:
            if self._idle is None or worker.tasks:
                worker.end()
            else:
                self._idle.append(worker)

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        todo = deque(batches(items, weight))
        jobs = min(self._jobs, len(todo))
        if not self._isolated and (jobs <= 1 or len(todo) < self._least or _is_daemon()):
            yield from map(function, items)
            return
        done: dict[int, Answer[Result]] = {}
        again: set[int] = set()  # items of a task during which a worker died
        crew = self._crew(jobs, function, items)
        pauses = [*START_PAUSES]
        place = 0
        try:
            while place < len(items):
                while todo and len(crew) < jobs and (worker := _start_worker(function, items)):
                    crew.append(worker)
                if not crew and pauses:  # the system may refuse a process for a moment only
                    time.sleep(pauses.pop())
                    continue
                for worker in crew:
                    while todo and len(worker.tasks) < TASKS_PER_WORKER and todo[0].start < place + jobs * MOST_WAITING:
                        worker.give(todo.popleft())
                if not crew:  # no process can be started
                    task = todo.popleft()
                    if task.start in again or self._isolated:
                        done[task.start] = [lost(items[at], "no other process can be started") for at in task], None
                    else:
                        done[task.start] = _answer(function, items, task)
                for worker in _ready_workers(crew):
                    answer, task = worker.answer(), worker.tasks.popleft()
                    if answer is None:
                        crew.remove(worker)
                        because, undone = worker.end(), [*worker.tasks]
                        if task.start in again:
                            answer = [lost(items[task.start], because)], None
                        else:  # item by item, to find the cause
                            again.update(task)
                            undone += [range(at, at + 1) for at in task]
                        todo = deque(sorted([*undone, *todo], key=lambda waiting: waiting.start))
                    if answer is not None:
                        done[task.start] = answer
                while place in done:
                    results, error = done.pop(place)
                    yield from results
                    if error is not None:
                        raise error
                    place += len(results)
        finally:
            self._dismiss(crew)


def batches(items: Sequence[Item], weight: Optional[Callable[[Item], int]] = None) -> Iterator[range]:
    """Ranges of consecutive items: BATCH, or fewer if their weight reaches WEIGHT. Without `weight`, one item each."""
    start = heavy = 0
    for end, item in enumerate(items, 1):
        heavy += WEIGHT if weight is None else weight(item)
        if end - start >= BATCH or heavy >= WEIGHT or end == len(items):
            yield range(start, end)
            start, heavy = end, 0


def _answer(function: Callable[[Item], Result], items: Sequence[Item], task: range) -> Answer[Result]:
    results: list[Result] = []
    try:
        for place in task:
            results.append(function(items[place]))
    except Exception as error:  # the parent raises it
        return results, error
    return results, None


class _Worker:
    """A process that receives tasks on one pipe and sends results on another. It exits if its parent is killed."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        from multiprocessing import get_context

        fork = get_context("fork")
        orders, self._orders = fork.Pipe(duplex=False)
        self.answers, out = fork.Pipe(duplex=False)
        self.tasks: deque[range] = deque()
        parents = os.getpid(), (self._orders, self.answers)
        self._process = fork.Process(target=_serve, args=(function, items, orders, out, *parents), daemon=True)
        with (
            orders,
            out,
            warnings.catch_warnings(),
        ):  # Python warns about the threads of numpy's BLAS, which is prepared for fork
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()

    def give(self, task: range) -> None:
        self.tasks.append(task)
        self._send((task.start, task.stop))

    def take(self, work: bytes) -> None:
        """Give it another function and its items, pickled."""
        self._send(work)

    def _send(self, order: Union[tuple[int, int], bytes, None]) -> None:
        try:
            self._orders.send(order)
        except OSError:  # it has died, or waits for an order that will not come: its end is its answer
            self._process.kill()

    def answer(self) -> Optional[Answer[Any]]:
        """The result of its first task; None if it died."""
        try:
            answer: Answer[Any] = self.answers.recv()
        except (EOFError, OSError):
            return None
        return answer

    def end(self) -> str:
        """Wait until the worker exits, or kill it if it is at work. Return its exit status in words."""
        if self.tasks:
            self._process.kill()
        self._send(None)
        self._process.join()
        self._orders.close()
        self.answers.close()
        status = self._process.exitcode or 0
        return f"signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"status {status}"


def _start_worker(function: Callable[[Any], Any], items: Sequence[Any]) -> Optional[_Worker]:
    """A new worker; None if the system does not grant one."""
    try:
        return _Worker(function, items)
    except OSError:
        return None


def _is_daemon() -> bool:
    """Return whether this process is a worker of multiprocessing, which may not have children."""
    from multiprocessing import current_process

    return current_process().daemon


def _ready_workers(crew: list[_Worker]) -> list[_Worker]:
    """Wait for workers that have an answer or have died, and return them."""
    from multiprocessing.connection import wait

    ready = wait([worker.answers for worker in crew if worker.tasks]) if crew else ()
    return [worker for worker in crew if worker.answers in ready]


def _serve(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    orders: Connection,
    out: Connection,
    parent: int,
    parents: tuple[Connection, ...],
) -> NoReturn:
    """Run tasks in a worker. Ctrl-C is left to the parent. Buffers of the parent are not flushed or closed at the end,
    and its handlers of other signals are reset. The `parents` ends of the pipes are closed here: a pipe without a
    reader rejects an answer only if no worker holds the reader's end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.SIG_DFL)
        for end in parents:
            end.close()
        _watch(parent)
        gc.freeze()  # a search for cycles would copy all memory of the parent
        gc.enable()  # the parent may have disabled it for a short time; a worker runs for long
        gc.set_threshold(400_000)
        _keep_pages()
        while order := orders.recv():
            if isinstance(order, bytes):
                function, items = pickle.loads(order)
            else:
                out.send(_answer(function, items, range(*order)))
    finally:
        os._exit(1)


def _watch(parent: int) -> None:
    try:
        _thread.start_new_thread(_leave_after, (parent,))  # threading.Thread waits for ever if its thread has no memory
    except RuntimeError:  # no thread can be started; the worker exits when it next reads or writes
        pass


def _leave_after(parent: int) -> None:
    """End this process soon after its parent, even during a task or while it writes to a pipe whose reader's end
    another worker holds."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_INTERVAL)
    os._exit(1)


def _keep_pages() -> None:
    """Keep freed pages: glibc returns the pages of every large temporary array to the system and requests them again,
    half the time of numpy's kernel. This is done only in workers, whose memory is not shared."""
    try:
        libc = ctypes.CDLL(None)
        for what in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            libc.mallopt(what, 1 << 25)
    except (OSError, AttributeError):  # another C library
        pass


def read_distinct(
    items: Sequence[Item],
    values: Callable[[Item], Optional[Hashable]],
    read: Callable[[Sequence[Item]], Iterator[Found]],
) -> Iterator[tuple[Item, Found, bool]]:
    """Yield (item, result, whether an earlier item provided it), in the order of the items. Values that several tensors
    share (an output, and the same tensor as the input of another operator) are read once.

    `values` returns a key that identifies the values of an item, None if they are not shared. `read` gets the first
    item of each key and yields one result for each, in order.
    """
    places: dict[Hashable, int] = {}
    firsts = [  # the first item with the same values
        at if key is None else places.setdefault(key, at) for at, key in enumerate(map(values, items))
    ]
    shared = {first for at, first in enumerate(firsts) if first != at}
    found = read([item for at, item in enumerate(items) if firsts[at] == at])
    first_results: dict[int, Found] = {}
    for at, item in enumerate(items):
        first = firsts[at]
        if first != at:
            yield item, first_results[first], True
            continue
        one = next(found)
        if at in shared:
            first_results[at] = one
        yield item, one, False
