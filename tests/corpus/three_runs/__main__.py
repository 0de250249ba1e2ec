"""The score: `python -m tests.corpus.three_runs SEED… [--clean 40] [--faulty 40] [--truth recompute] [-v]`.

Seeds 0 to 3 are for work, 100 to 103 to report by.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.corpus.three_runs.cases import cases
from tests.corpus.three_runs.score import graded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--clean", type=int, default=40)
    parser.add_argument("--faulty", type=int, default=40)
    parser.add_argument("--truth", default="", help='"recompute" instead of the third run')
    parser.add_argument("--recompute", default="auto", help='"none": compare the errors of inputs and outputs alone')
    parser.add_argument("-v", "--verbose", action="store_true", help="list what is not right")
    given = parser.parse_args()
    counts, kinds = Counter[str](), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory(prefix="three_runs-") as folder:
        for seed in given.seeds:
            for one, place in cases(seed, given.clean, given.faulty, Path(folder)):
                found = graded(one, place, given.truth, given.recompute)
                shutil.rmtree(place)
                counts[found.word] += 1
                kinds[one.kind, found.word] += 1
                if given.verbose and not found.word.endswith(("silent", "found")):
                    print(f"{found.word:14} {one.name}, ratio {one.strength:.2f}\n{'':15}{found.said}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    for (kind, word), count in sorted(kinds.items()):
        print(f"  {kind:9} {word:14} {count}")


main()
