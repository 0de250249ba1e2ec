"""python -m tests.corpus.reports check [FOLDER] [--only GLOB]       print the wrong answers to cases (default: cases/)
python -m tests.corpus.reports draw KIND SEED [COUNT] [--keep DIR]   draw cases of a kind, or of `all`, and check them
python -m tests.corpus.reports pack FOLDER NAME...                   put cases of a folder into cases/"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.corpus.reports import case
from tests.corpus.reports.kinds import KINDS, write_case


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.corpus.reports", usage=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check")
    check.add_argument("folder", type=Path, nargs="?", default=case.CASES)
    check.add_argument("--only", default="*")
    draw = commands.add_parser("draw")
    draw.add_argument("kind")
    draw.add_argument("seed", type=int)
    draw.add_argument("count", type=int, nargs="?", default=20)
    draw.add_argument("--keep", type=Path)
    pack = commands.add_parser("pack")
    pack.add_argument("folder", type=Path)
    pack.add_argument("names", nargs="+")
    asked = parser.parse_args()
    if asked.command == "pack":
        for name in asked.names:
            _pack(asked.folder / name)
        return 0
    if asked.command == "check":
        found = case.paths(asked.folder)
        return _score({name: path for name, path in found.items() if fnmatch.fnmatch(name, asked.only)})
    kinds = KINDS if asked.kind == "all" else (asked.kind,)
    with tempfile.TemporaryDirectory() as folder:
        status = 0
        for kind in kinds:
            cases = {}
            for seed in range(asked.seed, asked.seed + asked.count):
                cases[f"{kind}_{seed}"] = (asked.keep or Path(folder)) / f"{kind}_{seed}"
                write_case(kind, seed, cases[f"{kind}_{seed}"])
            status |= _score(cases)
        return status


def _score(cases: Mapping[str, Path]) -> int:
    """Print the wrong answers and the share of right cases of each kind; return 1 below 95 %."""
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for name, path in cases.items():
        wrong = case.wrong_answers(path)
        right[case.kind(path)].append(not wrong)
        for line in wrong:
            print(f"{name}: {line}", flush=True)
    for kind, ends in sorted(right.items()):
        print(f"  {kind:32} {sum(ends):4} of {len(ends):4}")
    total = sum(map(sum, right.values()))
    print(f"{total} of {len(cases)} right", flush=True)
    return int(total < 0.95 * len(cases))


def _pack(folder: Path) -> None:
    with tarfile.open(case.CASES / f"{folder.name}.tar.xz", "w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(folder)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            if entry.isfile():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)


if __name__ == "__main__":
    sys.exit(main())
