"""Where a dump may lead to: links out of it are not followed. And a file that changes while it is read is told."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from npucmp import Limits, compare, fusion_diff, open_runs, overflow
from npucmp.errors import NpucmpError
from npucmp.model import Verdict
from tests.synthetic import chain, write_run

SAMPLES = Path(__file__).parent.parent / "sample_dumps"
LINKED = ("cann_fusion_pass", "mindspore_layer_norm", "msprobe_bfloat16", "tfdbg_batch_norm", "npy_batch_norm")


@pytest.fixture(params=LINKED)
def linked(request, tmp_path):
    shutil.copytree(SAMPLES / request.param, tmp_path / "d")
    return tmp_path / "d" / "target", tmp_path / "d" / "golden"


def verdicts(report):
    return [(finding.pair.slot, finding.verdict) for finding in report.findings]


def of_file(report, path):
    return [one for one in report.findings if one.pair.target and one.pair.target.file == str(path)]


def moved(path: str | Path, elsewhere: Path) -> None:
    """A file or folder that is somewhere else, with a link where it was."""
    os.rename(path, elsewhere)
    os.symlink(elsewhere, path)


@pytest.mark.few(2)
def test_a_tensor_behind_a_link_out_of_the_dump(linked, tmp_path):
    before = compare(*linked)
    good = [one for one in before.findings if one.verdict is Verdict.MATCH and one.pair.target.file]
    path = good[0].pair.target.file
    moved(path, tmp_path / "elsewhere")
    refused = of_file(compare(*linked), path)
    assert refused and {one.verdict for one in refused} == {Verdict.UNREADABLE}
    assert all("refused: a link that leads out of the dump; --limit links_out=1" in one.because for one in refused)
    assert verdicts(compare(*linked, limits=Limits(links_out=1))) == verdicts(before)


@pytest.mark.few(2)
def test_links_inside_a_dump_and_to_a_dump_are_followed(linked, tmp_path):
    """Also to the other dump, which the user named too."""
    target, golden = linked
    before = compare(target, golden)
    files = [one.pair.target.file for one in before.findings if one.verdict is Verdict.MATCH and one.pair.target.file]
    moved(files[0], target / "blob")
    moved(files[-1], golden / "blob")
    (tmp_path / "alias").symlink_to(target)
    (tmp_path / "above").symlink_to(tmp_path)
    for path in (target, tmp_path / "alias", tmp_path / "above" / "alias"):
        assert verdicts(compare(path, golden)) == verdicts(before)


def test_a_linked_tensor_folder(tmp_path):
    for side in ("target", "golden"):
        write_run(tmp_path / side, chain())
    before = verdicts(compare(tmp_path / "target", tmp_path / "golden"))
    moved(next((tmp_path / "target").rglob("dump_tensor_data")), tmp_path / "elsewhere")
    after = compare(tmp_path / "target", tmp_path / "golden")
    assert {one.verdict for one in after.findings} == {Verdict.UNREADABLE}
    assert verdicts(compare(tmp_path / "target", tmp_path / "golden", limits=Limits(links_out=1))) == before


def test_linked_hdf5_files(tmp_path, monkeypatch):
    from tests.dump.formats.test_hdf5 import damaged_base

    (tmp_path / "d").mkdir()
    damaged_base(tmp_path / "d" / "rank0.h5")
    damaged_base(tmp_path / "d" / "rank1.h5")
    moved(tmp_path / "d" / "rank1.h5", tmp_path / "x.h5")
    runs = open_runs(tmp_path / "d")
    assert [bool(run.problem) for run in runs] == [False, True] and "leads out of the dump" in runs[1].problem
    (tmp_path / "link.h5").symlink_to(tmp_path / "x.h5")
    (linked,), (plain,) = open_runs(tmp_path / "link.h5"), open_runs(tmp_path / "x.h5")
    assert [one.name for one in linked.operators] == [one.name for one in plain.operators] != []


SECRET = "root:x:0:0:TOP-SECRET {[<"


def odd_files(target: Path) -> list[Path]:
    """A file of each kind of a dump, and names that are looked for in it and beside it."""
    found = [file for file in sorted(target.rglob("*")) if file.is_file()]
    kinds, folder = {re.sub("[0-9]+", "", file.suffix): file for file in found}, found[-1].parent
    files = [*kinds.values(), *(folder / name for name in ("mapping.csv", "statistic.csv", "stack.json"))]
    return [
        *files,
        target / "ge_proto_1_Build.txt",
        target.parent / "graph.pbtxt",
        target.parent / "fusion_result.json",
    ]


def each_as(files, make):
    """Each file in turn as something else."""
    for file in files:
        kept = file.read_bytes() if file.exists() else None
        file.unlink(missing_ok=True)
        make(file)
        yield file
        file.unlink()
        if kept is not None:
            file.write_bytes(kept)


def told(call, *paths):
    """All that a result holds, or the error."""
    try:
        return str(call(*paths, jobs=1))
    except NpucmpError as error:
        return str(error)


@pytest.mark.few(1)
def test_what_a_link_leads_to_is_never_shown(linked, tmp_path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    for file in each_as(odd_files(linked[0]), lambda file: file.symlink_to(tmp_path / "secret")):
        texts = [
            told(compare, *linked),
            told(fusion_diff, *linked) if "cann" in str(linked) else told(overflow, linked[0]),
        ]
        assert not [text for text in texts if "SECRET" in text or "root:x" in text], file


@pytest.mark.few(1)
def test_a_fifo_keeps_nobody_waiting(linked):
    before = compare(*linked)
    with deadline(60):
        for file in each_as(odd_files(linked[0]), os.mkfifo):
            text = told(compare, *linked)
            assert file.suffix not in (".npy", ".pt") or "a FIFO, not a file" in text
    assert verdicts(compare(*linked)) == verdicts(before)


@contextmanager
def deadline(seconds):
    """A call that waits for ever fails."""

    def late(*_):
        raise AssertionError("still waiting")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.few(2)
def test_folders_that_lead_in_circles(linked):
    target, golden = linked
    before = compare(target, golden)
    inner = next(file for file in target.rglob("*") if file.is_file()).parent
    for folder in {target, inner}:
        (folder / "loop").symlink_to(target)
        (folder / "to").symlink_to("fro")
        (folder / "fro").symlink_to("to")
    with deadline(60):
        assert verdicts(compare(target, golden)) == verdicts(before)


def test_many_files_that_are_no_tensors(tmp_path):
    """Recognising a dump looks at a part of the names, whatever a folder holds; nothing of the rest is kept."""
    for at in range(6000):
        os.close(os.open(tmp_path / f"note{at}.txt", os.O_CREAT | os.O_WRONLY))
    started = time.process_time()
    with pytest.raises(NpucmpError, match="no dump is recognised"):
        open_runs(tmp_path)
    assert time.process_time() - started < 3


def test_memory_of_many_tensors(tmp_path):
    """What is kept of each is a few facts: it grows with their number, not with anything else."""
    for at in range(1000):
        np.save(tmp_path / f"op{at}.0.17952545{at:08}.npy", np.ones(2000, np.float32))
    open_runs(tmp_path)  # what is loaded once
    assert len(open_runs(tmp_path)[0].operators) == 1000
    assert min(_peak(tmp_path) for _ in range(3)) < 1000 * 3000  # others may allocate meanwhile


def _peak(folder):
    tracemalloc.start()
    try:
        open_runs(folder)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- files that change


@pytest.mark.parametrize("side", ["target", "golden"])
@pytest.mark.parametrize("how", ["grows", "is overwritten", "shrinks"])
def test_a_file_that_changes_while_it_is_measured(tmp_path, monkeypatch, side, how):
    """Large enough to be read in several pieces; after the first piece of it, somebody writes."""
    for name in ("target", "golden"):
        write_run(
            tmp_path / name, {"X.0.forward": {"in": [np.ones(3, np.float32)], "out": [np.ones(1 << 20, np.float32)]}}
        )
    file = next((tmp_path / side).rglob("*output*.npy"))
    real, written = os.preadv, []

    def reading(fd, room, offset):
        got = real(fd, room, offset)
        if not written and os.path.samestat(os.fstat(fd), os.stat(file)):
            written.append(how)
            with open(file, "r+b") as stream:
                if how == "shrinks":
                    stream.truncate(1000)
                else:
                    stream.seek(0, 2 if how == "grows" else 0)
                    stream.write(b"\x93NUMPY")
            os.utime(file, ns=(1, 1))
        return got

    monkeypatch.setattr(os, "preadv", reading)
    report = compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    assert written
    words = "became shorter while it was read" if how == "shrinks" else f"{side}: changed while it was read"
    (row,) = [one for one in report.findings if one.pair.slot.startswith("output")]
    assert row.verdict is Verdict.UNREADABLE and words in row.because
    monkeypatch.undo()
    report = compare(tmp_path / "target", tmp_path / "golden", jobs=1)
    (row,) = [one for one in report.findings if one.pair.slot.startswith("output")]
    assert row.verdict is (Verdict.MATCH if how == "is overwritten" else Verdict.UNREADABLE)
