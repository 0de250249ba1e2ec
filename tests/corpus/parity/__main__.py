"""The score sheet of `npucmp parity`: how often it names the class and the token, and what it says of clean pairs.

python -m tests.corpus.parity 0                 20 pairs of each kind from seed 0; seeds from 100 on are held
python -m tests.corpus.parity 0 --near          pairs near the noise; --few: pairs of few tokens
python -m tests.corpus.parity 0 --cases         cases that are not right; not for held seeds
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import npucmp
from tests.corpus.parity import cases, files

HELD = 100  # seeds from here on are reported, never looked into


def score(seed: int, pairs: int, part: str = "usual", shown: bool = False) -> dict[str, Counter]:
    """Counts by kind: pairs, right, place, silent, undecided, agrees (a fault that is called clean), confused."""
    found: dict[str, Counter] = {}
    for kind in cases.PARTS[part]:
        count = found.setdefault(kind, Counter())
        for number in range(pairs):
            case = cases.make(1000 * seed + number, kind, part)
            rng = np.random.default_rng([seed, number, 7])
            conventions = files.conventions(case, rng)
            in_one = conventions == ("npz", "npz") and not case.sums and kind not in ("padding", "mask", "tokens")
            with tempfile.TemporaryDirectory() as folder:
                floor = None
                if kind in cases.WITH_FLOOR:
                    files.both(Path(folder) / "clean", cases.make(1000 * seed + number, kind, part, is_clean=True))
                    floor = npucmp.parity(Path(folder) / "clean").figures.floor
                if in_one:
                    files.both(Path(folder) / "both", case)
                    result = npucmp.parity(Path(folder) / "both", floor=floor)
                else:
                    result = npucmp.parity(*files.write(Path(folder), case, *conventions), floor=floor)
            said = result.token_class.value
            is_within = kind == "drift" and said == "weights"  # noise that grows from step to step is of weights
            said = "differs" if is_within else said
            truth = case.truth
            if kind == "router" and "other experts" in (result.findings or [result.steps[0].finding])[0].because[0]:
                said = "router" if said == "differs" else said  # no side records experts, which would prove them
            count["pairs"] += 1
            count["right"] += said == truth.token_class
            count["undecided"] += said == "undecided"
            count["agrees"] += truth.token_class != "clean" and said == "clean"
            count["confused"] += said not in (truth.token_class, "undecided", "clean")
            placed = True
            if said == truth.token_class and truth.request is not None:
                first = result.findings[0]
                placed = (first.step, first.request, first.position) == truth[1:]
                count["placed"] += placed
                count["places"] += 1
            if shown and (said != truth.token_class or not placed):
                first = result.findings[0] if result.findings else result.steps[0].finding
                words = f"{kind} {number} {conventions}: {said} {first[1:4]} want {truth}"
                print(f"{words}: {first.because} {result.open[:2]}")
    return found


def table(found: dict[str, Counter]) -> str:
    lines = [
        "| kind | pairs | class right | token right | undecided | called clean | other class |",
        "|---|---|---|---|---|---|---|",
    ]
    total: Counter = Counter()
    for kind, one in found.items():
        total.update(one)
        lines.append(_line(kind, one))
    return "\n".join([*lines, _line("all", total)])


def _line(kind: str, one: Counter) -> str:
    placed = f"{one['placed']} of {one['places']}" if one["places"] else ""
    cells = kind, one["pairs"], one["right"], placed, one["undecided"], one["agrees"], one["confused"]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--near", dest="part", action="store_const", const="near", default="usual")
    parser.add_argument("--few", dest="part", action="store_const", const="few")
    parser.add_argument("--cases", action="store_true")
    given = parser.parse_args()
    if given.cases and given.seed >= HELD:
        parser.error("held cases are not looked at one by one")
    print(table(score(given.seed, given.pairs, given.part, given.cases)))


if __name__ == "__main__":
    main()
