"""Plant faults in the code of npucmp, and count those that tests notice: python -m tests.mutants [options].

`--count` mutants are drawn with `--seed` from the lines of some rooms. Each is written into a copy of the checkout,
never into the checkout. The tests that run its lines, by one covered run, run until the first fails; after 60 s they
are stopped. A mutant that no test runs survives. With `--sheet`, the sample sheet of tests/corpus judges what these
tests let pass. equivalent.yaml lists mutants that change no result, with the reason. The exit status is 1 if fewer
than `--require` of the others are killed.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import pytest
import yaml

from tests.mutants.line_tests import ROOT, SUITES, LineTests, line_tests
from tests.mutants.operators import Mutant, Place, mutant_at, places_of

ROOMS = ("judge", "localise", "flow", "align", "relations", "measure")
SECONDS = 60.0  # of the tests of one mutant
BUDGET = 90.0  # of them in the covered run, which takes two to three times as long
FIRST = 2  # modules of tests that run first
SHEET_SECONDS = 1800.0  # of the sample sheet, which takes one to two minutes
IMPORTED = (
    "numpy",
    "pandas",
    "h5py",
    "ml_dtypes",
    "click",
    "msgspec",
    "jinja2",
    "tqdm",
    "hypothesis.strategies",
    "xdist",
)
EQUIVALENT = Path(__file__).parent / "equivalent.yaml"
COPIED = ("npucmp", "tests", "sample_dumps", "docs")


class Drawn(NamedTuple):
    """A mutant and its file, relative to the checkout."""

    file: str
    mutant: Mutant


def drawn(rooms: list[str], count: int, seed: int) -> list[Drawn]:
    """Return mutants of these rooms: an operator, then one of its places, so that rare operators occur too."""
    places: dict[str, list[tuple[str, Place]]] = {}
    for room in rooms:
        for file in sorted((ROOT / "npucmp" / room).rglob("*.py")):
            for one in places_of(file.read_text("utf-8")):
                places.setdefault(one.operator, []).append((file.relative_to(ROOT).as_posix(), one))
    chance, found = random.Random(seed), dict[Drawn, None]()
    while len(found) < count:
        name, place = chance.choice(places[chance.choice(sorted(places))])
        mutant = mutant_at(place)
        if mutant is not None:
            found[Drawn(name, mutant)] = None
    return [*found]


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return the reasons by file, line of the code and line of the mutant."""
    listed = yaml.safe_load(EQUIVALENT.read_text("utf-8")) or []
    return {(one["file"], one["line"], one["mutant"]): one["because"] for one in listed}


class Copy:
    """A copy of the checkout in which one module at a time is faulty."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._clock = folder, 1_000_000_000
        self._sound: set[str] = set()
        self._broken: set[str] = set()
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder / "compiled")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (*ROOT.glob("*.md"), *ROOT.glob("*.toml")):
            shutil.copy(file, folder / file.name)
        if (ROOT.parent / "shared").is_dir():
            (folder.parent / "shared").symlink_to(ROOT.parent / "shared")

    def run(self, one: Drawn, tests: list[str]) -> str:
        """Return "killed", "survived" or "timeout". The modules of the first tests run before the others are read."""
        modules = {_module_of(test): None for test in tests}
        first = [test for test in tests if _module_of(test) in [*modules][:FIRST]]
        found = self._outcome(one, first)
        rest = [test for test in tests if test not in first]
        return self._outcome(one, rest) if found == "survived" else found

    def _outcome(self, one: Drawn, tests: list[str]) -> str:
        file = self.folder / one.file
        while tests := [test for test in tests if test not in self._broken]:
            try:
                self._write(file, one.mutant.text)
                failed = self._first_failure(tests, SECONDS)
            except subprocess.TimeoutExpired:
                return "timeout" if self._is_fast(one, tests) else "survived"
            finally:
                self._write(file, (ROOT / one.file).read_text("utf-8"))
            if failed is None:
                return "survived"
            if self._passes(failed or tests[0]):
                return "killed"
            self._broken.add(failed or tests[0])  # it fails in the copy without a fault
        return "survived"

    def sheet_falls_behind(self, one: Drawn) -> bool:
        """Return whether the sample of tests/corpus is worse with a mutant."""
        file = self.folder / one.file
        words = [sys.executable, "-m", "tests.corpus", "--sample", "--jobs", "1"]
        try:
            self._write(file, one.mutant.text)
            return subprocess.run(words, **self._there, timeout=SHEET_SECONDS).returncode != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            self._write(file, (ROOT / one.file).read_text("utf-8"))

    def _is_fast(self, one: Drawn, tests: list[str]) -> bool:
        """Return whether tests that a mutant does not end are done in time without it."""
        self._write(self.folder / one.file, (ROOT / one.file).read_text("utf-8"))
        try:
            self._first_failure(tests, SECONDS)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def _there(self) -> dict[str, Any]:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), *sys.path[1:]])}
        return {"cwd": self.folder, "env": environ, "capture_output": True, "text": True}

    def _passes(self, test: str) -> bool:
        if test not in self._sound and self._first_failure([test], None) is None:
            self._sound.add(test)
        return test in self._sound

    def _first_failure(self, tests: list[str], seconds: Optional[float]) -> Optional[str]:
        """Return the test that fails first, "" if its name is not known, None if all pass."""
        words = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={self.folder / 'work'}", *tests]
        with tempfile.TemporaryFile("w+") as out:
            if not _forked(partial(self._run_pytest, words, out.fileno()), seconds):
                return None
            out.seek(0)
            found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", out.read(), re.MULTILINE)
        return found[1] if found and found[1] in tests else ""

    def _run_pytest(self, words: list[str], out: int) -> int:
        """Run pytest in a process that has none of the modules of the checkout, but what they import."""
        for fd, other in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
            os.dup2(fd, other)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "npucmp", "__main__")]:
            del sys.modules[name]
        os.environ.update(self._there["env"])
        os.chdir(self.folder)
        sys.path[:] = [str(self.folder), *sys.path[1:]]
        return int(pytest.main(words))

    def _write(self, file: Path, text: str) -> None:
        """Write a module with a time of its own: compiled modules are told apart by seconds."""
        file.write_text(text, "utf-8")
        self._clock += 10
        os.utime(file, (self._clock, self._clock))


def _module_of(test: str) -> str:
    return test.partition("::")[0]


def _forked(run: Callable[[], int], seconds: Optional[float]) -> int:
    """Return the status of a function in a fork of this process, which saves the imports; raise TimeoutExpired."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setsid()
            status = run()
        finally:
            os._exit(status)
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise subprocess.TimeoutExpired("pytest", seconds or 0.0)


def search(chosen: dict[int, Drawn], known: LineTests, copy: Copy, sheet: bool) -> Counter[str]:
    """Run all mutants; print each that survives, and return counts."""
    found: Counter[str] = Counter()
    reasons = equivalents()
    for number, one in chosen.items():
        mutant, started = one.mutant, time.monotonic()
        because = reasons.get((one.file, mutant.before.strip(), mutant.after.strip()))
        tests = known.of(one.file, mutant.line, mutant.end, BUDGET)
        outcome = "equivalent" if because else copy.run(one, tests)
        if outcome == "survived" and sheet and copy.sheet_falls_behind(one):
            outcome = "sheet"
        found[outcome] += 1
        took = time.monotonic() - started
        print(f"{number} {outcome} {one.file}:{mutant.line} {mutant.operator}, "
              f"{len(tests)} tests, {took:.0f} s", flush=True)  # fmt: skip
        if outcome == "survived":
            print(mutant.diff(one.file), flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rooms", nargs="*", default=list(ROOMS))
    parser.add_argument("--map", type=Path, help="a file that keeps which tests run which lines")
    parser.add_argument("--suites", nargs="*", default=list(SUITES), help="the tests that run")
    parser.add_argument("--require", type=float, default=0.0, help="the least share that must be killed")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the mutants that are planted")
    parser.add_argument("--sheet", action="store_true", help="judge what the tests let pass by the sample sheet too")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    options = parser.parse_args()
    numbered = enumerate(drawn(options.rooms, options.count, options.seed), 1)
    chosen = {number: one for number, one in numbered if options.only is None or number in options.only}
    if options.list:
        for number, (file, one) in chosen.items():
            print(f"{number} {file}:{one.line} {one.operator}\n{one.diff(file)}")
        return 0
    for name in IMPORTED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as name:
        known = line_tests(options.map, Path(name), options.suites)
        found = search(chosen, known, Copy(Path(name, "copy")), options.sheet)
    judged = sum(found.values()) - found["equivalent"]
    killed = found["killed"] + found["timeout"] + found["sheet"]
    share = killed / judged if judged else 1.0
    print(
        f"seed {options.seed}: {judged} mutants, {found['killed']} killed, {found['timeout']} stopped after "
        f"{SECONDS:.0f} s, {found['sheet']} killed by the sheet, {found['survived']} survived, "
        f"{found['equivalent']} equivalent: {share:.1%}"
    )
    return 1 if share < options.require else 0


if __name__ == "__main__":
    sys.exit(main())
