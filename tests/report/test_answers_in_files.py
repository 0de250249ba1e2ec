"""Every machine-readable answer is valid, whatever the outcome: pairs are drawn at random, errors included."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npucmp
from npucmp.errors import NpucmpError
from npucmp.report import answer_of
from npucmp.report.error_object import error_text
from npucmp.report.text_formats import FORMATS, content_of
from tests import command
from tests.report.test_schema import S, faults
from tests.synthetic import chain, with_checksums, with_statistics, write_run

SEEDS = range(24)


def drawn(random, folder):
    """Write a pair of any outcome: values, statistics or checksums, with tensors that differ, are missing, of another
    shape or type, or damaged, on either side."""
    steps = int(random.integers(2, 7))
    fault = {int(random.integers(steps)): float(random.choice([1.0, 1 + 1e-7, 1.2, -1.0]))}
    sides = {"target": chain(fault, steps=steps), "golden": chain(steps=steps)}
    for operators in sides.values():
        for name in [*operators]:
            operator, (what,) = operators[name], random.choice(["", "", "", "lost", "shape", "type", "nan", "more"], 1)
            first = operator["out"][0]
            if what == "lost":
                del operators[name]
            elif what == "more":
                operators[f"Functional.more.{len(operators)}.forward"] = {"in": [first], "out": [first[:1]]}
            elif what == "nan":
                operator["out"] = [np.full_like(first, np.nan)]
            elif what:
                operator["out"] = [first[..., :-1] if what == "shape" else first.astype(np.float16)]
    kind = random.choice(["values", "values", "statistics", "checksums"])
    for side, operators in sides.items():
        write_run(folder / side, operators)
        if kind != "values":
            {"statistics": lambda path: with_statistics(path, alone=True), "checksums": with_checksums}[kind](
                folder / side
            )
        files = [*(folder / side).rglob("*.npy")]
        if kind == "values" and random.random() < 0.4:
            file = files[int(random.integers(len(files)))]
            file.write_bytes(file.read_bytes()[: int(random.integers(1, 130))])
    if random.random() < 0.1:
        next((folder / "golden").rglob("dump.json")).write_text('{"task": ')
    return folder / "target", folder / "golden"


def texts(random, folder):
    """All texts of a comparison, or of the error that ends it, and its exit status."""
    try:
        result = npucmp.compare(*drawn(random, folder))
    except NpucmpError as error:
        return {format: error_text(format, error, "compare") for format in FORMATS}, 2, "error"
    answer = answer_of(result)
    found = {format: content_of(answer, format).decode() for format in FORMATS}
    return found, result.exit_status, "compare"


def test_outcomes_are_of_all_kinds(tmp_path):
    """The pairs above are drawn so that each exit status occurs."""
    got = set()
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, status, schema = texts(np.random.default_rng(seed), folder)
        got.add((status, schema))
    assert got >= {(1, "compare"), (2, "compare"), (2, "error")}


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
