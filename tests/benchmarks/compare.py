"""How fast `npucmp compare` is beside reading the same bytes, a naive numpy loop, and msprobe where it is installed.

python tests/benchmarks/compare.py FOLDER [FOLDER ...] [--runs 3] [--jobs N] [--naive-runs 1]

Each FOLDER was made by make_large.py. Every contestant is a process of its own; they take turns, and medians are
printed: wall and CPU seconds, peak resident memory, elements and pairs per second, and the ratios that
docs/benchmark.md has. `phase` measures alone; for NPY files it stands beside `loads`, np.load of both and their
difference. Not run by pytest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


class Cost(NamedTuple):
    """Of one process; `inner` and `inner_cpu` are the seconds that it says it spent in its loop, without its start."""

    wall: float
    cpu: float
    megabytes: float
    inner: float
    inner_cpu: float


def cost(command: list[str], kernel: str = "") -> Cost:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "NPUCMP_KERNEL": kernel}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is compiled once
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: status {child.returncode}\n{text[-2000:]}")
    said = text.rsplit("INNER ", 1)
    cpu = usage.ru_utime + usage.ru_stime
    inner, inner_cpu = map(float, said[1].split()[:2]) if len(said) == 2 else (wall, cpu)
    return Cost(wall, cpu, usage.ru_maxrss / 1024, inner, inner_cpu)


def files(folder: Path) -> list[tuple[Path, Path]]:
    """Golden and target files of one name."""
    golden = sorted((folder / "golden").rglob("dump_tensor_data/*"))
    return [(folder / "target" / file.relative_to(folder / "golden"), file) for file in golden]


def read(folder: Path) -> None:
    """The sum of all bytes as 64-bit integers through memory maps."""
    import numpy as np

    for pair in files(folder):
        for file in pair:
            size = file.stat().st_size // 8
            np.memmap(file, np.uint64, "r", shape=(size,)).sum()


def naive(folder: Path) -> None:
    """What a script of twenty lines does: both tensors whole, in float64."""
    import ml_dtypes  # noqa: F401  numpy then knows bfloat16
    import numpy as np

    from npucmp.dump.readers import header

    with np.errstate(all="ignore"):
        for pair in files(folder):
            found = [header("npy" if file.suffix == ".npy" else "torch_pt", str(file)) for file in pair]
            x, y = (np.fromfile(one.path, np.dtype(one.dtype), offset=one.offset).astype(np.float64) for one in found)
            np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y))
            np.abs(x - y).max()
            (np.abs(x - y) / np.maximum(np.abs(y), 1e-38)).max()
            np.allclose(x, y, 1.3e-6, 1e-5)


def loads(folder: Path) -> None:
    """np.load of both files, and their difference."""
    import numpy as np

    for target, golden in files(folder):
        np.load(target) - np.load(golden)


def clocks() -> tuple[float, float]:
    """Seconds of wall time, and of this process and its children."""
    return time.perf_counter(), sum(os.times()[:4])


def phase(folder: Path, jobs: int) -> None:
    """Measuring alone: both dumps are open and their operators lined up before the clock starts."""
    from npucmp import open_runs
    from npucmp.align import align, pairs
    from npucmp.measure.executor import default_jobs
    from npucmp.measure.pairs import measure_pairs

    (target,), (golden,) = open_runs(folder / "target"), open_runs(folder / "golden")
    todo = list(pairs(target, golden, align(target, golden, {})))
    start = clocks()
    done = sum(1 for one in measure_pairs(todo, jobs=jobs or default_jobs()) if one.moments is not None)
    end = clocks()
    assert done == len(todo), f"{done} of {len(todo)} pairs were measured"
    print("INNER", *(after - before for before, after in zip(start, end)))


CHILDREN = {"read": read, "naive": naive, "loads": loads}


def child(name: str, folder: Path, jobs: int) -> None:
    if name == "phase":
        phase(folder, jobs)
        return
    start = clocks()
    CHILDREN[name](folder)
    print("INNER", *(after - before for before, after in zip(start, clocks())))


def contestants(folder: Path, jobs: int) -> dict[str, tuple[list[str], str]]:
    """Command and NPUCMP_KERNEL of each."""
    me = [sys.executable, __file__, str(folder), "--jobs", str(jobs), "--child"]
    sides = [str(folder / side) for side in ("target", "golden")]
    compare = [sys.executable, "-m", "npucmp", "compare", *sides, "-q", *(["--jobs", str(jobs)] if jobs else [])]
    found = {
        "read": ([*me, "read"], ""),
        "npucmp native": (compare, ""),
        "npucmp numpy": (compare, "numpy"),
        "phase native": ([*me, "phase"], ""),
        "phase numpy": ([*me, "phase"], "numpy"),
        "naive": ([*me, "naive"], ""),
    }
    if all(file.suffix == ".npy" for _, file in files(folder)):
        found["loads"] = ([*me, "loads"], "")
    if shutil.which("msprobe"):
        ranks = [str(folder / side / "step0" / "rank0" / "dump.json") for side in ("target", "golden")]
        found["msprobe"] = (["msprobe", "compare", "-tp", ranks[0], "-gp", ranks[1], "-o", str(folder / "out")], "")
    return found


def measured(folder: Path, given: argparse.Namespace) -> dict[str, Cost]:
    """Medians, figure by figure."""
    runs: dict[str, list[Cost]] = {}
    for turn in range(given.runs + 1):  # the first warms the page cache
        for name, (command, kernel) in contestants(folder, given.jobs).items():
            slow = name in ("naive", "msprobe", "npucmp numpy", "phase numpy")
            if slow and not 0 < turn <= given.slow_runs:
                continue
            one = cost(command, kernel)
            if turn:
                runs.setdefault(name, []).append(one)
    return {name: Cost._make(map(median, zip(*costs))) for name, costs in runs.items()}


def elements(folder: Path) -> tuple[int, int, int]:
    """Pairs, elements of a side, bytes of both sides."""
    import math

    from npucmp import open_runs

    (run,) = open_runs(folder / "golden")
    shapes = [tensor.shape for operator in run.operators for tensor in operator.tensors]
    size = sum(file.stat().st_size for pair in files(folder) for file in pair)
    return len(shapes), sum(map(math.prod, shapes)), size


def show(folder: Path, found: dict[str, Cost], counts: tuple[int, int, int]) -> None:
    pairs, count, size = counts
    print(f"\n{folder}: {pairs} pairs, {count / 1e6:.0f} M elements a side, {size / 1e9:.2f} GB in both")
    print(f"{'':14} {'wall s':>8} {'CPU s':>8} {'RSS MB':>7} {'loop s':>8} {'Gelem/s':>8} {'pairs/s':>8}")
    for name, one in found.items():
        rates = f"{count / one.inner / 1e9:8.3f} {pairs / one.inner:8.0f}"
        print(f"{name:14} {one.wall:8.2f} {one.cpu:8.2f} {one.megabytes:7.0f} {one.inner:8.2f} {rates}")
    for name in ("npucmp native", "npucmp numpy"):
        for other in ("read", "naive", "msprobe"):
            if name in found and other in found:
                mine, its = found[name], found[other]
                print(
                    f"{name} / {other}: wall {mine.wall / its.wall:.2f} (inverse {its.wall / mine.wall:.2f}), "
                    f"CPU {mine.cpu / its.cpu:.2f}"
                )
    if "loads" in found:
        mine, its = found["phase native"], found["loads"]
        print(f"phase native / loads: CPU of the loops {mine.inner_cpu / its.inner_cpu:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Times npucmp compare beside others.")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slow-runs", type=int, default=1, help="of the naive loop, msprobe and the numpy kernel")
    parser.add_argument("--jobs", type=int, default=0, help="0: what npucmp takes by itself")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.folders[0], given.jobs)
        return
    rates: dict[Path, Any] = {}
    for folder in given.folders:
        counts = elements(folder)
        found = measured(folder, given)
        show(folder, found, counts)
        rates[folder] = counts[1] / found["npucmp native"].cpu
    first = given.folders[0]
    for folder in given.folders[1:]:
        print(f"elements per CPU-second, {folder} / {first}: {rates[folder] / rates[first]:.2f}")


if __name__ == "__main__":
    main()
