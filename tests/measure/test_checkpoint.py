"""The checkpoint of a comparison: the measurements that a later run reads back, and those that it does not."""

import errno
import os
import zlib

import numpy as np
import pytest

from npucmp.errors import DumpError
from npucmp.measure.checkpoint import FILE, Checkpoint
from npucmp.measure.pairs import measure
from npucmp.model import Measurement
from tests.measure.craft import paired, stored

X = np.arange(6, dtype=np.float32)


@pytest.fixture
def rows(tmp_path):
    """Four measurements, of values and of a problem."""
    x, y = stored(tmp_path, X), stored(tmp_path, X * 2)
    found = [measure(paired(x, y, f"add.{at}")) for at in range(3)]
    return [*found, Measurement(paired(x, y, "add.3"), problem="target: damaged")]


def pairs_of(rows):
    return [one.pair for one in rows]


def written(folder, rows, settings="a", count=None, **more):
    with Checkpoint(folder, pairs_of(rows), settings, False, **more) as one:
        for row in rows[:count]:
            one.add(row)
            one.flush()
    return folder / FILE


def known(folder, rows, settings="a", **more):
    with Checkpoint(folder, pairs_of(rows), settings, True, **more) as one:
        return one.known, one.note


CHANGED = "dumps or options have changed"


def test_a_later_run_appends_what_it_measures(tmp_path, rows):
    written(tmp_path, rows, count=2)
    with Checkpoint(tmp_path, pairs_of(rows), "a", True) as one:
        for row in rows[len(one.known) :]:
            one.add(row)
    assert known(tmp_path, rows) == (rows, "")
    assert known(tmp_path, rows[:3]) == ([], f"--resume: {CHANGED} since the interrupted run, so all was measured")


def with_block(file, data):
    file.write_bytes(file.read_bytes() + b"%08x %d\n" % (zlib.crc32(data), len(data)) + data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"odd\n",
        b"0 0\n",
        b"0 0 -1\n",
        b"0 0 2\n{}",
        b"0 0 3\n[1]",
        b"0 0 3\n[",
        b"0 0 2\n[]more",
        b"1 0 2\n[]",
        b"0 0 2\n[] ",
        b"0 0 1\n[]",
        b"-1 0 2\n[]",
        b'0 0 4 \n[""]more',
    ],
)
def test_a_block_that_holds_no_rows_ends_the_checkpoint(tmp_path, rows, data):
    file = written(tmp_path, rows, count=2)
    size = file.stat().st_size
    with_block(file, data)
    assert known(tmp_path, rows) == (rows[:2], "")
    assert file.stat().st_size == size
    with_block(file, b"0 0 2\n[]")
    assert known(tmp_path, rows) == (rows[:2], "") and file.stat().st_size > size


def test_an_interrupted_run_writes_what_it_measured(tmp_path, rows):
    with pytest.raises(KeyboardInterrupt), Checkpoint(tmp_path, pairs_of(rows), "a", False) as one:
        one.add(rows[0])
        raise KeyboardInterrupt
    assert known(tmp_path, rows)[0] == rows[:1]


def test_a_full_disk_ends_the_checkpoint_alone(tmp_path, rows, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with Checkpoint(tmp_path, pairs_of(rows), "a", False) as one:
        one.add(rows[0])
        monkeypatch.setattr(os, "write", full)
        one.flush()
        assert "was not written (No space left on device): --resume will lack a part" in one.note
        monkeypatch.undo()
        one.add(rows[1])
        one.flush()
    assert known(tmp_path, rows)[0] == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, rows):
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match=r"cannot be written: (Not a directory|File exists)") as caught:
        written(tmp_path / "file", rows)
    assert str(caught.value.path) == str(tmp_path / "file")
    (tmp_path / FILE).symlink_to(tmp_path / "file")
    with pytest.raises(DumpError, match="cannot be written"):  # no link is followed
        written(tmp_path, rows)


def test_a_file_that_cannot_be_shortened_is_an_error(tmp_path, rows, monkeypatch):
    def refused(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", refused)
    with pytest.raises(DumpError, match="cannot be written: Input/output error") as caught:
        written(tmp_path, rows)
    assert caught.value.path == str(tmp_path / FILE)
