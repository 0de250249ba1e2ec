"""Answers in files and on stdout: an error takes the place of the answer of an earlier run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import command
from tests.report.test_schema import S, faults

FILES = {"junit": "j.xml", "sarif": "s.sarif", "github": "g.txt", "json": "j.json", "jsonl": "l", "markdown": "m.md"}
EQUAL = [S / "npy_batch_norm/golden"] * 2


def test_no_answer_of_an_earlier_run_stays(tmp_path):
    """A command that fails writes its error where its answer was to be; the earlier report moves."""
    outputs = ["-o", "report", "--report-format", ",".join(f"{name}={file}" for name, file in FILES.items())]
    assert command.npucmp("compare", *EQUAL, *outputs, cwd=tmp_path).returncode == 0
    good = {file: (tmp_path / file).read_text() for file in FILES.values()}
    report = {file.name for file in (tmp_path / "report").iterdir()}
    for _ in range(2):
        assert command.npucmp("compare", "gone", EQUAL[0], *outputs, cwd=tmp_path).returncode == 2
        for file in FILES.values():
            text = (tmp_path / file).read_text()
            assert "AGREES" in good[file] or file == "j.xml"
            assert "AGREES" not in text and "no such file or folder" in text, file
        assert {file.name for file in (tmp_path / "report").iterdir()} == {"summary.json", "earlier"}
        assert faults("error", json.loads((tmp_path / "report/summary.json").read_text())) == []
        assert {file.name for file in (tmp_path / "report/earlier").iterdir()} == report
    refused = command.npucmp("diff", "report", "report/earlier", cwd=tmp_path)
    assert refused.returncode == 2 and "npucmp compare failed: gone: no such file" in refused.stderr
    assert command.npucmp("compare", *EQUAL, *outputs, cwd=tmp_path).returncode == 0
    assert {file.name for file in (tmp_path / "report").iterdir()} == {*report, "earlier"}


def test_an_error_makes_no_folder_and_spares_an_input(tmp_path):
    assert command.npucmp("compare", "gone", EQUAL[0], "-o", "new", cwd=tmp_path).returncode == 2
    assert command.npucmp("compare", *EQUAL, "-o", "report", cwd=tmp_path).returncode == 0
    before = sorted(Path(tmp_path, "report").iterdir())
    assert command.npucmp("diff", "report", "report", "-o", "report", cwd=tmp_path).returncode == 2
    assert sorted(Path(tmp_path, "report").iterdir()) == before and not Path(tmp_path, "new").exists()


@pytest.mark.parametrize("words", [["compare", "gone", "gone"], ["compare", "gone"], ["compare", "--wrong"]])
@pytest.mark.parametrize("format", ["jsonl", "github", "junit", "sarif"])
def test_an_error_on_stdout_has_the_format_that_was_asked_for(tmp_path, words, format):
    for spelled in (["--report-format", format], [f"--report-format=text=x,{format}"]):
        got = command.npucmp(*words, *spelled, cwd=tmp_path)
        assert got.returncode == 2 and got.stderr
        if format == "jsonl":
            (line,) = map(json.loads, got.stdout.splitlines())
            assert faults("json_lines", line) == [] and (line["kind"], line["exit_status"]) == ("error", 2)
        else:
            assert got.stdout.startswith({"github": "::error", "junit": "<?xml", "sarif": "{"}[format])
