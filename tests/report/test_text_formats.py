"""--report-format: one text for code hosts, continuous integration and programs, whatever names dumps have."""

from __future__ import annotations

import json
from dataclasses import replace

import npucmp as library
from npucmp.report import answer_of
from npucmp.report.text_formats import content_of
from tests.command import npucmp
from tests.report.test_schema import S, faults
from tests.reports import named

SOFTMAX = S / "msprobe_softmax/target", S / "msprobe_softmax/golden"


def text_of(answer, name):
    return content_of(answer, name).decode("utf-8")


def test_sarif_names_the_source_line(tmp_path):
    (tmp_path / "make.py").touch()
    got = npucmp("compare", *SOFTMAX, "--report-format", "sarif", cwd=tmp_path)
    (run,) = json.loads(got.stdout)["runs"]
    (first,) = run["results"]
    assert (got.returncode, run["invocations"][0]["exitCode"]) == (1, 1)
    assert [one["id"] for one in run["tool"]["driver"]["rules"]] == ["BORN"]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("BORN", 0, "error")
    place = first["locations"][0]
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "Functional.softmax.1.forward"
    assert place["physicalLocation"] == {  # recorded as /home/user/make.py; the checkout has the file
        "artifactLocation": {"uri": "make.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 67},
    }


def test_known_suspects_are_no_errors():
    answer = answer_of(named("one", "other"))
    first, second = answer.suspects.first
    answer = replace(answer, suspects=answer.suspects._replace(first=[first, second._replace(known=True)]))
    levels = [
        (one["level"], "suppressions" in one) for one in json.loads(text_of(answer, "sarif"))["runs"][0]["results"]
    ]
    assert levels == [("error", False), ("warning", True)]
    assert [line.split(" ")[0] for line in text_of(answer, "github").splitlines()] == ["::error", "::notice", "::error"]


def test_json_lines():
    got = npucmp("compare", *SOFTMAX, "--report-format", "jsonl")
    rows = [json.loads(line) for line in got.stdout.splitlines()]
    assert [faults("json_lines", row) for row in rows] == [[]] * len(rows)
    kinds = [row["kind"] for row in rows]
    assert kinds[:2] == ["dump", "dump"] and kinds[-1] == "verdict" and sorted(kinds, key=kinds.index) == kinds
    assert (rows[-1]["outcome"], rows[-1]["exit_status"]) == ("DIVERGED", 1)
    suspects = [row for row in rows if row["kind"] == "suspect"]
    assert suspects[0]["op"] == "Functional.softmax.1.forward" and suspects[0]["source"].startswith("make.py:67")


def test_several_formats_in_one_call(tmp_path):
    words = ["--report-format", "sarif=a.sarif,junit=sub/b.xml", "--report-format", "github", "--json"]
    got = npucmp("compare", *SOFTMAX, *words, cwd=tmp_path)
    assert got.returncode == 2 and "github and json cannot both be printed" in got.stderr
    got = npucmp("compare", *SOFTMAX, *words[:-1], cwd=tmp_path)
    assert got.returncode == 1 and got.stdout.startswith("::error ")
    assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"
    assert (tmp_path / "sub" / "b.xml").read_text().startswith("<?xml")
    got = npucmp("compare", *SOFTMAX, "--report-format", "markdown=x.md", cwd=tmp_path)
    assert "DIVERGED" in got.stdout and "| 1 | BORN |" in (tmp_path / "x.md").read_text()


def test_wrong_formats_are_refused_before_anything_is_read(tmp_path):
    for word, because in (("sarf", "nearest: sarif"), ("sarif=", "name of the file"), ("sarif,github", "both")):
        got = npucmp("compare", "nothing", "nothing", "--report-format", word, cwd=tmp_path)
        assert (got.returncode, got.stdout) == (2, "") and because in got.stderr


def test_formats_in_python(tmp_path):
    report = library.compare(*SOFTMAX)
    for name in ("text", "json", "jsonl", "sarif", "github", "junit", "markdown"):
        assert library.write_format(report, name, tmp_path / name).read_bytes()
