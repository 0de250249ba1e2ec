"""The words are written once: a command brings a result and its Answer, and no presenter has to know of it."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import npucmp.model
from npucmp.model import Result
from npucmp.report.answer import Answer, Detail, DumpSummary, Listing, ReportTable, Section, Suspect, Suspects
from tests.reports import said

PACKAGE = Path(__file__).parent.parent.parent / "npucmp"
MODULES = sorted(
    file
    for file in PACKAGE.rglob("*.py")
    if (file.parent.name in ("report", "commands") or file.stem in ("report", "command"))
    and file.name not in ("explain.py", "rule.py", "rule_page.py")  # the command of a rule, not of a result
)
PAGE = sorted(path for path in (PACKAGE / "report" / "page").iterdir() if path.is_file())
RESULTS = {one.__name__ for one in vars(npucmp.model).values() if isinstance(one, type) and issubclass(one, Result)}


@dataclass(frozen=True)
class Checked(Result):
    """Of a command that no module of the package knows."""

    command = "health-check"
    roots = ()
    differs = True
    is_decided = True


def answer(result, metrics=()):
    sick = Suspect(1, "BORN", "Torch.exp.0", "exp", "output:0", said("half of it is zero; <b>why</b>"), "SICK")
    suspects = Suspects.of([sick])
    row = {"op": ["Torch.exp.0"], "zeros": [0.5]}
    return Answer(
        result=result,
        word="SICK",
        sentence="1 tensor is not well",
        sections=[Section("step 0", [DumpSummary("dump", result.paths[0], "one tensor")], suspects=suspects)],
        suspects=suspects,
        places="checks.csv",
        title="What is not well",
        compared="Checked run",
        aligned="1 tensor checked",
        counts={"sick": 1},
        notes=[Listing("note", ["be careful"], "summary.json")],
        unreadable=Listing("unreadable", [], "checks.csv"),
        tables=[ReportTable("checks.csv", ("op", "zeros"), lambda: row)],
        detail=lambda: Detail("events", "All checks", "Along the network", [""], {**row, "run": [0], "rows": [1]}, row,
                              ["op", "zeros"], ["op", "zeros"], ["op"]),
        facts=lambda: {"sick": 1},
    )  # fmt: skip


@pytest.fixture
def checked(monkeypatch):
    """A result of a new command, whose Answer is one more module."""
    module = ModuleType("npucmp.report.health_check")
    module.answer = answer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Checked(("dump",), argv=("npucmp", "health-check", "dump"))


def decisions(tree):
    """What a module decides by: comparisons, tests, look-ups, matches."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield node.test
        elif isinstance(node, ast.Match if hasattr(ast, "Match") else ()):
            yield node.subject
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield from node.args
        elif isinstance(node, (ast.Compare, ast.BoolOp)):
            yield node


@pytest.mark.lint
@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_nothing_is_decided_by_the_command_or_the_type_of_a_result(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    asked = [one for test in decisions(tree) for one in ast.walk(test) if isinstance(one, ast.Attribute)]
    assert "command" not in {one.attr for one in asked}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    types = [ast.unparse(call.args[1]) for call in calls if ast.unparse(call.func) in ("isinstance", "issubclass")]
    assert not {word for words in types for word in re.findall(r"\w+", words)} & RESULTS


@pytest.mark.lint
@pytest.mark.parametrize("file", PAGE, ids=lambda file: file.name)
def test_neither_does_the_page(file):
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"command\s*[!=]=|data\.command", text)


@pytest.mark.lint
@pytest.mark.parametrize("file", [*MODULES, *PAGE], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_sentence_is_taken_apart(file):
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"""(split|partition)\(["']; """, text)
