"""Comparisons by the workers of a real Dask cluster on this machine: the reports of one process, byte for byte,
whatever becomes of the workers. tests/measure/test_dask_executor.py has what is asked of workers, and refused."""

import json
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from npucmp import Cluster
from npucmp.cli import npucmp as command
from npucmp.errors import UsageError
from tests.workflows.test_pipeline import MAKERS, files_of, written

pytest.importorskip("distributed", reason="needs the extra: pip install -e '.[dask]'")

DYING = """
import os, signal
from npucmp.workflows import rank_tasks

def dies(name):
    done = getattr(rank_tasks, name)

    def call(*given):
        answer = done(*given)
        try:
            os.close(os.open({marks!r} + name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return answer
        os.kill(os.getpid(), signal.SIGKILL)  # its files are written, nobody hears of them

    setattr(rank_tasks, name, call)

for name in {names!r}:
    dies(name)
"""


class Machines:
    """A scheduler on loopback and its workers, which stand in another folder than the tests."""

    def __init__(self, folder, *workers):
        self.file, self.folder, self.started = folder / "scheduler.json", folder, []
        self.start("scheduler", "--port", "0", "--scheduler-file", self.file)
        while not self.file.exists():
            assert self.started[0].poll() is None
            time.sleep(0.02)
        for more in workers:
            self.start("worker", "--scheduler-file", self.file, "--nthreads", "1", "--no-nanny", *more)

    def start(self, what, *words):
        line = [sys.executable, "-m", "dask", what, "--host", "127.0.0.1", "--no-dashboard", *map(str, words)]
        with open(self.folder / f"log{len(self.started)}", "wb") as log:
            self.started.append(subprocess.Popen(line, cwd=self.folder, stdout=log, stderr=log))

    def wait(self, workers):
        """Until so many are there."""
        import distributed

        with distributed.Client(json.loads(self.file.read_text())["address"], set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)

    def end(self):
        for one in reversed(self.started):
            one.kill()
            one.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    made = Machines(tmp_path_factory.mktemp("machines"), (), ())
    yield made
    made.end()


@pytest.fixture(params=MAKERS)
def dumps(request, tmp_path):
    make, fault = MAKERS[request.param]
    written(tmp_path / "target", make, steps=3, **fault), written(tmp_path / "golden", make, steps=3)
    return tmp_path


def compared(folder, output, *words):
    """Exit status, tables and summary of a report, but for the time, the command and its path; nothing else is left."""
    given = ["compare", str(folder / "target"), str(folder / "golden"), "-o", str(output), *map(str, words)]
    got = CliRunner().invoke(command, given)
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    assert not [name for name in os.listdir(output) if name.startswith(".")]
    files = {name: content for name, content in files_of(output).items() if not name.endswith(".html")}
    told = json.loads(files.pop("summary.json"))
    for one in told["next"]:
        one["command"] = one["command"].replace(str(output), "OUTPUT")
    return got.exit_code, files, {key: told[key] for key in told if key not in ("seconds", "argv")}


def test_the_report_is_that_of_one_process(machines, dumps, monkeypatch):
    known = compared(dumps, dumps / "one", "--jobs", 1)
    assert known[0] == 1
    assert compared(dumps, dumps / "many", "--scheduler", machines.file) == known
    monkeypatch.chdir(dumps)
    relative = type(dumps)(".")
    assert compared(relative, relative / "here", "--scheduler", machines.file) == compared(relative, relative / "alone")


@pytest.mark.parametrize("dumps", ["sum"], indirect=True)
def test_workers_that_are_killed_cost_time_alone(tmp_path, dumps):
    """One dies over what it has just measured, one over a walk; each did all of its task but to say so."""
    marks = str(tmp_path / "mark-")
    preloads = []
    for name in ("measure", "search"):
        preloads.append(tmp_path / f"{name}.py")
        preloads[-1].write_text(DYING.format(marks=marks, names=[name]))
    machines = Machines(tmp_path, *(("--preload", preload) for preload in preloads), ())
    try:
        machines.wait(3)
        known = compared(dumps, dumps / "one", "--jobs", 1)
        assert compared(dumps, dumps / "many", "--scheduler", machines.file) == known
        assert [one.poll() for one in machines.started] == [None, -9, -9, None]
    finally:
        machines.end()
    assert sorted(path.name for path in tmp_path.glob("mark-*")) == ["mark-measure", "mark-search"]


def test_what_a_worker_lacks_is_told(machines, tmp_path, monkeypatch):
    from npucmp.measure import dask_executor

    monkeypatch.setattr(dask_executor, "__version__", "0.0.1")
    with pytest.raises(UsageError, match=r"the worker at tcp://127.0.0.1:\d+ has npucmp .*, this process has 0.0.1"):
        Cluster(str(machines.file), [tmp_path], str(tmp_path / "out"))
    assert not [*(tmp_path / "out").iterdir()]


def test_a_scheduler_that_is_not_there_is_told(tmp_path, monkeypatch):
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}):
        with pytest.raises(UsageError, match=r"^--scheduler tcp://127.0.0.1:1: cannot be reached: .*"):
            Cluster("tcp://127.0.0.1:1", [tmp_path], str(tmp_path / "out"))
        with pytest.raises(UsageError, match=r"^--scheduler tls://127.0.0.1:1: cannot be reached: .*TLS"):
            Cluster("tls://127.0.0.1:1", [tmp_path], str(tmp_path / "out"))
