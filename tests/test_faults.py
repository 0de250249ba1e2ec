"""What fails around us: disks that are full, folders that cannot be written, calls that fail once.

As SQLite tests itself: the first call fails, then the second, and so on until none is left to fail.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import npucmp
from npucmp import cli, write_reports
from npucmp.errors import DumpError, SystemFailure, read_error
from npucmp.measure.checkpoint import FILE
from npucmp.workflows import compare as recipe
from npucmp.workflows import rank_tasks
from tests.synthetic import chain, write_run
from tests.test_resume import content

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
WRITING = ("open", "write", "fsync", "replace", "ftruncate", "chmod", "mkdir", "lstat")
READING = ("open", "fstat", "pread")


class Nth:
    """Lets the nth call that concerns a folder fail; `told` says which it was."""

    def __init__(self, monkeypatch, folder, names, nth, code):
        self.told, self.path, self._count, self._nth, self._code = "", "", 0, nth, code
        self._folder, self._ours = os.fspath(folder), {}
        for name in names:
            monkeypatch.setattr(os, name, self._failing(name, getattr(os, name)))

    def _failing(self, name, function):
        def call(first, *args, **more):
            path = self._ours.get(first, "") if isinstance(first, int) else os.fspath(first)
            if str(path).startswith(self._folder):
                self._count += 1
                if self._count == self._nth:
                    self.told, self.path = name, str(path)
                    raise OSError(self._code, os.strerror(self._code), str(path))
            result = function(first, *args, **more)
            if name == "open":
                self._ours[result] = path
            return result

        return call


@pytest.fixture
def dumps(tmp_path):
    write_run(tmp_path / "target", chain({3: 1.05}))
    write_run(tmp_path / "golden", chain())
    return tmp_path / "target", tmp_path / "golden"


def called(monkeypatch, capsys, *words):
    """Exit status, stdout and stderr of a command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["npucmp", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return (end.value.code, *capsys.readouterr())


@pytest.mark.few(1)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_each_call_of_writing_a_report_fails_once(dumps, tmp_path, code):
    """The old report stays as it was, and nothing is left behind."""
    old, new = (recipe.compare(*pair, jobs=1) for pair in ((dumps[1], dumps[1]), dumps))
    write_reports(old, tmp_path / "out")
    before = content(tmp_path / "out")
    seen = set()
    for nth in range(1, 300):
        with pytest.MonkeyPatch.context() as patch:
            fault = Nth(patch, tmp_path / "out", WRITING, nth, code)
            try:
                write_reports(new, tmp_path / "out")
            except DumpError as error:
                assert os.strerror(code) in str(error) and "\n" not in str(error)
                assert content(tmp_path / "out") == before
                seen.add(fault.told)
            else:
                if not fault.told:
                    break
                assert content(tmp_path / "out") != before  # only the folder itself could not be flushed
                write_reports(old, tmp_path / "out")
        assert [file.name for file in (tmp_path / "out").iterdir() if file.name.startswith(".")] == []
    assert {"write", "fsync", "replace", "open"} <= seen and nth > 15


@pytest.mark.large
def test_each_call_below_the_output_fails_once(dumps, tmp_path, capsys):
    """Journal and report: one line and status 2 with the old report, or the whole new one."""
    out = tmp_path / "out"
    write_reports(recipe.compare(dumps[1], dumps[1]), out)
    before = content(out)
    kinds = set()
    for nth in range(1, 300):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("npucmp.measure.checkpoint.EVERY", 0)
            fault = Nth(patch, out, WRITING, nth, errno.ENOSPC)
            status, shown, errors = called(patch, capsys, "compare", *dumps, "-o", out, "--jobs", 1)
        if not fault.told:
            break
        if status == 2:
            assert shown == "" and errors.count("\n") == 1 and "No space left" in errors
            assert content(out) == before
        else:
            assert status == 1 and errors == ""
            summary = json.loads((out / "summary.json").read_text())
            assert sum(summary["verdicts"].values()) == 18 and not summary["partial"]
            assert fault.told != "write" or [note for note in summary["notes"] if "checkpoint was not written" in note]
            write_reports(recipe.compare(dumps[1], dumps[1]), out)
            before = content(out)
        kinds.add((fault.told, status))
    assert {("open", 2), ("write", 2), ("write", 1), ("replace", 2)} <= kinds
    assert status == 1 and nth > 40


def rows(file):
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.large
def test_each_read_of_a_dump_fails_once(dumps, tmp_path, capsys):
    """One row is unreadable, or the run is: one line and status 2. Nothing else that was measured changes; what an
    operator has to do with its error may, where one of its tensors is not known any more."""

    def measured(folder):
        judged = {"cause", "rule", "explained_by", "explained_limit"}
        return [{name: cell for name, cell in row.items() if name not in judged} for row in rows(folder)]

    with pytest.MonkeyPatch.context() as patch:
        assert called(patch, capsys, "compare", *dumps, "-o", tmp_path / "out", "-q")[0] == 1
    good, worst = measured(tmp_path / "out" / "tensors.csv"), rows(tmp_path / "out" / "worst.csv")
    damaged = 0
    for nth in range(1, 400):
        with pytest.MonkeyPatch.context() as patch:
            fault = Nth(patch, dumps[0], READING, nth, errno.EIO)
            status, _, errors = called(patch, capsys, "compare", *dumps, "-o", tmp_path / "out", "-q", "--jobs", 1)
        if not fault.told:
            break
        if status == 2:
            assert errors.count("\n") <= 1 and "Traceback" not in errors
            continue
        assert status == 1
        apart = [(a, b) for a, b in zip(good, measured(tmp_path / "out" / "tensors.csv")) if a != b]
        assert {b["verdict"] for _, b in apart} <= {"unreadable"}
        damaged += bool(apart)
        if fault.path.endswith(".npy"):
            notes = json.loads((tmp_path / "out" / "summary.json").read_text())["notes"]
            again = [note for note in notes if "no figures by the vendor's rules of" in note]  # a second reading
            again += [one for one in worst if one not in rows(tmp_path / "out" / "worst.csv")]  # a look costs its rows
            assert apart or again, f"{fault.told} of {fault.path} failed, and nobody noticed"
    assert damaged > 30 and nth > 35


@pytest.mark.large
def test_each_read_of_a_repeated_run_fails_once(dumps, tmp_path, capsys):
    """Places and patterns are looked for after measuring, in a second reading: that may fail too, and costs a hint."""
    for nth in range(1, 400):
        with pytest.MonkeyPatch.context() as patch:
            fault = Nth(patch, dumps[0], READING, nth, errno.EIO)
            status, _, errors = called(patch, capsys, "rerun-diff", *dumps[::-1], "--jobs", 1)
        if not fault.told:
            break
        assert "Traceback" not in errors and errors.count("\n") <= 1
        assert status == 1 or (status == 2 and not fault.path.endswith(".npy")), (nth, fault.told, fault.path, errors)
    assert nth > 35


def test_a_bad_sector_costs_one_row(dumps, tmp_path, monkeypatch, capsys):
    bad = next(dumps[0].rglob("*linear.1*output.0.npy"))
    real_open, real_pread, fds = os.open, os.pread, set()

    def opening(path, *args, **more):
        fd = real_open(path, *args, **more)
        (fds.add if os.fspath(path) == str(bad) else fds.discard)(fd)
        return fd

    def reading(fd, length, offset):
        if fd in fds:
            raise OSError(errno.EIO, "Input/output error")
        return real_pread(fd, length, offset)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "pread", reading)
    status, _, errors = called(monkeypatch, capsys, "compare", *dumps, "-o", tmp_path / "out", "-q")
    assert (status, errors) == (1, "")
    found = [row for row in rows(tmp_path / "out" / "tensors.csv") if row["verdict"] == "unreadable"]
    assert [(row["op"], row["slot"]) for row in found] == [("Functional.linear.1.forward", "output:0")]
    assert "Input/output error" in found[0]["because"]


def shell(command, **more):
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, **more)


@pytest.fixture(scope="module")
def compiled():
    """The modules of npucmp are compiled, so that `python -B` has only to load them."""
    pair = [str(SAMPLES / "msprobe_clean" / side) for side in ("target", "golden")]
    subprocess.run([sys.executable, "-m", "npucmp", "compare", *pair], capture_output=True, check=True, timeout=120)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [0, 100, 1000, 4000, 8000])
def test_files_may_not_grow(compiled, dumps, tmp_path, size):
    """As on a full disk, by the system itself (RLIMIT_FSIZE)."""
    write_reports(recipe.compare(dumps[1], dumps[1]), tmp_path / "out")
    before = content(tmp_path / "out")
    # -B: importlib may take a .pyc that the limit cut short for a whole one; later imports of it fail
    words = [sys.executable, "-B", "-m", "npucmp", "compare", *map(str, dumps), "-o", str(tmp_path / "out")]
    got = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert got.returncode == 2 and got.stdout == ""
    assert got.stderr.count("\n") == 1 and "File too large" in got.stderr
    assert content(tmp_path / "out") == before
    assert not [file for file in (tmp_path / "out").iterdir() if file.suffix == ".tmp"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="needs /proc")
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(dumps, monkeypatch, capsys):
    monkeypatch.setattr(rank_tasks, "measure_pairs", lambda *_: pytest.fail("measured"))
    status, shown, errors = called(monkeypatch, capsys, "compare", *dumps, "-o", "/proc/self/fdinfo")
    assert (status, shown) == (2, "")
    assert errors.count("\n") == 1 and "/proc/self/fdinfo: cannot be written" in errors


CHANGING = ("write", "replace", "rename", "unlink", "remove", "ftruncate", "truncate", "chmod", "mkdir", "rmdir")
COMMANDS = ("compare {0} {1}", "fusion-diff {0} {1}", "rerun-diff {0} {1}", "overflow {0}")


def forbid(monkeypatch, folder, code):
    """Whatever would change something below the folder fails, as on a disk that may only be read."""

    def refusing(function, changes):
        def call(first, *args, **more):
            if not isinstance(first, int) and os.fspath(first).startswith(os.fspath(folder)) and changes(*args):
                raise OSError(code, os.strerror(code), os.fspath(first))
            return function(first, *args, **more)

        return call

    for name in CHANGING:
        monkeypatch.setattr(os, name, refusing(getattr(os, name), lambda *_: True))
    monkeypatch.setattr(os, "open", refusing(os.open, lambda flags, *_: flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words.split()[0])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("exists", [True, False])
def test_a_disk_that_may_only_be_read(dumps, tmp_path, monkeypatch, capsys, command, code, exists):
    """One line and status 2; the old report stays."""
    words = command.format(*dumps).split()
    out = tmp_path / "out"
    if exists:
        assert called(monkeypatch, capsys, *words, "-o", out)[0] in (0, 1)
    before = content(out)
    assert bool(before) is exists
    forbid(monkeypatch, out, code)
    status, shown, errors = called(monkeypatch, capsys, *words, "-o", out)
    assert (status, shown) == (2, "")
    assert errors.count("\n") == 1 and os.strerror(code) in errors
    assert content(out) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words.split()[0])
def test_a_read_only_folder(dumps, tmp_path, monkeypatch, capsys, command):
    (tmp_path / "out").mkdir(mode=0o500)
    status, shown, errors = called(monkeypatch, capsys, *command.format(*dumps).split(), "-o", tmp_path / "out")
    assert (status, shown) == (2, "") and errors.count("\n") == 1 and "Permission denied" in errors


def test_something_is_in_the_way(dumps, tmp_path, monkeypatch, capsys):
    """A folder where a file of the report should be: it stays, and the old report too."""
    write_reports(recipe.compare(dumps[1], dumps[1]), tmp_path / "out")
    (tmp_path / "out" / "tensors.csv").unlink()
    (tmp_path / "out" / "tensors.csv").mkdir()
    (tmp_path / "out" / "tensors.csv" / "mine").write_text("x")
    summary = (tmp_path / "out" / "summary.json").read_bytes()
    status, _, errors = called(monkeypatch, capsys, "compare", *dumps, "-o", tmp_path / "out")
    assert status == 2 and errors.count("\n") == 1
    assert (tmp_path / "out" / "tensors.csv" / "mine").read_text() == "x"
    assert (tmp_path / "out" / "summary.json").read_bytes() == summary
    assert [*(tmp_path / "out").glob(f"{FILE}*")]  # nothing has to be measured again


@pytest.mark.few(2)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["compare {0} {1}", "show {0}", "overflow {0}", "formats", "compare --help"])
def test_a_full_disk_under_the_terminal_output(dumps, command):
    got = shell(f"{sys.executable} -m npucmp {command.format(*dumps)} > /dev/full")
    assert got.returncode == 2
    assert got.stderr.count("\n") == 1 and "No space left" in got.stderr


def test_a_reader_of_the_output_that_goes_away(dumps):
    """Neither 0 nor 1: nobody has seen whether the dumps differ."""
    command = f"{sys.executable} -m npucmp compare {dumps[1]} {dumps[1]} | true; exit ${{PIPESTATUS[0]}}"
    got = shell(command, executable="/bin/bash")
    assert (got.returncode, got.stderr) == (141, "")


def test_leftovers_of_killed_runs_are_cleared_after_an_hour(dumps, tmp_path):
    report = recipe.compare(*dumps)
    write_reports(report, tmp_path / "out")
    for name, age in (("old", 4000), ("new", 10)):
        file = tmp_path / "out" / f".npucmp-{name}.tmp"
        file.write_text("x")
        os.utime(file, (file.stat().st_mtime - age,) * 2)
    write_reports(report, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir() if file.name.startswith(".")] == [".npucmp-new.tmp"]


@pytest.mark.parametrize("closed", [["target", "golden"], ["target"], ["golden"]])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_folder_that_cannot_be_listed_is_a_run_that_is_missed(tmp_path, monkeypatch, capsys, closed, at_once):
    """The fault lies in the step behind it, and of what is left every tensor agrees."""
    for side, fault in (("target", {2: 1.5}), ("golden", {})):
        for step in (0, 1):
            for rank in (0, 1):
                write_run(tmp_path / side, chain(fault if step else ()), step, rank)
    listing, folders = os.scandir, {str(tmp_path / side / "step1") for side in closed}

    def scandir(folder="."):
        if not isinstance(folder, int) and os.fspath(folder) in folders:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(folder))
        return listing(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    if not at_once:
        monkeypatch.setattr("npucmp.workflows.task_choice.SMALL", 0)
    sides = tmp_path / "target", tmp_path / "golden"
    status, out, _ = called(monkeypatch, capsys, "compare", *sides, "--jobs", "1")
    assert status == 2 and "could not be read, the others agree" in out.splitlines()[-1]
    for side in closed:
        assert f"unreadable {side}: {tmp_path / side / 'step1' / 'dump.json'}" in out


@pytest.mark.parametrize(
    "sample, closed, is_missed",
    [
        ("mindspore_layer_norm/golden", "rank_1", True),
        ("cann_clean/target", "20261121093000/1", True),
        ("npy_batch_norm/golden", "rank1", True),
        ("npy_batch_norm/golden", "lost+found", False),  # of such a folder nothing is read
    ],
)
def test_a_folder_that_cannot_be_listed_is_missed_where_it_is_read(
    tmp_path, monkeypatch, capsys, sample, closed, is_missed
):
    shutil.copytree(SAMPLES / sample, tmp_path / "dump")
    (tmp_path / "dump" / closed).mkdir()
    listing, folder = os.scandir, str(tmp_path / "dump" / closed)

    def scandir(path="."):
        if not isinstance(path, int) and os.fspath(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    dump = tmp_path / "dump"
    status, out, _ = called(monkeypatch, capsys, "compare", dump, dump, "--jobs", "1", "--no-precheck")
    assert status == (2 if is_missed else 0)
    assert (f"unreadable target: {folder}: cannot be listed: Permission denied" in out) == is_missed


def test_where_all_folders_are_closed_the_folder_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "dump" / "step0").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("step0"))
    status, _, errors = called(monkeypatch, capsys, "show", tmp_path / "dump")
    assert (status, errors) == (2, f"npucmp: {tmp_path / 'dump' / 'step0'}: cannot be read: permission denied\n")


def cut_sample(folder, sample, *patterns):
    """The report of a sample of which these files are cut, and the paths of the files."""
    shutil.copytree(SAMPLES / sample, folder / sample, copy_function=shutil.copyfile)
    files = [next((folder / sample).glob(pattern)) for pattern in patterns]
    for file in files:
        os.truncate(file, 20)
    sides = folder / sample / "target", folder / sample / "golden"
    return npucmp.compare(*sides, precheck=False, jobs=1), sorted(map(str, files))


def test_each_unreadable_file_of_a_fused_network_has_a_row(tmp_path):
    """The output of a fused operator, and a tensor inside it; an operator that a compiler inserted, whose name belongs
    to another one in the golden."""
    fused = "golden/net_dense_BiasAdd.*", "golden/net_dense_MatMul.*"
    inserted = ("target/*/0/*/1/0/TransData.trans_TransData_5.*",)
    for sample, patterns, status in (("cann_clean", fused, 2), ("cann_fusion_pass", inserted, 1)):
        report, files = cut_sample(tmp_path, sample, *patterns)
        lost = [one.measurement.unreadable.file for one in report.findings if one.verdict.value == "unreadable"]
        assert sorted(lost) == files and report.exit_status == status
        assert not any(one.verdict.value == "shape" for one in report.findings)


def test_an_unreadable_operand_widens_no_limit(tmp_path):
    """Other tensors of the run have bfloat16, whose limit would hide the error of this product."""
    read = "golden/*/*/dump_tensor_data/Tensor.__mul__.1.backward.input.0.pt"
    report, _ = cut_sample(tmp_path, "msprobe_softmax", read)
    rows = {(one.pair.operator.name, one.pair.slot): one.verdict.value for one in report.findings}
    assert rows["Tensor.__mul__.1.backward", "output:0"] == rows["Torch.matmul.2.backward", "output:0"] == "diverged"


@pytest.mark.parametrize("code, ends", [(errno.EIO, True), (errno.EACCES, False)])
def test_a_graph_that_the_system_does_not_let_read_ends_the_run(tmp_path, monkeypatch, code, ends):
    """Without the graph, operators of the same network have no partners. A graph that may not be read is named."""
    error = read_error("graph.txt", "cannot be read", OSError(code, os.strerror(code)))

    def failing(path, context):
        raise error

    monkeypatch.setattr("npucmp.dump.graphs.load_graphs", failing)
    if ends:
        with pytest.raises(SystemFailure, match="Input/output error"):
            cut_sample(tmp_path, "cann_clean")
    else:
        notes = cut_sample(tmp_path, "cann_clean")[0].comparisons[0].target.notes
        assert any("cannot be read: Permission denied" in one for one in notes)


def test_a_module_that_cannot_be_imported_is_one_line(dumps, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "npucmp.workflows.compare", None)
    monkeypatch.delattr("npucmp.workflows.compare")
    status, out, errors = called(monkeypatch, capsys, "compare", *dumps)
    assert (status, out, errors.count("\n")) == (2, "", 1) and "a module cannot be imported" in errors
