"""The time and peak memory of a comparison that puts ranks together, beside one rank by rank on the same bytes.

python tests/benchmarks/layouts.py [--layout tp2] [--scale 16] [--runs 3] [--folder DIR]

Makes a clean pair of dumps of a GPT on the ranks of a layout and on one rank; at scale 16 it has 0.7 GB. Each
contestant is a process of its own, they take turns, and the least of all runs is printed, with ratios to the comparison
rank by rank. Not run by pytest.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

CONTESTANTS = ("rank by rank", "put together")


def make(folder: Path, layout: str, scale: int) -> None:
    """Both dumps."""
    from tests.corpus.parallel.cases import LAYOUTS, Case, make
    from tests.corpus.parallel.faults import Fault
    from tests.corpus.parallel.networks import Design

    design = Design(batch=4, length=8 * scale, width=16 * scale, layers=4, inner=24 * scale, words=48 * scale)
    make(Case("layouts", LAYOUTS[layout], design, Fault(), seed=5), folder)


def once(folder: Path, how: str) -> dict[str, float]:
    import npucmp

    start, before = time.monotonic(), time.process_time()
    npucmp.compare(folder / "target", folder / "golden", jobs=1, ranks_apart=how == "rank by rank")
    own = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"seconds": time.monotonic() - start, "CPU seconds": own, "MB": peak}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="tp2")
    parser.add_argument("--scale", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--once")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.folder, given.once)))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or Path(made)
        if not (folder / "golden").exists():
            make(folder, given.layout, given.scale)
        least: dict[str, dict[str, float]] = {}
        for how in CONTESTANTS * given.runs:
            command = [sys.executable, __file__, "--folder", str(folder), "--once", how]
            found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
            known = least.setdefault(how, found)
            least[how] = {name: min(value, known[name]) for name, value in found.items()}
        for how, found in least.items():
            ratios = ", ".join(f"{value:.1f} {name} ({value / least[CONTESTANTS[0]][name]:.2f} x)"
                               for name, value in found.items())  # fmt: skip
            print(f"{how:14} {ratios}")


if __name__ == "__main__":
    main()
