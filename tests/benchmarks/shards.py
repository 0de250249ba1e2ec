"""What a comparison in shards takes beside the one that holds all runs at once: time, and the peak of every process.

python tests/benchmarks/shards.py [--steps 4] [--ranks 8] [--layers 4] [--jobs 2] [--runs 3] [--folder DIR] [--values]

Makes two msprobe dumps of a training step for each step and rank (statistics_dumps.py), or with --values of a few
operators with .npy files. Each contestant is a process of its own, they take turns, and the least of all runs is
printed, with ratios to the first. No report is written. Not run by pytest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.statistics_dumps import SIDES, Figures, step, write  # noqa: E402

CONTESTANTS = ("all at once", "shards")


def make(folder: Path, steps: int, ranks: int, layers: int, values: bool) -> None:
    """Both dumps."""
    from tests.synthetic import write_run

    counted = Figures(0, "golden", 1)
    list(step(layers, counted))
    for side in SIDES:
        for place in range(steps * ranks):
            number, rank = divmod(place, ranks)
            if values:
                x = np.random.default_rng(place).standard_normal((256, 256)).astype(np.float32)
                noise = np.float32(1 if side == "golden" else 1 + 1e-7)
                operators = {f"Functional.relu.{at}.forward": {"in": [x], "out": [x * noise]} for at in range(layers)}
                write_run(folder / side, operators, number, rank)
            else:
                place_of = folder / side / f"step{number}" / f"rank{rank}"
                write(place_of, layers, Figures(place, side, counted.made))


def once(folder: Path, how: str, jobs: int) -> "dict[str, float]":
    import npucmp
    from npucmp.workflows.options import Options
    from npucmp.workflows.shards import compared_in_shards

    paths = folder / "target", folder / "golden"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    start = time.monotonic()
    if how == "shards":
        report = compared_in_shards(*paths, Options(jobs=jobs))
    else:
        report = npucmp.compare(*paths, jobs=jobs, precheck=False)
    took = time.monotonic() - start
    own, theirs = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(one.ru_utime + one.ru_stime for one in (own, theirs))
    peaks = {"peak of the parent MB": own.ru_maxrss / 1e3, "peak of a worker MB": theirs.ru_maxrss / 1e3}
    counts = {"shards": len(report.comparisons)}
    return {"wall s": took, "CPU s": used, **peaks, "before any run MB": before, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a comparison in shards.")
    for name, default in (("steps", 4), ("ranks", 8), ("layers", 4), ("jobs", 2), ("runs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where the dumps are kept; those that are there are taken")
    parser.add_argument("--values", action="store_true", help="tensors with values instead of statistics")
    parser.add_argument("--child", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(once(given.folder, given.child, given.jobs)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch, "dumps")
        if not folder.exists():  # in a process of its own: its children would inherit the peak of this one
            made = multiprocessing.get_context("fork").Process(
                target=make, args=(folder, given.steps, given.ranks, given.layers, given.values)
            )
            made.start()
            made.join()
        found: "dict[str, dict[str, float]]" = {name: {} for name in CONTESTANTS}
        for _ in range(given.runs):
            for name, best in found.items():
                child = [sys.executable, __file__, "--folder", str(folder), "--jobs", str(given.jobs), "--child", name]
                said = json.loads(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout)
                best.update({key: min(value, best.get(key, value)) for key, value in said.items()})
        first = found[CONTESTANTS[0]]
        for key, value in first.items():
            other = found["shards"][key]
            print(f"{key:24} {value:10.2f} {other:10.2f}   {other / value if value else 0:.2f} ×")


if __name__ == "__main__":
    main()
