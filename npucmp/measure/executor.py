"""Who executes the work: this process, or workers beside it. Same results in the same order, whoever does it.

Workers are copies of this process, made by fork: they have function and items in memory, only numbers of items travel
to them and results back. Each has pipes of its own, so that one that crashes takes nothing with it but its task.

Processes and pipes are those of multiprocessing; who gets what is decided here, not by ProcessPoolExecutor. That one
ends with its first dead worker and cannot tell over what it died, leaves its workers behind if this process is killed,
and costs 0.13 ms a task and 0.03 s a run: up to 9 % of comparing 2 × 0.4 GB, 2 % of 2 × 2.5 GB, nothing with 10,000
small pairs (docs/performance.md, tests/benchmarks/executor.py).

Of a program with several threads only the one that asks for results is copied: a lock that another one holds in that
moment stays locked in the workers. One job forks nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Hashable, Iterator, NoReturn, Optional, Protocol, Sequence, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")
Found = TypeVar("Found")
Answer = tuple[list[Result], Optional[Exception]]  # of a task: results, and what ended it before its end

BATCH = 256  # items that make a task: handing one over costs as much as measuring a small tensor
WEIGHT = 4 << 20  # or items that weigh so much together
AHEAD = 2  # tasks that a worker has: one under way, and one so that it need not wait
LOOKS = 0.5  # seconds after which a worker looks again whether its parent lives
HELD = 16 * BATCH  # items per worker that may be begun while the first has no result: theirs wait in memory


class Executor(Protocol):
    """What comes out does not depend on which one it was."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        """function of each item, in the order of the items. `weight` tells how much work an item is, in bytes.

        An item that ends its worker twice costs only itself: `lost` makes its result, from the item and the reason.
        What `function` raises is raised here, after the results before it. Results are pickled; so that function and
        items can be, they are plain functions and data.
        """


def workers(jobs: int, apart: bool = False) -> Executor:
    """So many at work at once; `apart`: be it one, this process has none of the work, so that its memory stays small.
    Other systems than Linux have no fork, or libraries that do not survive one."""
    if sys.platform != "linux" or (jobs <= 1 and not apart):
        return Serial()
    return Processes(jobs, apart and not _is_daemon())


def default_jobs() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


class Serial:
    """This process; `lost` is never asked, as nobody is left to ask."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        return map(function, items)


class Processes:
    """Workers that live as long as results are asked for; none if there is too little work to share, unless it has to
    be done `apart`: nothing of it in this process, which may not survive it."""

    def __init__(self, jobs: int, apart: bool = False) -> None:
        self._jobs, self._apart = jobs, apart

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        lost: Callable[[Item, str], Result],
        weight: Optional[Callable[[Item], int]] = None,
    ) -> Iterator[Result]:
        todo = deque(batches(items, weight))
        jobs = min(self._jobs, len(todo))
        if not self._apart and (jobs <= 1 or _is_daemon()):
            yield from map(function, items)
            return
        done: dict[int, Answer[Result]] = {}
        again: set[int] = set()  # places of items that were in a task over which a worker died
        crew: list[_Worker] = []
        place = 0
        try:
            while place < len(items):
                while todo and len(crew) < jobs and (worker := _hired(function, items)):
                    crew.append(worker)
                for worker in crew:
                    while todo and len(worker.tasks) < AHEAD and todo[0].start < place + jobs * HELD:
                        worker.give(todo.popleft())
                if not crew:  # no process is to be had
                    task = todo.popleft()
                    if task.start in again or self._apart:
                        done[task.start] = [lost(items[at], "no other process is to be had") for at in task], None
                    else:
                        done[task.start] = _answer(function, items, task)
                for worker in _answering(crew):
                    answer, task = worker.answer(), worker.tasks.popleft()
                    if answer is None:
                        crew.remove(worker)
                        because, undone = worker.end(), [*worker.tasks]
                        if task.start in again:
                            answer = [lost(items[task.start], because)], None
                        else:  # item by item, to find the one
                            again.update(task)
                            undone += [range(at, at + 1) for at in task]
                        todo = deque(sorted([*undone, *todo], key=lambda some: some.start))
                    if answer is not None:
                        done[task.start] = answer
                while place in done:
                    results, error = done.pop(place)
                    yield from results
                    if error is not None:
                        raise error
                    place += len(results)
        finally:
            for worker in crew:
                worker.end()


def batches(items: Sequence[Item], weight: Optional[Callable[[Item], int]] = None) -> Iterator[range]:
    """Places of neighbours: BATCH, or fewer if they weigh WEIGHT; without `weight` each item goes alone."""
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
    """A process that gets tasks on one pipe and answers on another. If this one is killed, it leaves."""

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
        ):  # Python warns of threads that numpy's BLAS has; it is ready for that
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()

    def give(self, task: range) -> None:
        self.tasks.append(task)
        self._send((task.start, task.stop))

    def _send(self, order: Optional[tuple[int, int]]) -> None:
        try:
            self._orders.send(order)
        except OSError:  # it has died, which its answer will tell
            pass

    def answer(self) -> Optional[Answer[Any]]:
        """Of the first of its tasks; None if it died over it."""
        try:
            answer: Answer[Any] = self.answers.recv()
        except (EOFError, OSError):
            return None
        return answer

    def end(self) -> str:
        """Wait for it to leave, or make it leave if it is at work. How it ended, in words."""
        if self.tasks:
            self._process.kill()
        self._send(None)
        self._process.join()
        self._orders.close()
        self.answers.close()
        status = self._process.exitcode or 0
        return f"signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"status {status}"


def _hired(function: Callable[[Any], Any], items: Sequence[Any]) -> Optional[_Worker]:
    """None if the system grants no more."""
    try:
        return _Worker(function, items)
    except OSError:
        return None


def _is_daemon() -> bool:
    """Whether this process is a worker itself, of multiprocessing: those may not have children."""
    from multiprocessing import current_process

    return current_process().daemon


def _answering(crew: list[_Worker]) -> list[_Worker]:
    """Those that have something to say, or never will again; waits until there is one."""
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
    """What a worker does. Ctrl-C is for its parent, and nothing of the parent's is flushed or closed at the end; what
    its parent does in an orderly end by other signals is none of its business. The `parents` ends of its pipes are
    closed here: a pipe whose reader is gone refuses an answer only if no worker holds the reader's end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.SIG_DFL)
        for end in parents:
            end.close()
        _watch(parent)
        gc.freeze()  # looking for cycles in what the parent had would copy all of it
        gc.enable()  # who forked it may do without for a while, this one works for long
        gc.set_threshold(100_000)
        _keep_pages()
        while order := orders.recv():
            out.send(_answer(function, items, range(*order)))
    finally:
        os._exit(1)


def _watch(parent: int) -> None:
    try:
        threading.Thread(target=_leave_after, args=(parent,), daemon=True).start()
    except RuntimeError:  # no thread is to be had; it leaves when it next reads or writes
        pass


def _leave_after(parent: int) -> None:
    """Ends this process soon after its parent, whatever it is doing: at a task, or at an answer to a pipe of which
    another worker holds the reader's end."""
    while os.getppid() == parent:
        time.sleep(LOOKS)
    os._exit(1)


def _keep_pages() -> None:
    """glibc gives the pages of every large temporary array back and asks for them again: half the time of numpy's
    kernel. Only in workers, whose memory is nobody else's."""
    try:
        libc = ctypes.CDLL(None)
        for what in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            libc.mallopt(what, 1 << 25)
    except (OSError, AttributeError):  # another C library
        pass


def once(
    items: Sequence[Item],
    values: Callable[[Item], Optional[Hashable]],
    read: Callable[[Sequence[Item]], Iterator[Found]],
) -> Iterator[tuple[Item, Found, bool]]:
    """(item, what was found, whether that was for an earlier one), in the order of the items: values that several
    tensors share (an output, and the same tensor as the input of another) are read once.

    `values` tells the values of an item from those of all others, None of one that shares none. `read` gets the first
    items of each and finds something for each, in their order.
    """
    places: dict[Hashable, int] = {}
    firsts = [  # the place of the first item with the same values
        at if key is None else places.setdefault(key, at) for at, key in enumerate(map(values, items))
    ]
    shared = {first for at, first in enumerate(firsts) if first != at}
    found = read([item for at, item in enumerate(items) if firsts[at] == at])
    kept: dict[int, Found] = {}
    for at, item in enumerate(items):
        first = firsts[at]
        if first != at:
            yield item, kept[first], True
            continue
        one = next(found)
        if at in shared:
            kept[at] = one
        yield item, one, False
