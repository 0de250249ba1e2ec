"""Reports that were made by other rules are not held against each other: no FIXED by a wider tolerance."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

import npucmp
from npucmp import write_reports
from npucmp.cli import npucmp as group
from npucmp.errors import NpucmpError, UsageError
from npucmp.model import Tolerance
from tests.synthetic import chain, write_run


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """The page takes longest, and is read by nobody here."""
    monkeypatch.setattr("npucmp.report.REPORTS", ("csv", "json"))


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    write_run(folder / "target", chain({2: 1.01}))
    write_run(folder / "golden", chain())
    folder.joinpath("noise.csv").write_text("op,slot,rel_l2\nFunctional.linear.2.forward,output:0,1\n")
    folder.joinpath("rules.csv").write_text("metric,limit\nrel_l2,0.5\n")
    folder.joinpath("same.csv").write_text("metric,limit,why\nrel_l2,5e-1,measured\n")
    folder.joinpath("names.yaml").write_text("Functional.linear.2.forward: Functional.linear.1.forward\n")
    return folder


def cli(*words):
    got = CliRunner().invoke(group, [str(word) for word in words])
    assert got.exception is None or isinstance(got.exception, (SystemExit, NpucmpError)), got.exception
    return got


def report(dumps, folder, *words, target="target"):
    cli("compare", dumps / target, dumps / "golden", "-q", "-o", folder, *words)
    return folder


OTHERS = [
    ["--rtol", "0.5"],
    ["--atol", "10"],
    ["--tolerances", "rules.csv"],
    ["--noise", "noise.csv"],
    ["--mapping", "names.yaml"],
    ["--trust-statistics"],
    ["--skip-rule", "growth"],
    ["--include", "*linear.[01].*"],
    ["--exclude", "*linear.2.*"],
    ["--step", "0"],
    ["--rank", "0"],
]


@pytest.mark.few(4)
@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_a_report_by_other_rules_is_refused(dumps, tmp_path, monkeypatch, words):
    monkeypatch.chdir(dumps)
    plain, other = report(dumps, tmp_path / "plain"), report(dumps, tmp_path / "other", *words)
    for before, after in ((plain, other), (other, plain)):
        with pytest.raises(UsageError) as refused:
            npucmp.diff(before, after)
        name = words[0].strip("-").replace("-", "_")
        assert re.search(f"{name}s?=", str(refused.value)) and "\n" not in str(refused.value)
        assert "rules differ" in str(refused.value)
    got = cli("diff", plain, other)
    assert isinstance(got.exception, UsageError) and "FIXED" not in got.stdout


@pytest.mark.parametrize("words", OTHERS, ids=" ".join)
def test_the_same_rules_are_the_same_however_they_are_written(dumps, tmp_path, monkeypatch, words):
    monkeypatch.chdir(dumps)
    one, other = report(dumps, tmp_path / "one", *words), report(dumps, tmp_path / "other", *words)
    assert npucmp.diff(one, other).exit_status in (0, 2)


def test_what_decides_nothing_is_no_other_rule(dumps, tmp_path):
    more = "--jobs", "2", "--metrics", "snr", "--no-precheck", "--disk", "1GB", "--top", "3"
    one, other = report(dumps, tmp_path / "one"), report(dumps, tmp_path / "other", *more)
    assert npucmp.diff(one, other).exit_status == 0
    tables = report(dumps, tmp_path / "a", "--tolerances", dumps / "rules.csv")
    again = report(dumps, tmp_path / "b", "--tolerances", dumps / "same.csv")
    assert npucmp.diff(tables, again).exit_status == 0


def test_a_report_of_python_has_its_rules_too(dumps, tmp_path):
    paths = dumps / "target", dumps / "golden"
    plain, loose = npucmp.compare(*paths), npucmp.compare(*paths, rtol=0.5)
    for before, after in ((plain, loose), (write_folder(plain, tmp_path / "a"), write_folder(loose, tmp_path / "b"))):
        with pytest.raises(UsageError, match="rtol="):
            npucmp.diff(before, after)
    rows = npucmp.compare(*paths, tolerances=[Tolerance("rel_l2", 0.5)])
    assert npucmp.diff(rows, report(dumps, tmp_path / "c", "--tolerances", dumps / "rules.csv")).exit_status == 0
    one, other = npucmp.compare(*paths, step=0), npucmp.compare(*paths, step="0")
    assert npucmp.diff(one, other).exit_status == 0


def write_folder(result, folder):
    write_reports(result, folder)
    return folder


def test_a_baseline_by_other_rules_is_refused_before_anything_is_measured(dumps, tmp_path, monkeypatch):
    loose = report(dumps, tmp_path / "loose", "--rtol", "0.5")
    monkeypatch.setattr("npucmp.measure.pairs.measure", lambda *_: pytest.fail("measured"))
    got = cli("compare", dumps / "target", dumps / "golden", "--baseline", loose)
    assert isinstance(got.exception, UsageError) and "--rtol 0.5" in str(got.exception)


def test_a_baseline_by_the_same_rules(dumps, tmp_path):
    words = "compare", dumps / "target", dumps / "golden", "--include", "*linear*", "-q"
    cli(*words, "-o", tmp_path / "known")
    assert cli(*words, "--baseline", tmp_path / "known").exit_code == 0


def older(folder):
    """The report as a npucmp wrote it that did not keep its settings."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("settings") is not None
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.mark.parametrize("words", [["--rtol", "0.5"], ["--tolerances", "rules.csv"], ["--skip-rule", "growth"]])
@pytest.mark.parametrize("both", [False, True])
def test_older_reports_tell_their_rules(dumps, tmp_path, monkeypatch, words, both):
    monkeypatch.chdir(dumps)
    plain, other = report(dumps, tmp_path / "plain"), older(report(dumps, tmp_path / "other", *words))
    plain = older(plain) if both else plain
    with pytest.raises(UsageError, match="rules differ"):
        npucmp.diff(plain, other)
    clean = older(report(dumps, tmp_path / "clean", target="golden"))
    assert npucmp.diff(plain, clean).exit_status == 0


def test_other_commands(dumps, tmp_path):
    for command, words in (("rerun-diff", ["--include", "*linear.[01].*"]), ("overflow", ["--headroom", "3"]),
                           ("check", ["--only", "weight.*"]), ("check", ["--fail-on", "hint"])):  # fmt: skip
        paths = [dumps / "target", dumps / "golden"][: 2 if command == "rerun-diff" else 1]
        folders = [tmp_path / f"{command}{len(words[-1])}{i}" for i in range(3)]
        cli(command, *paths, "-q", "-o", folders[0])
        cli(command, *paths, "-q", "-o", folders[1])
        cli(command, *paths, "-q", "-o", folders[2], *words)
        npucmp.diff(folders[0], folders[1])
        with pytest.raises(UsageError, match=f"{words[0][2:].replace('-', '_')}="):
            npucmp.diff(folders[0], folders[2])


def test_settings_that_are_no_settings(dumps, tmp_path):
    """A report may have come with a ticket: whatever stands there is compared as it is, and shown cut."""
    plain, other = report(dumps, tmp_path / "plain"), report(dumps, tmp_path / "other")
    for value in ([], "x", 7, {"rtol": {"a": [1]}}, {"step": [1, "x"]}, {"rules": 7}, {"x" * 9000: "y" * 9000}):
        summary = json.loads((other / "summary.json").read_text())
        (other / "summary.json").write_text(json.dumps({**summary, "settings": value}))
        try:
            npucmp.diff(plain, other)
        except UsageError as error:
            assert len(str(error)) < 1000
