"""The numbers that decide what npucmp says stand under names, with their units and sources."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest
from click.testing import CliRunner

from npucmp.workflows.rule import rule
from tests.corpus import constants, judged_again, sensitivity
from tests.corpus.__main__ import main
from tests.corpus.constants import (
    EXCEPTIONS,
    SENSITIVITY,
    SOURCES,
    Module,
    is_judging,
    keys,
    modules,
    unnamed,
)

pytestmark = pytest.mark.lint


@cache
def rows():
    return constants.constants()


def module(tmp_path, monkeypatch, text):
    """A module of the judging half with this source."""
    monkeypatch.setattr(constants, "ROOT", tmp_path)
    path = tmp_path / "npucmp" / "judge" / "some.py"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return Module(path)


def test_no_number_decides_without_a_name():
    assert [f"{one.module}:{one.line} {one.function}: {one.number} in {one.text}" for one in unnamed()] == []


def test_every_exception_is_one():
    found = {key for one in modules() if is_judging(one.name) for each in one.literals for key in keys(short(each))}
    assert found.issuperset(EXCEPTIONS)


def short(one):
    return one._replace(module=one.module.removeprefix("npucmp."))


@pytest.mark.parametrize("field", ["unit", "source"])
def test_every_constant_has(field):
    assert [f"{one.module}.{one.name}" for one in rows() if not getattr(one, field)] == []


def test_every_source_is_of_a_known_kind():
    assert [f"{one.module}.{one.name}: {one.source}" for one in rows() if one.kind not in SOURCES] == []


def test_the_kept_measurements_are_of_constants_that_there_are():
    """`python -m tests.corpus.judged_again FOLDER` makes them; another value of a constant makes its own stale."""
    kept = json.loads(SENSITIVITY.read_text(encoding="utf-8"))["constants"]
    assert kept.keys() <= {f"{one.module}.{one.name}" for one in rows() if one.kind != "work"}
    assert all(one["half"] and one["twice"] for one in kept.values())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"": ["0"]}, "not read"),
        ({"": ["3"]}, "nothing"),
        ({"": ["3"], "fault": ["right", "missed"], "clean": ["silent", "alarm"]}, "-1 right, +1 alarms"),
        ({"": ["3"], "fault": ["missed", "right"], "clean": ["alarm", "silent"]}, "+1 right, -1 alarms"),
        ({"": ["3"], "fault": ["missed", "undecided"], "clean": ["silent", "error: none"]}, "1 others, 1 errors"),
    ],
)
def test_changes_are_told_in_words(changes, said):
    assert judged_again.words(changes, {"fault": {"clean": False}, "clean": {"clean": True}}) == said


def test_what_functions_read_is_known_by_all_names_of_a_constant():
    factor = next(row for row in rows() if row.name == "FACTOR")
    names = judged_again.names_of(factor)
    assert {("npucmp.model.dtypes", "FACTOR"), ("npucmp.localise.rule_context", "FACTOR")} <= names


def test_the_command_rule_prints_the_constants_that_decide():
    printed = {(one.module, one.name) for page in rule() for one in page.constants}
    assert [one for one in rows() if one.kind == "work" and (one.module, one.name) in printed] == []
    lacking = sorted({one.module for one in rows() if (one.module, one.name) not in printed and one.kind != "work"})
    assert lacking == []


def test_comments_are_read_in_the_line_and_above(tmp_path, monkeypatch):
    text = "A = 1 << 3  # bytes: work\n# times noise: chosen: a long\n# reason, not measured\nB = 2.5, 3.0\nC = 'x'\n"
    some = module(tmp_path, monkeypatch, text)
    assert [row[1:5] for row in constants.constants([some])] == [
        ("A", "1 << 3", "bytes", "work"),
        ("B", "2.5, 3.0", "times noise", "chosen: a long reason, not measured"),
    ]


@pytest.mark.parametrize(
    "line, numbers",
    [
        ("def f(x):\n    return x > 3.0", [3.0]),
        ("def f(x):\n    return x[3] > 0.5", []),
        ("def f(x):\n    return x[-8:]", [8]),
        ("def f(x, most=7):\n    return x", [7]),
        ("A = 5  # elements: chosen: not measured", []),
        ("A = {'a': 5}", [5]),
        ("A, B = 5, 6", [5, 6]),
        ("@lru_cache(maxsize=1024)\ndef f(x):\n    return -x", []),
    ],
)
def test_numbers_without_a_name_are_found(tmp_path, monkeypatch, line, numbers):
    assert [one.number for one in unnamed([module(tmp_path, monkeypatch, f"{line}\n")])] == numbers


def test_users_are_those_that_import_it_by_any_way():
    factor = next(one for one in rows() if one.name == "FACTOR")
    assert factor.module == "model.dtypes"
    assert {"judge.tolerance", "localise.rule_context", "measure.constant_rows"} <= {*factor.users}


def test_a_name_of_several_modules_is_refused(monkeypatch):
    monkeypatch.setattr(sensitivity, "constants", rows)  # the same, read once
    done = CliRunner().invoke(main, ["--sensitivity", "SHARE"])
    assert done.exit_code == 2 and "localise.parameter_drift.SHARE" in done.output


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "module, name, times, expression, expected",
    [
        ("npucmp.model.dtypes", "FACTOR", 2.0, "npucmp.judge.tolerance.DEFAULT_RULES[1].limit * 2**24", 16.0),
        ("npucmp.model.dtypes", "AVERAGED_ELEMENTS", 0.5, "npucmp.localise.stat_test.AVERAGED_ELEMENTS", 8),
        ("npucmp.localise.rule_context", "COMMON_SHARE", 0.5, "npucmp.localise.parameter_drift.COMMON_SHARE * 20", 9.0),
    ],
)
def test_all_that_import_a_constant_have_its_other_value(module, name, times, expression, expected):
    code = (
        "from tests.corpus.sensitivity import Setting, install\n"
        f"install(Setting({module!r}, {name!r}, {times}))\n"
        "import npucmp.judge.tolerance, npucmp.localise.stat_test, npucmp.localise.parameter_drift\n"
        f"print(repr({expression}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=sensitivity.ROOT)
    assert done.stdout.strip() == repr(expected), done.stderr


def test_the_table_of_a_constant_has_a_line_for_each_value():
    one = next(row for row in rows() if row.name == "SCALE_ROUND_OFFS")
    lines = sensitivity.table(one, {1.0: [3, 4, 0, 4, 2, 2], 0.5: [2, 4, 1, 4, 2, 2]}).splitlines()
    assert lines[0] == "localise.rules.accusations.SCALE_ROUND_OFFS = 4.0"
    assert lines[2].split()[:4] == ["1", "3", "of", "4"] and lines[3].split()[4:7] == ["1", "of", "4"]
