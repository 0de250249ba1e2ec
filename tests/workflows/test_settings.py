"""Reports that were made by other rules are not held against each other: no FIXED by a wider tolerance."""

from __future__ import annotations

import json

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
