"""Values that several items share are read once; which executor does the work."""

import os

import pytest

from npucmp.measure.executor import default_jobs


@pytest.mark.parametrize("cores, jobs", [(6, 6), (None, 1)])
def test_jobs_are_the_cores_of_the_machine_where_no_affinity_is_known(monkeypatch, cores, jobs):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_jobs() == jobs
