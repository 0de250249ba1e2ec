"""What stays and what goes where a report is written over another one."""

from __future__ import annotations

import json
import os
import stat
import tempfile
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


def test_where_a_link_leads_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    for name, wanted in (("plain", "there/file"), ("dangling", "there/new"), ("chain", "there/file")):
        link = tmp_path / name
        link.symlink_to(tmp_path / "plain" if name == "chain" else wanted)
        files.replace_file(link, name.encode())
        assert link.is_symlink() and (tmp_path / wanted).read_text() == name
    assert names(tmp_path / "there") == ["file", "new"]
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError):
        files.replace_file(tmp_path / "round", b"")


def test_a_pipe_is_written_to(tmp_path):
    """As any device, it is never replaced by a file, and no file appears beside it."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for place in (pipe, link):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        files.replace_file(place, b"text")
        assert os.read(reader, 9) == b"text"
        os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and names(tmp_path) == ["link", "pipe"]
    with pytest.raises(OSError):
        files.write(tmp_path, {"pipe": b""})
    assert names(tmp_path) == ["link", "pipe"]


def test_a_descriptor_is_written_to(tmp_path):
    with open(tmp_path / "file", "wb") as file:
        for place in (f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            files.replace_file(Path(place), b"text")
    (tmp_path / "link").symlink_to("/dev/stdout")
    assert [files.temporary_folder(Path(name)) for name in ("/dev/stderr", tmp_path / "link")] == [
        Path(tempfile.gettempdir())
    ] * 2
    assert (tmp_path / "file").read_text() == "texttext" and names(tmp_path) == ["file", "link"]
