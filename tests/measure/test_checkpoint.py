"""The checkpoint of a comparison: the measurements that a later run reads back, and those that it does not."""

import errno
import os
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from npucmp.errors import DumpError
from npucmp.measure import checkpoint
from npucmp.measure.checkpoint import FILE, Checkpoint, remove
from npucmp.measure.pairs import measure
from npucmp.model import Measurement
from npucmp.model.table import ROW
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


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_a_later_run_knows_the_first_measurements(tmp_path, rows, count):
    folder = tmp_path / "out" / "deep"
    written(folder, rows, count=count)
    found, note = known(folder, rows)
    assert found == rows[:count] and note == ""
    assert known(folder, rows)[0] == rows[:count]  # reading changes nothing


def test_a_later_run_appends_what_it_measures(tmp_path, rows):
    written(tmp_path, rows, count=2)
    with Checkpoint(tmp_path, pairs_of(rows), "a", True) as one:
        for row in rows[len(one.known) :]:
            one.add(row)
    assert known(tmp_path, rows) == (rows, "")
    assert known(tmp_path, rows[:3]) == ([], f"--resume: {CHANGED} since the interrupted run, so all was measured")


def test_a_run_without_resume_begins_anew(tmp_path, rows):
    written(tmp_path, rows)
    written(tmp_path, rows, count=1)
    assert known(tmp_path, rows) == (rows[:1], "")


@pytest.mark.parametrize("change", ["settings", "size", "time", "operator", "shape", "order", "fewer", "gone"])
def test_another_comparison_knows_nothing(tmp_path, rows, change):
    written(tmp_path, rows)
    pair, settings, others = rows[1].pair, "a", pairs_of(rows)
    if change == "settings":
        settings = "b"
    elif change == "size":
        np.save(pair.target.file, X[:5])
    elif change == "time":
        os.utime(pair.golden.file, (1, 1))
    elif change == "gone":
        os.unlink(pair.golden.file)
    elif change == "operator":
        others[1] = pair._replace(golden_op=pair.golden_op._replace(name="other"))
    elif change == "shape":
        others[1] = pair._replace(target=pair.target._replace(shape=(2, 3)))
    elif change == "order":
        others[1] = pair._replace(order=7)
    else:
        others.pop()
    with Checkpoint(tmp_path, others, settings, True) as one:
        assert one.known == [] and CHANGED in one.note
    assert (tmp_path / FILE).stat().st_size == 0  # nothing of the other comparison is left


def test_without_an_earlier_file_nothing_has_changed(tmp_path, rows):
    assert known(tmp_path, rows) == ([], "")
    (tmp_path / FILE).write_bytes(b"odd")
    assert CHANGED in known(tmp_path, rows)[1]


def test_each_part_has_a_file_of_its_own_and_all_are_removed(tmp_path, rows):
    written(tmp_path, rows, part="rank1")
    written(tmp_path, rows, count=1)
    assert known(tmp_path, rows, part="rank1")[0] == rows and known(tmp_path, rows)[0] == rows[:1]
    (tmp_path / "other").write_text("")
    remove(tmp_path)
    assert not [*tmp_path.glob(f"{FILE}*")] and (tmp_path / "other").exists()
    remove(tmp_path)


def lines_of(data):
    """The blocks of a file: the place where each begins."""
    places, at = [], 0
    while at < len(data):
        places.append(at)
        head = data[at:].split(b"\n")[0]
        at += len(head) + 1 + int(head.split()[1])
    return places


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("damage", ["cut", "flipped", "flipped inside", "length"])
def test_a_damaged_block_ends_the_checkpoint(tmp_path, rows, block, damage):
    file = written(tmp_path, rows)
    data = bytearray(file.read_bytes())
    places = [*lines_of(data), len(data)]
    assert len(places) == 6
    if damage == "cut":
        del data[places[block + 1] - 1 :]
    elif damage == "flipped":
        data[places[block + 1] - 1] ^= 1
    elif damage == "flipped inside":  # a number of the first column, so that the block remains one of rows
        data[data.index(b"\n", data.index(b"\n", places[block]) + 1) + 1] ^= 1
    else:
        data[places[block] + 9 : places[block] + 9] = b"9" * 70
    file.write_bytes(data)
    found, note = known(tmp_path, rows)
    assert found == rows[: block - 1] and note == ""
    with Checkpoint(tmp_path, pairs_of(rows), "a", True) as one:  # continues before the damage
        for row in rows[len(one.known) :]:
            one.add(row)
    assert known(tmp_path, rows)[0] == rows


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


def test_more_rows_than_pairs_are_not_of_this_comparison(tmp_path, rows):
    file = written(tmp_path, rows)
    data = file.read_bytes()
    file.write_bytes(data + data[lines_of(data)[-1] :])
    assert known(tmp_path, rows)[0] == rows and file.stat().st_size == len(data)


@pytest.mark.parametrize("seconds, on_disk", [(0.0, True), (1e9, False)])
def test_a_short_run_writes_nothing(tmp_path, rows, monkeypatch, seconds, on_disk):
    monkeypatch.setattr(checkpoint, "EVERY", seconds)
    with Checkpoint(tmp_path, pairs_of(rows), "a", False) as one:
        one.add(rows[0])
        assert ((tmp_path / FILE).stat().st_size > 0) is on_disk
        one.add(rows[1])
    assert known(tmp_path, rows)[0] == (rows[:2] if on_disk else [])  # a file that was started is completed


def test_rows_wait_from_the_last_write_on(tmp_path, rows, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sizes = []
    with Checkpoint(tmp_path, pairs_of(rows), "a", False) as one:
        for row, now[0] in zip(rows, (4.9, 5.0, 9.9, 10.0)):
            one.add(row)
            sizes.append((tmp_path / FILE).stat().st_size)
    assert sizes[0] == 0 < sizes[1] == sizes[2] < sizes[3]


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


def test_a_disk_may_take_a_part_at_a_time(tmp_path, rows, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:1000]))
    written(tmp_path, rows)
    monkeypatch.undo()
    assert known(tmp_path, rows)[0] == rows


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, rows):
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match=r"cannot be written: (Not a directory|File exists)") as caught:
        written(tmp_path / "file", rows)
    assert str(caught.value.path) == str(tmp_path / "file")
    (tmp_path / FILE).symlink_to(tmp_path / "file")
    with pytest.raises(DumpError, match="cannot be written"):  # no link is followed
        written(tmp_path, rows)


def changed_row(data, **change):
    """A block whose one row has other numbers."""
    head, _, rest = data.partition(b"\n")
    row = np.frombuffer(rest, ROW, 1).copy()
    for name, value in change.items():
        row[name] = value
    return head + b"\n" + row.tobytes() + rest[ROW.itemsize :]


@pytest.mark.parametrize(
    "change, is_valid",
    [
        ({}, True),
        ({"moments": -1}, True),  # a row without moments
        ({"moments": -2}, False),
        ({"moments": 1}, False),
        ({"problem": -1}, False),
        ({"problem": 9}, False),
        ({"unlike": -1}, False),
        ({"unlike": 9}, False),
    ],
)
def test_numbers_of_a_row_name_its_moments_and_texts(tmp_path, rows, change, is_valid):
    file = written(tmp_path, rows, count=2)
    data = file.read_bytes()
    last = data[lines_of(data)[-1] :].partition(b"\n")[2]
    with_block(file, changed_row(last, **change))
    assert len(known(tmp_path, rows)[0]) == 2 + is_valid


@pytest.mark.parametrize("side", ["target", "golden"])
def test_a_tensor_of_one_run_is_known_too(tmp_path, side):
    one = stored(tmp_path, X)
    pair = paired(one, None) if side == "target" else paired(None, one)
    pair = pair._replace(**{"golden_op" if side == "target" else "target_op": None})
    written(tmp_path, [measure(pair)])
    assert repr(known(tmp_path, [measure(pair)])) == repr(([measure(pair)], ""))  # NaN is equal to nothing
    np.save(one.file, X[:5])
    assert CHANGED in known(tmp_path, [Measurement(pair)])[1]


def test_the_file_is_written_by_its_owner_and_executed_by_no_one(tmp_path, rows):
    mask = os.umask(0)
    try:
        file = written(tmp_path, rows, count=1)
    finally:
        os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_file_that_cannot_be_shortened_is_an_error(tmp_path, rows, monkeypatch):
    def refused(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "ftruncate", refused)
    with pytest.raises(DumpError, match="cannot be written: Input/output error") as caught:
        written(tmp_path, rows)
    assert caught.value.path == str(tmp_path / FILE)


def test_a_checkpoint_leaves_no_file_open(tmp_path, rows, monkeypatch):
    opened, open_file = [], os.open
    monkeypatch.setattr(os, "open", lambda *given: opened.append(open_file(*given)) or opened[-1])
    written(tmp_path, rows)
    monkeypatch.undo()
    assert len(opened) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
