"""Values that several items share are read once; which executor does the work."""

import os
import sys

import pytest

from npucmp.measure.executor import Processes, Serial, default_jobs, read_distinct, workers


@pytest.mark.parametrize(
    "items, read, again",
    [
        (["a1", "b1", "a2", "c1", "a3", "b2"], ["a1", "b1", "c1"], [False, False, True, False, True, True]),
        (["-1", "-2", "-3"], ["-1", "-2", "-3"], [False] * 3),  # without a key
        (["-1", "a1", "-2", "a2"], ["-1", "a1", "-2"], [False, False, False, True]),
        ([], [], []),
    ],
)
def test_the_first_item_of_a_key_is_read_for_all(items, read, again):
    """The key is the first letter."""
    asked = []

    def results(firsts):
        asked.extend(firsts)
        return (f"result of {one}" for one in firsts)

    found = list(read_distinct(items, lambda one: None if one[0] == "-" else one[0], results))
    first = {one[0]: one for one in reversed(items) if one[0] != "-"}
    assert asked == read and [one for one, _, _ in found] == items and [one for _, _, one in found] == again
    assert [one for _, one, _ in found] == [f"result of {first.get(one[0], one)}" for one in items]


def own_process(item):
    return os.getpid()


def lost(item, reason):
    return reason


@pytest.mark.parametrize(
    "platform, jobs, isolated, kind, here",
    [
        ("linux", 1, False, Serial, True),
        ("linux", 0, False, Serial, True),
        ("linux", 1, True, Processes, False),
        ("linux", 2, False, Processes, True),  # one item is too little work to share
        ("linux", 2, True, Processes, False),
        ("darwin", 2, False, Serial, True),
        ("darwin", 2, True, Serial, True),
    ],
)
def test_worker_processes_are_used_where_a_fork_is_safe(monkeypatch, platform, jobs, isolated, kind, here):
    monkeypatch.setattr(sys, "platform", platform)
    found = workers(jobs, isolated)
    monkeypatch.undo()
    assert type(found) is kind
    assert (list(found.map(own_process, ["x"], lost)) == [os.getpid()]) is here


@pytest.mark.parametrize("cores, jobs", [(6, 6), (None, 1)])
def test_jobs_are_the_cores_of_the_machine_where_no_affinity_is_known(monkeypatch, cores, jobs):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_jobs() == jobs
