"""What a comparison in shards takes beside the one that holds all runs at once, and beside as many comparisons of one
step and rank each: time, and the peak of every process, with the report that is written.

python tests/benchmarks/shards.py [--steps 4] [--ranks 8] [--layers 4] [--jobs 2] [--runs 3] [--folder DIR] [--values]
    [--only "shards,one by one"] [--sample 8]
python tests/benchmarks/shards.py --steps 16 --ranks 64 --layers 24 --runs 1 --only "shards,a command each"  # 3 GB

Makes two msprobe dumps of a training step for each step and rank (statistics_dumps.py), or with --values of a few
operators with .npy files of --side × --side elements. Each contestant is a process of its own, they take turns, and the
least of all runs is printed, with ratios to the first. "one by one" compares a sample of the steps and ranks, each by
itself, one behind the other in one process, and counts what all of them would take; "a command each" has a process for
each, as a user would. Not run by pytest.
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

CONTESTANTS = ("all at once", "shards", "one by one", "a command each")


def make(folder: Path, steps: int, ranks: int, layers: int, values: int) -> None:
    """Both dumps."""
    from tests.synthetic import write_run

    counted = Figures(0, "golden", 1)
    list(step(layers, counted))
    for side in SIDES:
        for place in range(steps * ranks):
            number, rank = divmod(place, ranks)
            if values:
                x = np.random.default_rng(place).standard_normal((values, values)).astype(np.float32)
                noise = np.float32(1 if side == "golden" else 1 + 1e-7)
                operators = {f"Functional.relu.{at}.forward": {"in": [x], "out": [x * noise]} for at in range(layers)}
                write_run(folder / side, operators, number, rank)
            else:
                place_of = folder / side / f"step{number}" / f"rank{rank}"
                write(place_of, layers, Figures(place, side, counted.made))


def once(folder: Path, how: str, jobs: int, sample: int) -> dict[str, float]:
    import npucmp
    from npucmp.dump.formats import heads
    from npucmp.workflows import task_choice

    paths = folder / "target", folder / "golden"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    some = [(head.step, head.rank) for head in heads(paths[0])]
    count = len(some)
    task_choice.SMALL = 0 if how == "shards" else 1 << 60
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        if how in ("one by one", "a command each"):
            some = some[:: max(1, count // sample)]
            for step, rank in some:
                alone = [path / f"step{step}" / f"rank{rank}" for path in paths]
                if how == "one by one":
                    npucmp.write_reports(npucmp.compare(*alone, jobs=1), out)
                else:
                    command = [sys.executable, "-m", "npucmp", "compare", *alone, "--jobs", "1", "-o", out]
                    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        else:
            npucmp.write_reports(npucmp.compare(*paths, jobs=jobs, journal=out), out)
    share = count / len(some)
    took = (time.monotonic() - start) * share
    own, theirs = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    used = sum(one.ru_utime + one.ru_stime for one in (own, theirs)) * share
    peaks = {"peak of the parent MB": own.ru_maxrss / 1e3, "peak of a worker MB": theirs.ru_maxrss / 1e3}
    return {"wall s": took, "CPU s": used, **peaks, "before any run MB": before, "steps and ranks": count}


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a comparison in shards.")
    for name, default in (("steps", 4), ("ranks", 8), ("layers", 4), ("jobs", 2), ("runs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where the dumps are kept; those that are there are taken")
    parser.add_argument("--side", type=int, default=256, help="of the matrices that --values makes")
    parser.add_argument("--sample", type=int, default=8, help="how many are compared one by one")
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="which contestants, comma-separated")
    parser.add_argument("--values", action="store_true", help="tensors with values instead of statistics")
    parser.add_argument("--child", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(once(given.folder, given.child, given.jobs, given.sample)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch, "dumps")
        if not folder.exists():  # in a process of its own: its children would inherit the peak of this one
            made = multiprocessing.get_context("fork").Process(
                target=make, args=(folder, given.steps, given.ranks, given.layers, given.side if given.values else 0)
            )
            made.start()
            made.join()
        found: dict[str, dict[str, float]] = {name: {} for name in given.only.split(",")}
        for _ in range(given.runs):
            for name, best in found.items():
                child = [sys.executable, __file__, "--folder", str(folder), "--jobs", str(given.jobs), "--child", name]
                child += ["--sample", str(given.sample)]
                said = json.loads(subprocess.run(child, stdout=subprocess.PIPE, check=True).stdout)
                best.update({key: min(value, best.get(key, value)) for key, value in said.items()})
        print(f"{'':24}" + "".join(f"{name:>21}" for name in found))
        first, *others = found.values()
        for key, value in first.items():
            ratios = "".join(f"{one[key]:12.2f} {one[key] / value if value else 0:6.2f} ×" for one in others)
            print(f"{key:24}{value:21.2f}{ratios}")


if __name__ == "__main__":
    main()
