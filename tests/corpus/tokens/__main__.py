"""The score: `python -m tests.corpus.tokens SEED… [--clean 24] [--faulty 36] [--traps 12] [--only TEXT] [-v]`."""

from __future__ import annotations

import argparse
import os
from collections import Counter

from tests.corpus.tokens.cases import cases
from tests.corpus.tokens.score import GRADES, graded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--clean", type=int, default=24)
    parser.add_argument("--faulty", type=int, default=36)
    parser.add_argument("--traps", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args()
    os.environ["NPUCMP_RAISE"] = "1"
    counts: Counter[str] = Counter()
    for seed in given.seeds:
        for one in cases(seed, given.clean, given.faulty, given.traps):
            if given.only not in one.name:
                continue
            found = graded(one)
            counts[found.grade] += 1
            if given.verbose or found.grade not in ("silent", "found", "caught"):
                print(f"{found.grade:>14}  {one.name}\n{'':16}truth {one.truth}; said {found.said}", flush=True)
    print(", ".join(f"{counts[one]} {one}" for one in GRADES if counts[one]))


main()
