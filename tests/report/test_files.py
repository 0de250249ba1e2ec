"""What stays and what goes where a report is written over another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from npucmp.cli import npucmp
from npucmp.report import files

SAMPLES = Path(__file__).parent.parent.parent / "sample_dumps"
RUNS = [str(SAMPLES / "rerun_scatter" / f"run{number}") for number in (1, 2)]


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """The page takes longest, and is a file like others."""
    monkeypatch.setattr("npucmp.report.REPORTS", ("csv", "json"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_of_an_earlier_command_go(tmp_path):
    """Those that its summary.json lists; what the user put beside them stays."""
    runner = CliRunner()
    runner.invoke(npucmp, ["rerun-diff", *RUNS, "-q", "-o", str(tmp_path)])
    assert {"rerun.csv", "noise.csv"} <= {*names(tmp_path)}
    (tmp_path / "mine.csv").write_text("mine")
    runner.invoke(npucmp, ["compare", *RUNS, "-q", "-o", str(tmp_path)])
    listed = json.loads((tmp_path / "summary.json").read_text())["files"]
    assert names(tmp_path) == sorted([*listed, "mine.csv"]) and "rerun.csv" not in listed


def test_a_summary_cannot_have_other_files_removed(tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    kept = ["dump.json", "thesis.csv", ".bashrc"]
    for path in (tmp_path / "out.csv", folder / "rerun.csv", *(folder / name for name in kept)):
        path.write_text("")
    names_of = [*kept, "../out.csv", str(tmp_path / "out.csv"), "sub/roots.csv", "\0", 7, None, "rerun.csv"]
    (folder / "summary.json").write_text(json.dumps({"npucmp": "0.1.0", "files": names_of}))
    files.write(folder, {"summary.json": b"{}"})
    assert names(folder) == sorted([*kept, "summary.json"]) and (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"files": ["rerun.csv"]}', '{"npucmp": 1, "files": 3}', "[" * 10**5])
def test_a_summary_of_somebody_else_lists_nothing(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    assert files.listed_files(tmp_path) == []


COMMANDS = {
    "compare": ["msprobe_softmax/target", "msprobe_softmax/golden"],
    "check": ["msprobe_softmax/target"],
    "overflow": ["msprobe_softmax/target"],
    "fusion-diff": ["cann_fusion_pass/target", "cann_fusion_pass/golden"],
    "precheck": ["msprobe_softmax/target", "msprobe_softmax/golden"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_file_of_a_report_may_be_removed_with_it(tmp_path, command):
    dumps = [str(SAMPLES / dump) for dump in COMMANDS[command]]
    got = CliRunner().invoke(npucmp, [command, *dumps, "-q", "-o", str(tmp_path)])
    assert (tmp_path / files.LAST).exists(), got.output
    assert not [name for name in names(tmp_path) if name != files.LAST and not files.OURS.fullmatch(name)]
