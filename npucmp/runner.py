"""Who executes the work: this thread, or several. Same results in the same order, whoever does it."""

from __future__ import annotations

import os
from collections import deque
from contextlib import nullcontext
from threading import Lock
from typing import Callable, Iterable, Iterator, Optional, Sequence, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

BATCH = 256  # items that make a task: handing one over costs as much as measuring a small tensor
CROWD = 64  # items of a task from which on they are light
WEIGHT = 4 << 20  # or items that weigh so much together
WINDOW = 4  # tasks under way per worker: results leave in order, so memory stays bounded


def default_jobs() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def run(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    jobs: int = 1,
    weight: Optional[Callable[[Item], int]] = None,
) -> Iterator[Result]:
    """function of each item, in the order of the items. `weight` tells how much work an item is, in bytes.

    Threads, because the reading and the kernel let other threads work (docs/performance.md holds the comparison).
    """
    if jobs <= 1:
        yield from map(function, items)
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    with ThreadPoolExecutor(jobs) as pool:
        under_way: deque[Future[list[Result]]] = deque()
        try:
            for batch in batches(items, weight):
                under_way.append(pool.submit(_each, function, batch))
                if len(under_way) >= jobs * WINDOW:
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


_light = Lock()


def _each(function: Callable[[Item], Result], batch: Sequence[Item]) -> list[Result]:
    """Of many light items one thread works at a time: they hold the interpreter most of the time, and threads that
    hand it to each other at every system call take longer than one."""
    with nullcontext() if len(batch) < CROWD else _light:
        return [function(item) for item in batch]


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
