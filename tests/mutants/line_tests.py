"""The tests that run each line: one covered run of some suites, kept as JSON. It prints the branch coverage of rooms.

This module is also the plugin of pytest that gives coverage the name and the time of each test.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

import pytest

ROOT = Path(__file__).parent.parent.parent
TIMES, NAME = "NPUCMP_TEST_TIMES", "NPUCMP_TEST_NAME"
CONFIG = f"""
[run]
branch = True
parallel = True
data_file = {{data}}
source = {ROOT / "npucmp"}
context = ${{{{{NAME}-}}}}
patch = _exit
"""  # a forked process has the context of its parent; an interpreter that a test starts has the name of that test
SUITES = (
    "tests/judge", "tests/localise", "tests/flow", "tests/align", "tests/relations", "tests/measure", "tests/workflows",
    "tests/corpus/answers",
)  # fmt: skip
ROOMS = ("align", "relations", "flow", "judge", "localise", "recompute", "report", "measure", "dump/readers")


_failed: set[str] = set()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the test for coverage, and note its seconds."""
    import coverage

    now: Any = coverage.Coverage.current()
    now.switch_context(item.nodeid)
    os.environ[NAME] = item.nodeid
    started = time.monotonic()
    yield
    now.switch_context("")
    with open(os.environ[TIMES], "a", encoding="utf-8") as file:
        if item.nodeid not in _failed:  # it would kill every mutant
            file.write(json.dumps([item.nodeid, round(time.monotonic() - started, 3)]) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that fails without a fault."""
    if report.failed:
        _failed.add(report.nodeid)


class LineTests:
    """The tests of each line: per file and line, their numbers in `seconds`."""

    def __init__(self, lines: dict[str, dict[str, list[int]]], seconds: dict[str, float]) -> None:
        self._lines, self._seconds, self._names = lines, seconds, [*seconds]

    def of(self, path: str, first: int, last: int, budget: float) -> list[str]:
        """Return the tests that run any of these lines of a file, as many as take `budget` seconds: those of a module
        with its name first, those of its room before others, and from each module the cheapest first, so that many
        modules take part. A line that runs when its module is imported has the tests of all lines of its module."""
        lines = self._lines.get(path, {})
        numbers = {test for line in range(first, last + 1) for test in lines.get(str(line), ())}
        if not _in_functions(ROOT / path, first, last):
            numbers = {test for tests in lines.values() for test in tests}
        found = {self._names[number] for number in numbers}
        modules: dict[str, int] = defaultdict(int)
        order = []
        for test in sorted(found, key=lambda one: (self._seconds[one], one)):
            module = test.partition("::")[0]
            is_other = Path(module).stem != f"test_{Path(path).stem}"
            modules[module] += is_other
            order.append((modules[module], not module.startswith(f"tests/{path.split('/')[1]}/"), test))
        chosen, left = [], budget
        for _, _, test in sorted(order):
            if self._seconds[test] <= left:
                chosen.append(test)
                left -= self._seconds[test]
        return chosen or sorted(found, key=self._seconds.__getitem__)[:1]


def _in_functions(file: Path, first: int, last: int) -> bool:
    """Return whether all of these lines run only when a function is called."""
    bodies = [one for one in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(one, ast.FunctionDef)]
    return any(one.body[0].lineno <= first and last <= (one.end_lineno or 0) for one in bodies)


def line_tests(kept: Optional[Path], work: Path, suites: Sequence[str] = SUITES) -> LineTests:
    """Return the map in a file; without the file, run the suites with coverage first, and keep it there."""
    if kept is None or not kept.exists():
        found = _measured(work, suites)
        if kept is None:
            return LineTests(*found)
        kept.write_text(json.dumps(found))
    lines, seconds = json.loads(kept.read_text())
    return LineTests(lines, seconds)


def print_branches(data: Path, report: Path) -> None:
    """Print the share of branches and of lines that ran, of each room."""
    from coverage import Coverage

    for room in ROOMS:
        known = Coverage(data_file=str(data))
        known.load()
        known.json_report(outfile=str(report), include=[f"{ROOT}/npucmp/{room}/*"])
        found = json.loads(report.read_text())["totals"]
        branches, lines = found["num_branches"], found["num_statements"]
        print(f"{room}: {found['covered_branches'] / max(1, branches):.1%} of {branches} branches, "
              f"{found['covered_lines'] / max(1, lines):.1%} of {lines} lines", flush=True)  # fmt: skip


def _measured(work: Path, suites: Sequence[str]) -> tuple[dict[str, dict[str, list[int]]], dict[str, float]]:
    from coverage import CoverageData

    data, times, config = work / "coverage", work / "times", work / "coveragerc"
    config.write_text(CONFIG.format(data=data))
    words = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-q", "-n", "0"]
    words += ["-p", "no:cacheprovider", "-p", "tests.mutants.line_tests", f"--basetemp={work / 'work'}", *suites]
    python = os.pathsep.join([str(ROOT), *sys.path])
    environ = {**os.environ, TIMES: str(times), "COVERAGE_PROCESS_START": str(config), "PYTHONPATH": python}
    if subprocess.run(words, cwd=ROOT, env=environ, stdout=sys.stderr).returncode not in (0, 1):
        raise SystemExit("the suites could not be run")
    subprocess.run([sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={config}"], cwd=work, check=True)
    print_branches(data, work / "coverage.json")
    seconds = dict(map(json.loads, times.read_text().splitlines()))
    numbers = {test: number for number, test in enumerate(seconds)}
    read, lines = CoverageData(str(data)), defaultdict[str, "dict[str, list[int]]"](dict)
    read.read()
    for file in read.measured_files():
        name = Path(file).relative_to(ROOT).as_posix()
        for line, tests in read.contexts_by_lineno(file).items():
            lines[name][str(line)] = sorted(numbers[test] for test in tests if test in numbers)
    return dict(lines), seconds
