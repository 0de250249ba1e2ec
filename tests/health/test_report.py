"""What `npucmp check` shows and writes: the first line is what to mend, every rule has a row, names stay harmless."""

from __future__ import annotations

import csv
import json
import subprocess

import numpy as np

from npucmp import check, write_reports
from npucmp.health.report import CHECKS, HEALTH, PARAMETERS
from npucmp.health.rules import RULES
from tests.command import npucmp
from tests.health.craft import Training, checked
from tests.reports import screen

W = "layers.1.weight"


def ill() -> Training:
    """A layer that is zero and stays so: what follows from it is told beneath."""
    training = Training()
    training.start(W, 0)
    for name in (W, "layers.0.weight", "layers.0.bias"):
        training.gradients[name] = [np.zeros_like(one) for one in training.gradients[name]]
        training.weights[name] = [training.weights[name][0]] * 3
    return training


def test_files(tmp_path):
    result = checked(ill(), tmp_path / "dump")
    files = write_reports(result, tmp_path / "out")
    assert [file.name for file in files] == [
        "health.csv", "checks.csv", "parameters.csv", "summary.json", "report.html"
    ]  # fmt: skip
    rows = {file.name: list(csv.DictReader(file.open())) for file in files[:3]}
    assert [tuple(some[0]) for some in rows.values()] == [HEALTH, CHECKS, PARAMETERS]
    first = rows["health.csv"][0]
    assert (first["place"], first["rule"], first["parameter"], first["follows"]) == ("1", "weight.zero", W, "")
    assert {row["follows"] for row in rows["health.csv"][1:]} == {"1"}
    assert [row["rule"] for row in rows["checks.csv"]] == [one.name for one in RULES]
    assert all(row["decided"] != "no" or row["why_not"] for row in rows["checks.csv"])
    assert len(rows["parameters.csv"]) == 3 * 10
    summary = json.loads(files[3].read_text())
    assert summary["findings"]["rule"]["weight.zero"] == 1 and summary["exit_status"] == 1
    assert summary["first"][0]["rule"] == "weight.zero"
    assert set(summary["decided"]) | set(summary["not_decided"]) == {one.name for one in RULES}
    assert {*summary["not_decided"].values()} == {row["why_not"] for row in rows["checks.csv"]} - {""}


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return npucmp("check", *words)


def test_the_command(tmp_path):
    dump = ill().write(tmp_path / "dump")
    got = run(dump, "--only", "weight*", "--only", "grad*", "-o", tmp_path / "out", "--jobs", "1")
    assert (got.returncode, got.stderr) == (1, "") and "UNHEALTHY" in got.stdout
    assert (tmp_path / "out" / "health.csv").exists()
    listed = run("--list", dump)
    assert listed.returncode == 0 and all(one.name in listed.stdout for one in RULES)
    assert "decided: yes (" in listed.stdout and "decided: no (needs two ranks)" in listed.stdout
    assert "decided" not in run("--list").stdout
    assert run().returncode == 2 and "Missing argument 'DUMP'" in run().stderr
    wrong = run(dump, "--skip", "weight.zeroo")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "weight.zero" in wrong.stderr


def test_an_interrupted_check_says_nothing_of_health(tmp_path, monkeypatch):
    dump = Training(steps=1).write(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("npucmp.health.workflow.build", interrupted)
    result = check(dump, jobs=1)
    assert result.exit_status == 130 and not result.symptoms
    assert screen(result).splitlines()[-1].startswith("PARTIAL: interrupted before a rule was decided")


def test_ranges_are_watched_by_the_words_of_mindinsight(tmp_path):
    """The share of an output's values in a range, in per cent, found in the same pass; outputs here are normal."""
    training = Training(steps=1)
    dump = training.write(tmp_path / "dump")

    def found(text):
        settings = tmp_path / "own.toml"
        settings.write_text(f'[rule."tensor.range"]\n{text}\n')
        return [
            one.because for one in check(dump, rules=settings, plugins=False).symptoms if one.rule == "tensor.range"
        ]

    (because,) = found("range_percentage_lt = 99.9\nrange_start_inclusive = -0.1\nrange_end_inclusive = 0.1")[:1]
    assert "range_percentage is" in because and "< 99.9" in because
    assert not found("range_percentage_lt = 99.9\nrange_start_inclusive = -1e9\nrange_end_inclusive = 1e9")
    assert not found("range_percentage_gt = 0.1\nrange_start_inclusive = 1e9")
