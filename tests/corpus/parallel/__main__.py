"""The score: `python -m tests.corpus.parallel SEED… [--layouts A,B] [--style values] [--level L1] [--base float32]`."""

from __future__ import annotations

import argparse

from tests.corpus.parallel.cases import LAYOUTS, OPEN, draw_cases
from tests.corpus.parallel.score import graded, printed, table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--layouts", default=",".join(OPEN))
    parser.add_argument("--style", default="values")
    parser.add_argument("--level", default="L1")
    parser.add_argument("--base", default="float32")
    parser.add_argument("--clean", type=int, default=1)
    parser.add_argument("--most", type=int, default=99)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    layouts = [*LAYOUTS] if given.layouts == "all" else given.layouts.split(",")
    found = []
    for seed in given.seeds:
        for layout in layouts:
            for case in draw_cases(seed, layout, given.clean, given.style, given.level, given.base, given.most):
                if given.only not in case.name:
                    continue
                one = graded(case)
                found.append(one)
                printed(one)
    print(table(found))


main()
