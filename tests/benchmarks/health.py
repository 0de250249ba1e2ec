"""What `npucmp check` finds in dumps of training runs with one planted fault each, and in sound ones.

    python tests/benchmarks/health.py DIRECTORY [MANIFEST] [NAME …]

DIRECTORY holds a folder per dump: f_… with a fault, c_… sound ones (or as MANIFEST says: {"faults": {folder: [rules of
which one is to be found]}, "clean": [folders]}). Without a manifest any finding will do; with one, a fault that it
names no rule for cannot be found in these dumps, and does not count.
Printed are a line per dump and, at the end, how many faults are found, in how many the first line is one of those rules
or one that explains it (health/evaluate.py), and in how many sound runs there is an error or a warning.
"""

from __future__ import annotations

import json
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from npucmp import check
from npucmp.health.evaluate import FOLLOWS
from npucmp.model.check_finding import CheckResult, Symptom

ROOM = 26  # columns of a dump's name


def before(rule: str) -> set[str]:
    """Globs of a rule and of all that explains it."""
    found, waiting = {rule}, [rule]
    while waiting:
        new = {glob for glob in FOLLOWS.get(waiting.pop(), ()) if glob not in found}
        found |= new
        waiting += new
    return found


def fits(one: Symptom, rules: Sequence[str]) -> bool:
    """Whether it is one of the rules, or stands before one; any will do where none is named."""
    globs = {glob for rule in rules for glob in before(rule)}
    return not rules or any(fnmatchcase(one.rule, glob) for glob in globs)


def dumps(folder: Path, manifest: Mapping[str, object]) -> Iterator[tuple[Path, bool, list[str]]]:
    """(dump, whether it is sound, rules of its fault)."""
    faults: Any = manifest.get("faults") or {}
    for one in sorted(folder.iterdir()):
        if one.is_dir() and any(one.rglob("dump.json")):
            yield one, one.name.startswith("c_"), list(faults.get(one.name, ()))


def told(result: CheckResult) -> str:
    return ", ".join(f"{'<' if one.follows else ''}{one.severity[0].upper()} {one.rule}" for one in result.symptoms)


def main(words: Sequence[str]) -> int:
    folder = Path(words[0])
    rest = list(words[1:])
    file = Path(rest.pop(0)) if rest and rest[0].endswith(".json") else folder / "manifest.json"
    manifest = json.loads(file.read_text()) if file.exists() else {}
    found = first = severe = faults = clean = false = hinted = failed = 0
    started = time.monotonic()
    for dump, is_sound, rules in dumps(folder, manifest):
        if rest and dump.name not in rest:
            continue
        result = check(dump, jobs=1)
        failed += any(one.failed for one in result.decisions)
        grave = any(one.severity != "hint" for one in result.symptoms)
        mark = " "
        if is_sound:
            clean, false, hinted = clean + 1, false + grave, hinted + (bool(result.symptoms) and not grave)
            mark = "!" if grave else " "
        elif rules or not manifest:
            is_found = any(fits(one, rules) for one in result.symptoms)
            is_first = bool(result.symptoms) and fits(result.symptoms[0], rules)
            faults, found, first, severe = faults + 1, found + is_found, first + is_first, severe + grave
            mark = "-" if not is_found else " " if is_first else "~"
        print(f"{mark} {dump.name:{ROOM}} {told(result)}", flush=True)
    print(f"\nfaults: {found} of {faults} found, {first} by the first line, {severe} with error or warning")
    print(f"sound: {false} of {clean} with error or warning, {hinted} with hints alone")
    print(f"{failed} with a rule that failed; {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
