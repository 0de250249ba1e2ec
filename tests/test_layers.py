"""The law of one direction, read from the imports: a room imports only rooms that stand left of it in ROOMS.

docs/architecture.md shows the same order and tells why.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Iterator, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "npucmp"
ROOMS = (
    "errors version presenter model dump align measure judge localise overflow_events run_differences replay check "
    "precheck plan workflows report commands cli __main__"
).split(" ")
HEAVY = {"pandas", "distributed", "h5py", "ml_dtypes", "tqdm", "yaml", "jinja2"}  # slow to import, or needed by few
DOOR = "npucmp"  # npucmp/__init__.py loads names when they are asked for; it is exempt


class Import(NamedTuple):
    """`module` imports `name`; top is True outside functions."""

    module: str
    name: str
    top: bool


def modules() -> dict[str, Path]:
    named = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return named


MODULES = modules()
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in MODULES.items()}


def imports(module: str) -> Iterator[Import]:
    """All imports of a module but those for type checkers; of `from package import module`, the module."""
    for node, top in walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import; imports are absolute here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(module, whole if whole in MODULES else str(node.module), top)


def walk(node: ast.AST, top: bool = True) -> "Iterator[tuple[ast.AST, bool]]":
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child, top
        yield from walk(child, top and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def own(module: str) -> "list[Import]":
    """Imports of other modules of this package."""
    return [one for one in imports(module) if one.name.startswith(f"{DOOR}.")]


def room(module: str) -> str:
    return module.split(".")[1]


def inside(*places: str) -> "list[str]":
    """The modules of rooms, or of rooms within them ("dump.readers")."""
    return [name for name in MODULES if any(f"{name}.".startswith(f"{DOOR}.{place}.") for place in places)]


INSIDE = [name for name in MODULES if name != DOOR]


@pytest.mark.parametrize("module", INSIDE)
def test_every_module_stands_in_a_room(module):
    assert room(module) in ROOMS


def test_nothing_else_stands_at_the_root():
    assert {file.name for file in PACKAGE.glob("*.py")} == {
        "__init__.py", "__main__.py", "cli.py", "errors.py", "presenter.py", "version.py",
    }  # fmt: skip


@pytest.mark.parametrize("module", INSIDE)
def test_imports_point_left(module):
    for one in own(module):
        here, there = ROOMS.index(room(module)), ROOMS.index(room(one.name))
        assert there <= here, f"{module} imports {one.name}, which stands to the right of it"


@pytest.mark.parametrize("module", INSIDE)
def test_no_name_comes_from_the_door(module):
    names = [
        alias.name
        for node, _ in walk(TREES[module])
        if isinstance(node, ast.ImportFrom) and node.module == DOOR
        for alias in node.names
        if f"{DOOR}.{alias.name}" not in MODULES
    ]
    assert not names


def test_no_module_imports_itself_round_a_circle():
    graph = {module: {one.name for one in own(module)} for module in INSIDE}
    assert set(TopologicalSorter(graph).static_order()) >= set(INSIDE)


INDEPENDENT = {  # modules of these rooms → where their imports may lie at most
    "model": ("errors", "presenter", "model"),
    "dump.limits": ("errors", "dump.limits"),
    "dump.context": ("errors", "dump.limits", "dump.context"),
    "dump.readers": ("errors", "model", "dump.context", "dump.limits", "dump.readers", "dump.layouts"),
    "dump.graphs": ("errors", "model", "dump.context", "dump.limits", "dump.readers", "dump.layouts", "dump.graphs"),
    "align": ("errors", "model", "dump.context", "dump.readers", "dump.graphs", "dump.layouts", "align"),
    "measure.kernel": ("errors", "model", "measure.kernel"),
    "measure.metrics": ("errors", "model"),
    "plan": ("errors", "model", "plan"),
    "report": (  # opens no dump, judges nothing
        "errors",
        "version",
        "model",
        "measure.metrics",
        "localise",
        "overflow_events",
        "plan",
        "report",
    ),
}


@pytest.mark.parametrize("place", INDEPENDENT)
def test_what_a_room_may_know(place):
    allowed = {*inside(*INDEPENDENT[place])}
    for module in inside(place):
        assert not {one.name for one in own(module)} - allowed, module


ANSWERS = (
    "report.compare",
    "report.fusion_diff",
    "report.rerun_diff",
    "report.overflow",
    "report.replay",
    "report.check",
    "report.diff",
)
PRESENTERS = ("report.terminal", "report.csv", "report.json", "report.html", "report.page_data", "report.junit")


@pytest.mark.parametrize("module", inside(*ANSWERS, *PRESENTERS))
def test_answers_and_presenters_do_not_know_each_other(module):
    others = inside(*(PRESENTERS if module in inside(*ANSWERS) else ANSWERS))
    assert not {one.name for one in own(module)} & {*others}


@pytest.mark.parametrize("place", ["dump.formats", "report"])
def test_plug_ins_do_not_import_their_door(place):
    for module in inside(place):
        assert module == f"{DOOR}.{place}" or f"{DOOR}.{place}" not in {one.name for one in own(module)}


def test_formats_do_not_know_each_other():
    for module in inside("dump.formats"):
        assert not {one.name for one in own(module)} & {*inside("dump.formats")}


def test_torch_is_imported_by_modules_that_only_child_processes_import():
    """The engine imports them when it starts; they know each other."""
    at_top = {module: {one.name for one in imports(module) if one.top} for module in MODULES}
    users = {module for module, names in at_top.items() if any(name.split(".")[0] == "torch" for name in names)}
    engine = {name for name in MODULES if name.startswith("npucmp.replay.torch_")} - {"npucmp.replay.torch_engine"}
    assert users == engine | {f"npucmp.replay.{name}" for name in ("npu", "noise", "walk")}
    assert not [module for module in {*MODULES} - users if at_top[module] & users]


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_where_they_are_used(module):
    assert not {one.name.split(".")[0] for one in imports(module) if one.top} & HEAVY


@pytest.mark.parametrize("module", INSIDE)
def test_click_stays_at_the_command_line(module):
    if room(module) not in ("commands", "cli"):
        assert "click" not in {one.name.split(".")[0] for one in imports(module)}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "npucmp.cli"])
def test_only_cli_prints_or_exits(module):
    calls = {ast.unparse(node.func) for node, _ in walk(TREES[module]) if isinstance(node, ast.Call)}
    raised = {ast.unparse(node.exc) for node, _ in walk(TREES[module]) if isinstance(node, ast.Raise) and node.exc}
    ends = (
        {"os._exit"} if module != "npucmp.measure.executor" else set()
    )  # the end of a worker, which is no end of npucmp
    assert not calls & {"print", "exit", "quit", "sys.exit", "SystemExit", *ends}
    assert "SystemExit" not in raised


def test_the_page_shows_this_order():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"## Rooms\n.*?```text\n(.*?)```", page, re.DOTALL)
    assert shown, "docs/architecture.md has no list of the rooms"
    assert shown.group(1).replace("→", " ").split() == ROOMS
