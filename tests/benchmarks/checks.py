"""What distrust costs: the compare phase with and without the checks of what a file says.

python tests/benchmarks/checks.py FOLDER [FOLDER ...] [--runs 9]

Each FOLDER was made by make_large.py. Both ways are measured in turn in one process with one worker, by the time of
the processor, and the best of each is printed: on a shared machine medians differ by more than the checks cost. Left
out in the second way: links that lead out of the dump, limits of sizes, zip headers against each other and overlaps,
files that change while they are read. Not run by pytest.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

from npucmp import open_runs
from npucmp.align import align, pairs
from npucmp.dump.readers import npy, safe_open, stored_zip, torch_pt
from npucmp.measure.pairs import measure_pairs


def trusting() -> list[mock._patch[object]]:
    """The checks, each replaced by what is left without it."""

    def data_offset(file: safe_open.RegularFile, member: stored_zip.Member) -> int:
        start = file.read(member.at, 30)
        return member.at + 30 + int.from_bytes(start[26:28], "little") + int.from_bytes(start[28:30], "little")

    def named(file: safe_open.RegularFile, found: list[tuple[int, bytes, int, int]], end: int) -> dict[bytes, object]:
        return {name: (at, name, size, flags, end) for at, name, size, flags in found}

    def size(path: object, shape: tuple[int, ...], itemsize: int, limits: object) -> int:
        return itemsize * math.prod(shape)

    return [
        mock.patch.object(safe_open, "_open_descriptor", lambda path, context: os.open(path, safe_open._FLAGS)),
        mock.patch.object(safe_open.RegularFile, "require_unchanged", lambda file: None),
        mock.patch.object(stored_zip, "_disjoint", named),
        mock.patch.object(torch_pt, "data_offset", data_offset),
        mock.patch.object(torch_pt, "tensor_size", size),
        mock.patch.object(npy, "tensor_size", size),
    ]


def seconds(folder: Path, runs: int) -> tuple[float, float]:
    (target,), (golden,) = open_runs(folder / "target"), open_runs(folder / "golden")
    todo = list(pairs(target, golden, align(target, golden, {})))
    with_checks, without = [], []
    for turn in range(runs + 1):  # the first warms the page cache
        for found, patches in ((with_checks, []), (without, trusting())):
            with ExitStack() as stack:
                for patch in patches:
                    stack.enter_context(patch)
                start = time.process_time()
                assert all(one.moments is not None for one in measure_pairs(todo))
                if turn:
                    found.append(time.process_time() - start)
    return min(with_checks), min(without)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the checks of what files say.")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    for folder in given.folders:
        checked, trusted = seconds(folder, given.runs)
        print(f"{folder}: {checked:.3f} s with all checks, {trusted:.3f} s without: {checked / trusted:.3f}")


if __name__ == "__main__":
    main()
