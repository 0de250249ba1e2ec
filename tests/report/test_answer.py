"""The words are written once: a command brings a result and its Answer, and no presenter has to know of it."""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

import npucmp.model
from npucmp import write_reports
from npucmp.model import Evidence, Fact, Result
from npucmp.report import answer_of, render
from npucmp.report.answer import Answer, Detail, DumpSummary, Listing, ReportTable, Section, Suspect, Suspects
from npucmp.report.sanitise import visible
from tests.reports import named, said, screen

PACKAGE = Path(__file__).parent.parent.parent / "npucmp"
MODULES = [file for room in ("report", "commands") for file in sorted((PACKAGE / room).glob("*.py"))]
PAGE = sorted((PACKAGE / "report" / "page").iterdir())
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


def test_every_presenter_shows_a_new_command(checked, tmp_path):
    files = write_reports(checked, tmp_path)
    assert [file.name for file in files] == ["checks.csv", "summary.json", "report.html"]
    assert files[0].read_text() == "op,zeros\nTorch.exp.0,0.5\n"
    summary = json.loads(files[1].read_text())
    assert (summary["command"], summary["sick"], summary["exit_status"]) == ("health-check", 1, 1)
    page = files[2].read_text()
    for words in (
        "Checked run",
        "All checks",
        "<li>half of it is zero; &lt;b&gt;why&lt;/b&gt;</li>",
        "be careful",
    ):
        assert words in page
    assert screen(checked) == (
        "dump    dump  one tensor\n\n"
        "  1  SICK        Torch.exp.0  output:0\n                 half of it is zero; <b>why</b>\n\n"
        "note: be careful\nSICK: 1 tensor is not well.   0.0 s, 0 B\n"
    )


def test_an_answer_that_counts_nothing_has_a_page(checked):
    assert render(replace(answer_of(checked), counts={"sick": 0}))["report.html"]


def test_a_sentence_is_one_line_whatever_it_holds():
    (root,) = answer_of(named("op", because="x; y {z} \x1b[31m")).suspects.first
    assert [one.sentence() for one in root.evidence] == ["x; y {z} \x1b[31m"]
    assert "                 x; y {z} \\x1b[31m\n" in screen(named("op", because="x; y {z} \x1b[31m"))


@pytest.mark.parametrize(
    "words, value, says",
    [
        ("{x}", 1.5e-3, "1.5e-03"),
        ("{x}", math.inf, "inf"),
        ("{x}", None, "unknown"),
        ("{x}", 1234567, "1,234,567"),
        ("{x:d}", 1234567, "1234567"),
        ("{x:.4g}", 0.123456, "0.1235"),
        ("{x} {x}", "{y}\x1b", "{y}\\x1b {y}\\x1b"),
    ],
)
def test_a_sentence_shows_its_facts(words, value, says):
    assert Evidence("", words, {"x": Fact(value)}).sentence(visible) == says


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


@pytest.mark.parametrize("file", MODULES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_nothing_is_decided_by_the_command_or_the_type_of_a_result(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    asked = [one for test in decisions(tree) for one in ast.walk(test) if isinstance(one, ast.Attribute)]
    assert "command" not in {one.attr for one in asked}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    types = [ast.unparse(call.args[1]) for call in calls if ast.unparse(call.func) in ("isinstance", "issubclass")]
    assert not {word for words in types for word in re.findall(r"\w+", words)} & RESULTS


@pytest.mark.parametrize("file", PAGE, ids=lambda file: file.name)
def test_neither_does_the_page(file):
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"command\s*[!=]=|data\.command", text)


@pytest.mark.parametrize("file", [*MODULES, *PAGE], ids=lambda file: f"{file.parent.name}/{file.name}")
def test_no_sentence_is_taken_apart(file):
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"""(split|partition)\(["']; """, text)
