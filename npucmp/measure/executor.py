"""Who executes the work: this process, or several workers. Same results in the same order, whoever does it.

Workers are copies of this process, made by fork: they have everything in memory that they need, only results travel,
and one that crashes takes nothing with it. docs/performance.md holds the comparison with threads, which serve where
fork is not to be had.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import signal
import sys
import warnings
from collections import deque
from itertools import chain
from typing import Any, Callable, Iterable, Iterator, NoReturn, Optional, Sequence, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH = 256  # items that make a task: handing one over costs as much as measuring a small tensor
WEIGHT = 4 << 20  # or items that weigh so much together
AHEAD = 2  # tasks that a worker has: one under way, and one so that it need not wait


def default_jobs() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def run(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    lost: Callable[[Item, str], Result],
    jobs: int = 1,
    weight: Optional[Callable[[Item], int]] = None,
) -> Iterator[Result]:
    """function of each item, in the order of the items. `weight` tells how much work an item is, in bytes.

    A worker that dies costs its batch one retry; if that ends in the same way, `lost` makes the results, from the item
    and the reason. What `function` raises is raised here, after the results before it. Results are pickled.
    """
    todo = list(batches(items, weight))
    jobs = min(jobs, len(todo))
    if jobs <= 1:
        yield from map(function, items)
    elif sys.platform == "linux":
        yield from _by_processes(function, todo, lost, jobs)
    else:  # other systems have no fork, or libraries that do not survive one
        yield from _by_threads(function, todo, jobs)


def batches(items: Iterable[Item], weight: Optional[Callable[[Item], int]] = None) -> Iterator[list[Item]]:
    """Neighbours in lists of BATCH, or fewer if they weigh WEIGHT; without `weight` every item is a list of its own."""
    batch: list[Item] = []
    heavy = 0
    for item in items:
        batch.append(item)
        heavy += WEIGHT if weight is None else weight(item)
        if len(batch) >= BATCH or heavy >= WEIGHT:
            yield batch
            batch, heavy = [], 0
    if batch:
        yield batch


def _by_threads(function: Callable[[Item], Result], todo: Sequence[list[Item]], jobs: int) -> Iterator[Result]:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(jobs)
    try:
        yield from chain.from_iterable(pool.map(lambda batch: [function(item) for item in batch], todo))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _by_processes(
    function: Callable[[Item], Result], todo: Sequence[list[Item]], lost: Callable[[Item, str], Result], jobs: int
) -> Iterator[Result]:
    def work(number: int) -> "tuple[list[Result], Optional[Exception]]":
        results = []
        try:
            for item in todo[number]:
                results.append(function(item))
        except Exception as error:
            return results, error
        return results, None

    waiting = deque(range(len(todo)))
    done: dict[int, tuple[list[Result], Optional[Exception]]] = {}
    retried: set[int] = set()
    workers: list[_Worker] = []
    try:
        for number in range(len(todo)):
            while number not in done:
                _hire(workers, work, min(jobs, len(waiting)))
                if not workers:  # no process is to be had
                    task = waiting.popleft()
                    done[task] = work(task)
                for worker in workers:
                    while waiting and len(worker.tasks) < AHEAD:
                        worker.give(waiting.popleft())
                for worker in _answering(workers):
                    answer = worker.answer()
                    task = worker.tasks.popleft()
                    if answer is not None:
                        done[task] = answer
                        continue
                    workers.remove(worker)
                    because = worker.end()
                    waiting.extendleft(reversed(worker.tasks))  # it had not begun with these
                    if task in retried:
                        done[task] = [lost(item, because) for item in todo[task]], None
                    else:
                        retried.add(task)
                        waiting.appendleft(task)
            if not waiting and not any(worker.tasks for worker in workers):
                for worker in workers:
                    worker.dismiss()
            results, error = done.pop(number)
            yield from results
            if error is not None:
                raise error
    finally:
        for worker in workers:
            worker.end()


def _hire(workers: "list[_Worker]", work: Callable[[int], Any], most: int) -> None:
    try:
        while len(workers) < most:
            workers.append(_Worker(work, workers))
    except OSError:  # as many as the system grants
        pass


def _answering(workers: "Sequence[_Worker]") -> "list[_Worker]":
    """Those that have something to say, or never will again; waits until there is one."""
    busy = {worker.answers: worker for worker in workers if worker.tasks}
    poll = select.poll()
    for descriptor in busy:
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return [busy[descriptor] for descriptor, _ in poll.poll()] if busy else []


class _Worker:
    """A copy of this process that takes numbers of tasks from one pipe and answers on another.

    It leaves when nobody can give it tasks any more: this process closed the pipe, or was killed. So that nobody else
    can, it closes what it inherits of the pipes of earlier workers.
    """

    def __init__(self, work: Callable[[int], Any], earlier: "Sequence[_Worker]" = ()) -> None:
        orders, self._orders = os.pipe()
        answers, out = os.pipe()
        with warnings.catch_warnings():  # Python warns of threads that numpy's BLAS has; it prepares them for a fork
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if not self._process:
            _serve(work, orders, out, [self._orders, *(worker._orders for worker in earlier)])
        os.close(orders)
        os.close(out)
        self.answers = answers
        self.tasks: deque[int] = deque()

    def give(self, task: int) -> None:
        try:
            os.write(self._orders, task.to_bytes(4, "little"))
        except BrokenPipeError:  # it has died, which its answer will tell
            pass
        self.tasks.append(task)

    def answer(self) -> Any:
        """Of the first of its tasks; None if it died over it."""
        size = int.from_bytes(self._read(8), "little")
        answer = self._read(size)
        return pickle.loads(answer) if 0 < size == len(answer) else None

    def _read(self, length: int) -> bytes:
        """Without a buffer: what was read ahead, poll would not tell of."""
        data = b""
        while len(data) < length:
            piece = os.read(self.answers, length - len(data))
            if not piece:
                break
            data += piece
        return data

    def dismiss(self) -> None:
        """Let it go: it has done all that it was given."""
        if self._orders >= 0:
            os.close(self._orders)
            self._orders = -1

    def end(self) -> str:
        """Wait for it to leave, or make it leave if it was not dismissed. How it ended, in words."""
        if self._process:
            if self._orders >= 0:
                os.kill(self._process, signal.SIGKILL)
            self.dismiss()
            os.close(self.answers)
            self._status = os.waitpid(self._process, 0)[1]
            self._process = 0
        return _words(self._status)


def _keep_pages() -> None:
    """glibc gives the pages of every large temporary array back and asks for them again: half the time of numpy's
    kernel. Only in workers, whose memory is nobody else's."""
    try:
        libc = ctypes.CDLL(None)
        for what in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            libc.mallopt(what, 1 << 25)
    except (OSError, AttributeError):  # another C library
        pass


def _words(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"signal {number} ({signal.strsignal(number)})"
    return f"status {os.WEXITSTATUS(status)}"


def _serve(work: Callable[[int], Any], orders: int, out: int, others: Iterable[int]) -> NoReturn:
    """What a worker does. Ctrl-C is for its parent, and nothing of the parent's is flushed or closed at the end."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for descriptor in others:
            if descriptor >= 0:
                os.close(descriptor)
        gc.freeze()  # looking for cycles in what the parent had would copy all of it
        gc.set_threshold(100_000)
        _keep_pages()
        tasks, answers = os.fdopen(orders, "rb"), os.fdopen(out, "wb")  # closed by the end: then its status is known
        for task in iter(lambda: tasks.read(4), b""):
            answer = pickle.dumps(work(int.from_bytes(task, "little")), pickle.HIGHEST_PROTOCOL)
            answers.write(len(answer).to_bytes(8, "little") + answer)
            answers.flush()
        status = 0
    finally:
        os._exit(status)
