"""Who executes the work does not change what comes out, and a worker that dies takes nothing with it."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from npucmp.measure import executor
from npucmp.measure.executor import BATCH, MOST_WAITING, TASKS_PER_WORKER, WEIGHT, Processes, Serial, batches, workers

forks = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def lost(item, because):
    return f"{item} lost: {because}"


def light(item):
    return 0


def square(item):
    return item * item


def no_children():
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    return True


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize("weight", [None, light, lambda item: item % 7 * WEIGHT // 4])
def test_results_keep_the_order_of_the_items(jobs, weight, platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    for count in (0, 1, BATCH, 3 * BATCH + 1):
        assert list(workers(jobs).map(square, range(count), lost, weight)) == [i * i for i in range(count)]
        assert no_children()


@pytest.mark.parametrize(
    "weights, sizes",
    [
        ([], []),
        ([0] * (BATCH + 1), [BATCH, 1]),
        ([WEIGHT, 1, WEIGHT - 1, 5], [1, 2, 1]),
        ([WEIGHT * 100] * 3, [1, 1, 1]),
    ],
)
def test_batches_are_many_light_items_or_enough_bytes(weights, sizes):
    assert [len(batch) for batch in batches(weights, lambda item: item)] == sizes


def test_without_a_weight_items_go_alone():
    assert list(batches("abc")) == [range(0, 1), range(1, 2), range(2, 3)]


class Refused(Exception):
    """With a field beside its words."""

    def __init__(self, item, because):
        super().__init__(item, because)
        self.item = item


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("weight", [None, light, lambda item: WEIGHT // 5])
def test_an_error_arrives_as_it_is_where_its_item_stood(jobs, weight):
    def refuse(item):
        if item == 3:
            raise Refused(item, "because")
        return item

    results = workers(jobs).map(refuse, range(2 * BATCH), lost, weight)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Refused) as caught:
        next(results)
    assert caught.value.item == 3 and no_children()


def dies_at(*bad, log=None, ending=lambda: os._exit(3)):
    def function(item):
        if log:
            with open(log, "a") as stream:
                stream.write(f"{item}\n")
        if item in bad:
            ending()
        return item * item

    return function


@forks
@pytest.mark.parametrize(
    "ending, words",
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal 9 (Killed)"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "signal 15"),
        (lambda: (faulthandler.disable(), ctypes.string_at(0)), "signal 11"),
        (lambda: os._exit(3), "status 3"),
    ],
    ids=["killed", "terminated", "segmentation fault", "exit"],
)
def test_an_item_that_ends_its_worker_costs_only_itself(ending, words):
    found = list(Processes(2).map(dies_at(7, ending=ending), range(2 * BATCH), lost, light))
    assert found.pop(7).startswith(f"7 lost: {words}")
    assert found == [i * i for i in range(2 * BATCH) if i != 7] and no_children()


@pytest.mark.few(4)
@forks
@pytest.mark.parametrize("jobs", [2, 3, 8])
@pytest.mark.parametrize("bad", [(0,), (299,), (3, 4, 255, 256), range(0, 300, 20)], ids=str)
def test_so_do_several(bad, jobs):
    found = list(Processes(jobs).map(dies_at(*bad), range(300), lost, light))
    assert found == [f"{i} lost: status 3" if i in bad else i * i for i in range(300)] and no_children()


@forks
def test_a_large_item_is_tried_twice(tmp_path):
    found = list(Processes(2).map(dies_at(1, log=tmp_path / "log"), range(3), lost))
    assert found == [0, "1 lost: status 3", 4]
    assert sorted((tmp_path / "log").read_text().split()) == ["0", "1", "1", "2"]


@forks
def test_a_worker_that_dies_once_costs_nothing(tmp_path):
    def once(item):
        if item % 5 == 2 and not (tmp_path / str(item)).exists():
            (tmp_path / str(item)).touch()
            os._exit(1)
        return item * item

    assert list(Processes(2).map(once, range(30), lost)) == [item * item for item in range(30)]
    assert no_children()


@forks
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("refused", [1, 2, 1000])
def test_a_system_that_refuses_a_process_for_a_moment_costs_nothing(monkeypatch, refused, isolated):
    start, refusals = multiprocessing.context.ForkProcess.start, iter(range(refused))

    def refuse(process):
        if next(refusals, None) is not None:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(multiprocessing.context.ForkProcess, "start", refuse)
    found = list(Processes(2, isolated).map(square, range(3), lost))
    is_lost = isolated and refused == 1000
    assert found == [f"{at} lost: no other process can be started" if is_lost else at * at for at in range(3)]
    assert no_children()


@forks
def test_what_cannot_be_sent_is_a_death(capfd):
    def unsendable(item):
        return b"x" * 200_000, (lambda: 0) if item == 1 else None

    found = list(Processes(2).map(unsendable, range(3), lost))
    assert [type(result) for result in found] == [tuple, str, tuple] and "1 lost: status 1" in found[1]
    assert no_children() and capfd.readouterr() == ("", "")


@forks
def test_who_stops_asking_leaves_nobody_behind():
    begun = time.monotonic()
    results = Processes(2).map(lambda item: time.sleep(60 if item else 0), range(8), lost)
    next(results)
    results.close()
    assert time.monotonic() - begun < 30 and no_children()


@forks
def test_results_that_wait_for_an_earlier_one_are_bounded(tmp_path):
    """The first item takes until all that may be begun beside it has been: never the last of them."""
    log, most = tmp_path / "log", 2 * MOST_WAITING + TASKS_PER_WORKER * BATCH

    def slow(item):
        if item == 0:
            size = -1
            while size != (size := log.stat().st_size if log.exists() else 0) or not size:
                time.sleep(0.2)
        else:
            with open(log, "ab") as stream:
                stream.write(b".")
        return item

    results = Processes(2).map(slow, range(2 * most), lost, lambda item: 0 if item else WEIGHT)
    assert next(results) == 0 and log.stat().st_size <= most
    results.close()


AT_WORK = """
import os, sys, time
from npucmp.measure.executor import Processes
def slow(item):
    if item:
        os.write(1, b"%d\\n" % item)
        time.sleep(float(sys.argv[1]))
try:
    list(Processes(2).map(slow, range(4), None))
except KeyboardInterrupt:
    os.write(1, b"interrupted")
"""


def at_work(seconds):
    """A process of that text with a group of its own, as of a terminal, when both workers have begun."""
    words = [sys.executable, "-c", AT_WORK, str(seconds)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert {child.stdout.readline() for _ in range(2)} == {b"1\n", b"2\n"}
    return child


@forks
def test_ctrl_c_ends_all_at_once():
    child = at_work(60)
    os.killpg(child.pid, signal.SIGINT)
    assert child.communicate(timeout=30) == (b"interrupted", b"")  # of the last that holds these pipes


@forks
def test_workers_leave_when_their_parent_was_killed():
    child = at_work(0.5)
    child.kill()
    assert child.communicate(timeout=30)[1] == b""


ANSWERS_UNREAD = """
import os, time
from npucmp.measure.executor import Processes
results = Processes(2).map(lambda item: os.write(1, b"%d\\n" % item) and b"x" * 1_000_000, range(9), None)
next(results)
time.sleep(60)
"""


@forks
@pytest.mark.parametrize("text, seconds", [(AT_WORK, 60), (ANSWERS_UNREAD, 0)], ids=["at a task", "at an answer"])
def test_workers_end_soon_after_their_parent_was_killed(text, seconds):
    words = [sys.executable, "-c", text, str(seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as child:
        for _ in range(2):
            child.stdout.readline()
        child.kill()
        try:
            child.communicate(timeout=10)  # of the last that holds this pipe
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            pytest.fail("a worker is left")


@forks
def test_where_no_process_is_to_be_had(monkeypatch):
    """All, or all but the first, are refused."""
    fork, granted = os.fork, [0]

    def refused():
        granted[0] -= 1
        if granted[0] < 0:
            raise BlockingIOError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", refused)
    for granted[0] in (0, 1):
        assert list(Processes(4).map(square, range(10), lost)) == [item * item for item in range(10)]
    granted[0] = 2
    found = list(Processes(2).map(dies_at(4), range(10), lost))  # it ends both: this process does not try it
    assert found == [f"4 lost: {found[4][8:]}" if i == 4 else i * i for i in range(10)]
    assert no_children()


@forks
def test_a_worker_of_another_pool_forks_nothing():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(list_of_squares) == [item * item for item in range(10)]


def list_of_squares():
    return list(Processes(2).map(square, range(10), lost))


def worker_of(item):
    return os.getpid()


@forks
def test_kept_workers_take_another_function_and_end_with_the_context():
    before = os.listdir("/proc/self/fd")
    pool = Processes(2, isolated=True)
    with pool.kept():
        first = {*pool.map(worker_of, range(10), lost)}
        assert [*pool.map(square, range(10), lost)] == [item * item for item in range(10)]
        assert {*pool.map(worker_of, range(10), lost)} <= first and os.getpid() not in first
        assert [*pool.map(square, range(3), lost)] == [0, 1, 4]
    assert no_children() and os.listdir("/proc/self/fd") == before


@forks
def test_kept_workers_that_cannot_be_sent_their_items_are_replaced():
    pool = Processes(2, isolated=True)
    with pool.kept():
        first = {*pool.map(worker_of, range(10), lost)}
        assert [*pool.map(lambda item: -item, range(10), lost)] == [-item for item in range(10)]
        assert first.isdisjoint(pool.map(worker_of, range(10), lost))
    assert no_children()


@forks
def test_a_kept_worker_that_dies_costs_only_its_item():
    pool = Processes(2, isolated=True)
    with pool.kept():
        assert [*pool.map(square, range(3), lost)] == [0, 1, 4]
        found = [*pool.map(exit_at_four, range(10), lost)]
        assert found[4].startswith("4 lost") and found[5:] == [25, 36, 49, 64, 81]
        assert [*pool.map(square, range(3), lost)] == [0, 1, 4]
    assert no_children()


def exit_at_four(item):
    return os._exit(3) if item == 4 else item * item


@forks
def test_who_stops_asking_kept_workers_leaves_nobody_at_work():
    pool = Processes(2, isolated=True)
    with pool.kept():
        assert next(pool.map(square, range(100), lost)) == 0
        assert [*pool.map(square, range(3), lost)] == [0, 1, 4]
    assert no_children()


@forks
def test_their_pipes_are_closed():
    before = os.listdir("/proc/self/fd")
    assert len(list(Processes(3).map(abs, range(9), lost))) == 9
    assert os.listdir("/proc/self/fd") == before


def test_jobs_are_the_cores_of_this_process():
    assert 1 <= executor.default_jobs() <= (os.cpu_count() or 1)
    assert isinstance(workers(1), Serial)


@forks
@pytest.mark.parametrize("tasks", [3, 4])
def test_few_tasks_are_executed_by_this_process(tasks):
    makers = workers(2, least=4).map(lambda item: os.getpid(), range(tasks), lost)
    assert ({*makers} == {os.getpid()}) == (tasks < 4)
