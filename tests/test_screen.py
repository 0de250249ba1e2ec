"""How a result is shown where it is asked for: colours, width, JSON, JUnit, and what a shell may complete."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from npucmp.cli import COMMANDS, npucmp
from npucmp.errors import DumpError, UsageError

SAMPLE = Path(__file__).parent.parent / "sample_dumps" / "msprobe_softmax"
SOFTMAX = str(SAMPLE / "target"), str(SAMPLE / "golden")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("words", "environment", "coloured"),
    [
        ([], {}, False),  # not a terminal
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        (["--color", "auto"], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colours(words, environment, coloured):
    unset = {"NO_COLOR": None, "FORCE_COLOR": None}
    got = CliRunner(env={**unset, **environment}).invoke(npucmp, ["compare", *SOFTMAX, *words], color=True)
    assert ("\x1b[1;31mDIVERGED\x1b[0m" in got.stdout) == coloured


def test_a_terminal_is_not_written_beyond(monkeypatch):
    monkeypatch.setattr("npucmp.commands.output.width", lambda: 60)
    shown = CliRunner().invoke(npucmp, ["compare", *SOFTMAX]).stdout
    assert max(len(line) for line in shown.splitlines() if "sample_dumps" not in line) <= 60
    assert f"                 make.py:67  x = x +\n{' ' * 29}torch.matmul(" in shown


def test_json_prints_the_summary_and_nothing_else(tmp_path):
    got = CliRunner().invoke(
        npucmp, ["compare", *SOFTMAX, "--json", "-o", str(tmp_path), "--junit", str(tmp_path / "j.xml")]
    )
    assert got.exit_code == 1
    assert json.loads(got.stdout) == json.loads((tmp_path / "summary.json").read_text())
    assert b"<failure" in (tmp_path / "j.xml").read_bytes()


def test_junit_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match="not written: "):
        npucmp.main(["compare", *SOFTMAX, "-q", "--junit", str(tmp_path / "file" / "j.xml")], standalone_mode=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell):
    got = CliRunner().invoke(npucmp, [], env={"_NPUCMP_COMPLETE": f"{shell}_source"}, prog_name="npucmp")
    assert got.exit_code == 0 and "_NPUCMP_COMPLETE=" in got.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("comp", ["compare"]),
        ("compare sam", ["sam"]),  # a path: the shell looks for it
        ("compare a b -o ", [""]),
        ("compare --junit x", ["x"]),
        ("compare --color n", ["never"]),
        ("compare --bas", ["--baseline"]),
        ("show dump soft", []),
        ("compare --include x", []),
        ("nothing x", []),
    ],
)
def test_a_shell_completes(line, offered):
    words = f"npucmp {line}"
    environment = {"_NPUCMP_COMPLETE": "zsh_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    got = CliRunner().invoke(npucmp, [], env=environment, prog_name="npucmp")
    assert got.stdout.splitlines()[1::3] == offered


def test_a_mistyped_command_is_named():
    got = CliRunner().invoke(npucmp, ["compar", "a", "b"])
    assert got.exit_code == 2 and "No such command 'compar'. Did you mean 'compare'?" in got.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal(command):
    shown = CliRunner().invoke(npucmp, [command, "--help"], terminal_width=80, env={"COLUMNS": "80"}).output
    examples = [line for line in shown.splitlines() if line.startswith("    ") and "npucmp" in line]
    assert not [line for line in shown.splitlines() if len(line) > 80 and line not in examples]


def test_a_report_is_not_written_into_a_dump(tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    with pytest.raises(UsageError, match="the folder is an input; name another folder"):
        npucmp.main(["compare", SOFTMAX[0], str(dump), "-q", "-o", f"{dump}/../dump"], standalone_mode=False)


def test_files_can_be_found(tmp_path, monkeypatch):
    """The page by a path that a shell takes, the others by name, within the width."""
    monkeypatch.setattr("npucmp.commands.output.width", lambda: 80)
    folder = tmp_path / "my report"
    ranks = [str(SAMPLE.parent / "msprobe_two_ranks" / side) for side in ("target", "golden")]
    for words, more in (([], []), (["--parts"], ["tensors-*.csv (4 files)"])):
        shown = CliRunner().invoke(npucmp, ["compare", *ranks, *words, "-o", str(folder)]).stdout
        page, others = re.split(r"files\s+in\s+", shown.partition("\npage:")[2], maxsplit=1)
        assert shlex.split(page) == [str(folder / "report.html")]
        head, names = re.split(r":\s+", others, maxsplit=1)
        assert shlex.split(head) == [str(folder)] and max(map(len, names.splitlines())) <= 80
        found = " ".join(names.split()).split(", ")
        plain = {file.name for file in folder.iterdir() if file.is_file() and not file.name.startswith("tensors-")}
        assert {*found} == (plain - {"report.html"}) | {"shards/ (4 pages)", *more}
