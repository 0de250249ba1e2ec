"""How fast two equal runs are found to be equal, against reading the same files: makes both, prints times and memory.

python tests/benchmarks/rerun.py [MB] [JOBS]      not run by pytest

MB (default 512) is the size of one run, of tensors of 64 KB to 32 MB. The files lie in the page cache, so that the
figures are those of memory; a disk is slower than either.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp import rerun_diff
from tests.synthetic import write_run

PIECE = 1 << 18
SIZES = (1 << 14, 1 << 18, 1 << 21, 1 << 23)  # elements


def operators(megabytes: int) -> dict[str, dict[str, list[np.ndarray]]]:
    random, made, number = np.random.default_rng(0), {}, 0
    noise = random.standard_normal(SIZES[-1]).astype(np.float32)
    left = megabytes << 18
    while left > 0:
        size = min(SIZES[number % len(SIZES)], left)
        made[f"Functional.linear.{number}.forward"] = {"out": [noise[:size] + np.float32(number)]}
        left, number = left - size, number + 1
    return made


def plain(files: list[Path], jobs: int) -> float:
    """Seconds to read all files with pread."""

    def one(file: Path) -> None:
        handle = os.open(file, os.O_RDONLY)
        at = 0
        while data := os.pread(handle, PIECE, at):
            at += len(data)
        os.close(handle)

    start = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, files))
    return time.perf_counter() - start


def peak() -> float:
    """MiB of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compared(runs: list[Path], jobs: int) -> float:
    start = time.perf_counter()
    report = rerun_diff(runs, jobs=jobs)
    assert report.exit_status == 0
    return time.perf_counter() - start


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        if not os.fork():  # what the files are made of is not to count as memory
            made = operators(megabytes)
            for name in ("run1", "run2"):
                write_run(Path(folder, name), made)
            os._exit(0)
        os.wait()
        runs = [Path(folder, name) for name in ("run1", "run2")]
        files = [file for run in runs for file in run.rglob("*.npy")]
        size = sum(file.stat().st_size for file in files) / 1e9
        plain(files, jobs)
        before = peak()
        read, npucmp = (min(some) for some in zip(*((plain(files, jobs), compared(runs, jobs)) for _ in range(3))))
    print(
        f"{len(files)} files, {size:.2f} GB, jobs {jobs}: read {read:.3f} s ({size / read:.1f} GB/s), rerun-diff "
        f"{npucmp:.3f} s ({size / npucmp:.1f} GB/s), {npucmp / read:.2f} times; peak RSS {peak():.0f} MiB "
        f"({before:.0f} before)"
    )


if __name__ == "__main__":
    main()
