"""See the package's docstring."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.corpus.answers.sheets import accept, asked, difference, here, kept


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.answers")
    parser.add_argument("pattern", nargs="?", default="*", help="of the names of pairs")
    parser.add_argument("--accept", metavar="PATTERN", help="keep the answers of these pairs")
    parser.add_argument("--new", metavar="FILE", help="keep the answers of the pairs that FILE lists, a name a line")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    before = kept()
    names = here()
    if options.new:
        names = Path(options.new).read_text("utf-8").splitlines()
    names = fnmatch.filter(names, options.accept or options.pattern)
    found, differing = {}, 0
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("forkserver")) as pool:
        for name, answer in zip(names, pool.map(asked, names, chunksize=4)):
            found[name] = answer
            lines = [*difference(before.get(name), answer)]
            differing += bool(lines)
            if lines and not options.new:
                print(f"== {name}", *lines, sep="\n", flush=True)
    if options.accept or options.new:
        accept(found)
    print(f"{len(names)} answers, {differing} differ from those kept", file=sys.stderr)
    return 1 if differing and not (options.accept or options.new) else 0


if __name__ == "__main__":
    sys.exit(main())
