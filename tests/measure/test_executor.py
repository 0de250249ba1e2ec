"""Who executes the work does not change what comes out, and a worker that dies takes nothing with it."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from npucmp.measure import executor
from npucmp.measure.executor import BATCH, WEIGHT, batches, run

forks = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def lost(item, because):
    return f"{item} lost: {because}"


def no_children():
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    return True


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, BATCH, 3 * BATCH + 1])
@pytest.mark.parametrize("weight", [None, lambda item: 0, lambda item: item % 7 * WEIGHT // 4])
def test_results_keep_the_order_of_the_items(jobs, count, weight, platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    assert list(run(lambda item: item * item, range(count), lost, jobs, weight)) == [i * i for i in range(count)]
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
    assert list(batches("abc")) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("weight", [None, lambda item: 0, lambda item: WEIGHT // 5])
def test_an_error_arrives_where_its_item_stood(jobs, weight):
    results = run(lambda item: 1 // (item - 3), range(10), lost, jobs, weight)
    assert [next(results) for _ in range(3)] == [-1, -1, -1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert no_children()


@forks
@pytest.mark.parametrize(
    "ending, words", [(signal.SIGKILL, "signal 9 (Killed)"), (signal.SIGTERM, "signal 15"), (3, "")]
)
def test_a_worker_that_dies_costs_its_batch_after_one_retry(ending, words, tmp_path):
    log = tmp_path / "log"

    def square(item):
        if item == 7:
            with open(log, "a") as stream:
                stream.write("7\n")
            if isinstance(ending, signal.Signals):
                os.kill(os.getpid(), ending)
            os._exit(ending)
        return item * item

    found = list(run(square, range(20), lost, 3, lambda item: WEIGHT // 4))
    for item, result in enumerate(found):
        if item in (4, 5, 6, 7):  # its batch
            assert result.startswith(f"{item} lost: ") and (words or "status 3") in result
        else:
            assert result == item * item
    assert log.read_text() == "7\n7\n" and no_children()


@forks
def test_a_worker_that_dies_once_costs_nothing(tmp_path):
    def square(item):
        if item % 5 == 2 and not (tmp_path / str(item)).exists():
            (tmp_path / str(item)).touch()
            os._exit(1)
        return item * item

    assert list(run(square, range(30), lost, 2)) == [item * item for item in range(30)]
    assert no_children()


@forks
def test_what_cannot_be_sent_is_a_death():
    found = list(run(lambda item: (b"x" * 200_000, (lambda: 0) if item == 1 else None), range(3), lost, 2))
    assert [type(result) for result in found] == [tuple, str, tuple] and "1 lost: status 1" in found[1]
    assert no_children()


@forks
def test_who_stops_asking_leaves_nobody_behind():
    begun = time.monotonic()
    results = run(lambda item: time.sleep(60 if item else 0), range(8), lost, 2)
    next(results)
    results.close()
    assert time.monotonic() - begun < 30 and no_children()


@forks
def test_where_no_process_is_to_be_had(monkeypatch):
    """All, or all but the first, are refused."""
    fork, left = os.fork, [0]

    def refused():
        left[0] -= 1
        if left[0] < 0:
            raise BlockingIOError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", refused)
    for left[0] in (0, 1):
        assert list(run(lambda item: item * item, range(10), lost, 4)) == [item * item for item in range(10)]
    assert no_children()


@forks
def test_workers_leave_when_their_parent_was_killed():
    """Each holds the writing end of a pipe: its end is read when the last of them has gone."""
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        results = run(lambda item: time.sleep(0.01), range(10**5), lost, 3)
        next(results)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read() == b""


@forks
def test_their_pipes_are_closed():
    before = os.listdir("/proc/self/fd")
    assert len(list(run(abs, range(9), lost, 3))) == 9
    assert os.listdir("/proc/self/fd") == before


def test_jobs_are_the_cores_of_this_process():
    assert 1 <= executor.default_jobs() <= (os.cpu_count() or 1)
