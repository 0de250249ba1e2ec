"""The law of one direction, read from the imports: a room of the core imports only rooms that stand left of it in CORE;
a feature imports the core, and the core loads a feature when it is asked for.

docs/architecture.md shows the same order and tells why.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Iterator, NamedTuple

import pytest

pytestmark = pytest.mark.lint
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "npucmp"
CORE = (
    "errors version presenter model dump align relations measure flow judge localise report workflows "
    "commands cli __main__"
).split(" ")
FEATURES = (
    "relations.ranks relations.tokens relations.weights relations.frameworks relations.stated "
    "recompute overflows reruns fusion health comparability token_parity plans tickets follow three_runs"
).split(" ")
FRONT = {"commands", "cli"}  # only the modules of a feature named command.py may import them
LOADERS = {  # rooms of the core that load features inside functions
    "align": {"relations.frameworks"},
    "report": {
        "relations.frameworks", "relations.ranks", "relations.tokens", "relations.weights", "plans", "three_runs",
    },
    "workflows": {
        "relations.frameworks", "relations.ranks", "relations.stated", "relations.tokens", "relations.weights",
        "recompute", "comparability", "health", "token_parity", "overflows", "reruns", "three_runs",
    },
    "commands": {"follow", "plans"},
}  # fmt: skip
BETWEEN = {  # features that import others, with the reason
    "comparability": {"health", "reruns"},  # precheck also examines the health of both runs
    "follow": {"health"},  # of a run that is still going
    "health": {"follow", "overflows"},  # check --follow; events of overflow are facts of a run
    "relations.ranks": {"recompute"},  # recomputation of operators on several ranks
    "reruns": {"relations.weights"},  # reruns of checkpoints
    "three_runs": {"recompute"},  # what an operator adds is measured against float64 of its inputs
}
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


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def nodes(module: str) -> tuple[tuple[ast.AST, bool], ...]:
    """The syntax tree of a module without what is for type checkers; True for a node outside functions."""
    return tuple(walk(tree(module)))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """All imports of a module but those for type checkers; for `from package import module`, the module."""
    found = []
    for node, top in nodes(module):
        if isinstance(node, ast.Import):
            found += [Import(module, alias.name, top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import; imports are absolute here"
            wholes = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [Import(module, whole if whole in MODULES else str(node.module), top) for whole in wholes]
    return tuple(found)


def packages(module: str, top: bool = False) -> set[str]:
    """The first part of the name of each import; if `top`, of those outside functions."""
    return {one.name.split(".")[0] for one in imports(module) if one.top or not top}


def walk(node: ast.AST, top: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child, top
        yield from walk(child, top and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


@cache
def own(module: str) -> tuple[Import, ...]:
    """Imports of other modules of this package."""
    return tuple(one for one in imports(module) if one.name.startswith(f"{DOOR}."))


def listed(wrong: list[str]) -> str:
    """One line for each broken rule: a test fails with all of them."""
    return "\n".join(["", *wrong])


def room(module: str) -> str:
    """The feature or the room of the core in which a module stands."""
    place = module.partition(".")[2]
    return next((name for name in FEATURES if f"{place}.".startswith(f"{name}.")), place.split(".")[0])


def is_command(module: str) -> bool:
    return room(module) in FRONT or (room(module) in FEATURES and module.endswith("command"))


def inside(*places: str) -> list[str]:
    """The modules of rooms, or of rooms within them ("dump.readers")."""
    return [name for name in MODULES if any(f"{name}.".startswith(f"{DOOR}.{place}.") for place in places)]


INSIDE = [name for name in MODULES if name != DOOR]


def test_every_module_stands_in_a_room_and_nothing_else_at_the_root():
    wrong = [f"{module} stands in no room" for module in INSIDE if room(module) not in {*CORE, *FEATURES}]
    assert not wrong, listed(wrong)
    assert {file.name for file in PACKAGE.glob("*.py")} == {
        "__init__.py", "__main__.py", "cli.py", "errors.py", "presenter.py", "version.py",
    }  # fmt: skip


def test_imports_of_the_core_point_left():
    wrong = [
        f"{module} imports {one.name}, which stands to the right of it"
        for module in INSIDE
        for one in own(module)
        if room(module) in CORE and room(one.name) in CORE and CORE.index(room(one.name)) > CORE.index(room(module))
    ]
    assert not wrong, listed(wrong)


def test_the_core_loads_features_when_they_are_asked_for():
    wrong = [
        f"{module} imports {one.name}" + " outside functions" * one.top
        for module in INSIDE
        for one in own(module)
        if room(module) in CORE
        and room(one.name) in FEATURES
        and (one.top or room(one.name) not in LOADERS.get(room(module), ()))
    ]
    assert not wrong, listed(wrong)


def test_features_import_the_core_and_no_other_feature():
    wrong = [
        f"{module} imports {one.name}"
        for module in INSIDE
        for one in own(module)
        if room(module) in FEATURES
        and room(one.name) in FEATURES
        and room(one.name) not in {room(module), *BETWEEN.get(room(module), ())}
    ]
    wrong += [
        f"{module} imports {one.name}"
        for module in INSIDE
        for one in own(module)
        if room(module) in FEATURES and not is_command(module) and room(one.name) in FRONT
    ]
    assert not wrong, listed(wrong)


def test_no_name_comes_from_the_door():
    wrong = [
        f"{module} imports {alias.name} from {DOOR}"
        for module in INSIDE
        for node, _ in nodes(module)
        if isinstance(node, ast.ImportFrom) and node.module == DOOR
        for alias in node.names
        if f"{DOOR}.{alias.name}" not in MODULES
    ]
    assert not wrong, listed(wrong)


def test_no_module_imports_itself_round_a_circle():
    graph = {module: {one.name for one in own(module)} for module in INSIDE}
    assert set(TopologicalSorter(graph).static_order()) >= set(INSIDE)


INDEPENDENT = {  # modules of these rooms → where their imports may lie at most
    "model": ("errors", "presenter", "model"),
    "dump.limits": ("errors", "dump.limits"),
    "dump.readers": ("errors", "model", "dump.limits", "dump.readers", "dump.layouts"),
    "dump.graphs": ("errors", "model", "dump.limits", "dump.readers", "dump.layouts", "dump.graphs"),
    "align": ("errors", "model", "dump.limits", "dump.readers", "dump.graphs", "dump.layouts", "align"),
    "measure.kernel": ("errors", "model", "measure.kernel"),
    "measure.metrics": ("errors", "model"),
    "flow": ("model", "dump.readers.names", "flow"),
    "report": (  # opens no dump, judges nothing
        "errors",
        "version",
        "presenter",  # the language
        "model",
        "dump.readers.csv_table",  # its own tables
        "measure.metrics",
        "flow",
        "localise",
        "report",
    ),
}


def test_what_a_room_may_know():
    wrong = []
    for place, known in INDEPENDENT.items():
        allowed = {*inside(*known)}
        found = [
            one
            for module in inside(place)
            for one in own(module)
            if one.name not in allowed and (one.top or room(one.name) not in FEATURES)
        ]
        wrong += [f"{one.module} imports {one.name}, which {place} may not know" for one in found]
    assert not wrong, listed(wrong)


ANSWERS = (
    "report.compare",
    "report.comparison_parts",
    "report.verdict_sentence",
    "fusion.report",
    "reruns.report",
    "overflows.report",
    "recompute.report",
    "health.report",
    "report.diff",
)
PRESENTERS = ("report.terminal", "report.csv", "report.json", "report.html", "report.page_json", "report.junit")


def test_answers_and_presenters_do_not_know_each_other():
    answers, presenters = inside(*ANSWERS), inside(*PRESENTERS)
    wrong = [
        f"{module} imports {one.name}"
        for some, others in ((answers, presenters), (presenters, answers))
        for module in some
        for one in own(module)
        if one.name in others
    ]
    assert not wrong, listed(wrong)


def test_plug_ins_know_neither_their_door_nor_formats_each_other():
    doors = {f"{DOOR}.{place}": inside(place) for place in ("dump.formats", "report")}
    formats = inside("dump.formats")
    wrong = [
        f"{one} imports {door}" for door, some in doors.items() for one in some if one != door and knows(one, door)
    ]
    wrong += [f"{one.module} imports {one.name}" for name in formats for one in own(name) if one.name in formats]
    assert not wrong, listed(wrong)


def knows(module: str, name: str) -> bool:
    return any(one.name == name for one in own(module))


def test_only_relations_tell_relations_apart():
    """Elsewhere a relation is asked what it says of its tensor."""
    defined = [node for node, _ in nodes("npucmp.model.relation") if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in defined}
    names = {"TensorRelation", *(name for name, of in bases.items() if "TensorRelation" in of)}
    assert len(names) > 5
    wrong = [
        f"{module}: line {node.lineno} asks for the class of a relation: {ast.unparse(node)}"
        for module in {*INSIDE} - {*inside("relations")}
        for node, _ in nodes(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "type", "getattr")
        if names & {*re.findall(r"\w+", ast.unparse(node))} or "relation" in ast.unparse(node.args[0]).split(".")
    ]
    assert not wrong, listed(wrong)


def test_torch_is_imported_by_modules_that_only_child_processes_import():
    """They know each other; others import them where a call needs torch."""
    at_top = {module: {one.name for one in imports(module) if one.top} for module in MODULES}
    users = {module for module in MODULES if "torch" in packages(module, top=True)}
    assert users == {f"npucmp.recompute.{name}" for name in ("torch_functions", "rounding_noise")}
    wrong = [f"{module} imports {name}" for module in {*MODULES} - users for name in sorted(at_top[module] & users)]
    assert not wrong, listed(wrong)


def test_heavy_packages_are_imported_where_they_are_used():
    wrong = [
        f"{module} imports {name} outside functions"
        for module in MODULES
        for name in sorted(packages(module, top=True) & HEAVY)
    ]
    assert not wrong, listed(wrong)


def test_click_stays_at_the_command_line():
    outside = [module for module in INSIDE if not is_command(module)]
    wrong = [f"{module} imports click" for module in outside if "click" in packages(module)]
    assert not wrong, listed(wrong)


def test_only_cli_prints_or_exits():
    wrong = []
    for module in {*MODULES} - {"npucmp.cli"}:
        ends = {"print", "exit", "quit", "sys.exit", "SystemExit"}
        if module != "npucmp.measure.executor":  # which ends its workers, not npucmp
            ends.add("os._exit")
        for node, _ in nodes(module):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ends:
                wrong.append(f"{module}: line {node.lineno} calls {ast.unparse(node.func)}")
            elif isinstance(node, ast.Raise) and node.exc and ast.unparse(node.exc) == "SystemExit":
                wrong.append(f"{module}: line {node.lineno} raises SystemExit")
    assert not wrong, listed(wrong)


BOUNDARIES = {  # modules that catch every error: what runs there is another process, or code of others
    "npucmp.health.evaluate": 1,  # rules, of users too
    "npucmp.health.rule": 1,  # the files of users
    "npucmp.model.entry_points": 1,  # the packages of users
    "npucmp.measure.executor": 1,  # the last frame of a worker; its parent raises the error
    "npucmp.recompute.run": 4,  # the last frames of a child
    "npucmp.recompute.kernel_case": 1,  # a kernel of the user
}


def test_every_error_is_caught_at_a_boundary_only():
    found: dict[str, int] = {}
    for module in MODULES:
        for node, _ in nodes(module):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
                found[module] = found.get(module, 0) + 1
    assert found == BOUNDARIES


def test_no_two_classes_share_a_name():
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node, _ in nodes(module):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_the_page_shows_this_order():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown = re.search(r"## Imports\n.*?```text\n(.*?)```", page, re.DOTALL)
    assert shown, "docs/architecture.md has no list of the rooms"
    assert shown.group(1).replace("→", " ").split() == [*CORE, *FEATURES]
