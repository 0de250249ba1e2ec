"""What the sheet says with a constant of npucmp at other values: the constant is set before anything is imported.

A worker is a new process that reads the source of one module with another number in it, so that whatever is imported
from there or computed of it follows.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple, Optional, Sequence

from tests.corpus.constants import ROOT, Constant, constants

TIMES = 1.0, 0.5, 2.0
COUNTS = "right of clear faults", "missed", "clean silent"


class Setting(NamedTuple):
    """A constant of a module of npucmp and what it is multiplied by; a whole number stays one."""

    module: str
    name: str
    times: float


class _Times(ast.NodeTransformer):
    """Multiplies the number, or the numbers of a tuple, that a module gives a name."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.found = False

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == self._setting.name:
            self.found = True
            node.value = self._of(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def _of(self, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Tuple):
            return ast.copy_location(ast.Tuple([*map(self._of, value.elts)], ast.Load()), value)
        text, times = ast.unparse(value), self._setting.times
        new = f"(lambda one: round(one * {times}) if type(one) is int else one * {times})({text})"
        return ast.copy_location(ast.parse(new, mode="eval").body, value)


class _Loader(SourceFileLoader):
    setting: Setting

    def get_code(self, fullname: str) -> CodeType:
        """The code of the module with another number; bytecode is neither read nor kept."""
        path = self.get_filename(fullname)
        transformer = _Times(self.setting)
        tree = ast.fix_missing_locations(transformer.visit(ast.parse(self.get_data(path))))
        if not transformer.found:
            raise ImportError(f"{fullname} has no {self.setting.name}")
        return compile(tree, path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        if name != self._setting.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(name, spec.origin)
        spec.loader.setting = self._setting
        return spec


def install(setting: Setting) -> None:
    """Gives a constant another value in this process, in which its module is not loaded yet."""
    assert setting.module not in sys.modules, f"{setting.module} is loaded"
    sys.meta_path.insert(0, _Finder(setting))


def chosen(name: str) -> list[Constant]:
    """The constants of a name: SCALED, or rules.scaled.SCALED where several modules have the name."""
    return [one for one in constants() if f".{one.module}.{one.name}".endswith(f".{name}")]


def run(one: Constant, domain: str, families: int, jobs: int, times: Sequence[float] = TIMES) -> dict[float, list[int]]:
    """The COUNTS and how many pairs there are of each, with a constant at so many times its value."""
    tasks = [(each, start) for each in times for start in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        found = [*pool.map(lambda task: _worker(one, *task, domain, families, jobs), tasks)]
    totals: dict[float, list[int]] = {each: [0] * (2 * len(COUNTS)) for each in times}
    for (each, _), counts in zip(tasks, found):
        totals[each] = [a + b for a, b in zip(totals[each], counts)]
    return totals


def table(one: Constant, totals: dict[float, list[int]]) -> str:
    """The totals in lines."""
    lines = [f"{one.module}.{one.name} = {one.value}", "".join(f"{head:>24}" for head in ("times", *COUNTS))]
    for times, counts in totals.items():
        cells = [f"{hits} of {of}" for hits, of in zip(counts[::2], counts[1::2])]
        lines.append("".join(f"{cell:>24}" for cell in (f"{times:g}", *cells)))
    return "\n".join(lines)


def _worker(one: Constant, times: float, start: int, domain: str, families: int, jobs: int) -> list[int]:
    task = [f"npucmp.{one.module}", one.name, times, domain, start, families, jobs]
    command = [sys.executable, "-m", "tests.corpus.sensitivity", json.dumps(task)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [int(count) for count in done.stdout.split()]


def main(task: str) -> None:
    """One worker: every `jobs`-th family from `start`."""
    module, name, times, domain, start, families, jobs = json.loads(task)
    if times != 1.0:
        install(Setting(module, name, times))
    from tests.corpus import score, sheet

    results = list(score.run(domain, range(start, families, jobs), jobs=1))
    faults = [one for one in results if not one.clean and one.grade not in ("same", "another answer")]
    clear = [one for one in faults if sheet.is_clear(one)]
    clean = [one for one in results if one.clean and one.grade not in ("same", "another answer")]
    print(
        sum(one.grade == "right" for one in clear), len(clear),
        sum(one.grade == "missed" for one in clear), len(clear),
        sum(one.grade == "silent" for one in clean), len(clean),
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
