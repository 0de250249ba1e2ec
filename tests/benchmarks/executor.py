"""What handing out work costs: npucmp's workers beside the standard library's pool and beside handing out nothing.

python tests/benchmarks/executor.py [--jobs 2] [--rounds 15]

Pairs of arrays that lie in memory are measured, so that nothing but the kernel and the executor takes time. Contestants
take turns; the least of all rounds is printed, and its ratio to that of `shares`: as many forked processes, each with
every n-th task from the start on, which send everything at their end. No executor can be much faster, and none of the
conveniences is there: results in order while others are made, a worker that may die. Not run by pytest.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp.measure.executor import Processes, batches
from npucmp.measure.kernel.native import measure_block
from npucmp.measure.kernel.numpy_kernel import bars_for

CASES = {"10,000 of 4 KB": (10_000, 1 << 10), "2,000 of 256 KB": (2_000, 1 << 16), "60 of 16 MB": (60, 1 << 22)}
BARS = bars_for("float32", "float32", 1.3e-6, 1e-5)
FORK = get_context("fork")


def work(x, y, item):
    """Of any item the same: a number is all that tells them apart."""
    return measure_block(x, y, BARS)


def own(function, items, weight, jobs):
    return list(Processes(jobs).map(function, items, None, weight))


def begin(function, items):
    begin.work = function, items


def task(places):
    function, items = begin.work
    return [function(items[place]) for place in places]


def pool(function, items, weight, jobs):
    """With all that helps it: function and items come by the fork, tasks are as large as ours."""
    with ProcessPoolExecutor(jobs, FORK, begin, (function, items)) as executor:
        return list(chain.from_iterable(executor.map(task, batches(items, weight))))


def shares(function, items, weight, jobs):
    todo = list(batches(items, weight))

    def share(number, pipe):
        begin(function, items)
        pipe.send([task(places) for places in todo[number::jobs]])

    pipes = [FORK.Pipe() for _ in range(jobs)]
    children = [FORK.Process(target=share, args=(number, pipe[1])) for number, pipe in enumerate(pipes)]
    for child in children:
        child.start()
    parts = [pipe[0].recv() for pipe in pipes]
    for child in children:
        child.join()
    return [result for at in range(len(todo)) for result in parts[at % jobs][at // jobs]]


def alone(function, items, weight, jobs):
    return list(map(function, items))


CONTESTANTS = (shares, own, pool, alone)


def seconds(contestant, function, items, weight, jobs):
    start = time.perf_counter()
    assert len(contestant(function, items, weight, jobs)) == len(items)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Times executors beside each other.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    for name, (count, size) in CASES.items():
        x = np.random.default_rng(0).normal(size=size).astype(np.float32)
        case = partial(work, x, x * np.float32(1 + 2**-22)), range(count), lambda item, size=size: 8 * size, given.jobs
        rounds = [[seconds(one, *case) for one in CONTESTANTS] for _ in range(given.rounds)]
        least = [min(column) for column in zip(*rounds)]
        told = (f"{one.__name__} {cost:.3f} s ({cost / least[0]:.2f})" for one, cost in zip(CONTESTANTS, least))
        print(f"{name}: " + ", ".join(told))


if __name__ == "__main__":
    main()
