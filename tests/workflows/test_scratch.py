"""Nothing is unpickled that this run did not write, and a task may be done twice."""

import os
import pickle

import pytest

from npucmp.errors import DumpError
from npucmp.workflows import scratch
from npucmp.workflows.scratch import Scratch, ScratchFolder


class Trap:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def laid(folder, thing, number=3):
    """The store of whoever gives tasks, and the file that a task laid down."""
    store = Scratch(folder.path)
    task = store.about([number])
    task.put(number, "judged", thing)
    store.learn(task.made)
    return store, os.path.join(folder.path, task.made[number]["judged"])


@pytest.mark.parametrize("hostile", ["another", "longer", "link"])
def test_a_file_that_another_wrote_is_not_unpickled(tmp_path, hostile):
    folder = ScratchFolder(tmp_path)
    store, file = laid(folder, "ours")
    trap = pickle.dumps(Trap(tmp_path / "mark"))
    (tmp_path / "trap").write_bytes(trap)
    if hostile == "link":
        os.unlink(file)
        os.symlink(tmp_path / "trap", file)
    else:
        with open(file, "wb" if hostile == "another" else "ab") as out:
            out.write(trap)
    with pytest.raises(DumpError, match="was changed by another program"):
        store.get(3, "judged")
    assert not (tmp_path / "mark").exists()


def test_a_task_done_late_takes_no_place():
    folder = ScratchFolder()
    store, file = laid(folder, "first")
    late, now = store.about([3]), store.about([3])
    now.put(3, "judged", "second")
    store.learn(now.made)
    late.put(3, "judged", "of a worker that was given up")
    assert store.get(3, "judged") == "second" and not os.path.exists(file)


def test_where_nothing_can_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match="file: cannot be written"):
        ScratchFolder(tmp_path / "file")


def made_by(child, place):
    """The folder that a process made which does `child` with it and then ends as if it were killed."""
    if not (process := os.fork()):
        try:
            folder = ScratchFolder(place)
            child(folder)
        finally:
            os._exit(9)
    return process


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/pid"), reason="a system that does not tell whose a process is")
def test_what_a_killed_process_of_this_machine_left_goes_at_once(tmp_path, monkeypatch):
    os.waitpid(made_by(lambda folder: laid(folder, "left"), tmp_path), 0)
    (left,) = tmp_path.iterdir()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(scratch, "_machine", lambda: "f" * 16)
        ScratchFolder(tmp_path).remove()
    assert [*tmp_path.iterdir()] == [left]  # it may be at work there
    monkeypatch.setattr(os, "getuid", lambda: -1)
    ScratchFolder(tmp_path).remove()
    assert [*tmp_path.iterdir()] == [left]  # another user's
    monkeypatch.undo()
    ScratchFolder(tmp_path).remove()
    assert not [*tmp_path.iterdir()]
